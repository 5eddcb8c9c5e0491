"""An agent's part in a ContentBackup: it writes and verifies what its object asks for, once, and says how far it is."""

import os
import threading
from abc import ABC, abstractmethod
from typing import Final, Generic, TypeVar

import msgspec
import structlog

from ullage.contract import (
    ENDED,
    BackupTicket,
    BackupTicketReport,
    TicketState,
    VerificationReport,
    VerificationTicket,
    time_of,
)
from ullage.embedded.acting import Acting
from ullage.embedded.backupruns import BackupRun
from ullage.errors import NotABackup, RepositoryDamaged, RunUnderWay, UllageError
from ullage.interface.buckets import Bucket
from ullage.wire.upkeep import BackupProgress, Keep, VerificationRequest
from ullage_agent.service.backupplaces import allowed_bucket, waits_for_credentials
from ullage_agent.service.host import Host

OWNER: Final = "ContentBackup"
"""Who asked for it, in the list of what the service writes."""

TOLD_SECONDS: Final = 30.0
"""How often the object is told how far it is: each time is a write to the API server."""

LOOK_SECONDS: Final = 0.5

NAMED_MAX: Final = 3
"""Damaged files that a report names."""

AskedFor = TypeVar("AskedFor", BackupTicket, VerificationTicket)
Told = TypeVar("Told", BackupTicketReport, VerificationReport)


