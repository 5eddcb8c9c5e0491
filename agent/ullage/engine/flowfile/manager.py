"""All queues of a repository: their definitions, swapping, dropping and expiration.

Every change is committed before a queue shows it. Work on many FlowFiles is a sequence of small transactions, so that
no other commit waits long, and what a crash interrupts is resumed by asking again.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence

import msgspec

from ullage.contract import FlowFileSettings, QueuePriority
from ullage.engine.committer import ChangingParts
from ullage.engine.flowfile.queues import FlowFileQueue
from ullage.engine.ledger.swap import SwapFiles, blocks_of, summarize
from ullage.engine.model import (
    HANDLE_QUEUE,
    STAGED_QUEUE,
    ClaimBlocks,
    Delete,
    EventType,
    FlowFileRecord,
    Operation,
    QueueDefinition,
    SwapDrop,
    SwapIn,
    SwapOut,
)
from ullage.engine.provenance.eventruns import of_existing
from ullage.engine.wal.format import OPERATIONS_MAX
from ullage.errors import (
    CommitOutcomeUnknown,
    InvalidArgument,
    QueueNotEmpty,
    QueueNotFound,
    RepositoryDamaged,
    RepositoryStopped,
    UllageError,
)

DROP_SLICE = 1_000
"""FlowFiles one dropping transaction removes: about two milliseconds of everybody's time."""

EMPTIED = "the queue was emptied"
EXPIRED = "older than its queue allows"


