"""A queue: references to FlowFiles in priority order, of which the lowest may lie in swap files.

    active     what polls are served from, at most `swap_threshold` and what rollbacks bring back
    overflow   arrivals while active is full or files are swapped out; a batch of it becomes a swap file
    swapped    summaries of swap files, in the order in which they come back
    penalized  FlowFiles that wait for their penalty to end

For first in first out the order is exact: active, then swapped, then overflow. The other priorities hold within what
is in memory, as in NiFi: a swap file is not opened to look for something better.
"""

import heapq
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from ullage_agent.contract import QueuePriority
from ullage_agent.engine.model import FlowFile, QueueDefinition, SwapOut, unpack_attributes

Key = Callable[[FlowFile], tuple[object, ...]]


class Polled(NamedTuple):
    """What a poll took out of the queue: FlowFiles for the caller, and those found expired, to be dropped."""

    records: list[FlowFile]
    expired: list[FlowFile]


class QueueFigures(NamedTuple):
    """Counts and bytes of a queue, those that sessions hold and that are swapped out included."""

    flow_files: int
    size_bytes: int
    held: int
    swapped: int
    swap_files: int
    penalized: int


def _priority_key(attribute: str) -> Key:
    """NiFi's PriorityAttributePrioritizer: numbers before words before nothing, each ascending."""

    def key(record: FlowFile) -> tuple[object, ...]:
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
        QueuePriority.FIRST_IN_FIRST_OUT: lambda record: (record.queued,),
        QueuePriority.OLDEST_FIRST: lambda record: (record.lineage_millis, record.queued),
        QueuePriority.NEWEST_FIRST: lambda record: (-record.lineage_millis, record.queued),
        QueuePriority.LARGEST_FIRST: lambda record: (-record.size, record.queued),
        QueuePriority.PRIORITY_ATTRIBUTE: _priority_key(definition.priority_attribute),
    }
    return keys[definition.priority]


class _Fifo:
    """First in first out: one reference a FlowFile, no keys."""

    def __init__(self) -> None:
        self._records: deque[FlowFile] = deque()

    def __len__(self) -> int:
        return len(self._records)

    def push(self, records: Iterable[FlowFile]) -> None:
        self._records.extend(records)

    def push_back(self, records: list[FlowFile]) -> None:
        self._records.extendleft(reversed(records))

    def pop(self) -> FlowFile:
        return self._records.popleft()

    def records(self) -> list[FlowFile]:
        return list(self._records)

    def clear(self) -> None:
        self._records.clear()


class _Heap:
    """Any other order."""

    def __init__(self, key: Key) -> None:
        self._key = key
        self._heap: list[tuple[tuple[object, ...], bytes, FlowFile]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, records: Iterable[FlowFile]) -> None:
        for record in records:
            heapq.heappush(self._heap, (self._key(record), record.uuid, record))

    def push_back(self, records: list[FlowFile]) -> None:
        self.push(records)

    def pop(self) -> FlowFile:
        return heapq.heappop(self._heap)[2]

    def records(self) -> list[FlowFile]:
        return [entry[2] for entry in sorted(self._heap, key=lambda entry: entry[:2])]

    def clear(self) -> None:
        self._heap.clear()


