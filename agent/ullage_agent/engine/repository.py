"""A repository: opens, recovers and closes its parts, and holds them together.

with Repository.open(spec) as repository:
    with repository.session() as session:
        flow_file = session.create(attributes={"filename": "a.txt"})
        session.write(flow_file, b"content")
        session.transfer(flow_file, "inbox")
        session.commit()
"""

import gc
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Self

from ullage_agent.contract import ContentRepositorySpec, DurabilityMode
from ullage_agent.engine.answers import Answers
from ullage_agent.engine.backup import Backup, BackupReport, restore as restore_backup
from ullage_agent.engine.check import CheckReport, check_repository
from ullage_agent.engine.clock import Clock, SystemClock
from ullage_agent.engine.content.reader import ContentReader
from ullage_agent.engine.content.reserve import Reserve
from ullage_agent.engine.content.store import ContentRepository
from ullage_agent.engine.content.writer import ContentWriter
from ullage_agent.engine.errors import BackPressure, DiskFull, RepositoryDamaged
from ullage_agent.engine.feeds import Feeds
from ullage_agent.engine.files import File, Files, OsFiles, is_disk_full
from ullage_agent.engine.flowfile.ledger import Ledger
from ullage_agent.engine.flowfile.manager import QueueManager
from ullage_agent.engine.flowfile.queues import FlowFileQueue
from ullage_agent.engine.flowfile.swap import SwapFiles
from ullage_agent.engine.handles import HandleStore
from ullage_agent.engine.holdings import require_empty, require_present
from ullage_agent.engine.leases import Leases
from ullage_agent.engine.model import FlowFile, IndexCeiling, Operation
from ullage_agent.engine.moment import Moment, take_moment
from ullage_agent.engine.opening import (
    FLOWFILE,
    SWAP,
    RepositoryIdentity,
    initialize,
    lock_repository,
    open_containers,
    read_identity,
    require_snapshot,
    write_containers,
)
from ullage_agent.engine.provenance.history import History
from ullage_agent.engine.provenance.state import RecordedState
from ullage_agent.engine.provenance.store import ProvenanceStore
from ullage_agent.engine.reclaim.execute import charged_bytes
from ullage_agent.engine.reclaim.reclamation import Reclamation
from ullage_agent.engine.recovery import Recovery
from ullage_agent.engine.session import ProcessSession
from ullage_agent.engine.staging import Staging
from ullage_agent.engine.wal.loading import RestoreReport, Watcher
from ullage_agent.engine.wal.log import LogSettings, WriteAheadLog
from ullage_agent.engine.wal.serde import MsgpackSerDe, SerDe

LOG_RESERVE_BYTES = 64 << 20
"""Log that must still fit on a full disk until removals and a checkpoint have freed some: a partition's share."""

CONTENT_RESERVE_BYTES = 64 << 20
"""Content that reclamation must still be able to write on a full volume: one output."""


