"""Making a repository's directories, and telling them from anything else.

init    ullage.json.partial (uuid) | containers with their identity | empty snapshot | rename to ullage.json
                                                                                       ^ commit point
a crash before it: no repository yet; the next init finds the partial and goes on with the same uuid
"""

import os
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from ullage_agent.contract import ContentRepositorySpec
from ullage_agent.engine.clock import Clock
from ullage_agent.engine.content.containers import Container
from ullage_agent.engine.errors import (
    ForeignContainer,
    NotARepository,
    RepositoryDamaged,
    RepositoryLocked,
    SessionMisuse,
)
from ullage_agent.engine.files import PARTIAL_SUFFIX, File, Files, make_directories, read_file, replace_file
from ullage_agent.engine.model import format_uuid, new_uuids
from ullage_agent.engine.wal.format import FORMAT_VERSION, decode_header
from ullage_agent.engine.wal.serde import SerDe
from ullage_agent.engine.wal.snapshot import PARTIAL, SNAPSHOT, write_empty_snapshot

IDENTITY = "ullage.json"
LOCK = "lock"
FLOWFILE = "flowfile"
SWAP = "swap"


class RepositoryIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the root's `ullage.json`. `containers` maps names to paths below the root."""

    format: int
    repository: str
    created_millis: int
    sections: int
    containers: dict[str, str]


def lock_repository(files: Files, root: str) -> File:
    """The lock that makes this process the repository's only one; RepositoryLocked if another has it.

    Where there is no repository it says so, and leaves no lock file behind.
    """
    if not files.exists(os.path.join(root, IDENTITY)):
        read_identity(files, root)
    return _lock(files, root)


def _lock(files: Files, root: str) -> File:
    try:
        return files.lock(os.path.join(root, LOCK))
    except BlockingIOError as error:
        raise RepositoryLocked(f"{root} is open in another process: close that one, or work through it") from error


def initialize(files: Files, clock: Clock, spec: ContentRepositorySpec, serde: SerDe) -> RepositoryIdentity:
    """Make an empty repository; SessionMisuse if there is one. An interrupted init is resumed."""
    root = spec.storage.host_path.path
    make_directories(files, root)
    lock = _lock(files, root)
    try:
        identity_path = os.path.join(root, IDENTITY)
        if files.exists(identity_path):
            raise SessionMisuse(f"{root} already holds a repository")
        identity = _begin(files, clock, spec, root)
        for container in containers_of(files, spec, identity):
            container.create(identity.repository, FORMAT_VERSION)
        for name in (FLOWFILE, SWAP):
            make_directories(files, os.path.join(root, name))
        write_empty_snapshot(files, os.path.join(root, FLOWFILE), identity.repository, serde, clock.now_millis())
        files.rename(identity_path + PARTIAL_SUFFIX, identity_path)
        files.sync_directory(root)
        return identity
    finally:
        lock.close()


def _begin(files: Files, clock: Clock, spec: ContentRepositorySpec, root: str) -> RepositoryIdentity:
    """Write down the identity before anything carries it, or take up one that an interrupted init wrote."""
    partial = os.path.join(root, IDENTITY + PARTIAL_SUFFIX)
    identity = RepositoryIdentity(
        format=FORMAT_VERSION,
        repository=format_uuid(new_uuids(1)[0]),
        created_millis=clock.now_millis(),
        sections=spec.storage.sections,
        containers={container.name: container.sub_path for container in spec.storage.containers},
    )
    if files.exists(partial):
        try:
            begun = msgspec.json.decode(read_file(files, partial), type=RepositoryIdentity)
            identity = msgspec.structs.replace(identity, repository=begun.repository)
        except msgspec.MsgspecError:
            # Torn before it was synced, so nothing else was made yet: begin anew.
            files.unlink(partial)
    flowfile = os.path.join(root, FLOWFILE)
    if not files.exists(partial) and files.exists(flowfile) and files.list_directory(flowfile):
        raise RepositoryDamaged(
            f"{root} holds a FlowFile repository but no {IDENTITY}: restore that file from a backup, or choose an "
            "empty directory"
        )
    replace_file(files, partial, msgspec.json.encode(identity))
    return identity


