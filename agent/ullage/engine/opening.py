"""Making a repository's directories, and telling them from anything else.

init    ullage.json.partial (uuid) | containers with their identity | empty snapshot | rename to ullage.json
                                                                                       ^ commit point
a crash before it: no repository yet; the next init finds the partial and goes on with the same uuid
"""

import os
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from ullage.clock import Clock
from ullage.contract import ContentRepositorySpec, Sections
from ullage.engine.content.containers import LOST_AND_FOUND, Container
from ullage.engine.files import (
    PARTIAL_SUFFIX,
    File,
    Files,
    discard_partial,
    make_directories,
    read_file,
    replace_file,
)
from ullage.engine.flowfile_repository import FLOWFILE
from ullage.engine.model import IndexCeiling, format_uuid, new_uuids
from ullage.engine.parts import RepositoryParts
from ullage.engine.repositories import ContentStore, chosen
from ullage.engine.wal.format import FORMAT_VERSION, decode_header
from ullage.engine.wal.serde import SerDe
from ullage.engine.wal.snapshot import PARTIAL, SNAPSHOT, write_first_snapshot
from ullage.engine.wal.state import RecordDirectory
from ullage.errors import (
    ForeignContainer,
    FormatTooNew,
    InvalidArgument,
    NotARepository,
    RepositoryDamaged,
    RepositoryExists,
    RepositoryLocked,
)

IDENTITY = "ullage.json"
SWAP = "swap"
SALVAGING = "salvage.partial"
"""In the root of a repository that a salvage fills, until all is there."""
RESTORING = "restore.partial"
"""The same, that a restoration fills."""
ERASING = "erase.partial"
"""In the root of a repository that was restored, until what a register names is erased from it."""


class RepositoryIdentity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of the root's `ullage.json`. `containers` maps names to paths below the root; `implementations` says
    which content, FlowFile and provenance repository it was made with, where that is not ours; `forgotten` are names of
    containers whose loss was accepted, which no volume gets again; `adoption` is the last one of its share in a bucket
    that this root was made after, "" if there was none.
    """

    format: int
    repository: str
    created_millis: int
    sections: Sections
    containers: dict[str, str]
    implementations: dict[str, str] = {}
    forgotten: tuple[str, ...] = ()
    adoption: str = ""


def implementations_of(spec: ContentRepositorySpec) -> dict[str, str]:
    """The repositories that are not ours, by the setting that names them."""
    named = {
        "content.repository": spec.content.repository,
        "flowFile.repository": spec.flow_file.repository,
        "provenance.repository": spec.provenance.repository,
    }
    return {setting: name for setting, name in named.items() if name}


def lock_repository(files: Files, root: str, *, is_salvage: bool = False) -> File:
    """The lock that makes this process the repository's only one; RepositoryLocked if another has it.

    Where there is no repository it says so; one that a salvage or a restoration did not finish is for that alone.
    """
    if not is_salvage and files.exists(os.path.join(root, SALVAGING)):
        raise NotARepository(
            f"the salvage into {root} is under way or was cut short: where nobody runs it any more, remove what is "
            "there and run `ullage salvage` again"
        )
    if not is_salvage and files.exists(os.path.join(root, IDENTITY)):
        _require_erased(files, root)
    if not files.exists(os.path.join(root, IDENTITY)):
        if files.exists(os.path.join(root, RESTORING)):
            raise NotARepository(
                f"the restoration into {root} is under way or was cut short: run `ullage restore` again, from the same "
                "place, and it goes on"
            )
        read_identity(files, root)  # raises what is wrong
    return lock_directory(files, root)


def _require_erased(files: Files, root: str) -> None:
    if files.exists(os.path.join(root, ERASING)):
        raise NotARepository(
            f"{root} was restored, and what a register names is not erased from it yet: run `ullage restore` again, "
            "from the same place, and it goes on"
        )


def lock_directory(files: Files, root: str) -> File:
    """The same lock, whatever lies there."""
    try:
        return files.lock(root)
    except BlockingIOError as error:
        raise RepositoryLocked(f"{root} is open in another process: close that one, or work through it") from error


class Predecessor(NamedTuple):
    """What must not be numbered twice, because events name it: the last transaction of the repository that the new one
    takes the place of, and the last index of a resource claim.
    """

    last_id: int
    index_ceiling: int


NONE_BEFORE = Predecessor(0, 0)


def initialize(
    files: Files, clock: Clock, spec: ContentRepositorySpec, after: Predecessor = NONE_BEFORE
) -> RepositoryIdentity:
    """Make an empty repository; an interrupted init is resumed. RepositoryExists if there is one; UnknownPlugin if the
    spec names an implementation that there is not.
    """
    make_content = chosen(spec).content
    root = spec.storage.host_path.path
    make_directories(files, root)
    lock = lock_directory(files, root)
    try:
        identity_path = os.path.join(root, IDENTITY)
        if files.exists(identity_path):
            _require_erased(files, root)  # by whom one is made where none opens this is told
            raise RepositoryExists(f"{root} already holds a repository")
        identity = _begin(files, clock, spec, root)
        parts = RepositoryParts(files, clock, spec, SerDe(), identity.repository)
        make_content(parts, lambda _ceiling: None).prepare({})
        for name in (FLOWFILE, SWAP):
            make_directories(files, os.path.join(root, name))
        if not spec.flow_file.repository:
            log = RecordDirectory(files, os.path.join(root, FLOWFILE), identity.repository, parts.serde)
            records = [IndexCeiling(after.index_ceiling)] if after.index_ceiling else []
            write_first_snapshot(log, clock.now_millis(), after.last_id, records)
        # Everything that the identity promises is there and durable: from here on its absence is damage.
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
        implementations=implementations_of(spec),
    )
    if files.exists(partial):
        try:
            # The same uuid: containers that the interrupted init made carry it, and would be foreign to another.
            begun = msgspec.json.decode(read_file(files, partial), type=RepositoryIdentity)
            identity = msgspec.structs.replace(identity, repository=begun.repository)
        except msgspec.MsgspecError:
            # Torn before it was synced, so nothing else was made yet: begin anew.
            files.unlink(partial)
    # Not by an init that was interrupted, which would have left its partial: somebody's repository lost its identity.
    flowfile = os.path.join(root, FLOWFILE)
    if not files.exists(partial) and files.exists(flowfile) and set(files.list_directory(flowfile)) - {LOST_AND_FOUND}:
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


def identity_problems(files: Files, root: str, identity: RepositoryIdentity) -> list[str]:
    """What `check --deep` has to say of the root's identity file, which should say what was read from it or written."""
    path = os.path.join(root, IDENTITY)
    try:
        if read_identity(files, root) == identity:
            return []
    except (NotARepository, RepositoryDamaged, FormatTooNew) as error:
        return [str(error)]
    return [f"{path} is not what was written there: restore it from a backup before the repository is closed"]


