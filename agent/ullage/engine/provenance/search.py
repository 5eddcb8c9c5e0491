"""Searching events: what answers a query.

An answer is made of all events that exist: those that only the log holds, those in event files, and of the latter those
that a shard of the index covers through it. It is the same whatever is indexed; only the time it takes differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, groupby

import msgspec

from ullage.engine.model import EventRun, FlowFileRecord, Operation, TransactionEvents as LoggedEvents, parse_uuid
from ullage.engine.provenance.arrow import pa
from ullage.engine.provenance.events import ProvenanceEvent
from ullage.engine.provenance.filters import candidates, filter_columns
from ullage.engine.provenance.index import NO_CANDIDATES, FileLookup, ProvenanceIndex
from ullage.engine.provenance.manifest import EventFile, LostEvents, ProvenanceManifest
from ullage.engine.provenance.query import Page, Query, page_of, require_possible
from ullage.engine.provenance.shard import ShardDamaged
from ullage.engine.provenance.store import ProvenanceStore
from ullage.engine.provenance.tail import Numbered
from ullage.errors import ProvenanceDamaged

EVENTS_AT_A_TIME = 256
"""Events made of a table's rows at a time, at most."""


def search(store: ProvenanceStore, index: ProvenanceIndex | None, query: Query) -> Page:
    """Answer a query. InvalidArgument for an impossible one; ProvenanceDamaged names a file that cannot be read."""
    require_possible(query)
    manifest, newest = store.snapshot()
    lookup = None if index is None else index.lookup(query)
    events = (event for source in _sources(store, lookup, query, manifest, newest) for event in source())
    page = page_of(events, query, manifest.removed_through)
    lost = (lost for lost in manifest.lost if query.touches(lost.first_sequence, _end(lost), 0, 1 << 62))
    return page._replace(lost=tuple(lost))


Events = Callable[[], Iterator[ProvenanceEvent]]


def _sources(
    store: ProvenanceStore,
    lookup: FileLookup | None,
    query: Query,
    manifest: ProvenanceManifest,
    newest: list[Numbered],
) -> Iterator[Events]:
    """Where events are, in the query's order; each is opened only when the ones before it were not enough."""
    wanted = {parse_uuid(uuid) for uuid in (query.flow_file, *query.related) if uuid}

    def tail() -> Iterator[ProvenanceEvent]:
        for numbered in reversed(newest) if query.newest_first else newest:
            millis = numbered.told.millis
            is_near = query.touches(numbered.first_sequence, numbered.last_sequence, millis, millis)
            if is_near and _may_hold(numbered.told.operations, query, wanted):
                events = list(store.expand(numbered))
                yield from reversed(events) if query.newest_first else events

    files = [file for file in manifest.files if _touches(query, file)]
    if query.newest_first:
        yield tail
        files.reverse()
    for file in files:
        yield lambda file=file: _of_file(store, lookup, query, file)  # type: ignore[misc]
    if not query.newest_first:
        yield tail


def _may_hold(operations: Sequence[Operation], query: Query, wanted: set[bytes]) -> bool:
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


def _run_may(run: EventRun, query: Query) -> bool:
    return (
        (not query.types or run.type in query.types)
        and query.relationship in ("", run.relationship)
        and query.transit_uri in ("", run.transit_uri)
    )


def _of_file(
    store: ProvenanceStore, lookup: FileLookup | None, query: Query, file: EventFile
) -> Iterator[ProvenanceEvent]:
    """Candidates in one event file. One that retention removes meanwhile has none."""
    found = None if lookup is None else lookup(file)
    if found is NO_CANDIDATES:
        return
    try:
        if found is None:
            yield from _scan(store, query, file)
        else:
            yield from _indexed(store, query, file, found)
    except ProvenanceDamaged:
        if file in store.manifest.files:
            raise


def _indexed(store: ProvenanceStore, query: Query, file: EventFile, found: Iterator[int]) -> Iterator[ProvenanceEvent]:
    """What the index found; where it breaks off, the file itself says the rest."""
    last: int | None = None
    try:
        for event in _fetch(store, query, file, found):
            last = event.sequence
            yield event
    except ShardDamaged:
        rest = query
        if last is not None:
            rest = msgspec.structs.replace(query, **{"before" if query.newest_first else "after": last})
        yield from filter(rest.matches, _scan(store, rest, file))


def _fetch(
    store: ProvenanceStore, query: Query, file: EventFile, sequences: Iterator[int]
) -> Iterator[ProvenanceEvent]:
    """These events, a row group at a time, so that what is not asked for is not read: not even a footer."""
    first_one = next(sequences, None)
    if first_one is None:
        return
    group_rows = store.event_files.group_rows(file)
    wanted = chain((first_one,), sequences)
    for group, members in groupby(wanted, lambda sequence: (sequence - file.first_sequence) // group_rows):
        first = file.first_sequence + group * group_rows
        rows = [sequence - first for sequence in members]
        ((_, table),) = store.event_files.scan(file, None, [group])
        yield from _lazily(store, file, table, rows, query.limit)


def _scan(store: ProvenanceStore, query: Query, file: EventFile) -> Iterator[ProvenanceEvent]:
    """The events of a file that pass the filters: first the columns asked about, then whole rows."""
    group_rows = store.event_files.group_rows(file)
    groups = [group for group in range(-(-file.events // group_rows)) if _group_touches(query, file, group_rows, group)]
    if query.newest_first:
        groups.reverse()
    for group in groups:
        ((_, table),) = store.event_files.scan(file, filter_columns(query), [group])
        rows = candidates(table, query)
        if query.newest_first:
            rows.reverse()
        if rows:
            ((_, whole),) = store.event_files.scan(file, None, [group])
            yield from _lazily(store, file, whole, rows, query.limit)


def _lazily(
    store: ProvenanceStore, file: EventFile, table: pa.Table, rows: Sequence[int], limit: int
) -> Iterator[ProvenanceEvent]:
    """Rows as events, some at a time: a page may be full long before a row group ends."""
    step = min(limit + 1, EVENTS_AT_A_TIME)
    for at in range(0, len(rows), step):
        some = rows[at : at + step]
        is_run = some[-1] - some[0] == len(some) - 1  # a run need not be copied
        yield from store.event_files.events(file, table.slice(some[0], len(some)) if is_run else table.take(list(some)))


def _group_touches(query: Query, file: EventFile, group_rows: int, group: int) -> bool:
    start = file.first_sequence + group * group_rows
    end = min(start + group_rows - 1, file.last_sequence)
    return query.touches(start, end, file.millis_min, file.millis_max)


def _touches(query: Query, file: EventFile) -> bool:
    return query.touches(file.first_sequence, file.last_sequence, file.millis_min, file.millis_max)


def _end(lost: LostEvents) -> int:
    return lost.first_sequence + lost.events - 1
