"""Events column by column: for who reads many of them, or few columns of each.

A run of events is a row group of an event file, or some that only the log holds. Columns are read when they are asked
for, so whoever sees in one that nothing of a run is wanted reads no other. What a query asks of the index leaves out
runs, and never decides on an event.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from ullage.engine.arrow import pa
from ullage.engine.model import parse_uuid
from ullage.engine.provenance.columns import ROW_GROUP_ROWS, schema, to_batch
from ullage.engine.provenance.index import NO_CANDIDATES, FileLookup
from ullage.engine.provenance.manifest import EventFile
from ullage.engine.provenance.query import possible, touches
from ullage.engine.provenance.search import may_hold
from ullage.engine.provenance.series import Series, chunks, series_of
from ullage.engine.provenance.store import ProvenanceStore
from ullage.engine.provenance.tail import Numbered
from ullage.engine.runs.sorted_run import RunDamaged
from ullage.engine.wal.state import UNUSABLE
from ullage.errors import ProvenanceDamaged
from ullage.wire.provenance import EventQuery

QueueName = Callable[[int], str]

TOLD_BYTES = 512 << 10
"""Of a run that only the log holds, as `ROW_GROUP_BYTES`: its columns are made of objects of Python's, while others
wait for the interpreter.
"""

UNPACKED_TIMES = 3
"""What attributes take as columns, as a multiple of what they take packed: three bytes are two places and a letter."""

ROW_BYTES = 250
"""Of an event beside that: numbers, a uuid, and where its texts begin."""


class EventColumns(NamedTuple):
    """`events` of them in the order of their sequence. `read` gives columns of an event file's schema, and None if
    retention has taken them meanwhile; ProvenanceDamaged. All columns together take about `bytes` in memory.
    """

    first_sequence: int
    events: int
    bytes: int
    read: Callable[[Sequence[str]], Any]


def scan(store: ProvenanceStore, lookup: FileLookup | None, query: EventQuery) -> Iterator[EventColumns]:
    """Runs in which events may be that a query is about, oldest first; some of theirs are others."""
    manifest, newest = store.snapshot()
    for file in manifest.files:
        if touches(query, file.first_sequence, file.last_sequence, file.millis_min, file.millis_max):
            yield from _of_file(store, file, None if lookup is None else lookup(file), query)
    yield from told_runs(newest, query, store.queue_name)


def told_runs(newest: Iterable[Numbered], query: EventQuery, queue_name: QueueName) -> Iterator[EventColumns]:
    """Runs of those that only the log holds."""
    query = possible(query)
    wanted = {parse_uuid(uuid) for uuid in (query.flow_file, *query.related) if uuid}
    for together in _neighbours(each for each in newest if _may_hold(each, query, wanted)):
        for chunk in chunks(chain.from_iterable(map(_series, together)), ROW_GROUP_ROWS, TOLD_BYTES):
            events = sum(len(series.after) for series in chunk)
            weight = sum(chunk[0].weights()) if events == 1 else TOLD_BYTES
            size = UNPACKED_TIMES * weight + ROW_BYTES * events
            yield EventColumns(chunk[0].sequence, events, size, _Told(chunk, queue_name).read)


def _may_hold(numbered: Numbered, query: EventQuery, wanted: set[bytes]) -> bool:
    millis = numbered.told.millis
    is_near = touches(query, numbered.first_sequence, numbered.last_sequence, millis, millis)
    return is_near and may_hold(numbered.told.operations, query, wanted)


def _neighbours(newest: Iterable[Numbered]) -> Iterator[list[Numbered]]:
    """Transactions whose events follow each other without a gap."""
    together: list[Numbered] = []
    for each in newest:
        if together and (
            each.first_sequence != together[-1].last_sequence + 1
            or each.last_sequence - together[0].first_sequence >= ROW_GROUP_ROWS
        ):
            yield together
            together = []
        together.append(each)
    if together:
        yield together


def _series(numbered: Numbered) -> list[Series]:
    try:
        return list(series_of(*numbered))
    except UNUSABLE as error:
        raise ProvenanceDamaged(
            f"the events of transaction {numbered.told.transaction} cannot be told: {error}"
        ) from error


class _Told:
    """What only the log holds, as columns: all are worked out together, once."""

    def __init__(self, chunk: Sequence[Series], queue_name: QueueName) -> None:
        self._chunk = chunk
        self._queue_name = queue_name
        self._table: pa.Table | None = None

    def read(self, names: Sequence[str]) -> pa.Table:
        if self._table is None:
            self._table = pa.Table.from_batches([to_batch(self._chunk, self._queue_name)], schema())
        return self._table.select(list(names))


def _of_file(
    store: ProvenanceStore, file: EventFile, found: Iterator[int] | None, query: EventQuery
) -> Iterator[EventColumns]:
    if found is NO_CANDIDATES:
        return
    files = store.event_files
    try:
        starts, sizes = files.starts(file), files.unpacked_bytes(file)
        groups: Iterable[int] = range(len(starts) - 1)
        if found is not None:
            groups = _groups(file, starts, found, groups)
    except ProvenanceDamaged:
        if file in store.manifest.files:
            raise
        return
    for group in groups:
        first, last = file.first_sequence + starts[group], file.first_sequence + starts[group + 1] - 1
        if touches(query, first, last, file.millis_min, file.millis_max):
            events = last - first + 1
            yield EventColumns(first, events, sizes[group] + ROW_BYTES * events, partial(_read, store, file, group))


def _groups(file: EventFile, starts: Sequence[int], found: Iterator[int], every: Iterable[int]) -> Iterable[int]:
    """Row groups that have candidates; all of them if the index breaks off."""
    try:
        return sorted({bisect_right(starts, sequence - file.first_sequence) - 1 for sequence in found})
    except RunDamaged:
        return every


def _read(store: ProvenanceStore, file: EventFile, group: int, names: Sequence[str]) -> pa.Table | None:
    try:
        return store.event_files.columns(file, group, names)
    except ProvenanceDamaged:
        if file in store.manifest.files:
            raise
        return None
