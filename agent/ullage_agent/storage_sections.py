"""The contract's section `storage`: where a repository lies (see contract.py)."""

import posixpath
from collections.abc import Iterator
from typing import Annotated, Final

from msgspec import Meta

from ullage_agent.provenance_sections import directory_problems
from ullage_agent.sections import DNS_LABEL, Section
from ullage_agent.units import Quantity

SOCKET_NAME: Final = "ullage.sock"

RESERVED_PATHS: Final = frozenset({"flowfile", "swap", "provenance", "lock", "ullage.json", SOCKET_NAME})
"""What the root keeps for itself: no container may lie there."""


class LocalPersistentVolume(Section, frozen=True, kw_only=True):
    """A claim for each node, bound to a local volume there and kept when everything else goes."""

    storage_class_name: Annotated[str, Meta(min_length=1, max_length=253)]
    """The storage class of the local volumes; it binds when the first pod comes (NiFi, Ambry: none)."""

    size: Quantity
    """Bytes that each node's volume must have at least (NiFi, Ambry: none)."""


class HostPath(Section, frozen=True, kw_only=True):
    """A directory of the node."""

    path: str = "/var/lib/ullage"
    """The root of the repository, absolute. Immutable. The default is where Linux keeps the state of programs
    (NiFi: none)."""


_Path = Annotated[str, Meta(min_length=1, max_length=1024)]


class Container(Section, frozen=True, kw_only=True):
    """One directory of content, best on a volume of its own: the repository stripes over its containers."""

    name: Annotated[str, Meta(pattern=DNS_LABEL, max_length=63)]
    """Stands in every claim, so it never changes and is never used twice (NiFi: the suffix of
    nifi.content.repository.directory.*)."""

    sub_path: Annotated[str, Meta(min_length=1, max_length=1024)]
    """The directory, below the root; mount a volume there (NiFi: the value of
    nifi.content.repository.directory.*)."""

    capacity: Quantity | None = None
    """A quota in bytes that percentages refer to; null: the size of the volume. On a volume shared with
    others, set it: there a percentage of the volume says nothing about the repository (NiFi: none)."""

    evacuate: bool = False
    """Empty it: nothing new is placed here, what lives is rewritten to other containers within the budget, what is
    archived goes at once. When nothing is left it may be removed from the list (NiFi, Ambry: none)."""


class Storage(Section, frozen=True, kw_only=True):
    """Where the repository lies."""

    host_path: HostPath = HostPath()
    """The root: ledger, logs and swap files, and the containers below it. In a cluster each repository has a directory
    of its own below it, `<namespace>/<name>`."""

    local_persistent_volume: LocalPersistentVolume | None = None
    """Instead of hostPath, in a cluster only: volumes that are claimed. Cannot be changed into the other (NiFi, Ambry:
    none)."""

    containers: Annotated[tuple[Container, ...], Meta(min_length=1, max_length=64)] = (
        Container(name="c1", sub_path="c1"),
    )
    """The directories of content; may be appended; removed once evacuated; never renamed (NiFi:
    nifi.content.repository.directory.*)."""

    provenance_directories: Annotated[tuple[_Path, ...], Meta(max_length=64)] = ()
    """Directories of provenance event files, below the root; mount volumes there and files are striped over them.
    None: `provenance/events` (NiFi: nifi.provenance.repository.directory.*)."""

    sections: Annotated[int, Meta(ge=1, le=1024)] = 1024
    """Sub-directories of each container. Immutable. 1024 is NiFi's constant, and keeps its layout; fewer are
    for small repositories."""


def storage_problems(storage: Storage) -> Iterator[str]:
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
        path = posixpath.normpath(container.sub_path)
        if container.name in names:
            yield f"{field}.name: {container.name!r} is used twice"
        if posixpath.isabs(path) or path == "." or ".." in container.sub_path.split("/") or "\0" in path:
            yield f"{field}.subPath: {container.sub_path!r} is not a directory below the root"
        if path.split("/")[0] in RESERVED_PATHS:
            yield f"{field}.subPath: {container.sub_path!r} is where the repository keeps its own files"
        if any(path == other or path.startswith(f"{other}/") or other.startswith(f"{path}/") for other in paths):
            yield f"{field}.subPath: {container.sub_path!r} overlaps another container"
        if container.capacity is not None and container.capacity < 1:
            yield f"{field}.capacity: must be above 0, or null for the volume"
        names.add(container.name)
        paths.append(path)
    if all(container.evacuate for container in storage.containers):
        yield "spec.storage.containers: one must stay where content can go: not every one can have evacuate: true"
    yield from directory_problems(storage.provenance_directories, paths, RESERVED_PATHS)
