"""Lineage: what became of a FlowFile, and what it was made from, as a graph of events.

Both ways are walked apart: ancestors of ancestors, and descendants of descendants, so that a sibling that only shares
a parent is not in the picture. Each generation is one search.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import tee
from typing import NamedTuple

import msgspec

from ullage.engine import paging
from ullage.engine.model import format_uuid, split_uuids
from ullage.engine.provenance.events import ProvenanceEvent
from ullage.engine.provenance.query import LIMIT_MAX, Page, Unreadable, event_bytes
from ullage.enums import LineageDirection
from ullage.errors import InvalidArgument
from ullage.wire.provenance import EventQuery

UUIDS_MAX = 1_000
"""FlowFiles asked for in one search of a generation."""

EVENTS_MAX = 10_000
"""Events in one graph: more is a table, not a picture."""

Search = Callable[[EventQuery], Page]


class LineageGraph(NamedTuple):
    """Events in the order of their sequence, and links between them by sequence: what led to what.

    `unexpanded` are FlowFiles whose own events are not here, because of the depth or the limit of events; `is_cut`:
    the limit of events was reached, or they are too large together. `removed_through`: earlier events were removed by
    retention. `unreadable`: events that might belong here, and could not be read.
    """

    events: tuple[ProvenanceEvent, ...]
    links: tuple[tuple[int, int], ...]
    unexpanded: tuple[bytes, ...]
    is_cut: bool
    removed_through: int
    unreadable: tuple[Unreadable, ...] = ()


def trace(
    search: Search,
    uuids: Iterable[bytes],
    *,
    way: LineageDirection = LineageDirection.BOTH,
    depth: int = 100,
    events_max: int = 1_000,
) -> LineageGraph:
    """The lineage of FlowFiles. `depth` generations up and down; 0 shows only their own events.

    To expand a FlowFile in the graph, trace it with a depth of 1 its way.
    """
    if depth < 0 or not 0 < events_max <= EVENTS_MAX:
        raise InvalidArgument(f"a lineage has a depth of 0 or more and 1 to {EVENTS_MAX} events")
    walk = _Walk(search, events_max)
    start = list(dict.fromkeys(uuids))
    up, down = tee(walk.events_of(start))  # both ways begin with the same search
    if way != LineageDirection.CHILDREN:
        walk.go(start, up, depth, _parents)
    if way != LineageDirection.PARENTS:
        walk.go(start, down, depth, _children)
    events = tuple(walk.events[sequence] for sequence in sorted(walk.events))
    unexpanded = tuple(uuid for uuid in walk.seen if uuid not in walk.expanded)
    unreadable = tuple(sorted(walk.unreadable))
    return LineageGraph(events, tuple(links(events)), unexpanded, walk.is_cut, walk.removed_through, unreadable)


def links(events: Iterable[ProvenanceEvent]) -> Iterator[tuple[int, int]]:
    """What led to what: an event follows the one before it of its FlowFile, or the one that made its FlowFile."""
    last: dict[bytes, int] = {}
    for event in events:
        before = [last.get(event.uuid)]
        if event.uuid in split_uuids(event.children):
            before += [last.get(parent) for parent in split_uuids(event.parents)]
        yield from ((sequence, event.sequence) for sequence in dict.fromkeys(before) if sequence is not None)
        last[event.uuid] = event.sequence
        for child in split_uuids(event.children):
            last[child] = event.sequence


class _Walk:
    """Collects events, a generation at a time."""

    def __init__(self, search: Search, events_max: int) -> None:
        self._search = search
        self._events_max = events_max
        self._bytes_left = paging.PAGE_BYTES
        self.events: dict[int, ProvenanceEvent] = {}
        self.seen: dict[bytes, None] = {}
        self.expanded: set[bytes] = set()
        self.is_cut = False
        self.removed_through = 0
        self.unreadable: set[Unreadable] = set()

    def go(
        self,
        start: list[bytes],
        events: Iterable[ProvenanceEvent],
        depth: int,
        relatives: Callable[[ProvenanceEvent, set[bytes]], Iterable[bytes]],
    ) -> None:
        """Walk one way from FlowFiles and their events.

        A FlowFile that the other way has seen is walked again: from it this way leads elsewhere.
        """
        walked: set[bytes] = set()
        generation = start
        for level in range(depth + 1):
            found: dict[bytes, None] = {}
            members = set(generation)
            for event in events:
                found.update(dict.fromkeys(relatives(event, members)))
                if level == depth and event.uuid not in members:
                    continue  # of the last generation only its own events are wanted
                if not self._add(event):
                    return
            walked.update(generation)
            generation = [uuid for uuid in found if uuid not in walked]
            self.seen.update(dict.fromkeys(generation))
            if not generation:
                return
            events = self.events_of(generation)

    def events_of(self, uuids: list[bytes]) -> Iterator[ProvenanceEvent]:
        """The events that these FlowFiles are about, parents or children of; searched for as they are asked for."""
        for at in range(0, len(uuids), UUIDS_MAX):
            related = list(map(format_uuid, uuids[at : at + UUIDS_MAX]))
            query = EventQuery(related=related, limit=min(LIMIT_MAX, self._events_max + 1))
            while True:
                page = self._search(query)
                self.removed_through = page.removed_through
                self.unreadable.update(page.unreadable)
                yield from page.events
                if page.next is None:
                    break
                query = msgspec.structs.replace(query, after=page.next)
            self.expanded.update(uuids[at : at + UUIDS_MAX])

    def _add(self, event: ProvenanceEvent) -> bool:
        """False if it is one too many, or too large beside the others."""
        if event.sequence in self.events:
            return True
        self._bytes_left -= event_bytes(event)
        if self.events and (len(self.events) == self._events_max or self._bytes_left < 0):
            self.is_cut = True
            return False
        self.events[event.sequence] = event
        return True


def _parents(event: ProvenanceEvent, of: set[bytes]) -> Iterable[bytes]:
    """The parents that an event tells of these FlowFiles."""
    return split_uuids(event.parents) if not of.isdisjoint(split_uuids(event.children)) else ()


def _children(event: ProvenanceEvent, of: set[bytes]) -> Iterable[bytes]:
    return split_uuids(event.children) if not of.isdisjoint(split_uuids(event.parents)) else ()