class Repository:
    """An open repository. Thread-safe; sessions are not."""

    on_commit: Callable[[float], None] = staticmethod(lambda _seconds: None)
    """Gets how long each commit took, from its thread: to count."""

    def __init__(
        self,
        files: Files,
        clock: Clock,
        spec: ContentRepositorySpec,
        serde: SerDe,
        lock: File,
    ) -> None:
        """Use `Repository.open`."""
        root = spec.storage.host_path.path
        self.spec = spec
        self.root = root
        self.clock = clock
        self.files = files
        self.serde = serde
        self._opened = open_containers(files, spec, read_identity(files, root))
        self.identity, containers = self._opened.identity, self._opened.containers
        require_snapshot(files, root, self._opened.present)
        self._lock: File | None = lock
        self._counters: dict[str, int] = {}
        self._counter_lock = threading.Lock()
        self.swap_files = SwapFiles(files, os.path.join(root, SWAP), self.identity.repository, serde)
        self.ledger = Ledger(self.swap_files.read)
        self.content = ContentRepository(files, containers, spec, clock, self._reserve_indexes)
        self.reader = ContentReader(self.content, self.ledger)
        self.records_provenance = spec.provenance.enabled
        self.provenance = ProvenanceStore(
            files,
            root,
            self.identity.repository,
            spec.provenance,
            spec.storage.provenance_directories,
            clock,
            self._queue_name,
        )
        self.log = WriteAheadLog(
            files,
            os.path.join(root, FLOWFILE),
            self.identity.repository,
            RecordedState(self.ledger, self.provenance.tail),
            serde,
            clock,
            LogSettings(spec.flow_file.partitions, _interval_seconds(spec), may_be_new=False),
        )
        self.provenance.durable = lambda: self.log.durable
        self.queues = QueueManager(
            self.ledger,
            self.swap_files,
            self._commit_removing,
            self._commit_new,
            clock,
            spec.flow_file,
            records_provenance=self.records_provenance,
        )
        self.handles = HandleStore(self, int(spec.compaction.deleted_retention))
        self.history = History(files, root, self.provenance, spec.provenance, self)
        self.reclamation = Reclamation(
            files, self.ledger, self.content, self._commit_if, clock, spec, self.log, self.swap_files.read
        )
        self.leases = Leases(self)
        self.answers, self.staging, self.feeds = Answers(self), Staging(self), Feeds(self)
        self.reclamation.tombstones = self.handles.tombstones
        self.content.on_pressure = self.reclamation.relieve
        self._backup = Backup(self)
        self._keeps_swaps = False
        self._is_reserve_spent = False
        self.log.on_full = self._spend_reserve
        self._reserve = Reserve(files, os.path.join(root, FLOWFILE))
        self._reserves = [Reserve(files, container.path) for container in containers]
        self.restored: RestoreReport

    @classmethod
    def initialize(
        cls,
        spec: ContentRepositorySpec,
        files: Files | None = None,
        clock: Clock | None = None,
        serde: SerDe | None = None,
    ) -> RepositoryIdentity:
        """Make an empty repository where the spec says; an interrupted one is finished."""
        return initialize(files or OsFiles(), clock or SystemClock(), spec, serde or MsgpackSerDe())

    @classmethod
    def open(
        cls,
        spec: ContentRepositorySpec,
        files: Files | None = None,
        clock: Clock | None = None,
        serde: SerDe | None = None,
    ) -> "Repository":
        """Open and recover. Whatever it raises, every lock and file is released, and another open may be tried."""
        files = files or OsFiles()
        lock = lock_repository(files, spec.storage.host_path.path)
        try:
            try:
                return cls._restored(files, clock or SystemClock(), spec, serde or MsgpackSerDe(), lock)
            except (DiskFull, OSError) as error:
                # Recovery writes a snapshot; on a full disk that is what the reserve is for.
                reserve = Reserve(files, os.path.join(spec.storage.host_path.path, FLOWFILE))
                if not _is_full(error) or not reserve.spend():
                    raise
                return cls._restored(files, clock or SystemClock(), spec, serde or MsgpackSerDe(), lock)
        except BaseException:
            lock.close()
            raise

    @classmethod
    def restore_backup(
        cls,
        source: str,
        spec: ContentRepositorySpec,
        files: Files | None = None,
        on_progress: Callable[[int, int], None] = lambda _d, _t: None,
    ) -> BackupReport:
        """Make the repository of a backup in empty directories; see `backup.restore`."""
        return restore_backup(files or OsFiles(), source, spec, on_progress)

    @classmethod
    def _restored(
        cls, files: Files, clock: Clock, spec: ContentRepositorySpec, serde: SerDe, lock: File
    ) -> "Repository":
        repository = cls(files, clock, spec, serde, lock)
        repository._restore()
        return repository

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def session(self, component: str = "", component_type: str = "") -> ProcessSession:
        """A new session; use it in one thread, as a context manager. `component` is who its events name."""
        return ProcessSession(self, component, component_type)

    def queue(self, name: str) -> FlowFileQueue:
        """The queue of this name, made with the defaults on first use."""
        return self.queues.queue(name)

    def adopt(self, spec: ContentRepositorySpec) -> None:
        """Settings that an open repository can change: claims, archive, truncation, compaction, leases, and of flowFile
        the checkpoints, walMaxBytes and queueDefaults. The caller sees to it that nothing else differs, and makes its
        Maintenance anew. SessionMisuse, nothing changed, for a compaction policy that there is not.
        """
        self.reclamation.adopt(spec)
        self.content.adopt(spec)
        self.queues.adopt(spec.flow_file)
        self.spec = spec

    def check(self, *, deep: bool = False, on_progress: Callable[[int, int], None] | None = None) -> CheckReport:
        """Verify everything against everything; nothing may be committed meanwhile."""
        return check_repository(self, deep=deep, on_progress=on_progress)

    def checkpoint(self, on_progress: Callable[[int], None] | None = None, *, drains: bool = True) -> None:
        """Publish a snapshot and drop what it makes unnecessary: old logs, retired swap files.

        Provenance events move to event files first; where they find no room, and without `drains`, the snapshot carries
        them.

        A full disk spends the reserve on the snapshot: it is what lets logs go.
        """
        if drains:
            self.provenance.try_drain()
        self._checkpoint(on_progress)

    def _checkpoint(self, on_progress: Callable[[int], None] | None) -> None:
        try:
            covered = self.log.checkpoint(on_progress)
        except (DiskFull, OSError) as error:
            if not _is_full(error):
                raise
            self._spend_reserve()
            covered = self.log.checkpoint(on_progress)
        if not self._keeps_swaps:
            self._remove_retired_swaps(covered)
        self._grow_reserves()

    def moment(self) -> Moment:
        """Everything that was committed up to one durable transaction; see `moment.py`."""
        return take_moment(self)

    def backup(self, destination: str, on_progress: Callable[[int, int], None] = lambda _d, _t: None) -> BackupReport:
        """Bring the backup in a directory up to date while sessions go on; see `Backup.write`."""
        return self._backup.write(destination, on_progress)

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """While this lasts, no file that a snapshot may name is given back."""
        with self.reclamation.held(), self.provenance.keeping():
            self._keeps_swaps = True
            try:
                yield
            finally:
                self._keeps_swaps = False

    def commit(
        self, operations: Sequence[Operation], *, creates: bool, validate: Callable[[], None] | None = None
    ) -> int:
        """One transaction, durable when this returns its id. Only removing work may spend the reserve."""
        began = self.clock.monotonic()
        if creates:
            self._admit_new()
        try:
            id = self.log.append(operations, self.clock.now_millis(), validate)
        except DiskFull:
            if creates:
                raise
            self._spend_reserve()
            id = self.log.append(operations, self.clock.now_millis(), validate)
        self.log.wait_durable(id)
        self.on_commit(self.clock.monotonic() - began)
        return id

    def new_writer(self) -> ContentWriter:
        return ContentWriter(self.content, self.files)

    def handle_record(self, uuid: bytes) -> FlowFile:
        return self.handles.record(uuid)

    def add_counters(self, counters: dict[str, int]) -> None:
        with self._counter_lock:
            for name, delta in counters.items():
                self._counters[name] = self._counters.get(name, 0) + delta

    def counters(self) -> dict[str, int]:
        """The counters that sessions adjusted since the open."""
        with self._counter_lock:
            return dict(self._counters)

    def close(self) -> None:
        """Seal what is open, close the log and release everything; safe to call twice."""
        try:
            if self.log.is_running:
                self.content.retire_idle()
                self._commit_seals()
        finally:
            try:
                self.log.close()
            finally:
                self.content.close()
                self.history.close()
                self.provenance.close()
                # What `_restore` froze may go now, or a process that reopens would keep every repository it had.
                gc.unfreeze()
                if self._lock is not None:
                    self._lock.close()
                    self._lock = None

    def _restore(self) -> None:
        """Recover, then take up where the last process ended."""
        recovery = Recovery(self.files, self.ledger, self.content)

        def before_serving(report: RestoreReport) -> None:
            require_present(self.ledger, self.swap_files.read, self._opened.lost)
            require_empty(self.ledger, self.swap_files.read, self._opened.removed)
            if not report.clean:
                recovery.prove(self.reader)
                recovery.seal_all()

        try:
            with _collector_paused():
                self.restored = self._load(before_serving, recovery.collect)
                self.content.start_after(self.ledger.index_ceiling)
                self._count_bytes()
                self.handles.restore(self.queues.restore())
            self.provenance.start(self.restored.last_id)
            # What was loaded stays: the collector need not look at a million records again.
            gc.freeze()
            self._remove_retired_swaps(self.restored.last_id if not self.restored.clean else 0)
            self._remove_unknown_swaps()
            self.reclamation.resume(recovery.intents())
            if seals := recovery.seals():
                self._commit_removing(seals)
            self._grow_reserves()
            self.staging.resume()
            self._forget_containers()
        except BaseException:
            self.log.close()
            self.content.close()
            self.provenance.close()
            raise

    def _load(self, before_serving: Callable[[RestoreReport], None], on_replayed: Watcher) -> RestoreReport:
        """The log, read back. Where that fails beside a lost container, the container is told: its volume may hold
        more than content.
        """
        try:
            return self.log.restore(before_serving, on_replayed)
        except RepositoryDamaged as error:
            if self._opened.lost:
                raise self._opened.lost[0][1] from error
            raise

    def _forget_containers(self) -> None:
        """Those that the spec no longer lists, and that hold nothing."""
        if self._opened.removed:
            kept = {name: path for name, path in self.identity.containers.items() if name in self.content.containers}
            self.identity = write_containers(self.files, self.root, self.identity, kept)

    def _count_bytes(self) -> None:
        for entry in self.ledger.entries():
            self.content.container_of(entry.claim).add_bytes(charged_bytes(entry.claim))

    def _remove_retired_swaps(self, covered: int) -> None:
        """A retired swap file goes once a published snapshot covers its swap-in: until then restore may need it."""
        with self.ledger.lock:
            names = [name for name, id in self.ledger.retired_swaps.items() if id <= covered]
        self.swap_files.remove(name for name in names if self.files.exists(self.swap_files.path(name)))
        with self.ledger.lock:
            for name in names:
                del self.ledger.retired_swaps[name]

    def _remove_unknown_swaps(self) -> None:
        """Files that no transaction ever named, or whose removal was cut short: their FlowFiles are elsewhere."""
        known = set(self.ledger.swaps) | set(self.ledger.retired_swaps)
        self.swap_files.remove([name for name in self.swap_files.names() if name not in known])

    def _grow_reserves(self) -> None:
        wanted = self.log.snapshot_bytes * 3 // 2 + LOG_RESERVE_BYTES * self.spec.flow_file.partitions
        self._is_reserve_spent = not self._reserve.grow(wanted)
        for reserve in self._reserves:
            reserve.grow(CONTENT_RESERVE_BYTES)

    def _spend_reserve(self) -> None:
        """Give the ballast's room to work that frees more; new content waits until there is room for both again.

        Once the root's is spent, the containers': where they share its volume, that is the room a filesystem wants for
        the directory entry and inode of a snapshot (XFS: for 64 inodes at a time).
        """
        self._is_reserve_spent = True
        if not self._reserve.spend():
            for reserve in self._reserves:
                reserve.spend()

    def _admit_new(self) -> None:
        """Keep the log within `walMaxBytes`: a writer that meets the limit pays for a checkpoint, then is refused."""
        if self._is_reserve_spent:
            self._grow_reserves()
            if self._is_reserve_spent:
                raise DiskFull(
                    f"the volume of {self.root} is full and its reserve spent: remove FlowFiles, reclaim, or add space"
                )
        limit = self.spec.flow_file.wal_max_bytes
        if self.provenance.is_overdue:
            self.provenance.make_room()
        if self.log.log_bytes >= limit:
            self.checkpoint()
            if self.log.log_bytes >= limit:
                raise BackPressure(
                    f"the write-ahead log has {self.log.log_bytes} bytes (spec.flowFile.walMaxBytes {limit}): new "
                    "content is refused until a checkpoint succeeds"
                )

    def _queue_name(self, number: int) -> str:
        definition = self.ledger.queues.get(number)
        return "" if definition is None else definition.name

    def _commit_if(self, operations: Sequence[Operation], validate: Callable[[], None] | None = None) -> None:
        self.commit(operations, creates=False, validate=validate)

    def _commit_removing(self, operations: Sequence[Operation]) -> None:
        self.commit(operations, creates=False)

    def _commit_new(self, operations: Sequence[Operation]) -> None:
        self.commit(operations, creates=True)

    def _commit_seals(self) -> None:
        seals = self.content.take_seals()
        if seals:
            self._commit_removing(seals)

    def _reserve_indexes(self, ceiling: int) -> None:
        self.commit([IndexCeiling(ceiling)], creates=True)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Loading makes only records that live on: collecting meanwhile would cost more than the loading."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _is_full(error: Exception) -> bool:
    return isinstance(error, DiskFull) or (isinstance(error, OSError) and is_disk_full(error))


def _interval_seconds(spec: ContentRepositorySpec) -> float:
    if spec.durability.mode == DurabilityMode.INTERVAL:
        return spec.durability.interval.seconds
    return 0.0
