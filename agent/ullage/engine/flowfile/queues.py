"""A queue: references to FlowFiles in priority order, of which the lowest may lie in swap files.

    active     what polls are served from, at most `swap_threshold` and what rollbacks bring back
    overflow   arrivals while active is full or something waits behind it; a batch of it becomes a swap file
    leaving    the batch that is being written to a swap file: no longer here, not yet there
    swapped    summaries of swap files, in the order in which they come back
    penalized  FlowFiles that wait for their penalty to end

A swap file that can't be read is passed over: what stands behind it is served as if it were not there, its FlowFiles
keep their places, and it is tried again.

For first in first out the order is exact: active, then swapped, then leaving, then overflow. In the other orders
active keeps the best of all that were in memory whenever a batch goes, the lowest batch goes, and of the swap files
the one comes back first whose first FlowFile is the best. Then, as in NiFi, the order holds among the active ones: no
swap file is opened to look for something better, and fewer new ones than a batch wait for those that are swapped.
"""

import bisect
import heapq
import threading
from collections.abc import Callable, Collection, Iterable
from itertools import filterfalse
from typing import NamedTuple

from ullage.contract import QueuePriority
from ullage.engine.content.availability import Availability
from ullage.engine.flowfile.order import Fifo, Heap, file_key_of, key_of, place
from ullage.engine.model import FlowFileRecord, QueueDefinition, SwapOut
from ullage.errors import BackPressure, RepositoryDamaged


class Polled(NamedTuple):
    """What a poll took out of the queue: FlowFiles for the caller, and those found expired, to be dropped."""

    records: list[FlowFileRecord]
    expired: list[FlowFileRecord]


class QueueFigures(NamedTuple):
    """Counts and bytes of a queue, those that sessions hold and that are swapped out included. `unavailable` were
    passed over by a poll because their content, or their swap file, can't be read.
    """

    flow_files: int
    size_bytes: int
    held: int
    swapped: int
    swap_files: int
    penalized: int
    unavailable: int


class PassedOver(NamedTuple):
    """A swap file that can't be read, why, and when (monotonic) that was found."""

    summary: SwapOut
    error: RepositoryDamaged
    since: float


