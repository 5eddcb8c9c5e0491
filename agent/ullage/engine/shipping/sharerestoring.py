"""Making a repository of a share, as of the end of any of its log objects.

    manifest, pin | marker | base: snapshot, event files | log objects: frames, small contents | packs | sync
                  | rename root identity | remove marker
                    ^ commit point: until then no repository

What the log objects hold becomes the log of the repository, which its first start replays as after an unclean end: it
finds out how long each content file is, and proves all content in the background. A crash before the commit point
leaves what no `open` takes for a repository: begin again in an empty directory.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Final, NamedTuple

import msgspec

from ullage.contract import ContentRepositorySpec
from ullage.engine.backupfiles import lies_in
from ullage.engine.content.containers import ContainerDirectory, directories_of
from ullage.engine.files import File, Files, make_directories, replace_file
from ullage.engine.flowfile_repository import FLOWFILE
from ullage.engine.model import Operation, ResourceClaim, ResourceClaimGone
from ullage.engine.opening import IDENTITY, RESTORING, SWAP, RepositoryIdentity, lock_directory
from ullage.engine.restoring import require_empty
from ullage.engine.shipping.basing import SNAPSHOT_MEMBER
from ullage.engine.shipping.contentpack import read_pack_index, read_packed
from ullage.engine.shipping.history import PACKS_MEMBER, base_head, base_reader, listed_bases
from ullage.engine.shipping.logobject import LogObject, NamedPack
from ullage.engine.shipping.logreader import read_log
from ullage.engine.shipping.pinning import pinned
from ullage.engine.shipping.sharedocs import ListedBase
from ullage.engine.shipping.shareplace import SharePlace
from ullage.engine.wal.format import (
    FILE_MAGIC,
    FORMAT_VERSION,
    TRANSACTION,
    UNDECODABLE,
    LogHeader,
    pack_file_header,
    pack_frame_header,
    salt_of,
)
from ullage.engine.wal.partition import partition_directory
from ullage.engine.wal.records import RecordReader
from ullage.engine.wal.serde import SerDe
from ullage.engine.wal.snapshot import SNAPSHOT, SNAPSHOT_MAGIC, SnapshotHeader
from ullage.engine.wal.state import RecordDirectory, log_name
from ullage.errors import InvalidArgument, NotABackup, RepositoryDamaged
from ullage.wire.upkeep import BackupReport

OPEN_MAX: Final = 100
"""Content files that are open at a time."""

Progress = Callable[[int], None]
"""Is told how many bytes more were written."""


class RestorePoint(NamedTuple):
    """The end of a log object, or a base itself: by its number, with its last transaction and when that was."""

    number: int
    transaction: int
    millis: int
    base: ListedBase


class ShareToRestore(NamedTuple):
    """A share that is there, from which base, and up to which log object, None for the last."""

    place: SharePlace
    share: str
    base: ListedBase
    before: int | None
    """The log object with which the next base's log begins: none from there on belongs to this one."""

    point: int | None


def share_to_restore(place: SharePlace, share: str, point: int | None) -> ShareToRestore:
    """What a restoration to a point reads. NotABackup: there is no share; InvalidArgument: no such point."""
    bases = listed_bases(place, share)
    if not bases:
        raise NotABackup(f"{place.name} holds no share that can be restored yet: it has no base")
    at = len(bases) - 1
    if point is not None:
        # Where two could do, the one whose log ends there: the other may be as of a later moment.
        serving = (n for n, base in enumerate(bases) if base.next_log <= point + (n == 0))
        at = max(serving, default=-1)
        if at < 0:
            raise InvalidArgument(
                f"{place.name} goes back to the end of log object {bases[0].next_log - 1}, not to {point}"
            )
    before = bases[at + 1].next_log if at + 1 < len(bases) else None
    return ShareToRestore(place, share, bases[at], before, point)


