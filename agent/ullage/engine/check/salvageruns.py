"""The answers to requests that a damaged repository still proves: block by block, from every run that is there.

Also from those that no snapshot lists: a checkpoint writes a run of nothing but what is durable by then.
"""

from collections.abc import Iterable, Iterator
from contextlib import closing

from ullage.engine.check.salvage import SurveyedSource
from ullage.engine.ledger.remembered import ANSWERS_SPACE
from ullage.engine.model import Operation, RunFile
from ullage.engine.runs.rows import LostRows, salvaged_rows
from ullage.engine.wal.failingdisk import FailingDisk
from ullage.engine.wal.lenient import LostRange
from ullage.engine.wal.serde import SerDe, Undecodable


def run_records(
    disk: FailingDisk, found: SurveyedSource, serde: SerDe
) -> Iterator[tuple[list[Operation | Undecodable], str]]:
    """The records of each row, oldest run first, with its place; what cannot be read is among what `found` lost."""
    for number, path in sorted(found.runs.items()):
        try:
            file = disk.open(path)
        except OSError as error:
            found.lost.append(LostRange(path, 0, 0, f"it can't be opened: {error}"))
            continue
        with closing(file):
            for part in salvaged_rows(file, found.repository or "", ANSWERS_SPACE, number):
                if isinstance(part, LostRows):
                    found.lost.append(LostRange(path, *part))
                    continue
                for row in part:
                    yield serde.decode_block_each(row.value, serde.version), f"run {number}"


def note_missing_runs(found: SurveyedSource, block: Iterable[Operation | Undecodable]) -> None:
    """Runs that a block of the snapshot lists, and that are not there."""
    for each in block:
        if isinstance(each, RunFile) and each.space == ANSWERS_SPACE and each.number not in found.runs:
            found.lost.append(LostRange(f"run {each.number}", 0, each.length, "it is missing"))
