"""The write-ahead log: append, group commit, checkpoint, restore (seed 003).

What must stay true:
- A transaction's id, append and apply happen under its partition's lock; a rotation holds all partition locks, so
  that at a rotation everything up to the last id is appended and applied (the seed's shared and exclusive lock).
- `durable` is the largest id such that every frame up to it is synced. Nothing is acknowledged, published or
  destroyed before `durable` has reached its transaction.
- A failed sync stops the log for good: what the kernel did with the pages is unknown until the next restore.

Locks, in the order they may be taken: checkpoint, sync, partitions (ascending), the state's own lock.
"""

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count

import msgspec

from ullage_agent.engine.clock import Clock
from ullage_agent.engine.errors import (
    CommitOutcomeUnknown,
    DiskFull,
    NotRestored,
    RepositoryStopped,
    TransactionTooLarge,
)
from ullage_agent.engine.files import Files, is_disk_full
from ullage_agent.engine.model import Operation, operation_count
from ullage_agent.engine.wal.format import (
    CLOSE,
    FORMAT_VERSION,
    FRAME_HEADER_BYTES,
    OPERATIONS_MAX,
    PAYLOAD_BYTES_MAX,
    TRANSACTION,
    CloseRecord,
)
from ullage_agent.engine.wal.loading import LogLoader, RestoreReport, Watcher
from ullage_agent.engine.wal.partition import LogIdentity, Partition
from ullage_agent.engine.wal.records import write_records
from ullage_agent.engine.wal.restore import (
    Chain,
    log_name,
)
from ullage_agent.engine.wal.serde import SerDe
from ullage_agent.engine.wal.snapshot import PARTIAL, SNAPSHOT_MAGIC, SnapshotHeader, publish
from ullage_agent.engine.wal.state import LogState


@dataclass(frozen=True, slots=True)
class LogSettings:
    """`interval_seconds` > 0: syncs are at least so far apart, and commits wait for theirs (`durability: Interval`)."""

    partitions: int = 1
    interval_seconds: float = 0.0


