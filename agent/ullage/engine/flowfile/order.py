"""The orders in which a queue hands out FlowFiles, and the two structures that keep them."""

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

from ullage.contract import QueuePriority
from ullage.engine.model import FlowFileRecord, QueueDefinition, SwapFirst, SwapOut, unpack_attributes

Key = Callable[[FlowFileRecord | SwapFirst], Any]
Entry = tuple[Any, bytes, FlowFileRecord]

place = attrgetter("queued")


def _priority_key(attribute: str) -> Key:
    """NiFi's PriorityAttributePrioritizer: numbers before words before nothing, each ascending."""

    def key(record: FlowFileRecord | SwapFirst) -> tuple[object, ...]:
        value = unpack_attributes(record.attributes).get(attribute)
        if value is None:
            return (2, 0, record.queued)
        try:
            return (0, int(value), record.queued)
        except ValueError:
            return (1, value, record.queued)

    return key


def key_of(definition: QueueDefinition) -> Key:
    """The sort key of a queue's order: smallest first."""
    keys: dict[str, Key] = {
        QueuePriority.FIRST_IN_FIRST_OUT: place,
        QueuePriority.OLDEST_FIRST: lambda record: (record.lineage_millis, record.queued),
        QueuePriority.NEWEST_FIRST: lambda record: (-record.lineage_millis, record.queued),
        QueuePriority.LARGEST_FIRST: lambda record: (-record.size, record.queued),
        QueuePriority.PRIORITY_ATTRIBUTE: _priority_key(definition.priority_attribute),
    }
    return keys[definition.priority]


def file_key_of(definition: QueueDefinition) -> Callable[[SwapOut], Any]:
    """The sort key of a queue's swap files, in the order in which they come back: by the first FlowFile of each."""
    if definition.priority == QueuePriority.FIRST_IN_FIRST_OUT:
        return attrgetter("queued_min")
    key = key_of(definition)
    return lambda summary: key(summary.first)


class Fifo:
    """First in first out: one reference a FlowFile, no keys, always in the order of `queued`.

    Positions are taken before a commit's sync, so of two commits at a time the earlier place may arrive later; and
    a session may bring back what it took from the middle. Both are put where they belong, at the cost of what they
    pass by: a restart, which knows nothing but `queued`, would put them there as well.
    """

    def __init__(self) -> None:
        self._records: deque[FlowFileRecord] = deque()

    def __len__(self) -> int:
        return len(self._records)

    @property
    def last(self) -> int:
        """The place of the last FlowFile; there must be one."""
        return int(self._records[-1].queued)

    def push(self, records: Sequence[FlowFileRecord]) -> None:
        """Take in FlowFiles, in the order of their places, from the end."""
        held = self._records
        if held and records and held[-1].queued > records[0].queued:
            first = records[0].queued
            behind = list(records)
            while held and held[-1].queued > first:
                behind.append(held.pop())
            behind.sort(key=place)
            records = behind
        held.extend(records)

    def push_back(self, records: Sequence[FlowFileRecord]) -> None:
        """Take in FlowFiles, in any order, from the front."""
        if not records:
            return
        held = self._records
        ahead = sorted(records, key=place)
        last = ahead[-1].queued
        while held and held[0].queued < last:
            ahead.append(held.popleft())
        ahead.sort(key=place)
        held.extendleft(reversed(ahead))

    def pop(self) -> FlowFileRecord:
        """Take the first out."""
        return self._records.popleft()

    def records(self) -> list[FlowFileRecord]:
        """All, in order."""
        return list(self._records)

    def replace(self, records: Iterable[FlowFileRecord]) -> None:
        """Hold these instead; they are in order."""
        self._records = deque(records)


class Heap:
    """Any other order."""

    def __init__(self, key: Key) -> None:
        self._key = key
        self._heap: list[Entry] = []

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, records: Sequence[FlowFileRecord]) -> None:
        """Take in FlowFiles, in any order."""
        if len(records) * 4 > len(self._heap):
            self._heap.extend(map(self._entry, records))
            heapq.heapify(self._heap)
            return
        for record in records:
            heapq.heappush(self._heap, self._entry(record))

    push_back = push

    def pop(self) -> FlowFileRecord:
        """Take the first out."""
        return heapq.heappop(self._heap)[2]

    def records(self) -> list[FlowFileRecord]:
        """All, in order."""
        return [entry[2] for entry in sorted(self._heap)]

    def records_with(self, others: list[FlowFileRecord]) -> list[FlowFileRecord]:
        """All of these and others, in order; keys that are known are not worked out again."""
        return [entry[2] for entry in sorted([*self._heap, *map(self._entry, others)])]

    def replace(self, records: Iterable[FlowFileRecord]) -> None:
        """Hold these instead."""
        self._heap = [self._entry(record) for record in records]
        heapq.heapify(self._heap)

    def _entry(self, record: FlowFileRecord) -> Entry:
        """Keys are equal for equal places only, and no two FlowFiles have one uuid: records are never compared."""
        return (self._key(record), record.uuid, record)
