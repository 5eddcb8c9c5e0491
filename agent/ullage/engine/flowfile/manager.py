"""All queues of a repository: their definitions, swapping, dropping and expiration.

Every change is committed before a queue shows it. Work on many FlowFiles is a sequence of small transactions, so that
no other commit waits long, and what a crash interrupts is resumed by asking again.
"""

import math
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import filterfalse

import msgspec

from ullage.contract import FlowFileSettings
from ullage.engine.committer import ChangingParts
from ullage.engine.content.availability import Availability
from ullage.engine.flowfile.definitions import default_definition, require_possible
from ullage.engine.flowfile.queues import FlowFileQueue, PassedOver
from ullage.engine.flowfile.removal import EMPTIED, EXPIRY, UNREADABLE, Removal, Told
from ullage.engine.ledger.swap import SwapFiles, points_into, summarize
from ullage.engine.model import (
    HANDLE_QUEUE,
    STAGED_QUEUE,
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
from ullage.engine.uninterrupted import uninterrupted
from ullage.engine.wal.format import OPERATIONS_MAX
from ullage.engine.wal.state import RecordUnusable
from ullage.errors import (
    CommitOutcomeUnknown,
    QueueNotEmpty,
    QueueNotFound,
    RepositoryDamaged,
    RepositoryStopped,
    UllageError,
)

DROP_SLICE = 1_000
"""FlowFiles one dropping transaction removes: about two milliseconds of everybody's time."""

LOOK_AGAIN_SECONDS = 10.0
"""After so long a poll tries again a swap file that could not be read, though there is something else to serve."""


class QueueManager:
    """Thread-safe. `swap_failure` is the last error of a swap file that nobody was told; None once all went well."""

    def __init__(
        self, parts: ChangingParts, swap_files: SwapFiles, settings: FlowFileSettings, availability: Availability
    ) -> None:
        self._parts = parts
        self._swap_files = swap_files
        self._settings = settings
        self._availability = availability
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
        """Fill the queues from the ledger, each in its order; returns handles, all that have an end among them.

        Handles stand in none, nor does what is staged, which nobody sees.
        """
        records: defaultdict[int, list[FlowFileRecord]] = defaultdict(list)
        sizes: defaultdict[int, int] = defaultdict(int)
        restored = self._parts.ledger.records
        position = max(restored.queued_max, self._parts.ledger.cold.queued_max)
        # One look at each: a million lie all over the memory, and each look waits for it.
        for record in restored.restored():
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
            raise RecordUnusable(f"FlowFiles stand in queues {sorted(unknown)}, which no transaction defined")
        for definition in self._parts.ledger.queues.values():
            if definition.name in self._by_name or definition.name in self._removed:
                raise RecordUnusable(f"two queues have the name {definition.name!r}")
            queue = self._new(definition)
            resident = records.get(queue.number, [])
            queue.restore(resident, sizes[queue.number], swapped.get(queue.number, []))
            self._add(queue)
            if definition.is_removed and queue.is_empty:
                self._hide(queue)
        return handles

    def queue(self, name: str, owner: str = "") -> FlowFileQueue:
        """The queue of this name, for whoever puts something into it: `owner` makes it, with the defaults."""
        queue = self._by_name.get(name)
        if queue is not None:
            return queue
        return self._define(default_definition(self._settings, name, owner), keep_existing=True)

    def known(self, name: str) -> FlowFileQueue | None:
        """The queue of this name; None if there is none. Whoever reads asks so: a name mistyped defines nothing."""
        return self._by_name.get(name)

    def find(self, name: str) -> FlowFileQueue:
        """An existing queue; QueueNotFound for an unknown name."""
        queue = self._by_name.get(name)
        if queue is None:
            raise QueueNotFound(f"there is no queue {name!r}")  # which there are is not for everybody to know
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
        owner: str | None = None,
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
            "owner": owner,
        }
        existing = self._by_name.get(name)
        definition = default_definition(self._settings, name) if existing is None else existing.definition
        changed = {field: value for field, value in said.items() if value is not None}
        return self._define(msgspec.structs.replace(definition, **changed), keep_existing=False, also=also)

    @uninterrupted
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

    @uninterrupted
    def _define(self, wanted: QueueDefinition, *, keep_existing: bool, also: Sequence[Operation] = ()) -> FlowFileQueue:
        """Commit the definition under the queue's number; the lock is what makes numbers unique."""
        require_possible(wanted)
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

        Once something was found an error is left to the next poll, which will meet it again with nothing to lose. Swap
        files that can't be read are passed over, and tried again when nothing else is left; then RepositoryDamaged
        names the first.
        """
        if queue.passes_over:
            queue.look_again(self._parts.clock.monotonic() - LOOK_AGAIN_SECONDS)
        records = self._poll(queue, count, wanted)
        if not records and queue.passes_over and queue.is_drained and queue.look_again(math.inf):
            records = self._poll(queue, count, wanted)
            passed_over = queue.passed_over()
            if not records and passed_over:
                raise passed_over[0].error
        return records

    def _poll(
        self, queue: FlowFileQueue, count: int, wanted: Callable[[FlowFileRecord], bool] | None
    ) -> list[FlowFileRecord]:
        records: list[FlowFileRecord] = []
        try:
            while rest := count - len(records):
                while queue.needs_swap_in():
                    self._swap_in(queue)
                now = self._parts.clock.now_millis()
                polled = queue.poll(rest, now) if wanted is None else queue.poll_by(rest, now, wanted)
                records.extend(polled.records)
                if polled.expired:
                    self._remove(queue, polled.expired, EXPIRY)
                if wanted is not None or (not any(polled) and queue.is_drained):
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
            self._swap_out_batch(queue)

    @uninterrupted
    def _swap_out_batch(self, queue: FlowFileQueue) -> None:
        with queue.swap_lock:
            batch = queue.take_swap_batch()
            if batch:
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

    def drop(self, queue: FlowFileQueue, on_progress: Callable[[int], None] | None = None, by: str = "") -> int:
        """Remove as many FlowFiles as are in a queue now and not held by a session; returns how many.

        Swap files go first, each whole; they are read only for what provenance tells of them: that, and by whom.
        """
        figures = queue.figures()
        present = figures.flow_files - figures.held
        dropped = 0
        while dropped < present:
            count = self._drop_swapped(queue, by)
            if not count:
                wanted = min(DROP_SLICE, present - dropped)
                count = self._take_out(queue, partial(queue.take, wanted), Told(EventType.DROP, EMPTIED, by))
            if not count:
                break
            dropped += count
            if on_progress is not None:
                on_progress(dropped)
        return dropped

    def retry_passed_over(self) -> int:
        """Read again the swap files that were passed over; how many FlowFiles are in those that can be read."""
        found = 0
        for queue in self.all():
            tried = [each.summary for each in queue.passed_over()]
            queue.look_again(math.inf)
            for summary in tried:
                try:
                    self._swap_files.read(summary.name)
                    found += summary.count
                except RepositoryDamaged as error:
                    queue.pass_over(PassedOver(summary, error, self._parts.clock.monotonic()))
        return found

    def drop_unavailable(
        self, uuids: Collection[bytes], resources: Collection[int], details: str = UNREADABLE, by: str = ""
    ) -> int:
        """Remove those of these FlowFiles whose content, in these resource claims, can't be read; how many. A swap file
        is written anew without them.
        """
        dropped, told = 0, Told(EventType.DROP, details, by)

        def is_meant(record: FlowFileRecord) -> bool:
            return record.uuid in uuids and self._availability.damage(record.claim) is not None

        def drop(queue: FlowFileQueue) -> None:
            nonlocal dropped
            taken = self._take_out(queue, partial(queue.take_unavailable, uuids), told)
            files = [each for each in queue.swap_summaries() if points_into(each, resources)]
            dropped += taken + self._remove_swapped(queue, files, Removal(is_meant, told))

        self._for_each(drop)
        return dropped

    def expire(self) -> int:
        """Remove expired FlowFiles from all queues, opening a swap file only if something in it has expired.

        A queue that cannot be dealt with does not keep the others from it; its error is raised at the end. None where
        somebody else has the repository.
        """
        removed = 0
        if not self._parts.committer.right.may_change:
            return removed

        def expire(queue: FlowFileQueue) -> None:
            nonlocal removed
            if queue.definition.expiration_millis:
                now = self._parts.clock.now_millis()
                expired = self._take_out(queue, partial(queue.take_expired, now), EXPIRY)
                due = now - queue.definition.expiration_millis

                def is_expired(record: FlowFileRecord) -> bool:
                    return record.entry_millis <= due and self._availability.damage(record.claim) is None

                files = [each for each in queue.swap_summaries() if each.entry_millis_min <= due]
                removal = Removal(is_expired, EXPIRY)
                removed += expired + self._remove_swapped(queue, files, removal)

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

    @uninterrupted
    def _drop_swapped(self, queue: FlowFileQueue, by: str) -> int:
        with queue.swap_lock:
            summary = queue.first_swapped()
            if summary is None:
                return 0
            self._parts.committer.commit([SwapDrop(summary.name), *self._events_of_swap(summary, by)], creates=False)
            queue.swap_replaced(summary, None)
            return summary.count

    def _remove_swapped(self, queue: FlowFileQueue, files: list[SwapOut], removal: Removal) -> int:
        """Write each of these swap files anew without what goes: the others never come to memory."""
        removed = 0
        failure: RepositoryDamaged | None = None
        for summary in files:
            with queue.swap_lock:
                if summary in queue.swap_summaries():
                    try:
                        removed += self._rewrite_swap(queue, summary, removal)
                    except RepositoryDamaged as error:  # it does not keep the other files from it
                        failure = failure or error
        if failure is not None:
            raise failure
        return removed

    @uninterrupted
    def _rewrite_swap(self, queue: FlowFileQueue, old: SwapOut, removal: Removal) -> int:
        content = self._swap_files.read(old.name)
        gone = list(filter(removal.is_meant, content.records))
        if not gone:
            return 0
        kept = list(filterfalse(removal.is_meant, content.records))
        events = self._events(removal.told, gone)
        if not kept:
            self._parts.committer.commit([SwapDrop(old.name), *content.set_aside, *events], creates=False)
            queue.swap_replaced(old, None)
            return old.count
        new = summarize(kept, queue.definition, self._parts.clock.now_millis())
        self._write_file(new, kept, [SwapDrop(old.name), new, *content.set_aside, *events])
        queue.swap_replaced(old, new)
        return old.count - new.count

    def _events(self, told: Told, records: list[FlowFileRecord]) -> list[Operation]:
        """What provenance has to tell of FlowFiles that go without a session."""
        if not self._parts.records_provenance:
            return []
        return of_existing(told.type, records, told.details, by=told.by)

    def _events_of_swap(self, summary: SwapOut, by: str) -> list[Operation]:
        """The same for a swap file that is dropped whole. One that cannot be read goes all the same, untold."""
        if not self._parts.records_provenance:
            return []
        try:
            return self._events(Told(EventType.DROP, EMPTIED, by), self._swap_files.read(summary.name).records)
        except RepositoryDamaged as error:
            self.swap_failure = error
            return []

    @uninterrupted
    def _take_out(self, queue: FlowFileQueue, take: Callable[[], list[FlowFileRecord]], told: Told) -> int:
        records = take()
        self._remove(queue, records, told)
        return len(records)

    def _remove(self, queue: FlowFileQueue, records: list[FlowFileRecord], told: Told) -> None:
        """Delete what was taken out of a queue, in slices; what a failure leaves goes back."""
        for first in range(0, len(records), DROP_SLICE):
            part = records[first : first + DROP_SLICE]
            try:
                delete = Delete(b"".join(record.uuid for record in part))
                self._parts.committer.commit([delete, *self._events(told, part)], creates=False)
            except (CommitOutcomeUnknown, RepositoryStopped):
                raise  # they may be gone: only a restart can tell
            except Exception:
                queue.requeue(records[first:])
                raise
            queue.acknowledge(part)

    def _write_swap(self, queue: FlowFileQueue, batch: list[FlowFileRecord]) -> SwapOut:
        summary = summarize(batch, queue.definition, self._parts.clock.now_millis())
        uuids = b"".join(record.uuid for record in batch)
        self._write_file(summary, batch, [msgspec.structs.replace(summary, uuids=uuids)])
        return summary

    def _write_file(self, summary: SwapOut, records: list[FlowFileRecord], operations: Sequence[Operation]) -> None:
        """A durable swap file, then the transaction that names it; without the transaction no file either."""
        try:
            self._swap_files.write(summary, records)
            self._parts.committer.commit(operations, creates=True)
        except (CommitOutcomeUnknown, RepositoryStopped):
            raise  # the log may name the file
        except Exception:
            self._swap_files.discard(summary.name)
            raise

    @uninterrupted
    def _swap_in(self, queue: FlowFileQueue) -> None:
        with queue.swap_lock:
            summary = queue.next_swapped()
            if summary is None or not queue.needs_swap_in():
                return
            try:
                content = self._swap_files.read(summary.name)
            except RepositoryDamaged as error:
                queue.pass_over(PassedOver(summary, error, self._parts.clock.monotonic()))
                return
            with self._parts.ledger.swapping_in(summary.name, content):
                self._parts.committer.commit([SwapIn(summary.name)], creates=False)
            queue.swapped_in(summary, [each for each in content.records if self._parts.ledger.find(each.uuid) is each])

    def _new(self, definition: QueueDefinition) -> FlowFileQueue:
        batch = min(self._settings.swap_batch, OPERATIONS_MAX)  # one transaction names a whole file
        return FlowFileQueue(definition, self._settings.swap_threshold, batch, self._availability)

    def _hide(self, queue: FlowFileQueue) -> None:
        self._removed[queue.name] = self._by_name.pop(queue.name)

    def _add(self, queue: FlowFileQueue) -> None:
        self._removed.pop(queue.name, None)
        self._by_name[queue.name] = queue
