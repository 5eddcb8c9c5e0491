"""The table `provenance`: events in the order of their sequence, found through the index where a predicate lets it."""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from ullage.embedded.asked import is_by_index
from ullage.engine.engine import Engine
from ullage.engine.model import unpack_attributes
from ullage.engine.provenance.events import ProvenanceEvent
from ullage.errors import ProvenanceDamaged
from ullage.wire.provenance import EventQuery

Row = tuple[Any, ...]

PAGE_EVENTS: Final = 10_000

LOOKED_THROUGH: Final = 100_000
"""Events that are looked through at most before anything is said of them: a second of an agent's time."""


def event_pages(engine: Engine, query: EventQuery, transaction: int) -> Iterator[list[Row]]:
    """Those that a query finds up to a transaction, page by page; an empty page says that it goes on.

    ProvenanceDamaged if some of them cannot be read: a table is read to its end or not at all, since who follows it by
    sequence would never come back for these.
    """
    after, end = max(query.after, engine.provenance.span()[0] - 1), query.before
    is_straight = is_by_index(query) or query == EventQuery(after=query.after, before=end, limit=query.limit)
    while end is None or after + 1 < end:
        ahead = None if is_straight else after + 1 + LOOKED_THROUGH
        before = end if ahead is None else ahead if end is None else min(ahead, end)
        page = engine.history.query(msgspec.structs.replace(query, after=after, before=before, limit=PAGE_EVENTS))
        if page.unreadable:
            raise ProvenanceDamaged(page.unreadable[0].problem)
        events = [event for event in page.events if event.transaction <= transaction]
        yield list(map(_row, events))
        if len(events) < len(page.events):
            return
        if page.next is not None:
            after = page.next
        elif before == end or before is None or before > engine.provenance.span()[1]:
            return
        else:
            after = before - 1


def _row(event: ProvenanceEvent) -> Row:
    return (
        *(event.sequence, event.transaction, event.ordinal, event.millis, event.type.name, event.flow_file),
        *(event.component, event.component_type, event.relationship, event.details, event.transit_uri),
        *(event.alternate_identifier, event.duration_millis, event.queue, event.entry_millis, event.lineage_millis),
        *(event.size, event.parent_ids, event.child_ids),
        *(_pairs(event.attributes_before), _pairs(event.attributes)),
    )


def _pairs(packed: bytes) -> list[tuple[str, str]]:
    return list(unpack_attributes(packed).items()) if packed else []
