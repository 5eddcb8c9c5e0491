"""The write-ahead log: append, group commit, checkpoint, restore (after NiFi's `MinimalLockingWriteAheadLog`).

What must stay true:
- A transaction's id, append and apply happen under its partition's lock; a rotation holds all partition locks, so
  that at a rotation everything up to the last id is appended and applied (NiFi's shared and exclusive lock).
- `durable` is the largest id such that every frame up to it is synced. Nothing is acknowledged, published or
  destroyed before `durable` has reached its transaction.
- A failed sync stops the log for good: what the kernel did with the pages is unknown until the next restore.

Locks, in the order they may be taken: checkpoint, sync, partitions (ascending), the state's own lock.
"""

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from typing import TypeVar

import msgspec

from ullage.clock import Clock
from ullage.engine.files import File
from ullage.engine.model import Operation
from ullage.engine.oserrors import is_disk_full
from ullage.engine.uninterrupted import uninterrupted
from ullage.engine.wal.format import CLOSE, FRAME_HEADER_BYTES, TRANSACTION, CloseRecord
from ullage.engine.wal.loading import Watcher, load_log
from ullage.engine.wal.partition import Partition, all_log_paths, partition_directory
from ullage.engine.wal.records import write_records
from ullage.engine.wal.restore import Chain, RestoreReport
from ullage.engine.wal.serde import encode_transaction
from ullage.engine.wal.snapshot import PARTIAL, SNAPSHOT_MAGIC, SnapshotHeader, publish
from ullage.engine.wal.state import LoggedState, RecordDirectory, log_name
from ullage.engine.wal.turns import Turns
from ullage.engine.wal.verify import problems_on_disk
from ullage.engine.withdrawn import CLOSED
from ullage.errors import CommitOutcomeUnknown, DiskFull, NotRestored, RepositoryStopped

T = TypeVar("T")


