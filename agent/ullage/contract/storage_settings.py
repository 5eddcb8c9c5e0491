"""The contract's section `storage`: where a repository lies (see contract.py)."""

import posixpath
from collections.abc import Iterator
from typing import Annotated, Final

from msgspec import Meta

from ullage.contract.settings import DNS_LABEL, DNS_NAME, Settings
from ullage.contract.units import Quantity

SOCKET_NAME: Final = "ullage.sock"

RESERVED_PATHS: Final = frozenset({"audit", "flowfile", "swap", "provenance", "ullage.json", SOCKET_NAME})
"""What the root keeps for itself: no container may lie there."""


class LocalPersistentVolume(Settings, frozen=True, kw_only=True):
    """A claim of a local volume for each node, kept when everything else is deleted."""

    storage_class_name: Annotated[str, Meta(pattern=DNS_NAME, max_length=253)]
    """The storage class of the local volumes. It must bind a claim when the claim's first pod comes. Immutable."""

    size: Quantity
    """The bytes that each node's volume must have at least. It may grow, but never shrink: claims ask for more then,
    where their class has allowVolumeExpansion, and condition Provisioned says what comes of it."""


class HostPath(Settings, frozen=True, kw_only=True):
    """A directory of the node."""

    path: Annotated[str, Meta(max_length=4096)] = "/var/lib/ullage"
    """The absolute path of the repository's root. The default is where Linux keeps the state of programs. In a cluster
    it must be one of the directories that the operator allows. Immutable."""


_Path = Annotated[str, Meta(min_length=1, max_length=1024)]


class ContainerSettings(Settings, frozen=True, kw_only=True):
    """One directory of content. The repository stripes over its containers, so each is best on a volume of its own."""

    name: Annotated[str, Meta(pattern=DNS_LABEL, max_length=63)]
    """The container's name. It stands in every claim, so it never changes and is never used twice (NiFi: the suffix of
    nifi.content.repository.directory.*)."""

    sub_path: Annotated[str, Meta(min_length=1, max_length=1024)]
    """The directory of content, relative to the root. Mount a volume there (NiFi: the value of
    nifi.content.repository.directory.*)."""

    capacity: Quantity | None = None
    """A quota in bytes that percentages refer to. Null takes the size of the volume. Set it on a volume that is shared
    with others, where a percentage of the volume says nothing about the repository."""

    local_persistent_volume: LocalPersistentVolume | None = None
    """A volume of this container's own on each node, mounted at subPath, beside spec.storage.localPersistentVolume,
    which it needs. A container cannot get one or lose it later: append another, and evacuate this one."""

    mounted: bool = False
    """True makes the container only where a volume is mounted at subPath. Until one is, content goes to the others;
    without this a disk that is not mounted yet would be taken for an empty directory of the root's volume. A container
    with localPersistentVolume is always made so."""

    evacuate: bool = False
    """True empties the container: nothing new is placed in it, what lives is rewritten to other containers within the
    budget, and what is archived goes at once. When nothing is left it may be removed from the list."""


Sections = Annotated[int, Meta(ge=1, le=1024)]
"""Subdirectories of a container."""


class StorageSettings(Settings, frozen=True, kw_only=True):
    """Where the repository lies."""

    host_path: HostPath = HostPath()
    """The directory of the ledger, logs and swap files, with the containers below it. In a cluster each repository has
    a directory of its own below it, `<namespace>/<name>`."""

    local_persistent_volume: LocalPersistentVolume | None = None
    """Local volumes that are claimed, instead of hostPath, in a cluster only. A repository cannot change from one to
    the other."""

    containers: Annotated[tuple[ContainerSettings, ...], Meta(min_length=1, max_length=64)] = (
        ContainerSettings(name="c1", sub_path="c1"),
    )
    """The directories of content. Containers may be appended, and removed once they are evacuated, but never renamed
    (NiFi: nifi.content.repository.directory.*)."""

    provenance_directories: Annotated[tuple[_Path, ...], Meta(max_length=64)] = ()
    """The directories, relative to the root, that provenance event files are striped over. Mount volumes there. Without
    any, event files lie in `provenance/events` (NiFi: nifi.provenance.repository.directory.*)."""

    sections: Sections = 1024
    """The number of subdirectories of each container. The default keeps NiFi's layout; fewer suit small repositories.
    Immutable (NiFi: a constant, the same)."""


def storage_problems(storage: StorageSettings) -> Iterator[str]:
    """The rules that join fields, or that a bare type cannot say."""
    local = storage.local_persistent_volume
    if local is not None and local.size < 1:
        yield "spec.storage.localPersistentVolume.size: must be above 0"
    root = storage.host_path.path
    if not posixpath.isabs(root) or ".." in root.split("/") or "\0" in root:
        yield f"spec.storage.hostPath.path: {root!r} is not an absolute path without '..'"
    names: set[str] = set()
    paths: list[str] = []
    for index, container in enumerate(storage.containers):
        field = f"spec.storage.containers[{index}]"
        if container.name in names:
            yield f"{field}.name: {container.name!r} is used twice"
        yield from _path_problems(f"{field}.subPath", container.sub_path, paths, RESERVED_PATHS, "container")
        if container.capacity is not None and container.capacity < 1:
            yield f"{field}.capacity: must be above 0, or null for the volume"
        yield from _claim_problems(field, container, local)
        names.add(container.name)
    if all(container.evacuate for container in storage.containers):
        yield "spec.storage.containers: one must stay where content can go: not every one can have evacuate: true"
    for index, directory in enumerate(storage.provenance_directories):
        field = f"spec.storage.provenanceDirectories[{index}]"
        yield from _path_problems(field, directory, paths, RESERVED_PATHS - {"provenance"}, "directory")


def _claim_problems(field: str, container: ContainerSettings, root: LocalPersistentVolume | None) -> Iterator[str]:
    own = container.local_persistent_volume
    if own is None:
        return
    if own.size < 1:
        yield f"{field}.localPersistentVolume.size: must be above 0"
    if root is None:
        yield f"{field}.localPersistentVolume: needs spec.storage.localPersistentVolume, for what is no content"
    if "/" in container.sub_path:  # what is between would be made by the kubelet, as root, and be nobody else's
        yield f"{field}.subPath: {container.sub_path!r} must be one name: a volume of its own is mounted there"


def _path_problems(field: str, given: str, taken: list[str], reserved: frozenset[str], other: str) -> Iterator[str]:
    """What is wrong with a path below the root, beside those that are `taken`, to which it is added."""
    path = posixpath.normpath(given)
    if posixpath.isabs(path) or path == "." or ".." in given.split("/") or "\0" in path:
        yield f"{field}: {given!r} is not a directory below the root"
    if path.split("/")[0] in reserved:
        yield f"{field}: {given!r} is where the repository keeps its own files"
    if any(path == each or path.startswith(f"{each}/") or each.startswith(f"{path}/") for each in taken):
        yield f"{field}: {given!r} overlaps another {other}"
    taken.append(path)