def read_identity(files: Files, root: str) -> RepositoryIdentity:
    """The root's identity; NotARepository, RepositoryDamaged or FormatTooNew."""
    path = os.path.join(root, IDENTITY)
    if not files.exists(path):
        if files.exists(path + PARTIAL_SUFFIX):
            raise NotARepository(f"the init of {root} was interrupted: run `ullage init` again to finish it")
        if files.exists(os.path.join(root, FLOWFILE)):
            raise RepositoryDamaged(f"{path} is missing beside a FlowFile repository: restore it from a backup")
        raise NotARepository(f"{root} holds no repository: run `ullage init` first")
    # An init that was killed after its rename, its commit point, may not have come to this.
    files.sync_directory(root)
    return decode_header(read_file(files, path), RepositoryIdentity, path, msgspec.json.decode)


class Opened(NamedTuple):
    """The spec's containers. `lost` are those that are not there, or another one's; `removed` those that the spec no
    longer lists. Whether that may be the ledger must say (`holdings.py`).
    """

    containers: list[Container]
    identity: RepositoryIdentity
    lost: list[tuple[str, ForeignContainer]]
    removed: list[str]

    @property
    def present(self) -> list[Container]:
        lost = {name for name, _ in self.lost}
        return [container for container in self.containers if container.name not in lost]


def open_containers(files: Files, spec: ContentRepositorySpec, identity: RepositoryIdentity) -> Opened:
    """The containers, each proved to be the right one; new ones in the spec are appended to the repository."""
    root = spec.storage.host_path.path
    if spec.storage.sections != identity.sections:
        raise SessionMisuse(
            f"spec.storage.sections is {spec.storage.sections}, but {root} was made with {identity.sections}: it "
            "cannot change"
        )
    wanted = {container.name: container.sub_path for container in spec.storage.containers}
    for name, path in identity.containers.items():
        if wanted.get(name, path) != path:
            raise ForeignContainer(
                f"container {name} of {root} lies at {path}; the spec says {wanted[name]}: it cannot move"
            )
    containers = containers_of(files, spec, identity)
    lost = []
    for container in containers:
        if container.name not in identity.containers:
            container.create(identity.repository, FORMAT_VERSION)
            continue
        try:
            container.require_identity(identity.repository)
        except ForeignContainer as error:
            lost.append((container.name, error))
    known = identity.containers | wanted
    if known != identity.containers:
        identity = write_containers(files, root, identity, known)
    return Opened(containers, identity, lost, [name for name in identity.containers if name not in wanted])


def write_containers(
    files: Files, root: str, identity: RepositoryIdentity, containers: dict[str, str]
) -> RepositoryIdentity:
    """Record, durably, which containers the repository has."""
    identity = msgspec.structs.replace(identity, containers=containers)
    replace_file(files, os.path.join(root, IDENTITY), msgspec.json.encode(identity))
    return identity


def containers_of(files: Files, spec: ContentRepositorySpec, identity: RepositoryIdentity) -> list[Container]:
    """The spec's containers as objects; nothing on disk is looked at."""
    root = spec.storage.host_path.path
    return [
        Container(
            files,
            container.name,
            os.path.join(root, container.sub_path),
            None if container.capacity is None else int(container.capacity),
            identity.sections,
            evacuates=container.evacuate,
        )
        for container in spec.storage.containers
    ]


def require_snapshot(files: Files, root: str, containers: Iterable[Container]) -> None:
    """A repository without its snapshot must not start: NiFi would now delete all content as unknown."""
    directory = os.path.join(root, FLOWFILE)
    if not files.exists(directory):
        files_left = sum(len(container.content_files()) for container in containers)
        raise RepositoryDamaged(
            f"{directory} is missing while {files_left} content files exist: mount its volume or restore it from a "
            "backup; nothing was removed"
        )
    if not any(files.exists(os.path.join(directory, name)) for name in (SNAPSHOT, PARTIAL)):
        raise RepositoryDamaged(
            f"{directory} has no snapshot: restore the directory from a backup; nothing was removed"
        )
