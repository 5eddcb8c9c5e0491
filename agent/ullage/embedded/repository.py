"""A repository of this machine's disks."""

import os
from collections.abc import Callable, Sequence
from typing import Any

from ullage import __version__
from ullage.contract import (
    NO_QUEUE,
    Calendar,
    ContentRepository,
    ContentRepositorySpec,
    Metadata,
    PermissionFor,
    QueueUse,
    load_yaml,
)
from ullage.embedded.acting import LOCAL, Acting
from ullage.embedded.backupplaces import name_of_place
from ullage.embedded.backupruns import BackupRuns
from ullage.embedded.backups import EmbeddedBackups
from ullage.embedded.content import ReadableContent, readable
from ullage.embedded.handles import EmbeddedHandles
from ullage.embedded.holders import Holders
from ullage.embedded.leases import EmbeddedLeases
from ullage.embedded.lending import LentFiles, release_leftovers
from ullage.embedded.once import Keys
from ullage.embedded.provenance import EmbeddedProvenance
from ullage.embedded.queues import EmbeddedQueues
from ullage.embedded.reclamation import EmbeddedReclamation
from ullage.embedded.replication import Replication, fence_as_noted, replication_of
from ullage.embedded.runs import ReclamationRuns
from ullage.embedded.seals import Seals
from ullage.embedded.session import EmbeddedSession
from ullage.engine import documents
from ullage.engine.engine import Engine
from ullage.engine.erasure.intent import told_unfinished
from ullage.engine.files import File as File, Files as Files, OsFiles as OsFiles
from ullage.engine.forking import REFUSED, lose, refuse_in_child
from ullage.engine.maintenance import MaintenanceRunner
from ullage.engine.model import FlowFileRecord
from ullage.engine.withdrawn import CLOSED, WHEN_CLOSED, withdraw
from ullage.errors import ForkedRepository, HandleNotFound, InvalidArgument, NotARepository, RepositoryClosed
from ullage.interface.buckets import Bucket
from ullage.interface.checks import (
    accepted_loss,
    checked_number,
    checked_part,
    session_request,
    verification_request,
    volume_forgotten,
)
from ullage.interface.repository import Bytes, Repository
from ullage.sessionroom import SessionRoom
from ullage.streams import ContentStream
from ullage.uuids import parse_uuid
from ullage.wire.holders import HolderStatus
from ullage.wire.service import ClockStatus, LogStatus, ServiceStatus
from ullage.wire.setaside import RecordSetAside
from ullage.wire.unavailable import LISTED_MAX, UnavailableContent
from ullage.wire.upkeep import (
    BackupGeneration,
    BackupProgress,
    BackupReport,
    BackupVerification,
    CheckpointReport,
    CheckReport,
    Keep,
    RecoveryReport,
    VerificationRequest,
)
from ullage.wire.volumes import Volume