class FlowFileQueue:
    """One queue. Thread-safe. What it holds is committed and durable; it never decides that on its own.

    `swap_lock` is held by whoever moves FlowFiles between memory and swap files, for as long as that takes.
    """

    def __init__(
        self, definition: QueueDefinition, swap_threshold: int, swap_batch: int, availability: Availability
    ) -> None:
        self.swap_lock = threading.Lock()
        self._lock = threading.Lock()
        self._swap_threshold = swap_threshold
        self._swap_batch = swap_batch
        self._overflow: list[FlowFileRecord] = []
        self._leaving: list[FlowFileRecord] = []
        self._swapped: list[SwapOut] = []
        self._passed_over: dict[str, PassedOver] = {}
        self._penalized: list[tuple[int, int, FlowFileRecord]] = []
        self._availability = availability
        self._aside: list[FlowFileRecord] = []
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

    def require_room(self) -> None:
        """BackPressure if it is full."""
        if self.is_full:
            definition = self.definition
            raise BackPressure(
                f"queue {self.name} is full: {self._count} FlowFiles, {self._bytes} bytes (limits "
                f"{definition.count_max} and {definition.bytes_max})"
            )

    @property
    def is_drained(self) -> bool:
        """Nothing is here that a poll could get; others may hold some, or some may be penalized."""
        with self._lock:
            return not (self._active or self._is_waiting)

    @property
    def is_empty(self) -> bool:
        """Nothing is here at all: neither swapped, nor penalized, nor held by a session."""
        return self._count == 0

    def redefine(self, definition: QueueDefinition) -> None:
        """New settings; a new order sorts what is in memory again."""
        with self._lock:
            records = [*self._active.records(), *self._overflow]
            self._set(definition)
            self._active = self._new_order()
            self._swapped.sort(key=self._file_key)
            self._arrange(records)

    def offer(self, records: list[FlowFileRecord]) -> None:
        """Take in FlowFiles whose transaction is durable, in the order of their places."""
        with self._lock:
            self._count += len(records)
            self._bytes += sum(record.size for record in records)
            self._enqueue(records)

    def requeue(self, records: list[FlowFileRecord]) -> None:
        """Take back FlowFiles that a session held and rolled back, to where they came from."""
        with self._lock:
            self._held -= len(records)
            self._active.push_back(records)

    def penalize(self, record: FlowFileRecord, until_millis: int) -> None:
        """Take in a FlowFile that polls must not see before `until_millis`."""
        with self._lock:
            self._count += 1
            self._bytes += record.size
            heapq.heappush(self._penalized, (until_millis, record.queued, record))

    def acknowledge(self, records: Iterable[FlowFileRecord]) -> None:
        """FlowFiles that a session held have left for good (as they were when polled)."""
        with self._lock:
            for record in records:
                self._held -= 1
                self._count -= 1
                self._bytes -= record.size

    def poll(self, count: int, now_millis: int) -> Polled:
        """Up to `count` FlowFiles in order; the caller holds them, and the expired ones, from now on.

        Those whose content can't be read are put aside, where their time stands still, and keep their places.
        """
        polled = Polled([], [])
        with self._lock:
            self._prepare(now_millis)
            has_damage = bool(self._availability)
            while len(polled.records) < count and self._active:
                record = self._active.pop()
                if has_damage and self._availability.damage(record.claim):
                    self._aside.append(record)
                    continue
                (polled.expired if self._is_expired(record, now_millis) else polled.records).append(record)
            self._held += len(polled.records) + len(polled.expired)
        return polled

    def poll_by(self, count: int, now_millis: int, wanted: Callable[[FlowFileRecord], bool]) -> Polled:
        """Up to `count` of the active FlowFiles, of those that `wanted` accepts.

        `wanted` is somebody else's code and may take its time: it is asked without the lock. What another poll
        took meanwhile is not taken again.
        """
        with self._lock:
            self._prepare(now_millis)
            listed = self._active.records()
        chosen: dict[bytes, bool] = {}
        found = 0
        for record in listed:
            if self._availability.damage(record.claim):
                continue
            if self._is_expired(record, now_millis):
                chosen[record.uuid] = False
            elif found < count and wanted(record):
                chosen[record.uuid] = True
                found += 1
        return self._take(chosen) if chosen else Polled([], [])

    def take(self, count: int) -> list[FlowFileRecord]:
        """Up to `count` FlowFiles in memory whatever their order, age and penalty, to be dropped; held from now on."""
        with self._lock:
            taken = [self._active.pop() for _ in range(min(count, len(self._active)))]
            rest = count - len(taken)
            taken += self._overflow[:rest]
            del self._overflow[:rest]
            while self._penalized and len(taken) < count:
                taken.append(heapq.heappop(self._penalized)[2])
            while self._aside and len(taken) < count:
                taken.append(self._aside.pop())
            self._held += len(taken)
        return taken

    def take_expired(self, now_millis: int) -> list[FlowFileRecord]:
        """Every expired FlowFile in memory, to be dropped; held from now on."""

        def is_fresh(record: FlowFileRecord) -> bool:
            return not self._is_expired(record, now_millis) or self._availability.damage(record.claim) is not None

        with self._lock:
            in_memory = [*self._active.records(), *self._overflow, *(entry[2] for entry in self._penalized)]
            expired = [record for record in in_memory if not is_fresh(record)]
            if expired:
                self._active.replace(filter(is_fresh, self._active.records()))
                self._overflow = list(filter(is_fresh, self._overflow))
                self._penalized = [entry for entry in self._penalized if is_fresh(entry[2])]
                heapq.heapify(self._penalized)
                self._held += len(expired)
        return expired

    def put_back(self) -> int:
        """Those put aside whose content can be read again go back to their places; how many."""
        with self._lock:
            readable = [record for record in self._aside if not self._availability.damage(record.claim)]
            self._aside = [record for record in self._aside if self._availability.damage(record.claim)]
            self._active.push_back(readable)
        return len(readable)

    def take_unavailable(self, uuids: Collection[bytes]) -> list[FlowFileRecord]:
        """Those of these FlowFiles whose content can't be read, to be dropped; held from now on."""

        def is_meant(record: FlowFileRecord) -> bool:
            return record.uuid in uuids and self._availability.damage(record.claim) is not None

        with self._lock:
            known = [*self._aside, *self._active.records(), *self._overflow]
            taken = list(filter(is_meant, known))
            if taken:
                self._aside = list(filterfalse(is_meant, self._aside))
                self._overflow = list(filterfalse(is_meant, self._overflow))
                self._active.replace(filterfalse(is_meant, self._active.records()))
                self._held += len(taken)
        return taken

    def needs_swap_in(self) -> bool:
        """Whether everything in memory before the first swap file, written or being written, is gone."""
        with self._lock:
            return bool(self._readable or self._leaving) and not self._active

    def first_swapped(self) -> SwapOut | None:
        with self._lock:
            return self._swapped[0] if self._swapped else None

    def next_swapped(self) -> SwapOut | None:
        """The first that is not passed over."""
        with self._lock:
            return next(iter(self._readable), None)

    def pass_over(self, found: PassedOver) -> None:
        """A swap file proved unreadable: what is behind it need not wait for it."""
        with self._lock:
            if found.summary in self._swapped:
                self._passed_over[found.summary.name] = found

    @property
    def passes_over(self) -> bool:
        """Whether there are such files now."""
        return bool(self._passed_over)

    def passed_over(self) -> list[PassedOver]:
        with self._lock:
            return list(self._passed_over.values())

    def look_again(self, before: float) -> int:
        """Swap files that were passed over before that moment are tried again; how many."""
        with self._lock:
            names = [name for name, found in self._passed_over.items() if found.since < before]
            for name in names:
                del self._passed_over[name]
        return len(names)

    def swapped_in(self, summary: SwapOut, records: list[FlowFileRecord]) -> None:
        """The first swap file's FlowFiles are back in memory, durably."""
        with self._lock:
            self._swapped.remove(summary)
            self._passed_over.pop(summary.name, None)
            self._swapped_count -= summary.count
            # Fewer are back where some could not be used.
            self._count -= summary.count - len(records)
            self._bytes -= summary.size_bytes - sum([record.size for record in records])
            self._active.push(sorted(records, key=self._key))

    def swap_replaced(self, old: SwapOut, new: SwapOut | None) -> None:
        """Some of a swap file's FlowFiles ceased to exist: the others are in `new`; None: there are no others."""
        with self._lock:
            at = self._swapped.index(old)
            if new is None:
                del self._swapped[at]
            else:
                self._swapped[at] = new
                self._swapped.sort(key=self._file_key)
            self._passed_over.pop(old.name, None)
            self._swapped_count -= old.count - (new.count if new else 0)
            self._count -= old.count - (new.count if new else 0)
            self._bytes -= old.size_bytes - (new.size_bytes if new else 0)

    def has_swap_batch(self) -> bool:
        """Whether the overflow has grown to a batch."""
        return len(self._overflow) >= self._swap_batch

    def take_swap_batch(self) -> list[FlowFileRecord]:
        """The lowest-priority batch, if the overflow has grown to one; else nothing. The caller swaps it out.

        Until `swapped_out` or `return_swap_batch` it is on its way: nothing behind it is handed out before it.
        """
        with self._lock:
            if not self.has_swap_batch():
                return []
            if isinstance(self._active, Fifo):
                self._leaving = self._overflow[: self._swap_batch]
                del self._overflow[: self._swap_batch]
            else:
                ordered = self._active.records_with(self._overflow)
                self._leaving = ordered[-self._swap_batch :]
                del ordered[-self._swap_batch :]
                self._active.replace(ordered[: self._swap_threshold])
                self._overflow = ordered[self._swap_threshold :]
            return self._leaving

    def swapped_out(self, summary: SwapOut) -> None:
        """The batch lies in a swap file, durably."""
        with self._lock:
            self._leaving = []
            bisect.insort(self._swapped, summary, key=self._file_key)
            self._swapped_count += summary.count

    def return_swap_batch(self) -> None:
        """Swapping out failed: the batch stays in memory."""
        with self._lock:
            self._overflow[:0] = self._leaving
            self._leaving = []

    def restore(self, records: list[FlowFileRecord], size_bytes: int, swapped: list[SwapOut]) -> None:
        """Fill an empty queue at start; `records` of this queue, of `size_bytes` in all, in any order."""
        with self._lock:
            self._swapped.extend(sorted(swapped, key=self._file_key))
            self._swapped_count = sum(summary.count for summary in swapped)
            self._count = len(records) + self._swapped_count
            self._bytes = size_bytes + sum(summary.size_bytes for summary in swapped)
            self._arrange(records)

    def records(self, limit: int | None = None) -> list[FlowFileRecord]:
        """FlowFiles in memory that nobody holds, in the order in which they would be polled."""
        before, _, behind = self.standing()
        return (before + behind)[:limit]

    def standing(self) -> tuple[list[FlowFileRecord], list[SwapOut], list[FlowFileRecord]]:
        """What stands before the swapped ones, these, and what stands behind them, penalized ones last."""
        with self._lock:
            penalized = sorted(self._penalized, key=lambda entry: entry[:2])
            behind = [*self._leaving, *self._overflow, *(entry[2] for entry in penalized), *self._aside]
            return self._active.records(), list(self._swapped), behind

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
                len(self._aside) + sum(found.summary.count for found in self._passed_over.values()),
            )

    @property
    def _readable(self) -> list[SwapOut]:
        """The swap files that are not passed over."""
        if not self._passed_over:
            return self._swapped
        return [summary for summary in self._swapped if summary.name not in self._passed_over]

    @property
    def _is_waiting(self) -> bool:
        """Whether something stands behind the active ones."""
        return bool(self._overflow or self._leaving or self._readable)

    def _set(self, definition: QueueDefinition) -> None:
        self.definition = definition
        self._key = key_of(definition)
        self._file_key = file_key_of(definition)

    def _new_order(self) -> Fifo | Heap:
        if self.definition.priority == QueuePriority.FIRST_IN_FIRST_OUT:
            return Fifo()
        return Heap(self._key)

    def _arrange(self, records: list[FlowFileRecord]) -> None:
        """Divide everything in memory anew between active and overflow."""
        ordered = sorted(records, key=self._key)
        count = self._swap_threshold
        readable = self._readable
        if isinstance(self._active, Fifo) and (readable or self._leaving):
            # What was queued before the first swap file goes before it, however much that is.
            first = min([*map(_first_place, readable), *map(place, self._leaving)])
            count = sum(record.queued < first for record in ordered)
        self._active.replace(ordered[:count])
        self._overflow = ordered[count:]

    def _enqueue(self, records: list[FlowFileRecord]) -> None:
        if isinstance(self._active, Fifo):
            early = self._count_early(records)
            if early:
                self._active.push(records[:early])
                records = records[early:]
        if not self._is_waiting:
            room = max(0, self._swap_threshold - len(self._active))
            if len(records) <= room:
                self._active.push(records)
                return
            self._active.push(records[:room])
            records = records[room:]
        is_late = self._overflow and records and self._overflow[-1].queued > records[0].queued
        self._overflow.extend(records)
        if is_late:
            self._overflow.sort(key=place)

    def _count_early(self, records: list[FlowFileRecord]) -> int:
        """How many arrivals belong before what waits: their commit was overtaken by another one."""
        if self._is_waiting:
            heads = [*map(_first_place, self._readable[:1]), *map(place, self._leaving[:1] + self._overflow[:1])]
            limit = min(heads)
        elif isinstance(self._active, Fifo) and self._active:
            limit = self._active.last
        else:
            return 0
        if not records or records[0].queued > limit:
            return 0
        return sum(record.queued < limit for record in records)

    def _prepare(self, now_millis: int) -> None:
        """End penalties that are over, and let the overflow in when nothing stands before it any more."""
        while self._penalized and self._penalized[0][0] <= now_millis:
            self._enqueue([heapq.heappop(self._penalized)[2]])
        if self._overflow and not (self._active or self._readable or self._leaving):
            self._arrange(self._overflow)

    def _take(self, chosen: dict[bytes, bool]) -> Polled:
        """Take what is still there of the chosen ones (True) and the expired ones (False)."""
        polled = Polled([], [])
        kept: list[FlowFileRecord] = []
        with self._lock:
            for record in self._active.records():
                choice = chosen.get(record.uuid)
                if choice is None:
                    kept.append(record)
                else:
                    (polled.records if choice else polled.expired).append(record)
            self._active.replace(kept)
            self._held += len(polled.records) + len(polled.expired)
        return polled

    def _is_expired(self, record: FlowFileRecord, now_millis: int) -> bool:
        expiration = self.definition.expiration_millis
        return expiration > 0 and record.entry_millis + expiration <= now_millis


def _first_place(summary: SwapOut) -> int:
    return summary.queued_min
