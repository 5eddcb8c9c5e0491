"""Making a repository of a share, as of the end of any of its log objects.

    manifest, pin | marker | base: snapshot, event files | log objects: frames, small contents | packs | sync
                  | rename root identity | remove marker
                    ^ commit point: until then no repository

What the log objects hold becomes the log of the repository, which its first start replays as after an unclean end: it
finds out how long each content file is, and proves all content in the background. A crash before the commit point
leaves what no `open` takes for a repository, and what the next restoration to the same point goes on with: of the base
what is noted in the marker, and each content whose bytes are there. The log is read again.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Final, NamedTuple

import msgspec

from ullage.contract import ContentRepositorySpec, time_of
from ullage.engine.backupfiles import lies_in
from ullage.engine.content.containers import ContainerDirectory, directories_of
from ullage.engine.files import Files, make_directories
from ullage.engine.flowfile_repository import FLOWFILE
from ullage.engine.model import ContentClaim, Operation
from ullage.engine.opening import IDENTITY, SWAP, RepositoryIdentity, lock_directory
from ullage.engine.registers import PendingErasure, commit_restored
from ullage.engine.restoring import require_empty
from ullage.engine.shipping.adopting import with_adoption
from ullage.engine.shipping.basing import SNAPSHOT_MEMBER
from ullage.engine.shipping.contentpack import read_contents, read_pack_index
from ullage.engine.shipping.history import PACKS_MEMBER, base_head, base_reader, listed_bases
from ullage.engine.shipping.logobject import LogObject, NamedPack
from ullage.engine.shipping.logreader import newest_log, read_log
from ullage.engine.shipping.pinning import pinned
from ullage.engine.shipping.restoredbase import BaseNote, BegunRestoration, RestoredBase, begun_restoration, mark_begun
from ullage.engine.shipping.restoredcontent import RestoredContent
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
from ullage.errors import DirectoryNotEmpty, InvalidArgument, NotABackup, RepositoryDamaged
from ullage.wire.upkeep import BackupReport

OBJECTS_AHEAD: Final = 16
"""Log objects that are fetched at a time."""

Progress = Callable[[int], None]
"""Is told how many bytes more were written."""


class RestorePoint(NamedTuple):
    """The end of a log object, or a base itself: by its number, with its last transaction and when that was."""

    number: int
    transaction: int
    millis: int
    base: ListedBase


class ShareToRestore(NamedTuple):
    """A share that is there, from which base, and through which log object. `asked` is the point as it was said, None
    for the newest, which is the one that was the newest then.
    """

    place: SharePlace
    share: str
    base: ListedBase
    through: int
    asked: int | None

    def begun(self, spec: ContentRepositorySpec) -> BegunRestoration:
        """What a marker says of it."""
        containers = {one.name: one.sub_path for one in spec.storage.containers}
        return BegunRestoration(self.share, self.base, self.asked, self.through, containers)


def share_to_restore(
    place: SharePlace, share: str, point: int | None, begun: BegunRestoration | None = None
) -> ShareToRestore:
    """What a restoration to a point reads, or goes on to read where one was begun. NotABackup: there is no share;
    InvalidArgument: no such point. DirectoryNotEmpty: what was begun is another one.
    """
    bases = listed_bases(place, share)
    if not bases:
        raise NotABackup(f"{place.name} holds no share that can be restored yet: it has no base")
    if begun is not None:
        return _gone_on(place, share, point, begun, bases)
    at = len(bases) - 1
    if point is not None:
        # Where two could do, the one whose log ends there: the other may be as of a later moment.
        serving = (n for n, base in enumerate(bases) if base.next_log <= point + (n == 0))
        at = max(serving, default=-1)
        if at < 0:
            raise InvalidArgument(
                f"{place.name} goes back to the end of log object {bases[0].next_log - 1}, not to {point}"
            )
    through = newest_log(place)
    if at + 1 < len(bases):
        through = bases[at + 1].next_log - 1
    if point is not None:
        through = min(through, point)
    return ShareToRestore(place, share, bases[at], max(through, bases[at].next_log - 1), point)


def _gone_on(
    place: SharePlace, share: str, point: int | None, begun: BegunRestoration, bases: tuple[ListedBase, ...]
) -> ShareToRestore:
    """The same point, though others may have come since: nothing is made of two."""
    if begun.share != share:
        raise DirectoryNotEmpty(
            f"a restoration of share {begun.share} was cut short there: say that one, or remove what is there"
        )
    if point not in (begun.asked, begun.through):
        said = f"to point {begun.through}" if begun.asked is not None else "to what was the newest point then"
        how = f"say --generation {begun.through}" if begun.asked is not None else "leave --generation out"
        raise DirectoryNotEmpty(f"a restoration {said} was cut short there: {how}, or remove what is there")
    if begun.base not in bases:
        raise DirectoryNotEmpty(
            f"a restoration was cut short there, and {place.name} does not keep any more what it began with: remove "
            "what is there, and begin again"
        )
    return ShareToRestore(place, share, begun.base, begun.through, begun.asked)


def restore_points(place: SharePlace, share: str, serde: SerDe) -> Iterator[RestorePoint]:
    """All of them, oldest first; reads the whole log."""
    bases = listed_bases(place, share)
    for at, base in enumerate(bases):
        before = bases[at + 1].next_log if at + 1 < len(bases) else None
        yield RestorePoint(base.next_log - 1, base.transaction, base.millis, base)
        for found in _log(place, share, base, before, serde):
            header = found.header
            yield RestorePoint(header.number, header.last, header.millis, base)


def point_at(place: SharePlace, share: str, millis: int, serde: SerDe) -> int:
    """The newest that is not later than a moment. NotABackup: there is no share; InvalidArgument: all are later."""
    bases = listed_bases(place, share)
    if not bases:
        raise NotABackup(f"{place.name} holds no share that can be restored yet: it has no base")
    at = max((number for number, base in enumerate(bases) if base.millis <= millis), default=-1)
    if at < 0:
        raise InvalidArgument(f"{place.name} goes back to {time_of(bases[0].millis)}, not to {time_of(millis)}")
    number = bases[at].next_log - 1
    for found in _log(place, share, bases[at], bases[at + 1].next_log if at + 1 < len(bases) else None, serde):
        if found.header.millis > millis:
            break
        number = found.header.number
    return number


def identity_in(asked: ShareToRestore) -> RepositoryIdentity:
    """Whose share it is, and which containers it has. RepositoryDamaged."""
    identity, _ = base_head(base_reader(asked.place, asked.base.name, asked.share))
    if identity.repository != asked.share:
        raise RepositoryDamaged(f"{asked.base.name} is of repository {identity.repository}, not of {asked.share}")
    return with_adoption(identity, asked.place, asked.share)


def restore_share(
    files: Files,
    asked: ShareToRestore,
    identity: RepositoryIdentity,
    spec: ContentRepositorySpec,
    told: Progress,
    to_erase: PendingErasure | None = None,
) -> BackupReport:
    """Make the repository where the spec says, every byte checked. DirectoryNotEmpty; RepositoryDamaged;
    ContentMissing; InvalidArgument: the spec lacks a container.
    """
    root = spec.storage.host_path.path
    containers = {container.name: container for container in directories_of(files, spec)}
    if missing := sorted(identity.containers.keys() - containers.keys()):
        raise InvalidArgument(f"the share has containers {', '.join(missing)}: list them in spec.storage.containers")
    asks = asked.begun(spec)
    if _is_begun(files, root, asks) is None:
        require_empty(files, spec, containers)
    make_directories(files, root)
    with closing(lock_directory(files, root)):
        begun = _is_begun(files, root, asks)
        if begun is None:
            mark_begun(files, root, asks)
        with pinned(asked.place, asked.share, asked.base, asked.through):
            restoration = ShareRestoration(files, asked, identity, spec, containers, begun, told)
            try:
                return restoration.run(to_erase)
            finally:
                restoration.close()


def _is_begun(files: Files, root: str, asks: BegunRestoration) -> BegunRestoration | None:
    """What was begun of the same. DirectoryNotEmpty: it is another one."""
    begun = begun_restoration(files, root)
    if begun is not None and not begun.is_same(asks):
        raise DirectoryNotEmpty(
            f"{root} holds part of another restoration, to point {begun.through}, or with containers in other places: "
            "say that one, or remove what is there"
        )
    return begun


class ShareRestoration:
    """One that nothing stands against any more."""

    def __init__(
        self,
        files: Files,
        asked: ShareToRestore,
        identity: RepositoryIdentity,
        spec: ContentRepositorySpec,
        containers: dict[str, ContainerDirectory],
        begun: BegunRestoration | None,
        told: Progress,
    ) -> None:
        self._files = files
        self._asked = asked
        self._identity = identity
        self._spec = spec
        self._root = spec.storage.host_path.path
        self._serde = SerDe()
        self._content = RestoredContent(files, containers, goes_on=begun is not None)
        self._containers = containers
        self._told = told
        self._directories: set[str] = set()
        self._begun = begun
        self._bytes = 0
        self._kept_bytes = 0

    def close(self) -> None:
        self._content.close()

    def run(self, to_erase: PendingErasure | None) -> BackupReport:
        """All of it."""
        files, root, identity = self._files, self._root, self._identity
        self._make_directories()
        packs, base = self._base()
        last, number, millis, log_packs = self._log()
        for pack in (*packs, *log_packs):
            self._take_pack(pack)
        self._content.finish()
        for directory in sorted(self._directories | base.directories | self._content.directories):
            files.sync_directory(directory)
        identity = msgspec.structs.replace(
            identity,
            containers={one.name: one.sub_path for one in self._spec.storage.containers},
            forgotten=(),
        )
        report = BackupReport(
            last_id=last,
            generation=number,
            copied_files=base.written + 1 + self._content.written,
            copied_bytes=self._bytes + base.written_bytes,
            kept_files=base.kept + self._content.kept,
            kept_bytes=self._kept_bytes + base.kept_bytes,
        )
        commit_restored(files, root, identity, report, millis, to_erase)
        return report

    def _make_directories(self) -> None:
        for directory in (FLOWFILE, SWAP):
            make_directories(self._files, os.path.join(self._root, directory))
        for container in self._containers.values():
            container.create(self._identity.repository, FORMAT_VERSION)

    def _base(self) -> tuple[list[NamedPack], RestoredBase]:
        """Write its files; the packs that it needs."""
        asked, begun = self._asked, self._begun
        _, packs = base_head(base_reader(asked.place, asked.base.name, asked.share))
        marked = asked.begun(self._spec)

        def note(noted: BaseNote) -> None:
            mark_begun(self._files, self._root, msgspec.structs.replace(marked, note=noted))

        base = RestoredBase(self._files, self._target, None if begun is None else begun.note, note, self._told)
        base.take(base_reader(asked.place, asked.base.name, asked.share, base.position))
        return packs, base

    def _target(self, member: str) -> str | None:
        """Where a member goes, None of what is made anew. RepositoryDamaged: where no base has one, as somebody may
        forge it.
        """
        if member in (IDENTITY, PACKS_MEMBER):
            return None
        parts = member.split("/")
        path = os.path.join(self._root, *parts)
        in_content = any(lies_in(path, each.path) for each in self._containers.values())
        if member != SNAPSHOT_MEMBER and (len(parts) < 2 or parts[0] in (IDENTITY, FLOWFILE, SWAP) or in_content):
            raise RepositoryDamaged(f"{self._asked.base.name} has a member {member!r}, as no base does")
        make_directories(self._files, os.path.dirname(path))
        return path

    def _count(self, length: int) -> None:
        self._bytes += length
        self._told(length)

    def _log(self) -> tuple[int, int, int, list[NamedPack]]:
        """Write the log; its last transaction, the number and time of the last log object, the packs that it needs."""
        snapshot = os.path.join(self._root, FLOWFILE, SNAPSHOT)
        with closing(RecordReader(self._files, snapshot, SNAPSHOT_MAGIC, SnapshotHeader, self._serde)) as reader:
            header = reader.header
            for block in reader.blocks():
                self._content.note(block)
        asked, base = self._asked, self._asked.base
        if (header.repository, header.last_id) != (self._identity.repository, base.transaction):
            raise RepositoryDamaged(f"{base.name} holds the snapshot of another moment")
        last, number, millis, packs = base.transaction, base.next_log - 1, base.millis, list[NamedPack]()
        with closing(_LogFile(self._files, self._root, header, last, self._serde)) as log:
            self._directories |= log.directories
            for found in _log(asked.place, asked.share, base, asked.through + 1, self._serde):
                last, number, millis = found.header.last, found.header.number, found.header.millis
                packs += found.header.packs
                for id, payload in found.transactions():
                    self._content.note(self._operations(payload, found.header.serde_version, number))
                    log.append(id, payload)
                    self._count(len(payload))
                for each in found.contents:
                    if self._is_wanted(each.claim):
                        self._write(each.claim, iter((bytes(each.data),)))
            log.sync()
        return last, number, millis, packs

    def _operations(self, payload: bytes, version: int, number: int) -> list[Operation]:
        try:
            return self._serde.decode(payload, version).operations
        except UNDECODABLE as error:
            raise RepositoryDamaged(f"log object {number} holds a transaction that does not decode: {error}") from error

    def _take_pack(self, pack: NamedPack) -> None:
        index = read_pack_index(self._asked.place, pack.name, self._asked.share)
        for claim, pieces in read_contents(self._asked.place, index, self._is_wanted):
            self._write(claim, pieces)

    def _is_wanted(self, claim: ContentClaim) -> bool:
        """Whether a content is to be fetched: not where its file is gone at this point, nor where it is there."""
        if not self._content.has(claim.resource):
            return False
        is_there = self._content.is_there(claim)
        if is_there:
            self._kept_bytes += claim.length
            self._told(claim.length)
        return not is_there

    def _write(self, claim: ContentClaim, pieces: Iterator[bytes]) -> None:
        offset = claim.offset
        for piece in pieces:
            self._content.write(claim.resource, offset, piece)
            offset += len(piece)
        self._count(claim.length)


def _log(place: SharePlace, share: str, base: ListedBase, before: int | None, serde: SerDe) -> Iterator[LogObject]:
    """The log objects with transactions behind a base, up to `before` or to the last."""
    for found in read_log(place, share, serde, base, before, ahead=OBJECTS_AHEAD):
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
        if files.exists(path):  # an earlier try made it
            files.unlink(path)
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
