"""Searching events: what answers a query.

An answer is made of all events that exist: those that only the log holds, those in event files, and of the latter those
that a shard of the index covers through it. It is the same whatever is indexed; only the time it takes differs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import chain, groupby

import msgspec

from ullage.engine.model import EventRun, FlowFileRecord, Operation, TransactionEvents as LoggedEvents, parse_uuid
from ullage.engine.provenance.events import ProvenanceEvent
from ullage.engine.provenance.filters import candidates, filter_columns
from ullage.engine.provenance.index import NO_CANDIDATES, FileLookup, ProvenanceIndex
from ullage.engine.provenance.manifest import EventFile, LostEvents, ProvenanceManifest
from ullage.engine.provenance.query import Page, Unreadable, matches, page_of, possible, touches
from ullage.engine.provenance.store import ProvenanceStore
from ullage.engine.provenance.tail import Numbered
from ullage.engine.runs.sorted_run import RunDamaged
from ullage.engine.wal.state import UNUSABLE
from ullage.errors import ProvenanceDamaged
from ullage.wire.provenance import EventQuery

EVENTS_AT_A_TIME = 256
"""Events made of a table's rows at a time, at most."""


def search(store: ProvenanceStore, index: ProvenanceIndex | None, query: EventQuery) -> Page:
    """Answer a query; a file that cannot be read is passed over, and told. InvalidArgument for an impossible one."""
    query = possible(query)
    manifest, newest = store.snapshot()
    found = _Search(store, None if index is None else index.lookup(query), query)
    page = page_of(found.events(manifest, newest), query, manifest.removed_through)
    page = page._replace(unreadable=tuple(found.unreadable))
    lost = (lost for lost in manifest.lost if touches(query, lost.first_sequence, _end(lost), 0, 1 << 62))
    return page._replace(lost=tuple(lost))


class _Search:
    """One query on its way through what there is; `unreadable` is what it had to pass over."""

    def __init__(self, store: ProvenanceStore, lookup: FileLookup | None, query: EventQuery) -> None:
        self._store = store
        self._lookup = lookup
        self._query = query
        self.unreadable: list[Unreadable] = []

    def events(self, manifest: ProvenanceManifest, newest: list[Numbered]) -> Iterator[ProvenanceEvent]:
        """Candidates, in the query's order; a file is opened only when what comes before it was not enough."""
        query = self._query
        files = [
            file
            for file in manifest.files
            if touches(query, file.first_sequence, file.last_sequence, file.millis_min, file.millis_max)
        ]
        if query.newest_first:
            yield from self._tail(newest)
            files.reverse()
        for file in files:
            yield from self._of_file(file)
        if not query.newest_first:
            yield from self._tail(newest)

    def _tail(self, newest: list[Numbered]) -> Iterator[ProvenanceEvent]:
        query = self._query
        wanted = {parse_uuid(uuid) for uuid in (query.flow_file, *query.related) if uuid}
        for numbered in reversed(newest) if query.newest_first else newest:
            millis = numbered.told.millis
            is_near = touches(query, numbered.first_sequence, numbered.last_sequence, millis, millis)
            if is_near and may_hold(numbered.told.operations, query, wanted):
                yield from self._told(numbered)

    def _told(self, numbered: Numbered) -> Iterator[ProvenanceEvent]:
        """The events of a transaction. One that cannot be told is set aside by the next rollover."""
        try:
            events = list(self._store.expand(numbered))
        except UNUSABLE as error:
            problem = f"the events of transaction {numbered.told.transaction} cannot be told: {error}"
            self.unreadable.append(Unreadable(numbered.first_sequence, numbered.told.events, problem))
            return
        yield from reversed(events) if self._query.newest_first else events

    def _of_file(self, file: EventFile) -> Iterator[ProvenanceEvent]:
        """Candidates in one event file. One that retention removes meanwhile has none."""
        found = None if self._lookup is None else self._lookup(file)
        if found is NO_CANDIDATES:
            return
        try:
            if found is None:
                yield from self._scan(file, self._query)
            else:
                yield from self._indexed(file, found)
        except ProvenanceDamaged as error:
            if file in self._store.manifest.files:
                self.unreadable.append(Unreadable(file.first_sequence, file.events, str(error)))

    def _indexed(self, file: EventFile, found: Iterator[int]) -> Iterator[ProvenanceEvent]:
        """What the index found; where it breaks off, the file itself says the rest."""
        last: int | None = None
        try:
            for event in self._fetch(file, found):
                last = event.sequence
                yield event
        except RunDamaged:
            rest = self._query
            if last is not None:
                rest = msgspec.structs.replace(rest, **{"before" if rest.newest_first else "after": last})
            yield from (event for event in self._scan(file, rest) if matches(rest, event))

    def _fetch(self, file: EventFile, sequences: Iterator[int]) -> Iterator[ProvenanceEvent]:
        """These events, a row group at a time, so that what is not asked for is not read: not even a footer."""
        first_one = next(sequences, None)
        if first_one is None:
            return
        starts = self._store.event_files.starts(file)
        wanted = (sequence - file.first_sequence for sequence in chain((first_one,), sequences))
        for group, members in groupby(wanted, lambda row: bisect_right(starts, row) - 1):
            rows = [row - starts[group] for row in members]
            yield from self._lazily(file, group, rows)

    def _scan(self, file: EventFile, query: EventQuery) -> Iterator[ProvenanceEvent]:
        """The events of a file that pass the filters: first the columns asked about, then whole rows."""
        starts = self._store.event_files.starts(file)
        groups = range(len(starts) - 1)
        for group in reversed(groups) if query.newest_first else groups:
            first, last = file.first_sequence + starts[group], file.first_sequence + starts[group + 1] - 1
            if touches(query, first, last, file.millis_min, file.millis_max):
                rows = candidates(self._store.event_files.read(file, group, filter_columns(query)), query)
                yield from self._lazily(file, group, rows[::-1] if query.newest_first else rows)

    def _lazily(self, file: EventFile, group: int, rows: Sequence[int]) -> Iterator[ProvenanceEvent]:
        """Rows of a group as events, some at a time: a page may be full long before a row group ends."""
        if not rows:
            return
        table = self._store.event_files.read(file, group)
        step = min(self._query.limit + 1, EVENTS_AT_A_TIME)
        for at in range(0, len(rows), step):
            some = rows[at : at + step]
            is_run = some[-1] - some[0] == len(some) - 1  # a run need not be copied
            taken = table.slice(some[0], len(some)) if is_run else table.take(list(some))
            yield from self._store.event_files.events(file, taken)


def may_hold(operations: Sequence[Operation], query: EventQuery, wanted: set[bytes]) -> bool:
    """Whether a transaction may hold such events, without telling them: the newest ones may be many."""
    for operation in operations:
        if type(operation) is not LoggedEvents or query.component not in ("", operation.component):
            continue
        runs = [run for run in operation.runs if _run_may(run, query)]
        if not runs:
            continue
        if not wanted or any(record.uuid in wanted for record in operation.before):
            return True
        if any(type(other) is FlowFileRecord and other.uuid in wanted for other in operations):
            return True
        return any(uuid in run.parents or uuid in run.children for run in runs for uuid in wanted)
    return False


def _run_may(run: EventRun, query: EventQuery) -> bool:
    return (
        (not query.types or run.type.name in query.types)
        and query.relationship in ("", run.relationship)
        and query.transit_uri in ("", run.transit_uri)
    )


def _end(lost: LostEvents) -> int:
    return lost.first_sequence + lost.events - 1