class EmbeddedRepository(Repository):
    """An open engine behind the interface."""

    def __init__(
        self,
        engine: Engine,
        *,
        name: str = "",
        node: str = "",
        acting: Acting = LOCAL,
        runs: ReclamationRuns | None = None,
        backup_runs: BackupRuns | None = None,
        seals: Seals | None = None,
        held: Holders | None = None,
        maintenance: MaintenanceRunner | None = None,
        replication: Replication | None = None,
    ) -> None:
        """`name` is what the repository is called, `node` what its handles carry behind their `@`. `acting` says who
        holds leases, asks for runs, whose idempotency keys are meant, and whose content is written (spec.isolation).
        `maintenance` and `replication` are ended before the engine is closed.
        """
        self.engine = engine
        self.clock = engine.clock
        self.name = name
        self.node = node
        acting = acting.of(engine.committer.right)
        self.acting = acting
        self.owner = acting.owner
        self.runs = runs or ReclamationRuns(engine)
        self.backups_here = backup_runs or BackupRuns(engine.clock)
        self.seals = seals or Seals()
        self.held = held or Holders(engine)
        self.keys = Keys(engine.idempotency, self.owner)
        self._maintenance = maintenance
        self._replication = replication
        self._is_closed = False
        self._is_forked = False
        self.handles: EmbeddedHandles = EmbeddedHandles(engine.handles, self.keys, node, acting)
        self.queues: EmbeddedQueues = EmbeddedQueues(engine, self.keys, acting)
        self.provenance: EmbeddedProvenance = EmbeddedProvenance(engine, acting)
        self.reclamation: EmbeddedReclamation = EmbeddedReclamation(engine, self.runs, self.owner)
        self.leases: EmbeddedLeases = EmbeddedLeases(engine.leases, acting)
        self._backups = EmbeddedBackups(engine, self.backups_here, self.owner)
        refuse_in_child(self)

    def acting_for(self, acting: Acting) -> "EmbeddedRepository":
        """The same repository for somebody else in this process. It is not theirs to close."""
        return EmbeddedRepository(
            self.engine,
            name=self.name,
            node=self.node,
            acting=acting,
            runs=self.runs,
            backup_runs=self.backups_here,
            seals=self.seals,
            held=self.held,
            maintenance=self._maintenance,
            replication=self._replication,
        )

    @property
    def spec(self) -> ContentRepositorySpec:
        """The settings in force."""
        return self.engine.spec

    @property
    def uuid(self) -> str:
        """What tells it from any other; a restored backup has another one."""
        return self.engine.identity.repository

    @property
    def is_ready(self) -> bool:
        """Whether commits can succeed: not closed, and not stopped by a failure."""
        return self.engine.log.is_running

    @property
    def failures(self) -> list[tuple[str, Exception]]:
        """What maintenance could not do lately, newest last."""
        return [] if self._maintenance is None else list(self._maintenance.failures)

    def paths(self) -> dict[str, str]:
        """Where each container lies."""
        return {name: container.path for name, container in self.engine.content.containers.items()}

    def hear_commits(self, listener: Callable[[float], None]) -> None:
        """From now on it is told how many seconds each commit took."""
        self.engine.committer.listeners.append(listener)

    def adopt(self, spec: ContentRepositorySpec, permission: PermissionFor | None) -> None:
        """Settings that an open repository can change, and when reclamation may run if that changes: it takes back what
        was granted before. UnknownPlugin: nothing was changed.
        """
        self.engine.adopt(spec)
        if permission is not None:
            self.reclamation.permit(permission)
        if self._maintenance is not None:
            self._maintenance = self._maintenance.renewed()

    def drain(self, *, drains: bool) -> None:
        """Whether nothing new is taken from now on; what there is can be read, taken out and deleted, and is shipped.
        What is being committed at this moment may still be.
        """
        self.engine.admission.drains = drains

    def lend(self, holder: str, files_max: int) -> LentFiles:
        """For a client that reads content files itself; at most so many at a time."""
        return LentFiles(self.engine, holder, files_max)

    def release_leftovers(self) -> None:
        """End what an earlier process lent: its clients saw their connections break."""
        release_leftovers(self.engine)

    def session(
        self,
        component: str = "",
        component_type: str = "",
        *,
        lease_seconds: float = 30.0,
        room: SessionRoom | None = None,
    ) -> EmbeddedSession:
        """`room`: what it may hold in memory, where that is bounded."""
        self._require_open()
        asked = session_request(component, component_type, lease_seconds)
        kind = asked.component_type or self.acting.by
        session = self.engine.session(asked.component, kind, 2, self.acting.by, room)
        return EmbeddedSession(session, self.node, self.acting, self.engine)

    def content(self, id: str, start: int = 0, size: int | None = None) -> ContentStream:
        start, size = checked_part(start, size)
        try:
            return self.handles.stream(id, start, size)
        except HandleNotFound:
            self._require_readable(id)
            return self.engine.flow_files.content(id, start, size)

    def state(self) -> ServiceStatus:
        engine, log, clock = self.engine, self.engine.log, documents.clock_status(self.engine.clock.look())
        queues = self.queues.all()
        runs = self.runs.all()
        waiting_events, waiting_bytes = engine.provenance.waiting()
        overrides = [run for run in runs if run.request.override]
        return ServiceStatus(
            version=__version__,
            node=self.node,
            name=self.name,
            repository=engine.identity.repository,
            is_ready=self.is_ready and self.acting.right.is_given,
            is_stopping=False,
            drains=engine.admission.drains,
            now_millis=clock.believed_millis,
            clock=clock,
            log=LogStatus(
                last_transaction=log.last_id,
                durable_transaction=log.durable,
                snapshot_transaction=log.snapshot_id,
                snapshot_millis=log.snapshot_millis,
                bytes=log.log_bytes,
                syncs=log.sync_count,
            ),
            containers=self.reclamation.survey().containers,
            poisoned=[name for name, each in engine.content.containers.items() if each.failure is not None],
            flow_files=sum(queue.flow_files for queue in queues),
            queues=len(queues),
            full_queues=[queue.name for queue in queues if queue.is_full],
            swap_files=sum(queue.figures().swap_files for queue in engine.queues.all()),
            sessions=0,
            leases=len(engine.leases.all()),
            remembered_answers=len(engine.ledger.answers),
            unavailable_contents=engine.availability.count,
            unavailable_swap_files=sum(len(queue.passed_over()) for queue in engine.queues.all()),
            unproved_files=engine.proof.files_left,
            records_set_aside=engine.set_aside.count,
            unfinished_erasure=told_unfinished(engine.files, engine.root),
            forgotten=engine.forgotten.noted,
            provenance_waiting=waiting_events,
            provenance_waiting_bytes=waiting_bytes,
            counters=engine.counters.all(),
            windows=self.reclamation.windows(),
            last_run=runs[-1].progress if runs else None,
            last_override=overrides[-1].progress if overrides else None,
            failures=[f"{task}: {error}" for task, error in self.failures],
            replication=None if self._replication is None else self._replication.status(),
        )

    def holders(self) -> list[HolderStatus]:
        self._require_open()
        return self.held.all(self.acting)

    def check(self, *, deep: bool = False, on_progress: Bytes | None = None) -> CheckReport:
        self._require_open()
        return self.engine.check(deep=deep, on_progress=on_progress)

    def unavailable(self, limit: int = 1_000) -> list[UnavailableContent]:
        self._require_open()
        self.acting.require_everywhere(QueueUse.READ, "unavailable contents")
        limit, name, unavailable = (
            checked_number(limit, "limit", 1, LISTED_MAX),
            self.engine.ledger.queue_name,
            self.engine.unavailable,
        )
        files = [documents.unavailable_swap_file(*each, name) for each in unavailable.passed_over(limit)]
        contents = [documents.unavailable_content(each, name) for each in unavailable.listed(limit)]
        return [*files, *contents][:limit]

    def retry_unavailable(self) -> int:
        self._require_open()
        return self.engine.unavailable.retry()

    def drop_unavailable(self, ids: Sequence[str], *, accept_loss: bool = False) -> int:
        self._require_open()
        asked = accepted_loss(ids, accept_loss)
        return self.engine.unavailable.drop({parse_uuid(id) for id in asked.ids}, self.acting.by)

    def set_aside(self, limit: int = 1_000) -> list[RecordSetAside]:
        self._require_open()
        self.acting.require_everywhere(QueueUse.READ, "records set aside")
        found = self.engine.set_aside.listed(checked_number(limit, "limit", 1, LISTED_MAX))
        return [documents.record_set_aside(each) for each in found]

    def drop_set_aside(self, ids: Sequence[str], *, accept_loss: bool = False) -> int:
        self._require_open()
        asked = accepted_loss(ids, accept_loss)
        return self.engine.set_aside.drop([parse_uuid(id) for id in asked.ids], self.acting.by)

    def volumes(self) -> list[Volume]:
        self._require_open()
        self.engine.volumes.look()
        return [documents.volume(*each) for each in self.engine.volumes.listed()]

    def forget_volume(self, container: str, *, accept_loss: bool = False) -> Volume:
        self._require_open()
        asked = volume_forgotten(container, accept_loss)
        return documents.volume(*self.engine.volumes.forget(asked.container, self.acting.by))

    def accept_clock(self) -> ClockStatus:
        self._require_open()
        return documents.clock_status(self.engine.accept_clock())

    def readable(self, id: str) -> ReadableContent:
        """The same content, before it is opened."""
        try:
            return self.handles.readable(id)
        except HandleNotFound:
            record = self._require_readable(id)
            return readable(record, lambda start, size, _blocks: self.engine.flow_files.content(id, start, size))

    def _require_readable(self, id: str) -> FlowFileRecord:
        record = self.engine.flow_files.find(id)
        self.acting.require(QueueUse.READ, self.engine.ledger.queue_name(record.queue) or NO_QUEUE)
        return record

    def checkpoint(self, *, on_progress: Callable[[int], None] | None = None) -> CheckpointReport:
        self._require_open()
        self.engine.checkpoint(on_progress)
        log = self.engine.log
        return CheckpointReport(last_transaction=log.snapshot_id, snapshot_bytes=log.snapshot_bytes)

    def backup(
        self,
        destination: str | Bucket,
        *,
        keep: Keep | None = None,
        on_progress: Bytes | None = None,
        within: str = "",
    ) -> BackupReport:
        """`within` is a folder that others may write to, with the destination in it: no link below it is followed."""
        self._require_open()
        return self._backups.write(destination, keep, on_progress, within)

    def begin_backup(
        self, destination: str | Bucket, *, keep: Keep | None = None, within: str = "", key: str | None = None
    ) -> BackupProgress:
        """Begin what `backup` waits for. RunUnderWay. `key` finds the one that it began before."""
        self._require_open()
        return self._backups.begin_writing(destination, keep, within, key)

    def generations(self, source: str | Bucket, *, within: str = "") -> list[BackupGeneration]:
        self._require_open()
        return self._backups.generations(source, within)

    def verify_backup(
        self,
        source: str | Bucket,
        *,
        generation: int | None = None,
        sample: float = 1.0,
        seed: int | None = None,
        on_progress: Bytes | None = None,
    ) -> BackupVerification:
        self._require_open()
        asked = verification_request(name_of_place(source), generation, sample, seed)
        return self._backups.verify(source, asked, on_progress, "")

    def begin_verification(
        self, source: str | Bucket, asked: VerificationRequest, *, within: str = "", key: str | None = None
    ) -> BackupProgress:
        """Begin what `verify_backup` waits for, as `begin_backup` does."""
        self._require_open()
        return self._backups.begin_verifying(source, asked, within, key)

    def backup_runs(self) -> list[BackupProgress]:
        self._require_open()
        return self._backups.all()

    def backup_run(self, id: str) -> BackupProgress:
        self._require_open()
        return self._backups.find(id)

    def stop_backup(self, id: str) -> BackupProgress:
        self._require_open()
        return self._backups.stop(id)

    def forked(self) -> None:
        """Called in a forked child: from now on everything is refused."""
        self._is_forked = True
        lose(*self._parts())

    def close(self) -> None:
        if self._is_forked or self._is_closed:
            return
        self._is_closed = True
        withdraw(self._parts(), WHEN_CLOSED)
        self.backups_here.close()
        self.runs.close()
        maintenance, self._maintenance = self._maintenance, None
        if maintenance is not None:
            maintenance.stop()
        if self._replication is not None:
            self._replication.stop()
        try:
            if maintenance is not None and self.is_ready:
                self.engine.checkpoint()  # so that the next start has nothing to replay
        finally:
            self.engine.close()

    def _parts(self) -> tuple[object, ...]:
        """What people hold of it, each for itself."""
        return self.handles, self.queues, self.provenance, self.reclamation, self.leases

    def _require_open(self) -> None:
        if self._is_forked:
            raise ForkedRepository(REFUSED)
        if self._is_closed:
            raise RepositoryClosed(CLOSED)


