"""What can be asked of provenance, and the pages that answer it."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from ullage.engine.model import EventType, parse_uuid
from ullage.engine.paging import page as paged
from ullage.engine.provenance.events import ProvenanceEvent
from ullage.engine.provenance.manifest import LostEvents
from ullage.errors import EventNotFound, InvalidArgument, ProvenanceDamaged
from ullage.wire.provenance import EventQuery

LIMIT_MAX = 10_000
"""Events in one page: what an answer may take of memory and time. Whoever wants more asks for the next page."""


_TEXTS = ("flow_file", "component", "component_type", "relationship", "transit_uri", "alternate_identifier")


def matches(query: EventQuery, event: ProvenanceEvent) -> bool:
    """Whether an event is one of those; the one definition, which index and filters only hurry."""
    return (
        touches(query, event.sequence, event.sequence, event.millis, event.millis)
        and (query.size_min is None or event.size >= query.size_min)
        and (query.size_max is None or event.size <= query.size_max)
        and (not query.types or event.type.name in query.types)
        and all(getattr(event, name) == value for name, value in texts(query))
        and (not query.filename or event.filename == query.filename)
        and (not query.related or not kin(event).isdisjoint(query.related))
        and (not query.attributes or query.attributes.items() <= event.attribute_map().items())
    )


def texts(query: EventQuery) -> list[tuple[str, str]]:
    """Conditions that are equalities of text, by the event's field."""
    return [(name, value) for name in _TEXTS if (value := getattr(query, name))]


def kin(event: ProvenanceEvent) -> set[str]:
    """The FlowFiles that an event is related to."""
    return {event.flow_file, *event.parent_ids, *event.child_ids}


def touches(query: EventQuery, first: int, last: int, millis_min: int, millis_max: int) -> bool:
    """Whether a run of events with these bounds may hold one of those."""
    return (
        query.after < last
        and (query.before is None or first < query.before)
        and (query.since_millis is None or millis_max >= query.since_millis)
        and (query.until_millis is None or millis_min < query.until_millis)
    )


class Unreadable(NamedTuple):
    """A run of events that are there and can't be read now; `problem` names the file."""

    first_sequence: int
    events: int
    problem: str


class Page(NamedTuple):
    """One answer. `next` is the sequence to ask `after` (newest first: `before`) for the following page, None: no more.

    `removed_through`: events up to this sequence were removed by retention; `lost`: runs that found no room or were set
    aside; `unreadable`: runs that may hold some that were asked for, and were passed over. Whoever reads events in
    order learns from these what is missing before `events`.
    """

    events: tuple[ProvenanceEvent, ...]
    next: int | None
    removed_through: int
    lost: tuple[LostEvents, ...]
    unreadable: tuple[Unreadable, ...] = ()


def page_of(events: Iterable[ProvenanceEvent], query: EventQuery, removed_through: int) -> Page:
    """The page of a possible query, of events that come in its order; no more of them are asked for than it takes. It
    ends early where events are large.
    """
    found, has_more = paged((event for event in events if matches(query, event)), query.limit, event_bytes)
    return Page(tuple(found), found[-1].sequence if has_more else None, removed_through, ())


def event_bytes(event: ProvenanceEvent) -> int:
    """What an event has that may be large."""
    texts = len(event.details) + len(event.relationship) + len(event.transit_uri) + len(event.alternate_identifier)
    return texts + sum(map(len, (event.attributes, event.attributes_before, event.parents, event.children)))


def event_at(search: Callable[[EventQuery], Page], sequence: int) -> ProvenanceEvent:
    """One event by its sequence number; EventNotFound if there is none, or none any more."""
    page = search(EventQuery(after=sequence - 1, before=sequence + 1, limit=1))
    if not page.events and page.unreadable:
        raise ProvenanceDamaged(page.unreadable[0].problem)
    if not page.events:
        gone = "was removed by retention" if 0 < sequence <= page.removed_through else "does not exist"
        raise EventNotFound(f"provenance event {sequence} {gone}")
    return page.events[0]


def possible(query: EventQuery) -> EventQuery:
    """The query with types as events have them; InvalidArgument for one that nothing can answer."""
    if not 0 < query.limit <= LIMIT_MAX:
        raise InvalidArgument(f"a page of {query.limit} events: ask for 1 to {LIMIT_MAX}, then for the next page")
    types = [name.upper() for name in query.types]
    for name in types:
        if name not in EventType.__members__:
            raise InvalidArgument(f"type {name!r} is none of {', '.join(EventType.__members__)}")
    for uuid in (query.flow_file, *query.related):
        try:
            if uuid:
                parse_uuid(uuid)
        except ValueError as error:
            raise InvalidArgument(str(error)) from error
    return msgspec.structs.replace(query, types=types)
