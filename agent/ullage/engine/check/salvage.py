"""What a damaged repository still proves: the survey that a salvage begins with. It only reads.

Nothing here needs the root's `ullage.json`: log, snapshot and swap files each name the repository that they belong to.
"""

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from ullage.engine.files import Files
from ullage.engine.ledger.aside import HANDLES_SPACE
from ullage.engine.ledger.remembered import ANSWERS_SPACE
from ullage.engine.ledger.runfiles import RUNS, run_number
from ullage.engine.ledger.swap import SUFFIX, SWAP_MAGIC, SwapHeader
from ullage.engine.wal.failingdisk import FailingDisk
from ullage.engine.wal.format import decode_header
from ullage.engine.wal.lenient import FoundBlocks, FoundLog, LostRange, SalvagedLog, chain, read_blocks, read_log
from ullage.engine.wal.partition import PARTITION_PREFIX
from ullage.engine.wal.records import RecordHeader
from ullage.engine.wal.snapshot import PARTIAL, SNAPSHOT, SNAPSHOT_MAGIC, SnapshotHeader
from ullage.errors import RepositoryDamaged

Header = TypeVar("Header", bound=RecordHeader)

TORN = (
    "here the log ends. Nothing proves that these bytes were ever synced, so they are taken for what a killed process "
    "had not acknowledged, as at any start; if the disk has damaged them, the last commits are lost with them"
)

SALVAGED_SPACES = (ANSWERS_SPACE, HANDLES_SPACE)
"""What the others hold follows from the content."""

_LOG_DIRECTORY = "flowfile"
_SWAP_DIRECTORY = "swap"


@dataclass(slots=True)
class SurveyedSource:
    """What was found. `snapshot_header` is None where no snapshot has one; `blocks` are then none either."""

    repository: str | None = None
    snapshot: FoundBlocks | None = None
    snapshot_header: SnapshotHeader | None = None
    swaps: dict[str, tuple[SwapHeader, FoundBlocks]] = field(default_factory=dict)
    runs: dict[str, dict[int, str]] = field(default_factory=dict)
    """The files of runs by key space and number, unread: of those whose rows nothing else tells."""

    chain: SalvagedLog = field(default_factory=lambda: SalvagedLog([], [], []))
    lost: list[LostRange] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    """Why later transactions than those of the chain may be lost, of which nothing is there to tell."""

    @property
    def last_id(self) -> int:
        """The last transaction that there is any trace of."""
        chain = self.chain
        ids = [frame.header.id for frame in (*chain.proved, *chain.behind)]
        ids += [last for _, last in chain.gaps]
        return max([self.snapshot_header.last_id if self.snapshot_header else 0, *ids])

    @property
    def is_whole(self) -> bool:
        """Whether nothing that the log or the snapshot ought to hold is missing."""
        return self.snapshot is not None and self.snapshot.is_whole and not self.chain.is_loss and not self.doubts


def survey(files: Files, root: str, disk: FailingDisk | None = None) -> SurveyedSource:
    """Read all records of the repository at `root` that checksums prove. FormatTooNew for one of a newer version."""
    source = SurveyedSource()
    disk = disk or FailingDisk(files)
    _find_snapshot(files, disk, os.path.join(root, _LOG_DIRECTORY), source)
    for space in SALVAGED_SPACES:
        runs = os.path.join(root, _LOG_DIRECTORY, RUNS, space)
        numbers = ((run_number(name), os.path.join(runs, name)) for name in _listed(files, runs, source))
        source.runs[space] = {number: path for number, path in numbers if number is not None}
    logs = _logs(files, disk, os.path.join(root, _LOG_DIRECTORY), source)
    swaps = _swaps(files, disk, os.path.join(root, _SWAP_DIRECTORY), source)
    source.repository = _owner(source, logs, [header for header, _ in swaps.values()])
    for log in logs:
        if log.header is not None and log.header.repository != source.repository:
            source.lost.append(LostRange(log.path, 0, 0, f"it belongs to repository {log.header.repository}"))
    ours = [log for log in logs if log.header is None or log.header.repository == source.repository]
    source.lost += [lost._replace(reason=TORN) if log.is_torn else lost for log in ours for lost in log.lost]
    # What was lost may have been the newest, and a frame beside it may be one that a later start disowned.
    damaged = [lost for log in ours if not log.is_torn for lost in log.lost]
    source.doubts += [f"{lost.path} at offset {lost.offset}: {lost.reason}" for lost in damaged]
    source.doubts += _missing_files(ours, source.snapshot_header)
    for name, (header, found) in swaps.items():
        if header.repository == source.repository and header.summary.name == name:
            source.swaps[name] = header, found
            source.lost += found.lost
        else:
            what = f"it is swap file {header.summary.name} of repository {header.repository}"
            source.lost.append(LostRange(found.path, 0, 0, what))
    source.chain = chain(ours, source.snapshot_header.last_id if source.snapshot_header else 0)
    return source