def require_made_with(spec: ContentRepositorySpec, identity: RepositoryIdentity) -> None:
    """InvalidArgument, or ForeignContainer, if the spec says another thing of what cannot change."""
    root = spec.storage.host_path.path
    if spec.storage.sections != identity.sections:
        raise InvalidArgument(
            f"spec.storage.sections is {spec.storage.sections}, but {root} was made with {identity.sections}: it "
            "cannot change"
        )
    named = implementations_of(spec)
    for setting in sorted(named.keys() | identity.implementations.keys()):
        made_with, name = identity.implementations.get(setting, ""), named.get(setting, "")
        if made_with != name:
            raise InvalidArgument(
                f"spec.{setting} is {name!r}, but {root} was made with {made_with!r}: it cannot change"
            )
    for container in spec.storage.containers:
        path = identity.containers.get(container.name, container.sub_path)
        if path != container.sub_path:
            raise ForeignContainer(
                f"container {container.name} of {root} lies at {path}; the spec says {container.sub_path}: it cannot "
                "move"
            )


def open_containers(
    files: Files, spec: ContentRepositorySpec, identity: RepositoryIdentity, content: ContentStore
) -> RepositoryIdentity:
    """Find the containers, each by its identity; new ones in the spec are appended to the repository, unless they can't
    be made.
    """
    # What a start with a new container, or one that gave a volume up, was about to write when it failed or was killed.
    discard_partial(files, os.path.join(spec.storage.host_path.path, IDENTITY))
    content.prepare(identity.containers, identity.forgotten)
    known = identity.containers | {
        container.name: container.sub_path
        for container in spec.storage.containers
        if container.name not in identity.forgotten and not content.containers[container.name].unmade
    }
    if known == identity.containers:
        return identity
    # After they were made: a crash between the two leaves directories that the next start takes up as they are.
    return write_containers(files, spec.storage.host_path.path, identity, known)


def write_containers(
    files: Files,
    root: str,
    identity: RepositoryIdentity,
    containers: dict[str, str],
    forgotten: tuple[str, ...] | None = None,
) -> RepositoryIdentity:
    """Record, durably, which containers the repository has, and which it has no more."""
    forgotten = identity.forgotten if forgotten is None else forgotten
    identity = msgspec.structs.replace(identity, containers=containers, forgotten=forgotten)
    replace_file(files, os.path.join(root, IDENTITY), msgspec.json.encode(identity))
    return identity


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
            f"{directory} has no snapshot: is its volume mounted? Mount it, or restore the directory from a backup; "
            "nothing was removed"
        )