def restore_points(place: SharePlace, share: str, serde: SerDe) -> Iterator[RestorePoint]:
    """All of them, oldest first; reads the whole log."""
    bases = listed_bases(place, share)
    for at, base in enumerate(bases):
        before = bases[at + 1].next_log if at + 1 < len(bases) else None
        yield RestorePoint(base.next_log - 1, base.transaction, base.millis, base)
        for found in _log(ShareToRestore(place, share, base, before, None), serde):
            header = found.header
            yield RestorePoint(header.number, header.last, header.millis, base)


def identity_in(asked: ShareToRestore) -> RepositoryIdentity:
    """Whose share it is, and which containers it has. RepositoryDamaged."""
    identity, _ = base_head(base_reader(asked.place, asked.base.name, asked.share))
    if identity.repository != asked.share:
        raise RepositoryDamaged(f"{asked.base.name} is of repository {identity.repository}, not of {asked.share}")
    return identity


def restore_share(
    files: Files, asked: ShareToRestore, identity: RepositoryIdentity, spec: ContentRepositorySpec, told: Progress
) -> BackupReport:
    """Make the repository where the spec says, every byte checked. DirectoryNotEmpty; RepositoryDamaged;
    ContentMissing; InvalidArgument: the spec lacks a container.
    """
    root = spec.storage.host_path.path
    containers = {container.name: container for container in directories_of(files, spec)}
    if missing := sorted(identity.containers.keys() - containers.keys()):
        raise InvalidArgument(f"the share has containers {', '.join(missing)}: list them in spec.storage.containers")
    require_empty(files, spec, containers)
    make_directories(files, root)
    with closing(lock_directory(files, root)):
        replace_file(files, os.path.join(root, RESTORING), asked.base.name.encode())
        restoration = _ShareRestoration(files, asked, identity, spec, containers, told)
        try:
            with pinned(asked.place, asked.share, asked.base, asked.point or 0):
                return restoration.run()
        finally:
            restoration.close()