def open_embedded(
    root: str | os.PathLike[str] | None,
    config: str | os.PathLike[str] | ContentRepository | None,
    *,
    create: bool,
    maintain: bool,
    on_recovery: Callable[[RecoveryReport], None] | None = None,
    on_failure: Callable[[str, Exception], None] | None = None,
    permission: PermissionFor | None = None,
    node: str = "",
    **parts: Any,
) -> EmbeddedRepository:
    """As `ullage.open`. Maintenance tells `on_failure` and asks `permission`; `parts` are files and clock."""
    document = described(root, config)
    spec = document.spec
    permission = permission or Calendar(spec.maintenance).permission
    try:
        engine = Engine.open(spec, **parts, permission=permission)
    except NotARepository:
        if not create:
            raise
        Engine.initialize(spec, **parts)
        engine = Engine.open(spec, **parts, permission=permission)
    if on_recovery is not None and (recovery := recovery_of(engine)) is not None:
        on_recovery(recovery)
    try:
        fence_as_noted(engine)
        replication = _replication(engine, document, node, on_failure) if maintain else None
        if replication is None:  # nobody comes for what is held
            engine.tap.close()
            engine.ledger.shipping_since = 0
    except BaseException:
        engine.close()
        raise
    runner = MaintenanceRunner(engine, on_failure) if maintain else None
    if runner is not None:
        runner.start()
    name = f"{document.metadata.namespace}/{document.metadata.name}"
    return EmbeddedRepository(engine, name=name, node=node, maintenance=runner, replication=replication)


