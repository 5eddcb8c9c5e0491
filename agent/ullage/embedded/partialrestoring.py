"""Some of what a backup or a share holds, in a repository of its own: queues, or single FlowFiles and handles.

fetch the records into `scratch` | choose | make a repository of them, as a salvage does, content read where it lies

Of content no more is fetched than what is chosen has. The repository is a new one, with a uuid of its own; what is in
it keeps its ids, its attributes, its content, and its order.
"""

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from ullage.clock import Clock
from ullage.contract import ContentRepository, ContentRepositorySpec
from ullage.embedded.repository import open_embedded
from ullage.engine.backupdirectory import write_pieces
from ullage.engine.backupfiles import BackupManifest
from ullage.engine.backupplace import MANIFEST, BackupPlace
from ullage.engine.check.salvage import survey
from ullage.engine.check.salvagecontent import FoundFiles, SalvagedContent
from ullage.engine.check.salvageevents import SalvagedEvents
from ullage.engine.check.salvagestate import SalvagedState
from ullage.engine.erasure.subject import DigestedSubjects
from ullage.engine.files import Files, OsFiles, make_directories
from ullage.engine.flowfile_repository import FLOWFILE
from ullage.engine.ledger.remembered import RememberedAnswers
from ullage.engine.model import HANDLE_QUEUE, ContentClaim, FlowFileRecord
from ullage.engine.opening import SWAP, RepositoryIdentity
from ullage.engine.registers import RegisteredSubject, RestoredMoment, merged
from ullage.engine.restoring import Progress
from ullage.engine.salvaging import Salvager, decided, filled_repository, require_empty
from ullage.engine.shipping.contentpack import PackIndex
from ullage.engine.shipping.sharerecords import fetch_records, packed
from ullage.engine.shipping.sharerestoring import ShareToRestore
from ullage.engine.wal.failingdisk import FailingDisk
from ullage.engine.wal.serde import SerDe
from ullage.engine.wal.snapshot import SNAPSHOT
from ullage.errors import NotFound, RepositoryDamaged
from ullage.interface.repository import Bytes
from ullage.wire.upkeep import PartialRestoration

RECORDS: Final = ".ullage-records-"
"""How the names of directories begin in which records lie while some of them are chosen."""

KEPT_BYTES: Final = 8 << 20
"""A content up to this size is fetched once, though it is read twice: to be proved, and to be written."""


class WantedRecords(NamedTuple):
    """Names of queues, and ids of FlowFiles and handles, but for those of whom a register names."""

    queues: Collection[str]
    ids: Collection[str]
    erased: Sequence[RegisteredSubject] = ()

    def as_of(self, moment: RestoredMoment, erased: Sequence[RegisteredSubject] = ()) -> "WantedRecords":
        """The same as of a moment: but for whom was erased since then. `erased`: also named."""
        return self._replace(erased=[each for each in merged(self.erased, erased) if each.is_in(moment)])


def restore_some(
    place: BackupPlace,
    manifest: BackupManifest,
    spec: ContentRepositorySpec,
    wanted: WantedRecords,
    scratch: str,
    on_progress: Progress,
    files: Files | None = None,
    clock: Clock | None = None,
) -> Salvager:
    """Make a repository where the spec says of what is wanted of a generation that is being read, and say what came of
    it; `scratch` is an empty directory for its records. NotFound, and nothing is made, where the backup lacks something
    of it; DirectoryNotEmpty; RepositoryDamaged: records are not as they were written.
    """
    files, clock = files or OsFiles(), clock or Clock()
    require_empty(files, spec, os.path.basename(scratch))
    _fetch_records(files, place, manifest, scratch)
    disk = FailingDisk(files)
    state = _chosen(files, disk, scratch, wanted, f"generation {manifest.sequence} of {place.name}")
    content = _PlacedContent(place.read, {file.resource: (file.lies_at,) for file in manifest.contents}, disk, state)
    return filled_repository(files, clock, spec, state, content, on_progress)


def restore_some_shipped(
    asked: ShareToRestore,
    identity: RepositoryIdentity,
    spec: ContentRepositorySpec,
    wanted: WantedRecords,
    scratch: ContentRepositorySpec,
    on_progress: Progress,
) -> tuple[Salvager, int]:
    """The same of a share that is pinned, as of a point, and the number of that; `scratch` says where records go."""
    files, place, directory = OsFiles(), asked.place, scratch.storage.host_path.path
    require_empty(files, spec, os.path.basename(directory))
    fetched = fetch_records(files, asked, identity, scratch, lambda _: None)
    disk = FailingDisk(files)
    state = _chosen(files, disk, directory, wanted, f"point {fetched.number} of {place.name}")
    claims = {record.claim for record in state.records.values() if record.claim is not None}
    content = _SharedContent(
        place.read, FoundFiles(files, directory).content, disk, state, packed(asked, fetched.packs, claims)
    )
    return filled_repository(files, Clock(), spec, state, content, on_progress), fetched.number


@contextmanager
def records_beside(root: str) -> Iterator[str]:
    """An empty directory for the records, until the end of the block: where a repository is made there is room, and
    what holds the records of a large one does not fit into a folder in memory. In the root itself where nothing may be
    written beside it, as in a pod, whose root is a volume in an image that nobody writes.
    """
    os.makedirs(os.path.dirname(root), exist_ok=True)
    try:
        made = tempfile.TemporaryDirectory(prefix=RECORDS, dir=os.path.dirname(root))
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        os.makedirs(root, exist_ok=True)
        for name in os.listdir(root):  # of one that was killed: it would keep the root from being empty for ever
            if name.startswith(RECORDS):
                shutil.rmtree(os.path.join(root, name))
        made = tempfile.TemporaryDirectory(prefix=RECORDS, dir=root)
    with made as scratch:
        yield scratch