class NodeTask(ABC, Generic[AskedFor, Told]):
    """Of what its object asks for, one at a time. `report` is what became of the last one."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._ticket: AskedFor | None = None
        self._stop = threading.Event()
        self._log = structlog.get_logger().bind(logger="node")
        self.report: Told | None = None

    @abstractmethod
    def _begin(self, ticket: AskedFor, bucket: Bucket) -> BackupProgress:
        """Begin it, or find the one that was begun. RunUnderWay."""

    @abstractmethod
    def _new(self, ticket: AskedFor, started: str) -> Told:
        """What is told of one that begins."""

    @abstractmethod
    def _result(self, report: Told, run: BackupRun) -> Told:
        """What is told of one that has ended: a state and words, and what came of it."""

    def take_over(self, ticket: AskedFor | None, told: Told | None) -> None:
        """What the object asks for now, and what it was told last: what ended before a restart is not done twice."""
        if self.report is None and told is not None and told.state in ENDED:
            self.report = told
        self._ticket = ticket

    def stop(self) -> None:
        """End after the file that is under way; the next process goes on."""
        self._stop.set()

    def obey(self, generation: int) -> None:
        """Do what is asked for, if it was not yet done; returns when that has ended. `generation`: of the settings in
        force.
        """
        ticket = self._ticket
        if ticket is None or self._stop.is_set() or self._is_done(ticket):
            return
        report = self._new(ticket, time_of(self._host.clock.now_millis()))
        if generation < ticket.generation:
            self._waits(report, "waits for the settings that allow the place")
            return
        try:
            bucket = allowed_bucket(self._host.spec.service.backup_buckets, ticket.place)
            if bucket.credentials_file and not os.path.exists(bucket.credentials_file):
                # Settings may come before the pod that has the Secret.
                self._waits(report, waits_for_credentials(bucket))
                return
            run = self._host.repository.backups_here.find(self._begin(ticket, bucket).id)
        except RunUnderWay as error:  # a client's: it is tried again
            self._waits(report, str(error))
            return
        except UllageError as error:
            words = f"{type(error).__name__}: {error}"[:1024]
            self._ended(msgspec.structs.replace(report, state=TicketState.FAILED, message=words))
            return
        self.report = report
        self._follow(run, ticket, report)

    def _waits(self, report: Told, message: str) -> None:
        before = self.report
        if before is None or (before.id, before.message) != (report.id, message[:1024]):
            self.report = msgspec.structs.replace(report, message=message[:1024])

    def _is_done(self, ticket: AskedFor) -> bool:
        return self.report is not None and self.report.id == ticket.id and self.report.state in ENDED

    def _follow(self, run: BackupRun, ticket: AskedFor, report: Told) -> None:
        clock = self._host.clock
        next_told = clock.monotonic() + TOLD_SECONDS
        while not run.over.wait(LOOK_SECONDS):
            if self._stop.is_set() or self._ticket is None or self._ticket.id != ticket.id:
                run.stop.set()
            if clock.monotonic() >= next_told:
                next_told = clock.monotonic() + TOLD_SECONDS
                self.report = _counted(report, run)
        if self._stop.is_set() and run.error is not None:
            return  # it stays Running: the next process begins anew
        self._ended(self._result(_counted(report, run), run))

    def _ended(self, report: Told) -> None:
        ended = time_of(self._host.clock.now_millis())
        self.report = msgspec.structs.replace(report, ended=ended, message=report.message[:1024])
        self._log.info(
            "backup ended", task=type(self).__name__, ticket=report.id, state=str(report.state), bytes=report.bytes_done
        )


class NodeBackups(NodeTask[BackupTicket, BackupTicketReport]):
    """Writes backups."""

    def _begin(self, ticket: BackupTicket, bucket: Bucket) -> BackupProgress:
        keep = None if ticket.keep is None else Keep(**msgspec.structs.asdict(ticket.keep))
        return self._host.repository.acting_for(Acting(OWNER)).begin_backup(bucket, keep=keep, key=ticket.id)

    def _new(self, ticket: BackupTicket, started: str) -> BackupTicketReport:
        return BackupTicketReport(id=ticket.id, state=TicketState.RUNNING, started=started)

    def _result(self, report: BackupTicketReport, run: BackupRun) -> BackupTicketReport:
        found = run.progress.report
        if found is None:
            return msgspec.structs.replace(report, state=TicketState.FAILED, message=run.progress.problem or "")
        lacking = len(found.lost)
        return msgspec.structs.replace(
            report,
            state=TicketState.COMPLETED,
            generation=found.generation,
            damaged=found.damaged_files,
            message=f"not in the backup: {lacking:,} FlowFiles and handles, {found.lost[0].reason}" if lacking else "",
        )


class NodeVerifications(NodeTask[VerificationTicket, VerificationReport]):
    """Verifies backups. One that is gone, or whose manifest can't be read, is damage: nobody asks for a verification
    where none was written.
    """

    def _begin(self, ticket: VerificationTicket, bucket: Bucket) -> BackupProgress:
        asked = VerificationRequest(source=bucket.url, sample=ticket.sample_percentage / 100, seed=ticket.seed)
        return self._host.repository.acting_for(Acting(OWNER)).begin_verification(bucket, asked, key=ticket.id)

    def _new(self, ticket: VerificationTicket, started: str) -> VerificationReport:
        return VerificationReport(id=ticket.id, state=TicketState.RUNNING, started=started)

    def _result(self, report: VerificationReport, run: BackupRun) -> VerificationReport:
        found = run.progress.found
        if found is None:
            is_damage = isinstance(run.error, NotABackup | RepositoryDamaged)
            return msgspec.structs.replace(
                report,
                state=TicketState.COMPLETED if is_damage else TicketState.FAILED,
                damaged=int(is_damage),
                message=run.progress.problem or "",
            )
        named = "; ".join(f"{each.path}: {each.reason}" for each in found.damaged[:NAMED_MAX])
        return msgspec.structs.replace(
            report,
            state=TicketState.COMPLETED,
            generations=found.generations,
            needed=found.files,
            damaged=found.damaged_files,
            message=f"damaged files: {found.damaged_files:,}; {named}" if named else "",
        )


def _counted(report: Told, run: BackupRun) -> Told:
    found = run.progress
    return msgspec.structs.replace(
        report,
        files_done=found.files_done,
        files=found.files,
        bytes_done=found.bytes_done,
        bytes=found.bytes,
    )