class _ShareRestoration:
    """One that nothing stands against any more."""

    def __init__(
        self,
        files: Files,
        asked: ShareToRestore,
        identity: RepositoryIdentity,
        spec: ContentRepositorySpec,
        containers: dict[str, ContainerDirectory],
        told: Progress,
    ) -> None:
        self._files = files
        self._asked = asked
        self._identity = identity
        self._spec = spec
        self._root = spec.storage.host_path.path
        self._serde = SerDe()
        self._content = _ContentFiles(files, containers)
        self._containers = containers
        self._told = told
        self._directories: set[str] = set()
        self._written = 0
        self._bytes = 0

    def close(self) -> None:
        self._content.close()

    def run(self) -> BackupReport:
        """All of it."""
        files, root, identity = self._files, self._root, self._identity
        for directory in (FLOWFILE, SWAP):
            make_directories(files, os.path.join(root, directory))
        for container in self._containers.values():
            container.create(identity.repository, FORMAT_VERSION)
        packs = self._base()
        last, number, log_packs = self._log()
        for pack in (*packs, *log_packs):
            self._take_pack(pack)
        self._content.finish()
        for directory in sorted(self._directories | self._content.directories):
            files.sync_directory(directory)
        identity = msgspec.structs.replace(
            identity,
            containers={one.name: one.sub_path for one in self._spec.storage.containers},
            forgotten=(),
        )
        # Last: until it is there an `open` finds no repository.
        replace_file(files, os.path.join(root, IDENTITY), msgspec.json.encode(identity))
        files.unlink(os.path.join(root, RESTORING))
        files.sync_directory(root)
        written = self._written + self._content.count
        return BackupReport(
            last_id=last,
            generation=number,
            copied_files=written,
            copied_bytes=self._bytes,
            kept_files=0,
            kept_bytes=0,
        )

    def _base(self) -> list[NamedPack]:
        """Write its files; the packs that it needs."""
        asked, packs = self._asked, b""
        target: File | None = None
        current, offset = "", 0
        try:
            for name, piece in base_reader(asked.place, asked.base.name, asked.share).members():
                if name == PACKS_MEMBER:
                    packs += piece
                if name in (IDENTITY, PACKS_MEMBER):
                    continue
                if name != current:
                    _finish(target)
                    target, current, offset = self._create(self._target(name)), name, 0
                assert target is not None, "it was just made"
                if piece:
                    target.write(piece, offset)
                offset += len(piece)
                self._count(len(piece))
            _finish(target)
            target = None
        finally:
            if target is not None:
                target.close()
        try:
            return msgspec.json.decode(packs, type=list[NamedPack])
        except UNDECODABLE as error:
            raise RepositoryDamaged(f"{asked.base.name} does not say which packs it needs: {error}") from error

    def _target(self, member: str) -> str:
        """Where a member goes. RepositoryDamaged: where no base has one, as somebody may forge it."""
        parts = member.split("/")
        path = os.path.join(self._root, *parts)
        in_content = any(lies_in(path, each.path) for each in self._containers.values())
        if member != SNAPSHOT_MEMBER and (len(parts) < 2 or parts[0] in (IDENTITY, FLOWFILE, SWAP) or in_content):
            raise RepositoryDamaged(f"{self._asked.base.name} has a member {member!r}, as no base does")
        make_directories(self._files, os.path.dirname(path))
        return path

    def _create(self, path: str) -> File:
        self._directories.add(os.path.dirname(path))
        self._written += 1
        if self._files.exists(path):
            raise RepositoryDamaged(f"{self._asked.base.name} has a member twice: {path}")
        return self._files.create(path)

    def _count(self, length: int) -> None:
        self._bytes += length
        self._told(length)

    def _log(self) -> tuple[int, int, list[NamedPack]]:
        """Write the log; its last transaction, the number of the last log object, and the packs that it needs."""
        snapshot = os.path.join(self._root, FLOWFILE, SNAPSHOT)
        with closing(RecordReader(self._files, snapshot, SNAPSHOT_MAGIC, SnapshotHeader, self._serde)) as reader:
            header = reader.header
            for block in reader.blocks():
                self._content.note(block)
        base = self._asked.base
        if (header.repository, header.last_id) != (self._identity.repository, base.transaction):
            raise RepositoryDamaged(f"{base.name} holds the snapshot of another moment")
        last, number, packs = base.transaction, base.next_log - 1, list[NamedPack]()
        with closing(_LogFile(self._files, self._root, header, last, self._serde)) as log:
            self._directories |= log.directories
            for found in _log(self._asked, self._serde):
                last, number = found.header.last, found.header.number
                packs += found.header.packs
                for id, payload in found.transactions():
                    self._content.note(self._operations(payload, found.header.serde_version, number))
                    log.append(id, payload)
                    self._count(len(payload))
                for each in found.contents:
                    self._content.write(each.claim.resource, each.claim.offset, bytes(each.data))
                    self._count(each.claim.length)
            log.sync()
        self._written += 1
        return last, number, packs

    def _operations(self, payload: bytes, version: int, number: int) -> list[Operation]:
        try:
            return self._serde.decode(payload, version).operations
        except UNDECODABLE as error:
            raise RepositoryDamaged(f"log object {number} holds a transaction that does not decode: {error}") from error

    def _take_pack(self, pack: NamedPack) -> None:
        index = read_pack_index(self._asked.place, pack.name, self._asked.share)
        for claim in index.places:
            if not self._content.has(claim.resource):
                continue  # its file is gone at this point, and with it all that lived there
            offset = claim.offset
            for piece in read_packed(self._asked.place, index, claim):
                self._content.write(claim.resource, offset, piece)
                offset += len(piece)
            self._count(claim.length)


def _log(asked: ShareToRestore, serde: SerDe) -> Iterator[LogObject]:
    """The log objects with transactions up to the point."""
    end = asked.before
    if asked.point is not None and (end is None or asked.point + 1 < end):
        end = asked.point + 1
    for found in read_log(asked.place, asked.share, serde, asked.base, end):
        if not found.header.is_fence:
            yield found