class WriteAheadLog:
    """One log over `state`, in one directory. Thread-safe once restored."""

    def __init__(
        self,
        files: Files,
        directory: str,
        repository: str,
        state: LogState,
        serde: SerDe,
        clock: Clock,
        settings: LogSettings | None = None,
    ) -> None:
        self._files = files
        self._directory = directory
        self._repository = repository
        self._state = state
        self._serde = serde
        self._clock = clock
        self._settings = settings or LogSettings()
        self._identity = LogIdentity(repository, serde.name, serde.version)
        self._partitions: list[Partition] = []
        self._turn = count()
        self._id_lock = threading.Lock()
        self._sync_lock = threading.Lock()
        self._checkpoint_lock = threading.Lock()
        self._last_id = 0
        self._durable = 0
        self._last_sync = float("-inf")
        self._failure: BaseException | None = None
        self._restored = False
        self.snapshot_bytes = 0
        self.snapshot_id = 0
        self.sync_count = 0

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
        """Write and apply one transaction; returns its id. It is acknowledged only after `wait_durable(id)`.

        `validate` runs under the lock right before the id is taken; what it raises is raised here, with nothing
        written. DiskFull and TransactionTooLarge are definite failures as well.
        """
        payload = self._encode(operations, millis)
        self._require_running()
        partition = self._claim_partition()
        try:
            self._require_running()
            self._reserve(partition, len(payload))
            if validate is not None:
                validate()
            with self._id_lock:
                id = self._last_id + 1
                self._last_id = id
            self._write(partition, id, payload)
            self._apply(id, millis, operations)
            return id
        finally:
            partition.lock.release()

    def wait_durable(self, id: int) -> None:
        """Return when every transaction up to `id` is synced; the caller that gets here first does it for all.

        leader     | sync lock | fdatasync ....................... | durable = 7
        follower 8 | append 8, wait for the sync lock ............ | lead the next sync, which covers 9 too
        follower 9 | append 9, wait for the sync lock .................................. | durable >= 9, done
        """
        if self._durable >= id:
            return
        with self._sync_lock:
            if self._durable >= id:
                return
            if self._failure is not None:
                raise CommitOutcomeUnknown(
                    f"transaction {id} was written, but the log stopped before it was synced: it may or may not "
                    "be there; reopen the repository to find out"
                ) from self._failure
            self._pace()
            self._sync(id)

    def checkpoint(self, on_progress: Callable[[int], None] | None = None) -> int:
        """Publish a snapshot of everything applied so far and delete the log before it; returns its last id.

        Only the rotation is done under the exclusive lock. Seed 003 holds that lock until the snapshot is written:
        a million records would stop all commits for seconds.

            rotate | freeze | sync old log | write partial, sync | rename, sync directory | delete old logs
            ^ exclusive ^                                          ^ commit point
            a crash before it: the old snapshot and all logs count; after it: leftovers are ignored and removed
        """
        self._require_running()
        with self._checkpoint_lock:
            last_id, sequences, blocks = self._rotate()
            try:
                self.wait_durable(last_id)
                header = SnapshotHeader(
                    format=FORMAT_VERSION,
                    serde=self._serde.name,
                    serde_version=self._serde.version,
                    repository=self._repository,
                    last_id=last_id,
                    created_millis=self._clock.now_millis(),
                    next_sequences=sequences,
                )
                partial = os.path.join(self._directory, PARTIAL)
                self.snapshot_bytes = write_records(
                    self._files, partial, SNAPSHOT_MAGIC, header, blocks, self._serde, on_progress
                )
            except OSError as error:
                raise _checkpoint_error(self._directory, error) from error
            finally:
                self._state.release()
            publish(self._files, self._directory)
            self.snapshot_id = last_id
            self._delete_old_logs()
        return last_id

    def restore(
        self,
        before_serving: Callable[[RestoreReport], None] | None = None,
        on_replayed: Watcher | None = None,
    ) -> RestoreReport:
        """Load the snapshot, replay the log, and open it for append (seed 003, steps 1 to 11).

        `on_replayed` sees the operations of each transaction that the log, not the snapshot, brought back. After an
        unclean end `before_serving` runs first, then a fresh snapshot is published before anything is
        written: the torn ends are never appended to. Any failure releases everything; a later restore starts anew.
        """
        with self._checkpoint_lock:
            if self._restored:
                raise NotRestored("the log is already restored")
            try:
                loader = LogLoader(
                    self._files,
                    self._directory,
                    self._repository,
                    self._state,
                    self._serde,
                    self._settings.partitions,
                )
                report, chains = loader.load(on_replayed)
                self.snapshot_bytes = loader.snapshot_bytes
                self.snapshot_id = report.snapshot_last_id
                self._open_partitions(chains, report.last_id)
            except BaseException:
                self._close_partitions()
                raise
        try:
            self._restored = True
            if before_serving is not None:
                before_serving(report)
            if not report.clean:
                self.checkpoint()
        except BaseException:
            self._restored = False
            self._close_partitions()
            raise
        return report

    def close(self) -> None:
        """Sync, write a close frame to each partition and release the files; after a failure only release."""
        with self._checkpoint_lock:
            try:
                if self._restored and self._failure is None:
                    self._write_close_frames()
            finally:
                self._restored = False
                self._close_partitions()

    def abandon(self) -> None:
        """Release the files as they are, as the end of the process would: no sync, no close frame."""
        with self._checkpoint_lock:
            self._restored = False
            self._close_partitions()

    def _encode(self, operations: Sequence[Operation], millis: int) -> bytes:
        touched = operation_count(operations)
        if touched > OPERATIONS_MAX:
            raise TransactionTooLarge(
                f"{touched} records in one transaction, at most {OPERATIONS_MAX} are allowed: commit in parts"
            )
        payload = self._serde.encode(millis, operations)
        if len(payload) > PAYLOAD_BYTES_MAX:
            raise TransactionTooLarge(
                f"a transaction of {len(payload)} bytes, at most {PAYLOAD_BYTES_MAX} are allowed: commit in parts"
            )
        return payload

    def _require_running(self) -> None:
        if not self._restored:
            raise NotRestored("the write-ahead log is not restored: call restore() first, and nothing after close()")
        if self._failure is not None:
            raise RepositoryStopped(
                f"the write-ahead log in {self._directory} stopped after a failure ({self._failure}); reopen it"
            ) from self._failure

    def _claim_partition(self) -> Partition:
        """Lock the partition whose turn it is, or the next one that is free."""
        partitions = self._partitions
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

    def _write(self, partition: Partition, id: int, payload: bytes) -> None:
        try:
            partition.append(TRANSACTION, id, self._durable, payload)
        except OSError as error:
            try:
                partition.append_void(id, self._durable)
            except OSError as second:
                # Its bytes could not be cut back and no later file disowns them: a restart may find them whole.
                self._failure = second
                raise CommitOutcomeUnknown(
                    f"writing transaction {id} to {partition.path} at offset {partition.offset} failed, and so did "
                    "voiding it: it may or may not be there; the repository stops, reopen it to find out"
                ) from error
            if is_disk_full(error):
                raise DiskFull(f"no room for transaction {id} in {self._directory}") from error
            raise

    def _apply(self, id: int, millis: int, operations: Sequence[Operation]) -> None:
        try:
            self._state.apply(id, millis, operations)
        except BaseException as error:
            # The frame stands and the memory is half changed: only a restart makes them agree again.
            self._failure = error
            raise

    def _pace(self) -> None:
        """In `Interval` mode the leader waits until the last sync is an interval ago; followers wait with it."""
        interval = self._settings.interval_seconds
        if interval > 0:
            rest = self._last_sync + interval - self._clock.monotonic()
            if rest > 0:
                self._clock.sleep(rest)
            self._last_sync = self._clock.monotonic()

    def _sync(self, awaited: int) -> None:
        """Sync all partitions; called with the sync lock held."""
        with self._exclusive():
            last_id = self._last_id
            marks = [(partition, partition.begin_sync()) for partition in self._partitions]
        try:
            for partition, mark in marks:
                partition.sync(mark)
        except BaseException as error:
            self._failure = error
            raise CommitOutcomeUnknown(
                f"syncing the log failed with transaction {awaited} in it: it may or may not be there; the repository "
                "stops, reopen it to find out"
            ) from error
        self.sync_count += 1
        self._durable = last_id

    def _exclusive(self) -> ExitStack:
        stack = ExitStack()
        for partition in self._partitions:
            stack.enter_context(partition.lock)
        return stack

    def _rotate(self) -> tuple[int, dict[int, int], Iterable[list[Operation]]]:
        """Continue in fresh files and freeze the state: the last id covered, where the chains go on, the records."""
        prepared = {}
        for partition in self._partitions:
            if partition.has_frames:
                prepared[partition.number] = partition.prepare(self._last_id + 1)
        with self._exclusive():
            last_id = self._last_id
            try:
                for partition in self._partitions:
                    if partition.number in prepared:
                        partition.rotate(*prepared[partition.number])
            except OSError as error:
                self._failure = error
                raise RepositoryStopped(f"the log in {self._directory} could not continue in a new file") from error
            sequences = {partition.number: partition.sequence for partition in self._partitions}
            return last_id, sequences, self._state.freeze()

    def _delete_old_logs(self) -> None:
        """Remove files that the published snapshot covers. A failure keeps too much, which harms nothing."""
        for name in self._files.list_directory(self._directory):
            if not name.startswith("partition-"):
                continue
            directory = os.path.join(self._directory, name)
            current = {partition.path for partition in self._partitions}
            paths = [os.path.join(directory, entry) for entry in self._files.list_directory(directory)]
            old = [path for path in paths if path.endswith(".wal") and path not in current]
            for path in old:
                self._files.unlink(path)
            if old:
                self._files.sync_directory(directory)
        for partition in self._partitions:
            partition.forget_retired()

    def _open_partitions(self, chains: list[Chain], last_id: int) -> None:
        known = {chain.number: chain for chain in chains}
        self._last_id = self._durable = last_id
        self._failure = None
        for number in range(self._settings.partitions):
            directory = os.path.join(self._directory, f"partition-{number}")
            if not self._files.exists(directory):
                self._files.make_directory(directory)
                self._files.sync_directory(self._directory)
            partition = Partition(self._files, directory, number, self._identity)
            if number in known:
                self._remove_unused(directory, known[number])
                partition.sequence = known[number].last_sequence
                partition.last_id = min(known[number].last_id, last_id)
                partition.inherit(sum(log.end for log in known[number].files))
            partition.rotate(*partition.prepare(last_id + 1))
            self._partitions.append(partition)

    def _remove_unused(self, directory: str, chain: Chain) -> None:
        """Files without a frame hold nothing; left alone, each idle open would leave one behind."""
        for path in chain.unused:
            self._files.unlink(path)
        if chain.unused:
            self._files.sync_directory(directory)

    def _write_close_frames(self) -> None:
        if self._durable < self._last_id:
            self.wait_durable(self._last_id)
        with self._sync_lock, self._exclusive():
            lengths = {log_name(p.path): p.offset for p in self._partitions if p.has_frames}
            record = msgspec.msgpack.encode(CloseRecord(last_id=self._last_id, lengths=lengths))
            marks = []
            for partition in self._partitions:
                partition.append(CLOSE, self._last_id, self._durable, record)
                marks.append((partition, partition.begin_sync()))
        for partition, mark in marks:
            partition.sync(mark)

    def _close_partitions(self) -> None:
        for partition in self._partitions:
            partition.close()
        self._partitions = []


def _checkpoint_error(directory: str, error: OSError) -> Exception:
    if is_disk_full(error):
        return DiskFull(f"no room for a snapshot in {directory}: the old snapshot and all logs are kept")
    return error