def partial_report(
    document: ContentRepository, generation: int, made: Salvager, on_progress: Bytes | None
) -> PartialRestoration:
    """What came of it, everything checked."""
    with open_embedded(None, document, create=False, maintain=False) as repository:
        return PartialRestoration(
            generation=generation,
            queues=dict(sorted(made.queues.items())),
            handles=made.handles,
            bytes=made.bytes,
            lost=tuple(made.lost),
            lost_count=made.lost_count,
            erased=made.erased,
            check=repository.check(deep=True, on_progress=on_progress),
        )


def _fetch_records(files: Files, place: BackupPlace, manifest: BackupManifest, scratch: str) -> None:
    """Snapshot, swap files and runs, verified, as they lie in a repository."""
    for directory in (FLOWFILE, SWAP):
        make_directories(files, os.path.join(scratch, directory))
    for file in (manifest.snapshot, *manifest.swaps, *manifest.runs):
        directory = os.path.join(scratch, file.directory or (FLOWFILE if file.name == SNAPSHOT else SWAP))
        make_directories(files, directory)
        pieces = place.pieces(file.lies_at, file.length)
        if write_pieces(files, os.path.join(directory, file.name), pieces).crc != file.crc:
            where = f"{place.name}/{file.lies_at}"
            raise RepositoryDamaged(f"{where} does not match its checksum in {MANIFEST}: use another generation")


def _chosen(files: Files, disk: FailingDisk, scratch: str, wanted: WantedRecords, where: str) -> SalvagedState:
    """What is wanted of the records that were fetched."""
    found = survey(files, scratch, disk)
    if not found.is_whole or found.repository is None:
        raise RepositoryDamaged(f"the records of {where} are not whole")
    state = decided(disk, found, SalvagedEvents(files, disk, scratch, found.repository, ()), SerDe())
    _choose(state, wanted, where)
    return state


def _choose(state: SalvagedState, wanted: WantedRecords, where: str) -> None:
    """Leave nothing else there."""
    numbers = {queue.number: queue.name for queue in state.queues.values()}
    if lacking := sorted(set(wanted.queues) - set(numbers.values())):
        there = ", ".join(sorted(numbers.values())) or "none"
        raise NotFound(f"{where} has no queue {lacking[0]!r}; it has: {there}")

    erased = DigestedSubjects(wanted.erased)

    def is_said(record: FlowFileRecord) -> bool:
        return record.id in wanted.ids or numbers.get(record.queue) in wanted.queues

    said = {uuid: record for uuid, record in state.records.items() if is_said(record)}
    state.records = {uuid: record for uuid, record in said.items() if erased.is_empty or not erased.has(record)}
    state.erased = len(said) - len(state.records)
    if lacking := sorted(set(wanted.ids) - {record.id for record in state.records.values()}):
        is_there = lacking[0] in {record.id for record in said.values()}
        why = " that may be restored: a register of erasures names whom it is of" if is_there else ""
        raise NotFound(f"{where} has no FlowFile or handle {lacking[0]}{why}")
    used = {record.queue for record in state.records.values()} - {HANDLE_QUEUE}
    state.held = {uuid: why for uuid, why in state.held.items() if uuid in state.records}
    state.queues = {
        number: queue for number, queue in state.queues.items() if number in used or queue.name in wanted.queues
    }
    state.answers = RememberedAnswers()  # of requests to the repository that was backed up


class _PlacedContent(SalvagedContent):
    """Content that is read where it lies: bytes of an object by its path, offset and count, fewer only at its end."""

    def __init__(
        self,
        read: Callable[[str, int, int], bytes],
        paths: Mapping[int, Sequence[str]],
        disk: FailingDisk,
        state: SalvagedState,
    ) -> None:
        super().__init__(disk, paths, state.moves)
        self._read = read
        self._kept: tuple[tuple[str, int, int], bytes] = (("", 0, 0), b"")

    def pieces(self, path: str, offset: int, length: int) -> Iterator[bytes]:
        key = path, offset, length
        if self._kept[0] == key:
            yield self._kept[1]
            return
        end = offset + length
        while offset < end and (piece := self._read(path, offset, min(KEPT_BYTES, end - offset))):
            if len(piece) == length:
                self._kept = key, piece
            yield piece
            offset += len(piece)


class _SharedContent(_PlacedContent):
    """Content that lies in packs of a share, or came with its log."""

    def __init__(
        self,
        read: Callable[[str, int, int], bytes],
        paths: Mapping[int, Sequence[str]],
        disk: FailingDisk,
        state: SalvagedState,
        packs: Mapping[ContentClaim, PackIndex],
    ) -> None:
        super().__init__(lambda name, offset, count: read(name, offset, offset + count), paths, disk, state)
        self._packs = packs
        self._names = {index.name for index in packs.values()}

    def pieces(self, path: str, offset: int, length: int) -> Iterator[bytes]:
        if path in self._names:
            return super().pieces(path, offset, length)
        return SalvagedContent.pieces(self, path, offset, length)

    def _places(self, claim: ContentClaim) -> Iterator[tuple[str, int]]:
        if (index := self._packs.get(claim)) is not None:
            yield index.name, index.places[claim]
        yield from super()._places(claim)