class _LogFile:
    """The log of a repository that is being made: one partition, one file."""

    def __init__(self, files: Files, root: str, snapshot: SnapshotHeader, last: int, serde: SerDe) -> None:
        directory = partition_directory(os.path.join(root, FLOWFILE), 0)
        make_directories(files, directory)
        path = os.path.join(directory, f"{last + 1:020d}.wal")
        place = RecordDirectory(files, directory, snapshot.repository, serde)
        salt = salt_of(snapshot.salt_key, log_name(path))
        header = place.header(LogHeader, partition=0, sequence=1, previous_last_id=last, salt=salt)
        self.directories = {directory, os.path.dirname(directory)}
        self._salt = header.salt_number
        self._file = files.create(path)
        packed = pack_file_header(FILE_MAGIC, msgspec.msgpack.encode(header))
        self._file.write(packed, 0)
        self._offset = len(packed)

    def append(self, id: int, payload: bytes) -> None:
        """One transaction more. It was proved durable where it was committed; here nothing is yet."""
        head = pack_frame_header(TRANSACTION, id, 0, 0, payload, self._salt ^ self._offset)
        self._file.write(head + payload, self._offset)
        self._offset += len(head) + len(payload)

    def sync(self) -> None:
        self._file.sync()

    def close(self) -> None:
        self._file.close()


class _ContentFiles:
    """Content files that are being made: each resource claim that there is has one, if only an empty one."""

    def __init__(self, files: Files, containers: dict[str, ContainerDirectory]) -> None:
        self._files = files
        self._containers = containers
        self._claims: dict[int, ResourceClaim] = {}
        self._open: dict[int, File] = {}
        self._made: dict[int, str] = {}
        self.directories: set[str] = set()

    @property
    def count(self) -> int:
        """How many files were made."""
        return len(self._made)

    def note(self, operations: list[Operation]) -> None:
        """Which resource claims there are."""
        for operation in operations:
            if isinstance(operation, ResourceClaim):
                if operation.container not in self._containers:
                    raise RepositoryDamaged(
                        f"resource claim {operation.index} lies in {operation.container!r}, which is no container"
                    )
                self._claims[operation.index] = operation
            elif isinstance(operation, ResourceClaimGone):
                self._claims.pop(operation.index, None)
                self._discard(operation.index)

    def has(self, resource: int) -> bool:
        """Whether there is such a resource claim."""
        return resource in self._claims

    def write(self, resource: int, offset: int, data: bytes) -> None:
        """Bytes of a resource claim that there is."""
        if self.has(resource):
            self._file(resource).write(data, offset)

    def finish(self) -> None:
        """Make the files that have no content here, and have all of them synced."""
        for resource in self._claims:
            if resource not in self._made:
                self._file(resource)
        self.close()

    def close(self) -> None:
        for resource in list(self._open):
            _finish(self._open.pop(resource))

    def _file(self, resource: int) -> File:
        file = self._open.pop(resource, None)
        if file is None:
            if len(self._open) >= OPEN_MAX:
                _finish(self._open.pop(next(iter(self._open))))
            file = self._opened(resource)
        self._open[resource] = file  # the last that was used is the last to go
        return file

    def _opened(self, resource: int) -> File:
        if resource in self._made:
            return self._files.open(self._made[resource], writable=True)
        claim = self._claims[resource]
        container = self._containers[claim.container]
        path = container.live_path(claim)
        container.ensure_directory(os.path.dirname(path))
        self.directories.add(os.path.dirname(path))
        self._made[resource] = path
        return self._files.create(path)

    def _discard(self, resource: int) -> None:
        if (file := self._open.pop(resource, None)) is not None:
            file.close()
        if (path := self._made.pop(resource, None)) is not None:
            self._files.unlink(path)


def _finish(file: File | None) -> None:
    if file is not None:
        file.sync()
        file.close()
