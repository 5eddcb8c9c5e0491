"""What can be asked of provenance, and the pages that answer it."""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec

from ullage.engine.model import EventType, parse_uuid
from ullage.engine.provenance.events import ProvenanceEvent
from ullage.engine.provenance.manifest import LostEvents
from ullage.errors import EventNotFound, InvalidArgument

LIMIT_MAX = 10_000
"""Events in one page: what an answer may take of memory and time. Whoever wants more asks for the next page."""


_TEXTS = ("flow_file", "component", "component_type", "relationship", "transit_uri", "alternate_identifier")


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
        return tuple((name, getattr(self, name)) for name in _TEXTS)

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
    lost: tuple[LostEvents, ...]


def page_of(events: Iterable[ProvenanceEvent], query: Query, removed_through: int) -> Page:
    """The page of a possible query, of events that come in its order; no more of them are asked for than it takes."""
    found = list(islice(filter(query.matches, events), query.limit + 1))
    following = found[query.limit - 1].sequence if len(found) > query.limit else None
    return Page(tuple(found[: query.limit]), following, removed_through, ())


def event_at(query: Callable[[Query], Page], sequence: int) -> ProvenanceEvent:
    """One event by its sequence number; EventNotFound if there is none, or none any more."""
    page = query(Query(after=sequence - 1, before=sequence + 1, limit=1))
    if not page.events:
        gone = "was removed by retention" if 0 < sequence <= page.removed_through else "does not exist"
        raise EventNotFound(f"provenance event {sequence} {gone}")
    return page.events[0]


def require_possible(query: Query) -> None:
    """InvalidArgument for a query that nothing can answer."""
    if not 0 < query.limit <= LIMIT_MAX:
        raise InvalidArgument(f"a page of {query.limit} events: ask for 1 to {LIMIT_MAX}, then for the next page")
    for uuid in (query.flow_file, *query.related):
        try:
            if uuid:
                parse_uuid(uuid)
        except ValueError as error:
            raise InvalidArgument(str(error)) from error


def _has(attributes: dict[str, str], wanted: Sequence[tuple[str, str]]) -> bool:
    return all(attributes.get(name) == value for name, value in wanted)