class QueueManager:
    """Thread-safe. `swap_failure` is the last error of a swap file that nobody was told; None once all went well."""

    def __init__(self, parts: ChangingParts, swap_files: SwapFiles, settings: FlowFileSettings) -> None:
        self._parts = parts
        self._swap_files = swap_files
        self._settings = settings
        self._lock = threading.Lock()
        self._by_name: dict[str, FlowFileQueue] = {}
        self._removed: dict[str, FlowFileQueue] = {}
        self._position_lock = threading.Lock()
        self._position = 0
        self.swap_failure: Exception | None = None

    def adopt(self, settings: FlowFileSettings) -> None:
        """New defaults, for queues that are made from now on."""
        self._settings = settings

    def restore(self) -> list[FlowFileRecord]:
        """Fill the queues from the ledger, each in its order; returns the handles, which stand in none.

        Nor does what is staged, which nobody sees.
        """
        records: defaultdict[int, list[FlowFileRecord]] = defaultdict(list)
        sizes: defaultdict[int, int] = defaultdict(int)
        position = 0
        # One look at each: a million lie all over the memory, and each look waits for it.
        for record in self._parts.ledger.flow_files():
            number = record.queue
            records[number].append(record)
            sizes[number] += record.size
            position = max(position, record.queued)
        self._position = max(self._position, position)
        handles = records.pop(HANDLE_QUEUE, [])
        records.pop(STAGED_QUEUE, None)
        swapped: dict[int, list[SwapOut]] = {}
        for summary in self._parts.ledger.swaps.values():
            swapped.setdefault(summary.queue, []).append(summary)
            self._position = max(self._position, summary.queued_max)
        unknown = (records.keys() | swapped.keys()) - self._parts.ledger.queues.keys()
        if unknown:
            raise RepositoryDamaged(f"FlowFiles stand in queues {sorted(unknown)}, which no transaction defined")
        for definition in self._parts.ledger.queues.values():
            try:
                _require_possible(definition)
            except InvalidArgument as error:
                raise RepositoryDamaged(f"queue number {definition.number} is impossible: {error}") from error
            queue = self._new(definition)
            resident = records.get(queue.number, [])
            queue.restore(resident, sizes[queue.number], swapped.get(queue.number, []))
            self._add(queue)
            if definition.is_removed and queue.is_empty:
                self._hide(queue)
        return handles

    def queue(self, name: str) -> FlowFileQueue:
        """The queue of this name, defined with the defaults on first use."""
        queue = self._by_name.get(name)
        if queue is not None:
            return queue
        return self._define(self._default(name), keep_existing=True)

    def find(self, name: str) -> FlowFileQueue:
        """An existing queue; QueueNotFound for an unknown name."""
        queue = self._by_name.get(name)
        if queue is None:
            known = ", ".join(sorted(self._by_name)) or "none"
            raise QueueNotFound(f"there is no queue {name!r} (queues: {known})")
        return queue

    def define(
        self,
        name: str,
        *,
        priority: str | None = None,
        priority_attribute: str | None = None,
        count_max: int | None = None,
        bytes_max: int | None = None,
        expiration_millis: int | None = None,
        also: Sequence[Operation] = (),
    ) -> FlowFileQueue:
        """Create a queue, with the defaults for what is not said, or change what is said of an existing one; `also`
        goes into the same transaction. InvalidArgument, nothing changed, for impossible settings.
        """
        said = {
            "priority": None if priority is None else str(priority),
            "priority_attribute": priority_attribute,
            "count_max": count_max,
            "bytes_max": bytes_max,
            "expiration_millis": expiration_millis,
        }
        existing = self._by_name.get(name)
        definition = self._default(name) if existing is None else existing.definition
        changed = {field: value for field, value in said.items() if value is not None}
        return self._define(msgspec.structs.replace(definition, **changed), keep_existing=False, also=also)

    def remove(self, name: str, also: Sequence[Operation] = ()) -> None:
        """Remove an empty queue; QueueNotEmpty while FlowFiles stand in it, held ones included.

        Whoever meant to put FlowFiles into it brings it back, as it was: here, or at the next start.
        """
        queue = self.find(name)
        with self._lock:
            if not queue.is_empty:
                raise QueueNotEmpty(f"queue {name} has {queue.figures().flow_files} FlowFiles: drop or move them first")
            removed = msgspec.structs.replace(queue.definition, is_removed=True)
            self._parts.committer.commit([removed, *also], creates=False)
            queue.redefine(removed)
            if queue.is_empty:  # else somebody's commit has come in between
                self._hide(queue)

    def _default(self, name: str) -> QueueDefinition:
        defaults = self._settings.queue_defaults
        return QueueDefinition(
            HANDLE_QUEUE,
            name,
            str(defaults.priority),
            "priority",
            defaults.max_count,
            int(defaults.max_size),
            int(defaults.expiration),
        )

    def _define(self, wanted: QueueDefinition, *, keep_existing: bool, also: Sequence[Operation] = ()) -> FlowFileQueue:
        """Commit the definition under the queue's number; the lock is what makes numbers unique."""
        _require_possible(wanted)
        with self._lock:
            existing = self._by_name.get(wanted.name)
            if existing is not None and keep_existing:
                return existing
            known = existing or self._removed.get(wanted.name)
            number = known.number if known else max(self._parts.ledger.queues, default=HANDLE_QUEUE) + 1
            definition = msgspec.structs.replace(wanted, number=number, is_removed=False)
            self._parts.committer.commit([definition, *also], creates=True)
            queue = known or self._new(definition)
            if known is not None:
                queue.redefine(definition)
            self._add(queue)
            return queue

    def all(self) -> list[FlowFileQueue]:
        """All queues by name."""
        return [self._by_name[name] for name in sorted(self._by_name)]

    def take_positions(self, count: int) -> int:
        """The first of `count` consecutive places in queues: microseconds, never handed out before."""
        with self._position_lock:
            first = max(self._position + 1, self._parts.clock.now_millis() * 1000)
            self._position = first + count - 1
            return first

    def poll(
        self, queue: FlowFileQueue, count: int, wanted: Callable[[FlowFileRecord], bool] | None = None
    ) -> list[FlowFileRecord]:
        """Up to `count` FlowFiles for a session to hold; expired ones are removed for good on the way.

        Once something was found an error is left to the next poll, which will meet it again with nothing to lose.
        """
        records: list[FlowFileRecord] = []
        try:
            while len(records) < count:
                if queue.needs_swap_in():
                    self._swap_in(queue)
                now = self._parts.clock.now_millis()
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

    def offer(self, queue: FlowFileQueue, records: list[FlowFileRecord]) -> None:
        """Show durable FlowFiles in a queue, and swap out what makes it too long.

        Never fails: their commit is over. What could not be swapped out stays in memory until the next offer or
        `swap_out_all`.
        """
        queue.offer(records)
        if queue.definition.is_removed:
            with self._lock:
                self._add(queue)
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
            count = self._drop_swapped(queue)
            if not count:
                records = queue.take(min(DROP_SLICE, present - dropped))
                self._remove(queue, records, EventType.DROP)
                count = len(records)
            if not count:
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
                expired = queue.take_expired(self._parts.clock.now_millis())
                self._remove(queue, expired, EventType.EXPIRE)
                removed += len(expired) + self._expire_swapped(queue)

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
            self._parts.committer.commit([SwapDrop(summary.name), *self._events_of_swap(summary)], creates=False)
            queue.swap_replaced(summary, None)
            return summary.count

    def _expire_swapped(self, queue: FlowFileQueue) -> int:
        """Write each swap file that holds expired FlowFiles anew without them: the others never come to memory."""
        removed = 0
        for summary in queue.swap_summaries():
            due = self._parts.clock.now_millis() - queue.definition.expiration_millis
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
            self._parts.committer.commit([SwapDrop(old.name), *events], creates=False)
            queue.swap_replaced(old, None)
            return old.count
        claims = {(record.claim.resource, record.claim.offset) for record in kept if record.claim is not None}
        blocks = [crcs for crcs in content.blocks if (crcs.resource, crcs.offset) in claims]
        new = summarize(kept, queue.number, self._parts.clock.now_millis())
        self._write_file(new, kept, blocks, [SwapDrop(old.name), new, *events])
        queue.swap_replaced(old, new)
        return old.count - new.count

    def _events(self, type: EventType, records: list[FlowFileRecord]) -> list[Operation]:
        """What provenance has to tell of FlowFiles that go without a session."""
        if not self._parts.records_provenance:
            return []
        return of_existing(type, records, EXPIRED if type == EventType.EXPIRE else EMPTIED)

    def _events_of_swap(self, summary: SwapOut) -> list[Operation]:
        """The same for a swap file that is dropped whole. One that cannot be read goes all the same, untold."""
        if not self._parts.records_provenance:
            return []
        try:
            return self._events(EventType.DROP, self._swap_files.read(summary.name).records)
        except RepositoryDamaged as error:
            self.swap_failure = error
            return []

    def _remove(self, queue: FlowFileQueue, records: list[FlowFileRecord], type: EventType) -> None:
        """Delete what was taken out of a queue, in slices; what a failure leaves goes back."""
        for first in range(0, len(records), DROP_SLICE):
            part = records[first : first + DROP_SLICE]
            try:
                delete = Delete(b"".join(record.uuid for record in part))
                self._parts.committer.commit([delete, *self._events(type, part)], creates=False)
            except (CommitOutcomeUnknown, RepositoryStopped):
                raise  # they may be gone: only a restart can tell
            except Exception:
                queue.requeue(records[first:])
                raise
            queue.acknowledge(part)

    def _write_swap(self, queue: FlowFileQueue, batch: list[FlowFileRecord]) -> SwapOut:
        summary = summarize(batch, queue.number, self._parts.clock.now_millis())
        uuids = b"".join(record.uuid for record in batch)
        self._write_file(
            summary, batch, blocks_of(self._parts.ledger, batch), [msgspec.structs.replace(summary, uuids=uuids)]
        )
        return summary

    def _write_file(
        self,
        summary: SwapOut,
        records: list[FlowFileRecord],
        blocks: list[ClaimBlocks],
        operations: Sequence[Operation],
    ) -> None:
        """A durable swap file, then the transaction that names it; without the transaction no file either."""
        try:
            self._swap_files.write(summary, records, blocks)
            self._parts.committer.commit(operations, creates=True)
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
            with self._parts.ledger.swapping_in(summary.name, content):
                self._parts.committer.commit([SwapIn(summary.name)], creates=False)
            queue.swapped_in(summary, content.records)

    def _new(self, definition: QueueDefinition) -> FlowFileQueue:
        batch = min(self._settings.swap_batch, OPERATIONS_MAX)  # one transaction names a whole file
        return FlowFileQueue(definition, self._settings.swap_threshold, batch)

    def _hide(self, queue: FlowFileQueue) -> None:
        self._removed[queue.name] = self._by_name.pop(queue.name)

    def _add(self, queue: FlowFileQueue) -> None:
        self._removed.pop(queue.name, None)
        self._by_name[queue.name] = queue


def _require_possible(definition: QueueDefinition) -> None:
    """Before it is committed: a definition that no start can obey would keep the repository shut."""
    if not 0 < len(definition.name) <= 255:
        raise InvalidArgument(f"a queue's name has 1 to 255 characters, not {len(definition.name)}")
    priorities = [str(priority) for priority in QueuePriority]
    if definition.priority not in priorities:
        raise InvalidArgument(f"there is no priority {definition.priority!r}: {', '.join(priorities)}")
    if min(definition.count_max, definition.bytes_max, definition.expiration_millis) < 0:
        raise InvalidArgument(
            f"queue {definition.name}: count, bytes and expiration must not be negative; 0 is no limit"
        )
