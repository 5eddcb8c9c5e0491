"""A repository: opens, recovers and closes its parts, and holds them together.

with Engine.open(spec) as repository:
    with repository.session() as session:
        flow_file = session.create(attributes={"filename": "a.txt"})
        session.write(flow_file, b"content")
        session.transfer(flow_file, "inbox")
        session.commit()
"""

import os
from collections.abc import Callable
from typing import Final, Self

from ullage.clock import Clock
from ullage.contract import ContentRepositorySpec, PermissionFor, ReplicationMode, default_permission
from ullage.engine.backup import Backup
from ullage.engine.backupcontent import ContentGatherer
from ullage.engine.backupplace import BackupPlace
from ullage.engine.backuptally import Progress, untold
from ullage.engine.believed import BelievedClock, ClockReading
from ullage.engine.careful import CarefulRestore
from ullage.engine.check.check import CheckedParts, check_repository
from ullage.engine.check.repair import Repair
from ullage.engine.committer import ChangingParts, Committer
from ullage.engine.content.availability import Availability
from ullage.engine.content.reader import ContentReader
from ullage.engine.content.reserve import Reserve, Reserves, is_full
from ullage.engine.content.writer import WriterAdmission
from ullage.engine.counters import Counters
from ullage.engine.feeds import Feeds
from ullage.engine.files import File, Files, OsFiles
from ullage.engine.flowfile.manager import QueueManager
from ullage.engine.flowfile.queues import FlowFileQueue
from ullage.engine.flowfile_repository import FLOWFILE
from ullage.engine.forgotten import Forgotten
from ullage.engine.forking import lose, refuse_in_child
from ullage.engine.handles import HandleStore
from ullage.engine.heldfiles import HeldFiles
from ullage.engine.history import History
from ullage.engine.holdings import require_any
from ullage.engine.idempotency import IdempotencyKeys
from ullage.engine.leases import LeaseManager
from ullage.engine.ledger.keyspaces import KeySpaces
from ullage.engine.ledger.ledger import Ledger
from ullage.engine.ledger.runfiles import RUNS
from ullage.engine.ledger.swap import SwapFiles
from ullage.engine.looking import FlowFileViewer
from ullage.engine.model import IndexCeiling
from ullage.engine.opening import (
    NONE_BEFORE,
    SWAP,
    Predecessor,
    RepositoryIdentity,
    identity_problems,
    initialize,
    lock_repository,
    open_containers,
    read_identity,
    require_made_with,
    require_snapshot,
    write_containers,
)
from ullage.engine.oserrors import NotAFile
from ullage.engine.parts import RepositoryParts
from ullage.engine.proof import ContentProof, SwapProof
from ullage.engine.purges import PurgeSchedule
from ullage.engine.reclaim.account import SpaceAccount
from ullage.engine.reclaim.compactor import Compactor
from ullage.engine.reclaim.execute import Executor, ReclamationParts, charged_bytes
from ullage.engine.reclaim.liveness import LivenessScanner
from ullage.engine.reclaim.reclamation import Reclaimer
from ullage.engine.reclaim.report import ReclamationReport
from ullage.engine.reclaim.rewrite import Rewriter
from ullage.engine.recorded import RecordedState
from ullage.engine.recovery import Recovery
from ullage.engine.repositories import chosen
from ullage.engine.restoring import restore
from ullage.engine.session import ProcessSession
from ullage.engine.setaside import SetAsideRecords
from ullage.engine.snapshots import RepositorySnapshot, take_snapshot
from ullage.engine.staging import Staging
from ullage.engine.tap import ShippingTap
from ullage.engine.unavailable import UnavailableContents
from ullage.engine.uninterrupted import uninterrupted
from ullage.engine.volumes import Volumes
from ullage.engine.wal.loading import Watcher
from ullage.engine.wal.restore import RestoreReport
from ullage.engine.wal.serde import SerDe
from ullage.engine.wal.state import RecordUnusable
from ullage.engine.working import SessionParts
from ullage.errors import DiskFull, ForeignContainer, RepositoryDamaged
from ullage.sessionroom import SessionRoom
from ullage.wire.upkeep import BackupReport, CheckReport, Keep

ReportListener = Callable[[str, ReclamationReport], None]
"""Gets the name of a run (clean, truncate, compact, reclaim) and what it did. `report.emergency` is above 0 where a
nearly full disk overruled the windows.
"""