def _replication(
    engine: Engine, document: ContentRepository, node: str, on_failure: Callable[[str, Exception], None] | None
) -> Replication | None:
    """What ships to a bucket, begun, if spec.replication asks for it and somebody maintains the repository."""
    owner = node or document.metadata.name
    found = replication_of(engine, document.spec.replication, owner, on_failure or (lambda _task, _error: None))
    if found is not None:
        found.start()
    return found


def recovery_of(engine: Engine) -> RecoveryReport | None:
    """What the start had to do after an unclean end; None after a clean one, and where nothing was begun."""
    report = engine.restored
    if report.clean or not (report.transactions or report.torn or report.discarded):
        return None
    return RecoveryReport(
        transactions=report.transactions,
        torn_bytes=sum(tail.length for tail in report.torn),
        discarded=len(report.discarded),
    )


def described(
    root: str | os.PathLike[str] | None, config: str | os.PathLike[str] | ContentRepository | None
) -> ContentRepository:
    """The repository that is named: by its directory, whose settings are the defaults, or by a file or document."""
    if (root is None) == (config is None):
        raise InvalidArgument("say either the directory of a repository, or config: the file or document that says it")
    if root is not None:
        if not os.fspath(root):  # the working directory is `.`, and somebody's empty variable is not meant for it
            raise InvalidArgument("the directory of a repository has a name")
        return ContentRepository(metadata=Metadata(name="embedded"), spec=ContentRepositorySpec.embedded(root))
    if isinstance(config, ContentRepository):
        return config
    assert config is not None
    with open(config, encoding="utf-8") as file:
        return load_yaml(file.read())
