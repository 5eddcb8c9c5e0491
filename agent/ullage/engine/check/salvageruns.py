"""What a damaged repository still proves of its runs: block by block, the answers to requests, and handles.

Answers come from every run that is there, also from those that no snapshot lists: a checkpoint writes a run of nothing
but what is durable by then. Handles come from the runs that the snapshot lists, which says what left them since. Where
the list is damaged, or nobody can tell which row of its run one was, they are doubtful: they may have been deleted.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from itertools import accumulate
from typing import NamedTuple

import msgspec

from ullage.engine.check.salvage import SALVAGED_SPACES, SurveyedSource
from ullage.engine.ledger.aside import HANDLES_SPACE
from ullage.engine.ledger.remembered import ANSWERS_SPACE
from ullage.engine.model import Operation, RunFile
from ullage.engine.packs import encoded_row
from ullage.engine.runs.rows import RUN_MAGIC, FoundRows, LostRows, RowsHead, packed_key, salvaged_rows
from ullage.engine.runs.sorted_run import ReadableRun, read_head
from ullage.engine.wal.failingdisk import FailingDisk
from ullage.engine.wal.lenient import LostRange
from ullage.engine.wal.serde import SerDe, Undecodable

UNLISTED = "it stands in run {}, which no record that can be read lists: it may have been deleted"
UNPLACED = "nobody can tell which row of run {} it was: it may have been deleted"


class SalvagedRecords(NamedTuple):
    """Records with their place, and what makes them doubtful, if anything does."""

    records: list[Operation | Undecodable]
    place: str
    doubt: str = ""


def answer_records(disk: FailingDisk, found: SurveyedSource, serde: SerDe) -> Iterator[SalvagedRecords]:
    """The records of each row, oldest run first; what cannot be read is among what `found` lost."""
    for number, path in sorted(found.runs[ANSWERS_SPACE].items()):
        for _, part in _blocks(disk, found, ANSWERS_SPACE, number, path):
            for row in part.rows:
                yield SalvagedRecords(serde.decode_block_each(row.value, serde.version), f"run {number}")


def handle_records(
    disk: FailingDisk, found: SurveyedSource, listed: Mapping[int, RunFile], serde: SerDe, *, is_whole: bool
) -> Iterator[SalvagedRecords]:
    """The handles of each block; `listed` are the runs of which the snapshot tells, which `is_whole` or not."""
    for number, path in sorted(found.runs[HANDLES_SPACE].items()):
        run = listed.get(number)
        if run is None and is_whole:
            continue  # a leftover: what it holds stands elsewhere
        gone = run.gone if run is not None else b""
        for first, part in _blocks(disk, found, HANDLES_SPACE, number, path):
            doubt = UNLISTED.format(number) if run is None else ""
            if gone and first is None:
                doubt = UNPLACED.format(number)
            records = [
                serde.decode_one(encoded_row(packed_key(row.key), row.value))
                for place, row in enumerate(part.rows)
                if first is None or not gone or not gone[first + place >> 3] & 1 << (first + place & 7)
            ]
            yield SalvagedRecords(records, f"run {number} of handles at offset {part.offset}", doubt)


def note_missing_runs(found: SurveyedSource, block: Iterable[Operation | Undecodable]) -> dict[int, RunFile]:
    """The runs of handles that a block of the snapshot lists; those that are not there are lost."""
    listed: dict[int, RunFile] = {}
    for each in block:
        if isinstance(each, RunFile) and each.space in SALVAGED_SPACES and each.rows:
            if each.number not in found.runs[each.space]:
                found.lost.append(LostRange(f"run {each.number}", 0, each.length, "it is missing"))
            if each.space == HANDLES_SPACE:
                listed[each.number] = each
    return listed


def _blocks(
    disk: FailingDisk, found: SurveyedSource, space: str, number: int, path: str
) -> Iterator[tuple[int | None, FoundRows]]:
    """Every block that proves itself, with the number of its first row, if that can be told."""
    try:
        file = disk.open(path)
    except OSError as error:
        found.lost.append(LostRange(path, 0, 0, f"it can't be opened: {error}"))
        return
    with closing(file):
        firsts = _first_rows(file)
        row: int | None = 0
        for part in salvaged_rows(file, found.repository or "", space, number):
            if isinstance(part, LostRows):
                found.lost.append(LostRange(path, *part))
                row = None
                continue
            row = firsts.get(part.offset, row)
            yield row, part
            row = None if row is None else row + len(part.rows)


def _first_rows(file: ReadableRun) -> dict[int, int]:
    """Where blocks begin, and the number of the first row there, as the head says; nothing where it cannot be read."""
    with suppress(ValueError, struct.error, OSError, msgspec.MsgspecError):  # then rows are counted from the beginning
        body, _ = read_head(file, RUN_MAGIC)
        head = msgspec.msgpack.decode(body, type=RowsHead)
        starts = accumulate(memoryview(head.counts).cast("I"), initial=0)
        return dict(zip([0, *memoryview(head.ends).cast("Q")], starts, strict=True))
    return {}
