"""All queues of a repository: their definitions, swapping, dropping and expiration.

Every change is committed before a queue shows it. Work on many FlowFiles is a sequence of small transactions, so that
no other commit waits long, and what a crash interrupts is resumed by asking again.
"""

import threading
from collections.abc import Callable, Sequence

from ullage_agent.contract import FlowFileSettings
from ullage_agent.engine.clock import Clock
from ullage_agent.engine.errors import FlowFileNotFound, SessionMisuse
from ullage_agent.engine.flowfile.ledger import Ledger
from ullage_agent.engine.flowfile.queues import FlowFileQueue, Polled
from ullage_agent.engine.flowfile.swap import SwapFiles, blocks_of, summarize
from ullage_agent.engine.model import (
    HANDLE_QUEUE,
    Delete,
    FlowFile,
    Operation,
    QueueDefinition,
    SwapDrop,
    SwapIn,
    SwapOut,
)

DROP_SLICE = 1_000
"""FlowFiles one dropping transaction removes: about two milliseconds of everybody's time."""

Commit = Callable[[Sequence[Operation]], None]


class QueueManager:
    """Thread-safe."""

    def __init__(
        self,
        ledger: Ledger,
        swap_files: SwapFiles,
        commit: Commit,
        commit_new: Commit,
        clock: Clock,
        settings: FlowFileSettings,
    ) -> None:
        self._ledger = ledger
        self._swap_files = swap_files
        self._commit = commit
        self._commit_new = commit_new
        self._clock = clock
        self._settings = settings
        self._lock = threading.Lock()
        self._by_name: dict[str, FlowFileQueue] = {}
        self._by_number: dict[int, FlowFileQueue] = {}
        self._position_lock = threading.Lock()
        self._position = 0

    def restore(self) -> None:
        """Fill the queues from the ledger, each in its order."""
        records: dict[int, list[FlowFile]] = {}
        for record in self._ledger.flow_files():
            if record.queue != HANDLE_QUEUE:
                records.setdefault(record.queue, []).append(record)
                self._position = max(self._position, record.queued)
        swapped: dict[int, list[SwapOut]] = {}
        for summary in self._ledger.swaps.values():
            swapped.setdefault(summary.queue, []).append(summary)
            self._position = max(self._position, summary.queued_max)
        for definition in self._ledger.queues.values():
            queue = self._new(definition)
            queue.restore(records.get(queue.number, []), swapped.get(queue.number, []))
            self._add(queue)

    def queue(self, name: str) -> FlowFileQueue:
        """The queue of this name, defined with the defaults on first use."""
        queue = self._by_name.get(name)
        if queue is not None:
            return queue
        defaults = self._settings.queue_defaults
        return self.define(
            name,
            priority=defaults.priority,
            count_max=defaults.max_count,
            bytes_max=int(defaults.max_size),
            expiration_millis=int(defaults.expiration),
        )

    def find(self, name: str) -> FlowFileQueue:
        """An existing queue; FlowFileNotFound for an unknown name."""
        queue = self._by_name.get(name)
        if queue is None:
            known = ", ".join(sorted(self._by_name)) or "none"
            raise FlowFileNotFound(f"there is no queue {name!r} (queues: {known})")
        return queue

    def define(
        self,
        name: str,
        *,
        priority: str,
        priority_attribute: str = "priority",
        count_max: int,
        bytes_max: int,
        expiration_millis: int,
    ) -> FlowFileQueue:
        """Create a queue, or give an existing one new settings."""
        if not name or len(name) > 255:
            raise SessionMisuse(f"a queue's name has 1 to 255 characters, not {len(name)}")
        with self._lock:
            existing = self._by_name.get(name)
            number = existing.number if existing else max(self._by_number, default=HANDLE_QUEUE) + 1
            definition = QueueDefinition(
                number, name, str(priority), priority_attribute, count_max, bytes_max, expiration_millis
            )
            self._commit([definition])
            if existing is not None:
                existing.redefine(definition)
                return existing
            queue = self._new(definition)
            self._add(queue)
            return queue

    def by_number(self, number: int) -> FlowFileQueue:
        return self._by_number[number]

    def all(self) -> list[FlowFileQueue]:
        """All queues by name."""
        return [self._by_name[name] for name in sorted(self._by_name)]

    def take_positions(self, count: int) -> int:
        """The first of `count` consecutive places in queues: microseconds, never handed out before."""
        with self._position_lock:
            first = max(self._position + 1, self._clock.now_millis() * 1000)
            self._position = first + count - 1
            return first

    def poll(
        self, queue: FlowFileQueue, count: int, wanted: Callable[[FlowFile], bool] | None = None
    ) -> list[FlowFile]:
        """Up to `count` FlowFiles for a session to hold; expired ones are removed for good on the way."""
        records: list[FlowFile] = []
        while True:
            if queue.needs_swap_in():
                self._swap_in(queue)
            polled = queue.poll(count - len(records), self._clock.now_millis(), wanted)
            self._expire(queue, polled)
            records.extend(polled.records)
            if len(records) == count or not (polled.records or polled.expired):
                if len(records) == count or wanted is not None or not queue.needs_swap_in():
                    return records

    def offer(self, queue: FlowFileQueue, records: list[FlowFile]) -> None:
        """Show durable FlowFiles in a queue, and swap out what makes it too long."""
        queue.offer(records)
        self.swap_out(queue)

    def swap_out(self, queue: FlowFileQueue) -> None:
        """Move whole batches of the overflow to swap files: the file is synced, then the log names it."""
        while True:
            with queue.swap_lock:
                batch = queue.take_swap_batch()
                if not batch:
                    return
                try:
                    summary = self._write_swap(queue, batch)
                except BaseException:
                    queue.return_swap_batch(batch)
                    raise
                queue.swapped_out(summary)

    def drop(self, queue: FlowFileQueue, on_progress: Callable[[int], None] | None = None) -> int:
        """Remove everything that is in a queue and not held by a session; returns how many FlowFiles."""
        dropped = 0
        while True:
            with queue.swap_lock:
                summary = queue.first_swapped()
                if summary is not None:
                    self._commit([SwapDrop(summary.name)])
                    queue.swap_dropped(summary)
                    count = summary.count
                else:
                    count = self._drop_slice(queue)
            dropped += count
            if on_progress is not None:
                on_progress(dropped)
            if count == 0:
                return dropped

    def expire(self) -> int:
        """Remove expired FlowFiles from all queues, opening a swap file only if something in it has expired."""
        removed = 0
        for queue in self.all():
            expiration = queue.definition.expiration_millis
            if expiration == 0:
                continue
            due = self._clock.now_millis() - expiration
            summary = queue.first_swapped()
            if summary is not None and summary.entry_millis_min <= due:
                self._swap_in(queue, even_if_active=True)
            polled = queue.poll(0, self._clock.now_millis(), _nothing)
            self._expire(queue, polled)
            removed += len(polled.expired)
        return removed

    def _drop_slice(self, queue: FlowFileQueue) -> int:
        records = queue.poll(DROP_SLICE, 1 << 62).records
        expired = queue.poll(DROP_SLICE, 1 << 62).expired if not records else []
        records = records or expired
        if records:
            self._remove(queue, records)
        return len(records)

    def _expire(self, queue: FlowFileQueue, polled: Polled) -> None:
        for first in range(0, len(polled.expired), DROP_SLICE):
            self._remove(queue, polled.expired[first : first + DROP_SLICE])

    def _remove(self, queue: FlowFileQueue, records: list[FlowFile]) -> None:
        try:
            self._commit([Delete(b"".join(record.uuid for record in records))])
        except BaseException:
            queue.requeue(records)
            raise
        queue.acknowledge(records)

    def _write_swap(self, queue: FlowFileQueue, batch: list[FlowFile]) -> SwapOut:
        with self._ledger.lock:
            blocks = blocks_of(self._ledger, batch)
        summary = summarize(batch, queue.number, self._clock.now_millis())
        self._swap_files.write(summary, batch, blocks)
        uuids = b"".join(record.uuid for record in batch)
        self._commit_new([_with_uuids(summary, uuids)])
        return summary

    def _swap_in(self, queue: FlowFileQueue, *, even_if_active: bool = False) -> None:
        with queue.swap_lock:
            summary = queue.first_swapped()
            if summary is None or not (even_if_active or queue.needs_swap_in()):
                return
            content = self._swap_files.read(summary.name)
            with self._ledger.lock:
                self._ledger.swap_contents[summary.name] = content
            self._commit([SwapIn(summary.name)])
            queue.swapped_in(summary, content.records)

    def _new(self, definition: QueueDefinition) -> FlowFileQueue:
        return FlowFileQueue(definition, self._settings.swap_threshold, self._settings.swap_batch)

    def _add(self, queue: FlowFileQueue) -> None:
        self._by_name[queue.name] = queue
        self._by_number[queue.number] = queue


def _with_uuids(summary: SwapOut, uuids: bytes) -> SwapOut:
    return SwapOut(
        summary.name,
        summary.queue,
        summary.count,
        summary.size_bytes,
        summary.entry_millis_min,
        summary.queued_min,
        summary.queued_max,
        summary.shares,
        uuids,
    )


def _nothing(_: FlowFile) -> bool:
    """The filter of a poll that only looks for what has expired."""
    return False