WAY_ON: Final = (
    "nothing was changed or removed: restore a backup (`ullage restore`), put the damaged file back from a copy made "
    "since it was last written, or make a new repository of what can be proved (`ullage salvage`)"
)
"""Beside what says which file a start can't do without, and where it is damaged."""


class Engine:
    """An open repository. Thread-safe; sessions are not.

    Its parts are fields, set once: `clock` for the time that is believed, `files`, `ledger`, `log`, `committer`,
    `swap_files` and `tap` for what exists, `content`, `reader` and `admission` for bytes, `queues`, `handles`,
    `staging`, `feeds`, `flow_files` for FlowFiles, `provenance` and `history` for the past, `reclamation`,
    `compactor`, `account` for space, the rest by its own name. `spec` is replaced by `adopt`, `identity` where
    a container is forgotten; `restored` is what the opening found. Each of `report_listeners` is called after a run,
    by its thread. Each part is made after those that it needs: what it may touch is what it was given there.
    """

    restored: RestoreReport

    def __init__(
        self,
        files: Files,
        clock: BelievedClock,
        spec: ContentRepositorySpec,
        lock: File,
        permission: PermissionFor | None,
        is_careful: bool,
    ) -> None:
        """Use `Engine.open`."""
        root = spec.storage.host_path.path
        self._files = files
        files = self.files = HeldFiles(files, lock)
        refuse_in_child(self)
        self.spec, self.root, self.clock = spec, root, clock
        identity = read_identity(files, root)
        require_made_with(spec, identity)
        parts, make = RepositoryParts(files, clock, spec, SerDe(), identity.repository), chosen(spec)

        def reserve_indexes(ceiling: int) -> None:  # nobody writes before the committer is there
            self.committer.commit([IndexCeiling(ceiling)], creates=True)

        self.content = make.content(parts, reserve_indexes)
        self.identity = open_containers(files, spec, identity, self.content)
        if not spec.flow_file.repository:
            require_snapshot(files, root, [each for each in self.content.containers.values() if each.is_available])

        self.swap_files = SwapFiles(parts.directory(SWAP))
        self.ledger = Ledger(self.swap_files.read)
        self.spaces = KeySpaces(self.ledger, parts.directory(FLOWFILE, RUNS))

        # Nobody asks what is durable before the log, to which provenance belongs, is there.
        self.provenance = make.provenance(parts, lambda: self.log.durable, self.ledger.queue_name)
        partitions = 0 if make.flow_file.is_volatile else spec.flow_file.partitions  # of which the disk keeps room
        reserves = Reserves(files, os.path.join(root, FLOWFILE), partitions, self.content)
        self._state = self._recorded(parts.serde, is_careful)
        self.log = make.flow_file(parts, self._state, reserves.spend)
        self.committer = Committer(
            self.log, self.ledger, self.swap_files, self.provenance, reserves, clock, spec.flow_file
        )
        self.report_listeners: list[ReportListener] = []
        self.forgotten, self.availability = Forgotten(), Availability(self.ledger, self.content)
        self.reader = ContentReader(self.content, self.ledger, self.spaces.blocks, self.availability, self.forgotten)
        purges = PurgeSchedule(self.ledger, clock, int(spec.compaction.deleted_retention), self.availability)
        scanner = LivenessScanner(self.ledger, self.swap_files.read, self.spaces.claims.difference)
        space = ReclamationParts(self.ledger, self.content, scanner, self.committer, clock, self.forgotten)
        self.reclamation, self.compactor, self.account = self._reclaimers(space, purges, permission)

        admission = self.admission = WriterAdmission(self.content, clock, self.compactor.relieve)
        shared = (self.ledger, self.committer, self.reader, admission, self.forgotten, clock, spec.provenance.enabled)
        changing = ChangingParts(*shared)
        self.set_aside = SetAsideRecords(changing, self.spaces.damages, parts.serde, self.provenance)
        self.queues = QueueManager(changing, self.swap_files, spec.flow_file, self.availability)
        self.handles = HandleStore(changing, purges)
        self._parts = SessionParts(*shared, self.queues, self.handles, Counters())
        self.proof, self.swap_proof = self._proofs(space)
        self.unavailable = self._unavailable()
        self.volumes = self._volumes()
        self.history = History(changing, self.provenance, self.queues)
        self.flow_files = FlowFileViewer(self.ledger, self.reader, self.swap_files)
        self.leases = LeaseManager(changing, spec.leases)
        self.idempotency = IdempotencyKeys(self.ledger, self.spaces.answers, self.log, clock)
        self.staging = Staging(changing, self.queues, self.handles)
        self.feeds = Feeds(self._parts, self.swap_files, spec.flow_file.swap_threshold)

        self._checked = self._what_is_checked()
        self.repair = Repair(self._checked, root, scanner, self.reclamation, self.committer)
        self._backup = self._backups(parts, scanner)

    def _proofs(self, space: ReclamationParts) -> tuple[ContentProof, SwapProof]:
        swaps = SwapProof(self.queues, self.swap_files, self.clock)
        return ContentProof(space, self.reader, self.availability), swaps

    def _unavailable(self) -> UnavailableContents:
        proofs = self.proof, self.swap_proof
        return UnavailableContents(self.ledger, self.availability, self.swap_files, *proofs, self.queues, self.handles)

    def _volumes(self) -> Volumes:
        parts = self.content, self.queues, self.ledger, self.swap_files, self.unavailable, self.committer
        return Volumes(*parts, self._add, self._forget)

    def _backups(self, parts: RepositoryParts, scanner: LivenessScanner) -> Backup:
        return Backup(
            parts,
            self.content,
            self.swap_files,
            self.provenance,
            self.committer,
            self.compactor,
            ContentGatherer(parts.files, self.reader, scanner),
            self.unavailable,
            self.spaces,
            self.ledger.queue_name,
        )

    def _what_is_checked(self) -> CheckedParts:
        return CheckedParts(
            self.files,
            self.ledger,
            self.spaces,
            self.content,
            self.reader,
            self.queues,
            self.swap_files,
            self.log,
            self.provenance,
            self.clock,
            lambda: identity_problems(self.files, self.root, self.identity),
            self.reclamation.survey_problems,
        )

    def _recorded(self, serde: SerDe, is_careful: bool) -> RecordedState:
        careful = CarefulRestore(self.ledger, self.provenance, serde, self.content.containers.__contains__)
        has_runs = not self.spec.flow_file.repository  # another one keeps no files beside its own
        self.tap = ShippingTap(is_open=self.spec.replication.mode != ReplicationMode.NONE)
        self.ledger.shipping_since = int(self.tap.is_open)  # until it is known how far shipping is
        parts = self.ledger, self.provenance, self.spaces, self.tap, careful
        return RecordedState(*parts, is_careful=is_careful, has_runs=has_runs)

    def _reclaimers(
        self, parts: ReclamationParts, purges: PurgeSchedule, permission: PermissionFor | None
    ) -> tuple[Reclaimer, Compactor, SpaceAccount]:
        """What gives space back, what gives it back by moving bytes, and what says where it is."""
        permission = permission or default_permission(self.spec.maintenance)
        executor = Executor(parts)
        reclaimer = Reclaimer(parts, executor, self.log, purges.tombstones_in, self.spec, permission, self._tell)
        rewriter = Rewriter(parts, executor, self.spec.compaction.output_size)
        compactor = Compactor(parts, reclaimer, rewriter, self.log, self.spec, self._tell)
        return reclaimer, compactor, SpaceAccount(self.files, self.root, parts, reclaimer, compactor)

    restore_backup = staticmethod(restore)
    """Make the repository of a backup in empty directories."""

    @classmethod
    def initialize(
        cls,
        spec: ContentRepositorySpec,
        files: Files | None = None,
        clock: Clock | None = None,
        after: Predecessor = NONE_BEFORE,
    ) -> RepositoryIdentity:
        """Make an empty repository where the spec says; an interrupted one is finished."""
        return initialize(files or OsFiles(), BelievedClock(clock or Clock()), spec, after)

    @classmethod
    def open(
        cls,
        spec: ContentRepositorySpec,
        files: Files | None = None,
        clock: Clock | None = None,
        permission: PermissionFor | None = None,
        *,
        is_salvage: bool = False,
    ) -> "Engine":
        """Open and recover. Whatever it raises, every lock and file is released, and another open may be tried.

        `permission` says when space may be given back (`contract/permission.py`); `is_salvage`: by what makes it.
        """
        files = files or OsFiles()
        lock = lock_repository(files, spec.storage.host_path.path, is_salvage=is_salvage)

        def restored(*, is_careful: bool = False) -> "Engine":
            repository = cls(files, BelievedClock(clock or Clock()), spec, lock, permission, is_careful)
            try:
                repository._restore()
                return repository
            except RecordUnusable:
                if is_careful:
                    raise
            # Behind the `except`, which would hold on to the first one: both ledgers at once may not fit the memory.
            del repository
            return restored(is_careful=True)

        try:
            try:
                return restored()
            except NotAFile as error:
                raise RepositoryDamaged(f"{error.filename} is no file any more: restore it from a backup") from error
            except (DiskFull, OSError) as error:
                # Recovery writes a snapshot; on a full disk that is what the reserve is for.
                reserve = Reserve(files, os.path.join(spec.storage.host_path.path, FLOWFILE))
                if not is_full(error) or not reserve.spend():
                    raise
                return restored()
        except BaseException as error:
            lock.close()
            if isinstance(error, RepositoryDamaged):
                # In the message: whoever prints or logs an error leaves its notes out.
                error.args = (f"{error}\n{WAY_ON}",)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def session(
        self,
        component: str = "",
        component_type: str = "",
        depth: int = 1,
        tenant: str = "",
        room: SessionRoom | None = None,
        kind: type[ProcessSession] = ProcessSession,
    ) -> ProcessSession:
        """A new session, a context manager for one thread. `component`: who its events name; `depth`: how many calls
        above the program is that wants it; `tenant`: whose its content is, and queues; `room`: what it may hold.
        """
        self.forgotten.give_back()
        return kind(self._parts, component, component_type, depth + 1, tenant, room)

    def queue(self, name: str) -> FlowFileQueue:
        """The queue of this name, made with the defaults on first use."""
        return self.queues.queue(name)

    def adopt(self, spec: ContentRepositorySpec) -> None:
        """Settings that an open repository can change: claims, archive, truncation, compaction, leases, and of flowFile
        the checkpoints, walMaxBytes and queueDefaults. The caller sees to it that nothing else differs, and makes its
        MaintenanceRunner anew. UnknownPlugin: nothing was changed.
        """
        self.compactor.adopt(spec)
        self.reclamation.adopt(spec)
        self.content.adopt(spec)
        self.queues.adopt(spec.flow_file)
        self.committer.adopt(spec.flow_file)
        self.leases.adopt(spec.leases)
        self.spec = spec

    def check(self, *, deep: bool = False, on_progress: Callable[[int, int], None] | None = None) -> CheckReport:
        """Verify everything against everything; nothing may be committed meanwhile."""
        return check_repository(self._checked, deep=deep, on_progress=on_progress)

    def checkpoint(self, on_progress: Callable[[int], None] | None = None, *, drains: bool = True) -> None:
        """Publish a snapshot and drop what it makes unnecessary: old logs, retired swap files.

        Provenance events move to event files first; where they find no room, and without `drains`, the snapshot carries
        them.

        A full disk spends the reserve on the snapshot: it is what lets logs go.
        """
        self.committer.checkpoint(on_progress, drains=drains)

    def accept_clock(self) -> ClockReading:
        """Believe the machine's clock where it is implausible, durably: what is due by it is due. InvalidArgument for
        what is no time at all. Where the checkpoint fails, the next commit remembers it.
        """
        if self.clock.look().reason:
            self.clock.accept()
            self.checkpoint(drains=False)
        return self.clock.look()

    def snapshot(self) -> RepositorySnapshot:
        """Everything that was committed up to one durable transaction; see `snapshots.py`."""
        return take_snapshot(self.ledger, self.log, self.clock, self.swap_files)

    def backup(
        self,
        destination: str | BackupPlace,
        on_progress: Progress = untold,
        within: str = "",
        keep: Keep | None = None,
    ) -> BackupReport:
        """Bring the backup in a place up to date while sessions go on; see `Backup.write`."""
        return self._backup.write(self.identity, destination, on_progress, within, keep)

    @property
    def counters(self) -> Counters:
        """Those that sessions adjusted since the open."""
        return self._parts.counters

    @uninterrupted
    def close(self) -> None:
        """Seal what is open, close the log and release everything; safe to call twice."""
        self.forgotten.close()
        self.committer.close()
        try:
            if self.log.is_running:
                self.content.retire_idle()
                if seals := self.content.take_seals():
                    self.committer.commit(seals, creates=False)
                self.proof.remember()
        finally:
            try:
                self.log.close()
            finally:
                self.content.close()
                self.provenance.close()
                self.spaces.close()
                self.files.close()

    def forked(self) -> None:
        """Called in a forked child: it is refused there, and whatever a session, stream or put leads to; also where
        another thread of the parent was just making it.
        """
        ways = ("content", "ledger", "log", "committer", "reader", "queues", "handles")
        lose(*(part for name, part in list(vars(self).items()) if name in ways), self)

    def _restore(self) -> None:
        """Recover, then take up where the last process ended."""
        recovery = Recovery(self.ledger, self.content)

        def before_serving(report: RestoreReport) -> None:
            # Before anything is written, which would be believed at the next start, and before anything can die.
            self.clock.believe(self._state.millis or report.snapshot_millis)
            require_any(self.ledger, self.swap_files.read, self.content.containers.values())
            if (careful := self._state.careful) is not None:
                careful.finish()
                careful.break_promises(recovery.unsafe_intents())
            if not report.clean:
                recovery.require_fitting()
                recovery.mark()
                recovery.seal_all()

        try:
            self.restored = self._load(before_serving, recovery.collect)
            self.content.start_after(self.ledger.index_ceiling)
            for entry in self.ledger.entries():
                self.content.container_of(entry.claim).add_bytes(charged_bytes(entry.claim))
            self.handles.restore(self.queues.restore())
            self.provenance.start(self.restored.last_id)
            self.committer.remove_retired_swaps(self.restored.last_id if not self.restored.clean else 0)
            self.committer.remove_unknown_swaps()
            self.spaces.remove_leftovers()
            self.reclamation.resume(recovery.intents())
            if seals := recovery.seals():
                self.committer.commit(seals, creates=False)
            self.committer.grow_reserves()
            self.staging.resume()
            self._forget_containers()
            self.proof.begin()
            self.swap_proof.begin()
            self.ledger.records.end_start()
        except BaseException:
            self.log.close()
            self.content.close()
            self.provenance.close()
            self.spaces.close()
            raise

    def _load(self, before_serving: Callable[[RestoreReport], None], on_replayed: Watcher) -> RestoreReport:
        """The log, read back. Where that fails beside a container that is away, the container is told: its volume may
        hold more than content.
        """
        try:
            return self.log.restore(before_serving, on_replayed)
        except RepositoryDamaged as error:
            # Of one that could not be made the log knows nothing.
            for name in sorted(name for name in self.content.away if not self.content.containers[name].unmade):
                raise ForeignContainer(self.content.containers[name].condition.reason) from error
            raise

    def _tell(self, name: str, report: ReclamationReport) -> ReclamationReport:
        for listener in self.report_listeners:
            listener(name, report)
        return report

    def _forget_containers(self) -> None:
        """Those that the spec no longer lists, and that hold nothing, as far as every record can be used."""
        if self.ledger.set_aside.all() or not self.ledger.cold.is_whole:
            return
        listed = {container.name for container in self.spec.storage.containers} - set(self.identity.forgotten)
        used = {entry.claim.container for entry in self.ledger.entries()}
        kept = {name: path for name, path in self.identity.containers.items() if name in listed | used}
        if kept != self.identity.containers:
            for name in self.identity.containers.keys() - kept.keys():
                self.content.forget(name)
            self.identity = write_containers(self.files, self.root, self.identity, kept)

    def _add(self, name: str) -> None:
        """Write down that the repository has a container that the spec lists."""
        (path,) = [each.sub_path for each in self.spec.storage.containers if each.name == name]
        known = self.identity.containers | {name: path}
        self.identity = write_containers(self.files, self.root, self.identity, known)

    def _forget(self, name: str, is_over: bool) -> None:
        """Write down that a container's loss was accepted; `is_over`: that nothing names it any more."""
        kept = {each: path for each, path in self.identity.containers.items() if not is_over or each != name}
        forgotten = tuple(sorted({*self.identity.forgotten, name}))
        self.identity = write_containers(self.files, self.root, self.identity, kept, forgotten)
