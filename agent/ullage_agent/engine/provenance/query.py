"""Searching events: what is asked, what answers it, and the pages that come back.

An answer is made of all events that exist: those that only the log holds, those in event files, and of the latter those
that a shard of the index covers through it. It is the same whatever is indexed; only the time it takes differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, groupby
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from ullage_agent.engine.errors import ProvenanceDamaged, SessionMisuse
from ullage_agent.engine.model import EventRun, Events as LoggedEvents, EventType, FlowFile, Operation, parse_uuid
from ullage_agent.engine.provenance.events import ProvenanceEvent
from ullage_agent.engine.provenance.filters import candidates, filter_columns
from ullage_agent.engine.provenance.manifest import EventFile, Lost, Manifest
from ullage_agent.engine.provenance.shard import ShardDamaged
from ullage_agent.engine.provenance.store import ProvenanceStore
from ullage_agent.engine.provenance.tail import Numbered

if TYPE_CHECKING:
    import pyarrow as pa

LIMIT_MAX = 10_000
"""Events in one page: what an answer may take of memory and time. Whoever wants more asks for the next page."""


EVENTS_AT_A_TIME = 256
"""Events made of a table's rows at a time, at most."""


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """Which events; empty fields ask nothing. All that is given must hold. Uuids in their usual notation.

    `related` are FlowFiles, one of which the event is about, or has among its parents or children. `after` and `before`
    are sequence numbers, themselves excluded; times are milliseconds since the epoch, `since` included and `until` not.
    """

    types: tuple[EventType, ...] = ()
    flow_file: str = ""
    related: tuple[str, ...] = ()
    component: str = ""
    component_type: str = ""
    relationship: str = ""
    transit_uri: str = ""
    alternate_identifier: str = ""
    filename: str = ""
    attributes: tuple[tuple[str, str], ...] = ()
    since_millis: int | None = None
    until_millis: int | None = None
    size_min: int | None = None
    size_max: int | None = None
    after: int = 0
    before: int | None = None
    limit: int = 100
    newest_first: bool = False

    def matches(self, event: ProvenanceEvent) -> bool:
        """Whether an event is one of those; the one definition, which index and filters only hurry."""
        return (
            self._is_within(event)
            and (not self.types or event.type in self.types)
            and all(value in ("", getattr(event, name)) for name, value in self.texts())
            and (not self.filename or event.filename == self.filename)
            and (not self.related or not self.kin(event).isdisjoint(self.related))
            and (not self.attributes or _has(event.attribute_map(), self.attributes))
        )

    def texts(self) -> tuple[tuple[str, str], ...]:
        """Conditions that are equalities of text, by the event's field."""
        return (
            ("flow_file", self.flow_file),
            ("component", self.component),
            ("component_type", self.component_type),
            ("relationship", self.relationship),
            ("transit_uri", self.transit_uri),
            ("alternate_identifier", self.alternate_identifier),
        )

    @staticmethod
    def kin(event: ProvenanceEvent) -> set[str]:
        """The FlowFiles that an event is related to."""
        return {event.flow_file, *event.parent_ids, *event.child_ids}

    def _is_within(self, event: ProvenanceEvent) -> bool:
        return (
            self.after < event.sequence
            and (self.before is None or event.sequence < self.before)
            and (self.since_millis is None or event.millis >= self.since_millis)
            and (self.until_millis is None or event.millis < self.until_millis)
            and (self.size_min is None or event.size >= self.size_min)
            and (self.size_max is None or event.size <= self.size_max)
        )

    def touches(self, first: int, last: int, millis_min: int, millis_max: int) -> bool:
        """Whether a run of events with these bounds may hold one of those."""
        return (
            self.after < last
            and (self.before is None or first < self.before)
            and (self.since_millis is None or millis_max >= self.since_millis)
            and (self.until_millis is None or millis_min < self.until_millis)
        )


class Page(NamedTuple):
    """One answer. `next` is the sequence to ask `after` (newest first: `before`) for the following page, None: no more.

    `removed_through`: events up to this sequence were removed by retention; `lost`: runs that found no room. Whoever
    reads events in order learns from both what is missing before `events`.
    """

    events: tuple[ProvenanceEvent, ...]
    next: int | None
    removed_through: int
    lost: tuple[Lost, ...]


FileLookup = Callable[[EventFile], Iterator[int] | None]
"""For one event file the sequence numbers of candidates, in the query's order. None: no help with this file."""

NO_CANDIDATES: Iterator[int] = iter(())
"""What a lookup may return for the many files that hold none: they are passed by."""


class Lookup(Protocol):
    """An index."""

    def lookup(self, query: Query) -> FileLookup | None:
        """Begin to answer a query. None: no help."""
        ...


def search(store: ProvenanceStore, index: Lookup | None, query: Query) -> Page:
    """Answer a query. SessionMisuse for an impossible one; ProvenanceDamaged names a file that cannot be read."""
    _require_possible(query)
    manifest, newest = store.moment()
    found: list[ProvenanceEvent] = []
    lookup = None if index is None else index.lookup(query)
    for events in _sources(store, lookup, query, manifest, newest):
        for event in events():
            if query.matches(event):
                found.append(event)
                if len(found) > query.limit:
                    break
        if len(found) > query.limit:
            break
    more = len(found) > query.limit
    found = found[: query.limit]
    return Page(
        tuple(found),
        found[-1].sequence if more and found else None,
        manifest.removed_through,
        tuple(lost for lost in manifest.lost if query.touches(lost.first_sequence, _end(lost), 0, 1 << 62)),
    )


Events = Callable[[], Iterator[ProvenanceEvent]]


def _sources(
    store: ProvenanceStore, lookup: FileLookup | None, query: Query, manifest: Manifest, newest: list[Numbered]
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
        if any(type(other) is FlowFile and other.uuid in wanted for other in operations):
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


def _end(lost: Lost) -> int:
    return lost.first_sequence + lost.events - 1


def _has(attributes: dict[str, str], wanted: Sequence[tuple[str, str]]) -> bool:
    return all(attributes.get(name) == value for name, value in wanted)


def _require_possible(query: Query) -> None:
    if not 0 < query.limit <= LIMIT_MAX:
        raise SessionMisuse(f"a page of {query.limit} events: ask for 1 to {LIMIT_MAX}, then for the next page")
    for uuid in (query.flow_file, *query.related):
        try:
            if uuid:
                parse_uuid(uuid)
        except ValueError as error:
            raise SessionMisuse(str(error)) from error
