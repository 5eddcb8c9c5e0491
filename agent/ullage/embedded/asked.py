"""What a predicate asks of the indexes that there are, before it is held against rows: it decides, they only hurry.

FlowFiles are known by uuid and queue (a swap file is of one queue, so those of others are not read); events by
sequence, time and what the index of provenance has.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from ullage.engine.model import HANDLE_QUEUE, EventType, FlowFileRecord, parse_uuid
from ullage.uuids import NOTATION
from ullage.wire.documents import COUNT_MAX
from ullage.wire.matching import LATEST_MILLIS
from ullage.wire.predicates import (
    All,
    Among,
    Bounds,
    Column,
    Comparison,
    Like,
    Predicate,
    Value,
    asked,
    asked_of_any,
    bounds,
    leaves,
)
from ullage.wire.provenance import EventQuery

MILLI: Final = 1_000
"""Microseconds."""

UUID: Final = re.compile(NOTATION)

WILDCARD: Final = re.compile(r"[%_\\]")
"""Where a pattern ends to be meant as it stands there."""

KIN: Final = frozenset({Column("uuid"), Column("parents"), Column("children")})

TEXTS: Final = ("component", "component_type", "relationship", "transit_uri", "alternate_identifier")
"""Columns of events that a query takes one text of each for."""


class RecordsAsked(NamedTuple):
    """FlowFiles of these uuids and queues, by number; None: of any."""

    uuids: frozenset[bytes] | None = None
    queues: frozenset[int] | None = None

    texts: tuple[frozenset[bytes], ...] = ()
    """Of each one is in their attributes as they are stored: those of the others need not be unpacked."""

    def may_hold(self, queue: int) -> bool:
        """Whether some of a queue's may be among them."""
        return (self.queues is None or queue in self.queues) and self.uuids != frozenset()

    def may_be(self, record: FlowFileRecord) -> bool:
        """Whether it may be one of them."""
        return (
            (self.uuids is None or record.uuid in self.uuids)
            and (self.queues is None or record.queue in self.queues)
            and all(any(text in record.attributes for text in each) for each in self.texts)
        )


ANY_RECORD: Final = RecordsAsked()


def records_asked(predicate: Predicate, queues: Mapping[int, str]) -> RecordsAsked:
    """Which FlowFiles a predicate on their table may choose; `queues` are names by number."""
    uuids = asked(predicate, Column("uuid"))
    names = asked(predicate, Column("queue"))
    return RecordsAsked(
        None if uuids is None else frozenset(map(parse_uuid, _uuids(uuids))),
        None if names is None else frozenset(number for number, name in queues.items() if name in names) - HANDLES,
        tuple(_texts(predicate)),
    )


def _texts(predicate: Predicate) -> Iterator[frozenset[bytes]]:
    """Names and values, or how they begin, of attributes that every FlowFile has which is chosen."""
    for part in predicate.parts if isinstance(predicate, All) else (predicate,):
        match part:
            case Comparison(Column("attributes", str(key)), "=", str(value)):
                yield from (frozenset({key.encode()}), frozenset({value.encode()}))
            case Among(Column("attributes", str(key)), values):
                yield from (frozenset({key.encode()}), frozenset(str(value).encode() for value in values))
            case Like(Column("attributes", str(key)), pattern):
                yield from (frozenset({key.encode()}), frozenset({WILDCARD.split(pattern, 1)[0].encode()}))


HANDLES: Final = frozenset({HANDLE_QUEUE})
"""Their queue has no name."""


def events_asked(predicate: Predicate) -> EventQuery | None:
    """What a predicate on the table of events asks of their index; None: there can be no such event."""
    uuids, kin = asked(predicate, Column("uuid")), asked_of_any(predicate, KIN)
    related = None if kin is None else _uuids(kin if uuids is None else uuids)
    types = asked(predicate, Column("type"))
    known = None if types is None else sorted(EventType.__members__.keys() & types)
    if related == frozenset() or known == []:
        return None
    is_one = uuids is not None and len(uuids) == 1
    query = EventQuery(
        types=known or [],
        flow_file=next(iter(related)) if related and is_one else "",
        related=[] if related is None or is_one else sorted(related),
        attributes=_attributes(predicate),
    )
    texts = {name: _only(asked(predicate, Column(name))) for name in TEXTS}
    return _within(msgspec.structs.replace(query, **texts), predicate)


def _within(query: EventQuery, predicate: Predicate) -> EventQuery | None:
    """The same, of its sequences, times and sizes alone."""
    sequence, size = bounds(predicate, "sequence"), bounds(predicate, "size")
    time, millis = bounds(predicate, "time"), bounds(predicate, "millis")
    since = max(_whole(time.first, MILLI), _whole(millis.first))
    until = min(_until(time), _whole(millis.last) + 1)
    if any(_is_empty(each) for each in (sequence, size, time, millis)) or until <= since:
        return None
    return msgspec.structs.replace(
        query,
        after=max(0, _whole(sequence.first) - 1),
        before=_or_none(_whole(sequence.last) + 1),
        since_millis=since or None,
        until_millis=_or_none(until),
        size_min=_whole(size.first) or None,
        size_max=_or_none(_whole(size.last)),
    )


def _until(time: Bounds) -> int:
    """What is recorded as later than all calendars is shown as their end."""
    found = _whole(time.last, MILLI) + 1
    return COUNT_MAX if found > LATEST_MILLIS else found


def _is_empty(found: Bounds) -> bool:
    return found.first > found.last or found.last < 0


def _whole(number: float, unit: int = 1) -> int:
    """Within what a query can say, in its unit."""
    if math.isinf(number):
        return COUNT_MAX if number > 0 else 0
    return min(max(0, int(number) // unit), COUNT_MAX)


def _or_none(number: int) -> int | None:
    return None if number >= COUNT_MAX else number


def _attributes(predicate: Predicate) -> dict[str, str]:
    keys = {leaf.column.key for leaf in leaves(predicate) if leaf.column.name == "attributes"}
    found = {key: _only(asked(predicate, Column("attributes", key))) for key in keys if key is not None}
    return {key: value for key, value in found.items() if value}


def _only(values: frozenset[Value] | None) -> str:
    return str(next(iter(values))) if values is not None and len(values) == 1 else ""


def _uuids(values: frozenset[Value]) -> frozenset[str]:
    """Those that are uuids, as tables write them: nothing else is in a column of theirs."""
    return frozenset(str(value) for value in values if UUID.fullmatch(str(value)))