class WriteAheadLog:
    """One log over `state`, in one directory. Thread-safe once restored.

    `snapshot_id`, `snapshot_millis` and `snapshot_bytes` are of the last published snapshot: its last transaction, when
    it was made, and its length. `sync_count` is how often all partitions were synced. Only the log sets them.
    """

    def __init__(
        self,
        place: RecordDirectory,
        state: LoggedState,
        clock: Clock,
        partitions: int,
        interval_seconds: float,
        on_full: Callable[[], object],
    ) -> None:
        """`interval_seconds` > 0: syncs are at least so far apart, and commits wait for theirs. `on_full` is asked for
        room when a commit that has its id already meets a full disk.
        """
        self._place = place
        self._files = place.files
        self._directory = place.path
        self._state = state
        self._clock = clock
        self._partition_count = partitions
        self._interval_seconds = interval_seconds
        self._partitions: list[Partition] = []
        self._turn = count()
        self._id_lock = threading.Lock()
        self._sync_lock = threading.Lock()
        self._turns = Turns()
        self._checkpoint_lock = threading.Lock()
        self._last_id = 0
        self._durable = 0
        self._salt_key = b""
        self._last_sync = float("-inf")
        self._failure: BaseException | None = None
        self._restored = False
        self.snapshot_bytes = self.snapshot_id = self.snapshot_millis = 0
        self.sync_count = 0
        self._on_full = on_full

    @property
    def durable(self) -> int:
        """Every transaction up to this id survives a crash."""
        return self._durable

    @property
    def is_running(self) -> bool:
        """Restored, not closed, not stopped by a failure."""
        return self._restored and self._failure is None

    @property
    def last_id(self) -> int:
        return self._last_id

    @property
    def log_bytes(self) -> int:
        """Bytes of log that the next checkpoint will make unnecessary."""
        return sum(partition.log_bytes for partition in self._partitions)

    def append(self, operations: Sequence[Operation], millis: int, validate: Callable[[], None] | None = None) -> int:
        """Apply one transaction and queue its frame; returns its id. It is acknowledged after `wait_durable(id)` only.

        `validate` runs under the lock right before the id is taken; what it raises is raised here, with nothing
        written. DiskFull and TransactionTooLarge are definite failures as well.
        """
        # Before any lock: it takes longest, and what does not encode has no id yet that would need a frame.
        payload = encode_transaction(self._place.serde, operations, millis)
        self._require_running()
        partition = self._claim_partition()
        try:
            self._require_running()  # again: a failure may have stopped the log while this waited for the partition
            self._reserve(partition, len(payload))
            if validate is not None:
                validate()
            # The last that may refuse: from the id on a failure stops the log.
            self._state.require_applicable(operations)
            return self._write_and_apply(partition, payload, operations, millis)
        finally:
            partition.lock.release()

    def wait_durable(self, id: int) -> None:
        """Return when every transaction up to `id` is synced; the caller that finds nobody syncing does it for all.

        leader     | write 5 to 7, fdatasync ......... | durable = 7; wakes 5, 6, 7, then 8
        follower 8 | append 8, sleep ................. | leads the next sync, which covers 9 and what 5, 6, 7 append
        follower 9 | append 9, sleep ............................................................. | done
        """
        try:
            while self._durable < id:
                if not self._turns.lead_or_wait(id):
                    continue
                try:
                    with self._sync_lock:
                        if self._durable < id:  # else a close has synced it while this waited
                            self._require_trust()
                            self._pace()
                            self._sync()
                finally:
                    self._turns.done(self._durable)
        except BaseException as error:
            # An interrupted wait says as little about the disk as a failed sync, and leaves the caller's memory behind
            # the ledger: a caller that went on could commit what contradicts it.
            self._failure = self._failure or error
            raise CommitOutcomeUnknown(
                f"transaction {id} was written, but not proved durable ({error}): it may or may not be there; reopen "
                "the repository to find out"
            ) from error

    def checkpoint(self, on_progress: Callable[[int], None] | None = None) -> int:
        """Publish a snapshot of everything applied so far and delete the log before it; returns its last id.

        Only the rotation is done under the exclusive lock. NiFi holds that lock until the snapshot is written:
        a million records would stop all commits for seconds.

            rotate | freeze | sync old log | write partial, sync | rename, sync directory | delete old logs
            ^ exclusive ^                                          ^ commit point
            a crash before it: the old snapshot and all logs count; after it: leftovers are ignored and removed

        When it fails before the commit point, the log goes on, and so may the next checkpoint.
        """
        self._require_running()
        with self._checkpoint_lock:
            self._require_running()
            return self._checkpoint(on_progress)

    @contextmanager
    def still(self, freeze: Callable[[], T]) -> Iterator[tuple[int, T]]:
        """What `freeze` makes of a moment when everything up to an id, and nothing beyond it, is applied; and that id,
        durable by now. No checkpoint begins until this ends.
        """
        self._require_running()
        with self._checkpoint_lock:
            id, frozen = self._frozen(freeze)
            self.wait_durable(id)
            yield id, frozen

    def restore(
        self,
        before_serving: Callable[[RestoreReport], None] | None = None,
        on_replayed: Watcher | None = None,
    ) -> RestoreReport:
        """Load the snapshot, replay the log, and open it for append.

        `on_replayed` sees the operations of each transaction that the log, not the snapshot, brought back. After an
        unclean end `before_serving` runs first, then a fresh snapshot is published before anything is
        written: the torn ends are never appended to. Any failure releases everything; a new log over a fresh state
        may then try again.
        """
        with self._checkpoint_lock:
            if self._restored:
                raise NotRestored("the log is already restored")
            try:
                report, chains, self._salt_key = load_log(self._place, self._state, self._partition_count, on_replayed)
                self.snapshot_bytes, self.snapshot_millis = report.snapshot_bytes, report.snapshot_millis
                self.snapshot_id = report.snapshot_last_id
                self._open_partitions(chains, report.last_id)
                if before_serving is not None:
                    before_serving(report)
                if not report.clean:
                    self._checkpoint(None)
            except BaseException:
                self._close_partitions()
                raise
            self._restored = True
        return report

    def problems(self) -> list[str]:
        """See `FlowFileRepository`. Checkpoints wait until all is read, so that none takes files away; commits do not.
        Nothing once it stopped: what the disk holds then, the next start finds out.
        """
        with self._checkpoint_lock:
            if not self.is_running:
                return []
            durable = self._durable  # before the offsets, which then cover it
            _, ends = self._frozen(lambda: {each.path: each.durable_end for each in self._partitions})
            return problems_on_disk(self._place, ends, durable)

    def close(self) -> None:
        """Sync, write a close frame to each partition and release the files; after a failure only release."""
        with self._checkpoint_lock:
            is_whole = self.is_running
            # First: no append begins any more, and what has its id is let through below.
            self._restored = False
            try:
                if is_whole:
                    self._write_close_frames()
            finally:
                self._close_partitions()

    def abandon(self) -> None:
        """Release the files as they are, as the end of the process would: no sync, no close frame."""
        with self._checkpoint_lock:
            self._restored = False
            self._close_partitions()

    def _require_running(self) -> None:
        if not self._restored:
            raise NotRestored(CLOSED)
        if self._failure is not None:
            raise RepositoryStopped(
                f"the write-ahead log in {self._directory} stopped after a failure ({self._failure}); reopen it"
            ) from self._failure

    def _claim_partition(self) -> Partition:
        """Lock the partition whose turn it is, or the next one that is free."""
        partitions = self._partitions
        if not partitions:
            raise NotRestored(CLOSED)
        # The default, and fastest where commits share a sync: no turn to take.
        if len(partitions) == 1:
            partitions[0].lock.acquire()
            return partitions[0]
        turn = next(self._turn)
        for step in range(len(partitions)):
            partition = partitions[(turn + step) % len(partitions)]
            if partition.lock.acquire(blocking=False):
                return partition
        partition = partitions[turn % len(partitions)]
        partition.lock.acquire()
        return partition

    def _reserve(self, partition: Partition, payload_bytes: int) -> None:
        """Find room before an id is taken, so that a full disk is a definite failure that leaves no hole."""
        try:
            partition.reserve(FRAME_HEADER_BYTES + payload_bytes)
        except OSError as error:
            if is_disk_full(error):
                raise DiskFull(
                    f"no room for {payload_bytes} bytes of log in {self._directory}: free space or remove FlowFiles"
                ) from error
            raise

    def _write_and_apply(
        self, partition: Partition, payload: bytes, operations: Sequence[Operation], millis: int
    ) -> int:
        """Take an id, hand its frame to the partition and apply it.

        From the moment an id is taken it needs a frame and a place in memory, or nothing may follow it: whatever goes
        wrong here stops the log.
        """
        id = 0
        try:
            # Within the partition's lock, so that ids only rise in each chain: restore searches them by halves.
            with self._id_lock:
                id = self._last_id + 1
                self._last_id = id
            partition.append(TRANSACTION, id, self._durable, payload)
            # Before it is durable, since the next transaction is checked against it; nobody is shown it before.
            self._state.apply(id, millis, operations)
        except BaseException as error:
            self._failure = error
            raise CommitOutcomeUnknown(
                f"transaction {id} failed halfway, in {partition.path} at offset {partition.offset} ({error}): it may "
                "or may not be there; the repository stops, reopen it to find out"
            ) from error
        return id

    def _require_trust(self) -> None:
        """After a failure, or without its files, the log can promise nothing about what it has not synced yet."""
        if self._failure is not None or not self._partitions:
            raise RepositoryStopped("the log stopped before the sync") from self._failure

    def _pace(self) -> None:
        """In `Interval` mode the leader waits until the last sync is an interval ago; followers wait with it."""
        if self._interval_seconds > 0:
            rest = self._last_sync + self._interval_seconds - self._clock.monotonic()
            if rest > 0:
                self._clock.sleep(rest)
            self._last_sync = self._clock.monotonic()

    def _sync(self) -> None:
        """Sync all partitions; called with the sync lock held. Whatever it raises has stopped the log."""
        try:
            with self._exclusive():
                self._require_trust()  # while this waited, an id may have been taken that got no frame
                # With every partition held each id up to this one has its frame, so the syncs below prove all of them.
                last_id = self._last_id
                marks = [(partition, partition.begin_sync()) for partition in self._partitions]
            # Outside the partitions' locks, or no commit could append while a disk syncs, and none would share it.
            for partition, mark in marks:
                partition.sync(mark)
        except BaseException as error:
            self._failure = self._failure or error
            raise
        # Only when every partition is synced: an id counts as durable with all ids before it.
        self.sync_count += 1
        self._durable = last_id

    @uninterrupted  # or a partition may stay locked
    def _frozen(self, freeze: Callable[[], T]) -> tuple[int, T]:
        """What it makes of a moment in which nothing is appended, and the last id of that moment."""
        with self._exclusive():
            return self._last_id, freeze()

    def _exclusive(self) -> AbstractContextManager[object]:
        # The default: as many microseconds as the frame takes, for one lock.
        if len(self._partitions) == 1:
            return self._partitions[0].lock
        with ExitStack() as stack:
            for partition in self._partitions:
                stack.enter_context(partition.lock)
            return stack.pop_all()

    def _checkpoint(self, on_progress: Callable[[int], None] | None) -> int:
        """Called with the checkpoint lock held."""
        try:
            rotation = self._rotate()
        except OSError as error:
            raise _checkpoint_error(self._directory, error) from error
        try:
            # A snapshot ahead of `durable` would make durable what nobody was promised, and the logs that know better
            # go. Also where all was durable: the headers of the new files are from now on, and a start may demand them.
            with self._sync_lock:
                self._require_trust()
                self._sync()
            header = self._place.header(
                SnapshotHeader,
                last_id=rotation.last_id,
                created_millis=self._clock.now_millis(),
                next_sequences=rotation.next_sequences,
                salt_key=self._salt_key,
            )
            partial = os.path.join(self._directory, PARTIAL)
            self.snapshot_bytes = write_records(
                self._files, partial, SNAPSHOT_MAGIC, header, rotation.blocks, self._place.serde, on_progress
            )
        except OSError as error:
            raise _checkpoint_error(self._directory, error) from error
        finally:
            # Failed or not: while the view stands, every writer copies shards for it.
            self._state.release()
        publish(self._place)
        self.snapshot_id, self.snapshot_millis = rotation.last_id, header.created_millis
        self._state.published()
        # Those that the rotation saw; listing again would find files that were begun since then.
        self._delete(rotation.covered)
        return rotation.last_id

    def _rotate(self) -> "_Rotation":
        """Continue in fresh files and freeze the state.

        The sync comes first, so that a file that gets a successor has a durable frame: then a number that is missing
        from a chain is always loss, and never a crash that kept a file and not its predecessor.
        """
        # Outside of the exclusive lock: a commit waits for a rotation, not for a disk.
        self.wait_durable(self._last_id)
        existing = all_log_paths(self._files, self._directory)
        prepared: list[tuple[Partition, File, str]] = []
        try:
            for partition in self._partitions:
                if partition.may_rotate:
                    file, path = partition.prepare(self._last_id + 1)
                    prepared.append((partition, file, path))
            with self._exclusive():
                while prepared:
                    partition, file, path = prepared.pop()
                    partition.rotate(file, path)
                return _Rotation(
                    self._last_id,
                    {partition.number: partition.sequence for partition in self._partitions},
                    self._state.freeze(),
                    existing - {partition.path for partition in self._partitions},
                )
        finally:
            for partition, file, path in prepared:
                partition.discard(file, path)

    def _delete(self, covered: set[str]) -> None:
        """Remove files that the published snapshot covers. After a failure there are too many, which harms nothing."""
        for path in sorted(covered):
            self._files.unlink(path)
        for directory in sorted({os.path.dirname(path) for path in covered}):
            self._files.sync_directory(directory)
        for partition in self._partitions:
            partition.forget_retired()

    def _open_partitions(self, chains: list[Chain], last_id: int) -> None:
        known = {chain.number: chain for chain in chains}
        self._last_id = self._durable = last_id
        self._failure = None
        for number in range(self._partition_count):
            directory = partition_directory(self._directory, number)
            if not self._files.exists(directory):
                self._files.make_directory(directory)
                self._files.sync_directory(self._directory)
            partition = Partition(self._place, number, self._salt_key, self._on_full)
            self._partitions.append(partition)
            chain = known.get(number)
            if chain is not None:
                partition.sequence = chain.last_sequence
                partition.last_id = min(chain.last_id, last_id)
                partition.inherit(sum(log.end for log in chain.files))
            partition.rotate(*partition.prepare(last_id + 1))
            if chain is not None and chain.unused:
                self._remove_unused(partition, chain)

    def _remove_unused(self, partition: Partition, chain: Chain) -> None:
        """Files without a frame hold nothing; left alone, each idle open would leave one behind.

        Their successor was made first, and its header durable: a partition that a snapshot knows is never without the
        file that it names. No sync of the removal: what a crash brings back holds nothing either, and the next open
        removes it.
        """
        partition.sync(partition.begin_sync())
        for path in chain.unused:
            self._files.unlink(path)

    def _write_close_frames(self) -> None:
        """Called when appends are refused already: what was under way is let through, nothing follows it."""
        with self._sync_lock:
            with self._exclusive():
                last_id = self._last_id
            # A close frame promises that all before it is durable; so that is done first.
            if self._durable < last_id:
                self._sync()
            with self._exclusive():
                lengths = {log_name(p.path): p.offset for p in self._partitions if p.has_frames}
                record = msgspec.msgpack.encode(CloseRecord(last_id=last_id, lengths=lengths))
                for partition in self._partitions:
                    self._append_close(partition, last_id, record)
            self._sync()

    def _append_close(self, partition: Partition, last_id: int, record: bytes) -> None:
        """With no room to say that all is well, the next start finds an unclean end, and proves it."""
        try:
            partition.append(CLOSE, last_id, self._durable, record)
            partition.write_out()
        except OSError as error:
            if not is_disk_full(error):
                raise
            partition.forget_waiting()

    def _close_partitions(self) -> None:
        """Release the files, but none that somebody is writing or syncing."""
        with self._sync_lock, self._exclusive():
            partitions, self._partitions = self._partitions, []
            for partition in partitions:
                partition.close()
        self._turns.wake_all()


@dataclass(frozen=True, slots=True)
class _Rotation:
    """A moment with everything up to `last_id` applied, and nothing above it in the `covered` files."""

    last_id: int
    next_sequences: dict[int, int]
    blocks: Iterable[Sequence[Operation]]
    covered: set[str]


def _checkpoint_error(directory: str, error: OSError) -> Exception:
    if is_disk_full(error):
        return DiskFull(f"no room for a snapshot in {directory}: the old snapshot and all logs are kept")
    return error
