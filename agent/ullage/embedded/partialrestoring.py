"""Some of what a backup holds, in a repository of its own: queues, or single FlowFiles and handles.

fetch the records into `scratch` | choose | make a repository of them, as a salvage does, content read from the backup

Of content no more is fetched than what is chosen has. The repository is a new one, with a uuid of its own; what is in
it keeps its ids, its attributes, its content, and its order.
"""

import os
from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

from ullage.clock import Clock
from ullage.contract import ContentRepositorySpec
from ullage.engine.backupdirectory import write_pieces
from ullage.engine.backupfiles import BackupFile, BackupManifest
from ullage.engine.backupplace import MANIFEST, BackupPlace
from ullage.engine.check.salvage import survey
from ullage.engine.check.salvagecontent import SalvagedContent
from ullage.engine.check.salvageevents import SalvagedEvents
from ullage.engine.check.salvagestate import SalvagedState
from ullage.engine.files import Files, OsFiles, make_directories
from ullage.engine.flowfile_repository import FLOWFILE
from ullage.engine.ledger.remembered import RememberedAnswers
from ullage.engine.model import HANDLE_QUEUE, FlowFileRecord
from ullage.engine.opening import SWAP
from ullage.engine.restoring import Progress
from ullage.engine.salvaging import Salvager, decided, filled_repository, require_empty
from ullage.engine.wal.failingdisk import FailingDisk
from ullage.engine.wal.serde import SerDe
from ullage.engine.wal.snapshot import SNAPSHOT
from ullage.errors import NotFound, RepositoryDamaged

KEPT_BYTES: Final = 8 << 20
"""A content up to this size is fetched once, though it is read twice: to be proved, and to be written."""


class WantedRecords(NamedTuple):
    """Names of queues, and ids of FlowFiles and handles."""

    queues: Collection[str]
    ids: Collection[str]


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
    require_empty(files, spec)
    _fetch_records(files, place, manifest, scratch)
    disk = FailingDisk(files)
    found = survey(files, scratch, disk)
    if not found.is_whole or found.repository is None:
        raise RepositoryDamaged(f"the records of generation {manifest.sequence} of {place.name} are not whole")
    events = SalvagedEvents(files, disk, scratch, found.repository, ())
    state = decided(disk, found, events, SerDe())
    _choose(state, wanted, f"generation {manifest.sequence} of {place.name}")
    content = _PlacedContent(place, manifest.contents, disk, state)
    return filled_repository(files, clock, spec, state, content, on_progress)


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


def _choose(state: SalvagedState, wanted: WantedRecords, where: str) -> None:
    """Leave nothing else there."""
    numbers = {queue.number: queue.name for queue in state.queues.values()}
    if lacking := sorted(set(wanted.queues) - set(numbers.values())):
        there = ", ".join(sorted(numbers.values())) or "none"
        raise NotFound(f"{where} has no queue {lacking[0]!r}; it has: {there}")

    def is_wanted(record: FlowFileRecord) -> bool:
        return record.id in wanted.ids or numbers.get(record.queue) in wanted.queues

    state.records = {uuid: record for uuid, record in state.records.items() if is_wanted(record)}
    if lacking := sorted(set(wanted.ids) - {record.id for record in state.records.values()}):
        raise NotFound(f"{where} has no FlowFile or handle {lacking[0]}")
    used = {record.queue for record in state.records.values()} - {HANDLE_QUEUE}
    state.held = {uuid: why for uuid, why in state.held.items() if uuid in state.records}
    state.queues = {
        number: queue for number, queue in state.queues.items() if number in used or queue.name in wanted.queues
    }
    state.answers = RememberedAnswers()  # of requests to the repository that was backed up


class _PlacedContent(SalvagedContent):
    """Content that is read where the backup lies."""

    def __init__(
        self, place: BackupPlace, contents: Sequence[BackupFile], disk: FailingDisk, state: SalvagedState
    ) -> None:
        super().__init__(disk, {file.resource: (file.lies_at,) for file in contents}, state.moves)
        self._place = place
        self._kept: tuple[tuple[str, int, int], bytes] = (("", 0, 0), b"")

    def pieces(self, path: str, offset: int, length: int) -> Iterator[bytes]:
        key = path, offset, length
        if self._kept[0] == key:
            yield self._kept[1]
            return
        end = offset + length
        while offset < end and (piece := self._place.read(path, offset, min(KEPT_BYTES, end - offset))):
            if len(piece) == length:
                self._kept = key, piece
            yield piece
            offset += len(piece)
