"""All queues of a repository: their definitions, swapping, dropping and expiration.

Every change is committed before a queue shows it. Work on many FlowFiles is a sequence of small transactions, so that
no other commit waits long, and what a crash interrupts is resumed by asking again.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence

import msgspec

from ullage_agent.contract import FlowFileSettings, QueuePriority
from ullage_agent.engine.clock import Clock
from ullage_agent.engine.errors import (
    CommitOutcomeUnknown,
    FlowFileNotFound,
    RepositoryDamaged,
    RepositoryStopped,
    SessionMisuse,
    UllageError,
)
from ullage_agent.engine.flowfile.ledger import Ledger
from ullage_agent.engine.flowfile.queues import FlowFileQueue
from ullage_agent.engine.flowfile.swap import SwapFiles, blocks_of, summarize
from ullage_agent.engine.model import (
    HANDLE_QUEUE,
    STAGED_QUEUE,
    ClaimBlocks,
    Delete,
    EventType,
    FlowFile,
    Operation,
    QueueDefinition,
    SwapDrop,
    SwapIn,
    SwapOut,
)
from ullage_agent.engine.provenance.runs import of_existing
from ullage_agent.engine.wal.format import OPERATIONS_MAX

DROP_SLICE = 1_000
"""FlowFiles one dropping transaction removes: about two milliseconds of everybody's time."""