def _missing_files(logs: list[FoundLog], snapshot: SnapshotHeader | None) -> Iterator[str]:
    """Log files that the snapshot, or a later file of their partition, says there were."""
    found: dict[int, set[int]] = {}
    for log in logs:
        if log.header is not None:
            found.setdefault(log.header.partition, set()).add(log.header.sequence)
    first = snapshot.next_sequences if snapshot else dict.fromkeys(found, 1)
    if snapshot is None and not found:
        yield "there is neither a snapshot nor a log"
    for number, sequence in sorted(first.items()):
        sequences = found.get(number, set())
        for missing in sorted(set(range(sequence, max(sequences, default=sequence) + 1)) - sequences):
            yield f"log file number {missing} of partition {number} is missing"


def _find_snapshot(files: Files, disk: FailingDisk, directory: str, source: SurveyedSource) -> None:
    """The snapshot, or where its header is lost a partial that proves whole: the log behind either leads on from it."""
    for name in (SNAPSHOT, PARTIAL):
        path = os.path.join(directory, name)
        if not files.exists(path):
            if name == SNAPSHOT:
                source.lost.append(LostRange(path, 0, 0, "it is missing"))
            continue
        found = _blocks(disk, path, SNAPSHOT_MAGIC)
        header = _header_of(found, SnapshotHeader)
        if name == SNAPSHOT:
            source.lost += found.lost
        # One that was being written is proved by its footer alone: what it lacks nobody knows.
        if header is not None and (name == SNAPSHOT or found.is_whole):
            source.snapshot, source.snapshot_header = found, header
            return


def _blocks(disk: FailingDisk, path: str, magic: bytes) -> FoundBlocks:
    try:
        return read_blocks(disk, path, magic)
    except OSError as error:
        return FoundBlocks(path, lost=[LostRange(path, 0, 0, f"it can't be opened: {error}")])


def _logs(files: Files, disk: FailingDisk, directory: str, source: SurveyedSource) -> list[FoundLog]:
    key = source.snapshot_header.salt_key if source.snapshot_header else None
    logs: list[FoundLog] = []
    for partition in _listed(files, directory, source):
        if not partition.startswith(PARTITION_PREFIX):
            continue
        for name in _listed(files, os.path.join(directory, partition), source):
            path = os.path.join(directory, partition, name)
            if not name.endswith(".wal"):
                continue
            try:
                logs.append(read_log(disk, path, key))
            except OSError as error:
                logs.append(FoundLog(path, lost=[LostRange(path, 0, 0, f"it can't be opened: {error}")]))
    return logs


def _listed(files: Files, directory: str, source: SurveyedSource) -> list[str]:
    try:
        return files.list_directory(directory)
    except FileNotFoundError:
        return []
    except OSError as error:
        source.lost.append(LostRange(directory, 0, 0, f"it can't be listed: {error}"))
        source.doubts.append(f"{directory} can't be listed")
        return []


def _swaps(
    files: Files, disk: FailingDisk, directory: str, source: SurveyedSource
) -> dict[str, tuple[SwapHeader, FoundBlocks]]:
    swaps = {}
    for name in _listed(files, directory, source):
        if not name.endswith(SUFFIX):
            continue
        found = _blocks(disk, os.path.join(directory, name), SWAP_MAGIC)
        header = _header_of(found, SwapHeader)
        if header is None:
            source.lost += found.lost
        else:
            swaps[name] = header, found
    return swaps


def _header_of(found: FoundBlocks, kind: type[Header]) -> Header | None:
    if found.body is None:
        return None
    try:
        return decode_header(found.body, kind, found.path)
    except RepositoryDamaged as error:
        found.lost.append(LostRange(found.path, 0, 0, str(error)))
        return None


def _owner(source: SurveyedSource, logs: list[FoundLog], swaps: list[SwapHeader]) -> str | None:
    """The snapshot says whose the files are; without it, most of them do."""
    if source.snapshot_header is not None:
        return source.snapshot_header.repository
    told = Counter(log.header.repository for log in logs if log.header is not None)
    told.update(header.repository for header in swaps)
    return told.most_common(1)[0][0] if told else None