class FlowFileQueue:
    """One queue. Thread-safe. What it holds is committed and durable; it never decides that on its own."""

    def __init__(self, definition: QueueDefinition, swap_threshold: int, swap_batch: int) -> None:
        self.swap_lock = threading.Lock()
        self._lock = threading.Lock()
        self._swap_threshold = swap_threshold
        self._swap_batch = swap_batch
        self._overflow: list[FlowFile] = []
        self._swapped: deque[SwapOut] = deque()
        self._penalized: list[tuple[int, int, FlowFile]] = []
        self._held = 0
        self._count = 0
        self._bytes = 0
        self._swapped_count = 0
        self._set(definition)
        self._active = self._new_order()

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def number(self) -> int:
        return self.definition.number

    @property
    def is_full(self) -> bool:
        """Back-pressure: count or bytes have reached the queue's limit (0: none). Sources stop; commits never fail."""
        definition = self.definition
        return (0 < definition.count_max <= self._count) or (0 < definition.bytes_max <= self._bytes)

    def redefine(self, definition: QueueDefinition) -> None:
        """New settings; a new priority sorts what is in memory again."""
        with self._lock:
            records = self._active.records()
            self._set(definition)
            self._active = self._new_order()
            self._active.push(sorted(records, key=self._key))

    def offer(self, records: list[FlowFile]) -> None:
        """Take in FlowFiles whose transaction is durable."""
        with self._lock:
            self._count += len(records)
            self._bytes += sum(record.size for record in records)
            self._enqueue(records)

    def requeue(self, records: list[FlowFile]) -> None:
        """Take back FlowFiles that a session held and rolled back, to where they came from."""
        with self._lock:
            self._held -= len(records)
            self._active.push_back(records)

    def penalize(self, record: FlowFile, until_millis: int) -> None:
        """Take in a FlowFile that polls must not see before `until_millis`."""
        with self._lock:
            self._count += 1
            self._bytes += record.size
            heapq.heappush(self._penalized, (until_millis, record.queued, record))

    def acknowledge(self, records: Iterable[FlowFile]) -> None:
        """FlowFiles that a session held have left for good (as they were when polled)."""
        with self._lock:
            for record in records:
                self._held -= 1
                self._count -= 1
                self._bytes -= record.size

    def poll(self, count: int, now_millis: int, wanted: Callable[[FlowFile], bool] | None = None) -> Polled:
        """Up to `count` FlowFiles in order; with `wanted`, those of the active ones that it accepts."""
        polled = Polled([], [])
        with self._lock:
            self._end_penalties(now_millis)
            self._promote_overflow()
            if wanted is not None:
                self._poll_wanted(count, now_millis, wanted, polled)
            else:
                while len(polled.records) < count and self._active:
                    record = self._active.pop()
                    (polled.expired if self._is_expired(record, now_millis) else polled.records).append(record)
            self._held += len(polled.records) + len(polled.expired)
        return polled

    def needs_swap_in(self) -> bool:
        """Whether everything in memory before the first swap file is gone."""
        return bool(self._swapped) and not self._active

    def first_swapped(self) -> SwapOut | None:
        with self._lock:
            return self._swapped[0] if self._swapped else None

    def swapped_in(self, summary: SwapOut, records: list[FlowFile]) -> None:
        """The first swap file's FlowFiles are back in memory, durably."""
        with self._lock:
            self._swapped.remove(summary)
            self._swapped_count -= summary.count
            self._active.push(sorted(records, key=self._key))

    def swap_dropped(self, summary: SwapOut) -> None:
        """A swap file's FlowFiles ceased to exist."""
        with self._lock:
            self._swapped.remove(summary)
            self._swapped_count -= summary.count
            self._count -= summary.count
            self._bytes -= summary.size_bytes

    def take_swap_batch(self) -> list[FlowFile]:
        """The lowest-priority batch, if the overflow has grown to one; else nothing. The caller swaps it out."""
        with self._lock:
            if len(self._overflow) < self._swap_batch:
                return []
            if isinstance(self._active, _Fifo):
                batch = self._overflow[: self._swap_batch]
                del self._overflow[: self._swap_batch]
                return batch
            ordered = sorted([*self._active.records(), *self._overflow], key=self._key)
            batch = ordered[-self._swap_batch :]
            keep = ordered[: -self._swap_batch]
            self._active.clear()
            self._active.push(keep[: self._swap_threshold])
            self._overflow = keep[self._swap_threshold :]
            return batch

    def swapped_out(self, summary: SwapOut) -> None:
        """The batch lies in a swap file, durably."""
        with self._lock:
            self._swapped.append(summary)
            self._swapped_count += summary.count

    def return_swap_batch(self, batch: list[FlowFile]) -> None:
        """Swapping out failed: the batch stays in memory."""
        with self._lock:
            self._overflow[:0] = batch

    def restore(self, records: list[FlowFile], swapped: list[SwapOut]) -> None:
        """Fill an empty queue at start; `records` of this queue in any order."""
        with self._lock:
            self._swapped.extend(sorted(swapped, key=lambda summary: summary.queued_min))
            self._swapped_count = sum(summary.count for summary in swapped)
            self._count = len(records) + self._swapped_count
            self._bytes = sum(record.size for record in records) + sum(summary.size_bytes for summary in swapped)
            records.sort(key=self._key)
            first_swapped = self._swapped[0].queued_min if self._swapped else None
            if first_swapped is None:
                self._active.push(records[: self._swap_threshold])
                self._overflow.extend(records[self._swap_threshold :])
            else:
                self._active.push(record for record in records if record.queued < first_swapped)
                self._overflow.extend(record for record in records if record.queued >= first_swapped)

    def records(self, limit: int | None = None) -> list[FlowFile]:
        """FlowFiles in memory in the order in which they would be polled, for listing."""
        with self._lock:
            listed = [
                *self._active.records(),
                *self._overflow,
                *(entry[2] for entry in sorted(self._penalized)),
            ]
        return listed if limit is None else listed[:limit]

    def swap_summaries(self) -> list[SwapOut]:
        with self._lock:
            return list(self._swapped)

    def figures(self) -> QueueFigures:
        with self._lock:
            return QueueFigures(
                self._count,
                self._bytes,
                self._held,
                self._swapped_count,
                len(self._swapped),
                len(self._penalized),
            )

    def _set(self, definition: QueueDefinition) -> None:
        self.definition = definition
        self._key = key_of(definition)

    def _new_order(self) -> _Fifo | _Heap:
        if self.definition.priority == QueuePriority.FIRST_IN_FIRST_OUT:
            return _Fifo()
        return _Heap(self._key)

    def _enqueue(self, records: list[FlowFile]) -> None:
        if not self._overflow and not self._swapped:
            room = max(0, self._swap_threshold - len(self._active))
            if room >= len(records):
                self._active.push(records)
                return
            self._active.push(records[:room])
            records = records[room:]
        self._overflow.extend(records)

    def _promote_overflow(self) -> None:
        if self._overflow and not self._swapped and not self._active:
            ordered = sorted(self._overflow, key=self._key)
            self._active.push(ordered[: self._swap_threshold])
            self._overflow = ordered[self._swap_threshold :]

    def _poll_wanted(self, count: int, now_millis: int, wanted: Callable[[FlowFile], bool], polled: Polled) -> None:
        kept: list[FlowFile] = []
        for record in self._active.records():
            if self._is_expired(record, now_millis):
                polled.expired.append(record)
            elif len(polled.records) < count and wanted(record):
                polled.records.append(record)
            else:
                kept.append(record)
        self._active.clear()
        self._active.push(kept)

    def _end_penalties(self, now_millis: int) -> None:
        while self._penalized and self._penalized[0][0] <= now_millis:
            self._active.push([heapq.heappop(self._penalized)[2]])

    def _is_expired(self, record: FlowFile, now_millis: int) -> bool:
        expiration = self.definition.expiration_millis
        return expiration > 0 and record.entry_millis + expiration <= now_millis