EMPTIED = "the queue was emptied"
EXPIRED = "older than its queue allows"

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
        *,
        records_provenance: bool = False,
    ) -> None:
        self._records_provenance = records_provenance
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
        self.swap_failure: Exception | None = None

    def adopt(self, settings: FlowFileSettings) -> None:
        """New defaults, for queues that are made from now on."""
        self._settings = settings

    def restore(self) -> list[FlowFile]:
        """Fill the queues from the ledger, each in its order; returns the handles, which stand in none.

        Nor does what is staged, which nobody sees.
        """
        records: defaultdict[int, list[FlowFile]] = defaultdict(list)
        sizes: defaultdict[int, int] = defaultdict(int)
        position = 0
        # One look at each: a million lie all over the memory, and each look waits for it.
        for record in self._ledger.flow_files():
            number = record.queue
            records[number].append(record)
            sizes[number] += record.size
            position = max(position, record.queued)
        self._position = max(self._position, position)
        handles = records.pop(HANDLE_QUEUE, [])
        records.pop(STAGED_QUEUE, None)
        swapped: dict[int, list[SwapOut]] = {}
        for summary in self._ledger.swaps.values():
            swapped.setdefault(summary.queue, []).append(summary)
            self._position = max(self._position, summary.queued_max)
        unknown = (records.keys() | swapped.keys()) - self._ledger.queues.keys()
        if unknown:
            raise RepositoryDamaged(f"FlowFiles stand in queues {sorted(unknown)}, which no transaction defined")
        for definition in self._ledger.queues.values():
            try:
                _require_possible(definition)
            except SessionMisuse as error:
                raise RepositoryDamaged(f"queue number {definition.number} is impossible: {error}") from error
            queue = self._new(definition)
            resident = records.get(queue.number, [])
            queue.restore(resident, sizes[queue.number], swapped.get(queue.number, []))
            self._add(queue)
        return handles

    def queue(self, name: str) -> FlowFileQueue:
        """The queue of this name, defined with the defaults on first use."""
        queue = self._by_name.get(name)
        if queue is not None:
            return queue
        defaults = self._settings.queue_defaults
        return self._define(
            QueueDefinition(
                HANDLE_QUEUE,
                name,
                str(defaults.priority),
                "priority",
                defaults.max_count,
                int(defaults.max_size),
                int(defaults.expiration),
            ),
            keep_existing=True,
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
        also: Sequence[Operation] = (),
    ) -> FlowFileQueue:
        """Create a queue, or give an existing one new settings; `also` goes into the same transaction. SessionMisuse,
        nothing changed, for impossible ones.
        """
        definition = QueueDefinition(
            HANDLE_QUEUE, name, str(priority), priority_attribute, count_max, bytes_max, expiration_millis
        )
        return self._define(definition, keep_existing=False, also=also)

    def _define(self, wanted: QueueDefinition, *, keep_existing: bool, also: Sequence[Operation] = ()) -> FlowFileQueue:
        """Commit the definition under the queue's number; the lock is what makes numbers unique."""
        _require_possible(wanted)
        with self._lock:
            existing = self._by_name.get(wanted.name)
            if existing is not None and keep_existing:
                return existing
            number = existing.number if existing else max(self._by_number, default=HANDLE_QUEUE) + 1
            definition = msgspec.structs.replace(wanted, number=number)
            self._commit_new([definition, *also])
            if existing is not None:
                existing.redefine(definition)
                return existing
            queue = self._new(definition)
            self._add(queue)
            return queue

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
        """Up to `count` FlowFiles for a session to hold; expired ones are removed for good on the way.

        Once something was found an error is left to the next poll, which will meet it again with nothing to lose.
        """
        records: list[FlowFile] = []
        try:
            while len(records) < count:
                if queue.needs_swap_in():
                    self._swap_in(queue)
                now = self._clock.now_millis()
                rest = count - len(records)
                polled = queue.poll(rest, now) if wanted is None else queue.poll_by(rest, now, wanted)
                records.extend(polled.records)
                self._remove(queue, polled.expired, EventType.EXPIRE)
                if wanted is not None or (queue.is_drained and not polled.expired):
                    break
        except BaseException as error:
            if records and isinstance(error, UllageError | OSError):
                return records
            queue.requeue(records)
            raise
        return records

    def offer(self, queue: FlowFileQueue, records: list[FlowFile]) -> None:
        """Show durable FlowFiles in a queue, and swap out what makes it too long.

        Never fails: their commit is over. What could not be swapped out stays in memory until the next offer or
        `swap_out_all`.
        """
        queue.offer(records)
        try:
            self.swap_out(queue)
        except (UllageError, OSError) as error:
            self.swap_failure = error

    def swap_out(self, queue: FlowFileQueue) -> None:
        """Move whole batches of the overflow to swap files: the file is synced, then the log names it."""
        while queue.has_swap_batch():
            with queue.swap_lock:
                batch = queue.take_swap_batch()
                if not batch:
                    return
                try:
                    summary = self._write_swap(queue, batch)
                except BaseException:
                    queue.return_swap_batch()
                    raise
                queue.swapped_out(summary)

    def swap_out_all(self) -> None:
        """Swap out whatever an earlier failure, or a smaller threshold, left in memory; raises what still fails."""
        self._for_each(self.swap_out)
        self.swap_failure = None

    def drop(self, queue: FlowFileQueue, on_progress: Callable[[int], None] | None = None) -> int:
        """Remove as many FlowFiles as are in a queue now and not held by a session; returns how many.

        Swap files go first, each whole; they are read only for what provenance tells of them.
        """
        figures = queue.figures()
        present = figures.flow_files - figures.held
        dropped = 0
        while dropped < present:
            count = self._drop_swapped(queue) or self._drop_slice(queue, min(DROP_SLICE, present - dropped))
            if count == 0:
                break
            dropped += count
            if on_progress is not None:
                on_progress(dropped)
        return dropped

    def expire(self) -> int:
        """Remove expired FlowFiles from all queues, opening a swap file only if something in it has expired.

        A queue that cannot be dealt with does not keep the others from it; its error is raised at the end.
        """
        removed = 0

        def expire(queue: FlowFileQueue) -> None:
            nonlocal removed
            if queue.definition.expiration_millis:
                removed += self._expire_resident(queue) + self._expire_swapped(queue)

        self._for_each(expire)
        return removed

    def _for_each(self, work: Callable[[FlowFileQueue], None]) -> None:
        failures: list[UllageError | OSError] = []
        for queue in self.all():
            try:
                work(queue)
            except (UllageError, OSError) as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def _drop_swapped(self, queue: FlowFileQueue) -> int:
        with queue.swap_lock:
            summary = queue.first_swapped()
            if summary is None:
                return 0
            self._commit([SwapDrop(summary.name), *self._events_of_swap(summary)])
            queue.swap_replaced(summary, None)
            return summary.count

    def _drop_slice(self, queue: FlowFileQueue, count: int) -> int:
        records = queue.take(count)
        self._remove(queue, records, EventType.DROP)
        return len(records)

    def _expire_resident(self, queue: FlowFileQueue) -> int:
        expired = queue.take_expired(self._clock.now_millis())
        self._remove(queue, expired, EventType.EXPIRE)
        return len(expired)

    def _expire_swapped(self, queue: FlowFileQueue) -> int:
        """Write each swap file that holds expired FlowFiles anew without them: the others never come to memory."""
        removed = 0
        for summary in queue.swap_summaries():
            due = self._clock.now_millis() - queue.definition.expiration_millis
            if summary.entry_millis_min > due:
                continue
            with queue.swap_lock:
                if summary in queue.swap_summaries():
                    removed += self._rewrite_swap(queue, summary, due)
        return removed

    def _rewrite_swap(self, queue: FlowFileQueue, old: SwapOut, due_millis: int) -> int:
        content = self._swap_files.read(old.name)
        kept = [record for record in content.records if record.entry_millis > due_millis]
        expired = [record for record in content.records if record.entry_millis <= due_millis]
        events = self._events(EventType.EXPIRE, expired)
        if not kept:
            self._commit([SwapDrop(old.name), *events])
            queue.swap_replaced(old, None)
            return old.count
        claims = {(record.claim.resource, record.claim.offset) for record in kept if record.claim is not None}
        blocks = [crcs for crcs in content.blocks if (crcs.resource, crcs.offset) in claims]
        new = summarize(kept, queue.number, self._clock.now_millis())
        self._write_file(new, kept, blocks, [SwapDrop(old.name), new, *events])
        queue.swap_replaced(old, new)
        return old.count - new.count

    def _events(self, type: EventType, records: list[FlowFile]) -> list[Operation]:
        """What provenance has to tell of FlowFiles that go without a session."""
        if not self._records_provenance:
            return []
        return of_existing(type, records, EXPIRED if type == EventType.EXPIRE else EMPTIED)

    def _events_of_swap(self, summary: SwapOut) -> list[Operation]:
        """The same for a swap file that is dropped whole. One that cannot be read goes all the same, untold."""
        if not self._records_provenance:
            return []
        try:
            return self._events(EventType.DROP, self._swap_files.read(summary.name).records)
        except RepositoryDamaged as error:
            self.swap_failure = error
            return []

    def _remove(self, queue: FlowFileQueue, records: list[FlowFile], type: EventType) -> None:
        """Delete what was taken out of a queue, in slices; what a failure leaves goes back."""
        for first in range(0, len(records), DROP_SLICE):
            part = records[first : first + DROP_SLICE]
            try:
                self._commit([Delete(b"".join(record.uuid for record in part)), *self._events(type, part)])
            except (CommitOutcomeUnknown, RepositoryStopped):
                raise  # they may be gone: only a restart can tell
            except Exception:
                queue.requeue(records[first:])
                raise
            queue.acknowledge(part)

    def _write_swap(self, queue: FlowFileQueue, batch: list[FlowFile]) -> SwapOut:
        summary = summarize(batch, queue.number, self._clock.now_millis())
        uuids = b"".join(record.uuid for record in batch)
        self._write_file(
            summary, batch, blocks_of(self._ledger, batch), [msgspec.structs.replace(summary, uuids=uuids)]
        )
        return summary

    def _write_file(
        self, summary: SwapOut, records: list[FlowFile], blocks: list[ClaimBlocks], operations: Sequence[Operation]
    ) -> None:
        """A durable swap file, then the transaction that names it; without the transaction no file either."""
        try:
            self._swap_files.write(summary, records, blocks)
            self._commit_new(operations)
        except (CommitOutcomeUnknown, RepositoryStopped):
            raise  # the log may name the file
        except Exception:
            self._swap_files.discard(summary.name)
            raise

    def _swap_in(self, queue: FlowFileQueue) -> None:
        with queue.swap_lock:
            summary = queue.first_swapped()
            if summary is None or not queue.needs_swap_in():
                return
            content = self._swap_files.read(summary.name)
            with self._ledger.lock:
                self._ledger.swap_contents[summary.name] = content
            try:
                self._commit([SwapIn(summary.name)])
            finally:
                with self._ledger.lock:
                    self._ledger.swap_contents.pop(summary.name, None)
            queue.swapped_in(summary, content.records)

    def _new(self, definition: QueueDefinition) -> FlowFileQueue:
        batch = min(self._settings.swap_batch, OPERATIONS_MAX)  # one transaction names a whole file
        return FlowFileQueue(definition, self._settings.swap_threshold, batch)

    def _add(self, queue: FlowFileQueue) -> None:
        self._by_name[queue.name] = queue
        self._by_number[queue.number] = queue


def _require_possible(definition: QueueDefinition) -> None:
    """Before it is committed: a definition that no start can obey would keep the repository shut."""
    if not 0 < len(definition.name) <= 255:
        raise SessionMisuse(f"a queue's name has 1 to 255 characters, not {len(definition.name)}")
    priorities = [str(priority) for priority in QueuePriority]
    if definition.priority not in priorities:
        raise SessionMisuse(f"there is no priority {definition.priority!r}: {', '.join(priorities)}")
    if min(definition.count_max, definition.bytes_max, definition.expiration_millis) < 0:
        raise SessionMisuse(f"queue {definition.name}: count, bytes and expiration must not be negative; 0 is no limit")
