"""An agent's part in a ContentBackup: it writes what its object asks for, once, and says how far it is."""

import os
import threading
from typing import Final

import msgspec
import structlog

from ullage.contract import ENDED, BackupTicket, BackupTicketReport, TicketState, time_of
from ullage.embedded.acting import Acting
from ullage.embedded.backupruns import BackupRun
from ullage.errors import RunUnderWay, UllageError
from ullage.wire.upkeep import Keep
from ullage_agent.service.backupplaces import allowed_bucket
from ullage_agent.service.host import Host

OWNER: Final = "ContentBackup"
"""Who asked for it, in the list of what the service writes."""

TOLD_SECONDS: Final = 30.0
"""How often the object is told how far it is: each time is a write to the API server."""

LOOK_SECONDS: Final = 0.5


class NodeBackups:
    """One at a time. `report` is what became of the last one."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._ticket: BackupTicket | None = None
        self._stop = threading.Event()
        self._log = structlog.get_logger().bind(logger="node")
        self.report: BackupTicketReport | None = None

    def take_over(self, ticket: BackupTicket | None, told: BackupTicketReport | None) -> None:
        """What the object asks for now, and what it was told last: what ended before a restart is not done twice."""
        if self.report is None and told is not None and told.state in ENDED:
            self.report = told
        self._ticket = ticket

    def stop(self) -> None:
        """End after the file that is under way; the next process goes on."""
        self._stop.set()

    def obey(self, generation: int) -> None:
        """Write the backup that is asked for, if it was not yet; returns when that has ended. `generation`: of the
        settings in force.
        """
        ticket = self._ticket
        if ticket is None or self._stop.is_set() or (self.report is not None and self._is_done(self.report, ticket)):
            return
        started = time_of(self._host.clock.now_millis())
        report = BackupTicketReport(id=ticket.id, state=TicketState.RUNNING, started=started)
        repository = self._host.repository.acting_for(Acting(OWNER))
        if generation < ticket.generation:
            self._waits(report, "waits for the settings that allow the place")
            return
        try:
            bucket = allowed_bucket(self._host.spec.service.backup_buckets, ticket.place)
            if bucket.credentials_file and not os.path.exists(bucket.credentials_file):
                # Settings may come before the pod that has the Secret.
                self._waits(report, f"waits for {bucket.credentials_file}")
                return
            keep = None if ticket.keep is None else Keep(**msgspec.structs.asdict(ticket.keep))
            run = repository.backups_here.find(repository.begin_backup(bucket, keep=keep, key=ticket.id).id)
        except RunUnderWay as error:  # a client's: it is tried again
            self._waits(report, str(error))
            return
        except UllageError as error:
            self._ended(report, TicketState.FAILED, f"{type(error).__name__}: {error}")
            return
        self.report = report
        self._follow(run, ticket, report)

    def _waits(self, report: BackupTicketReport, message: str) -> None:
        before = self.report
        if before is None or (before.id, before.message) != (report.id, message[:1024]):
            self.report = msgspec.structs.replace(report, message=message[:1024])

    @staticmethod
    def _is_done(report: BackupTicketReport, ticket: BackupTicket) -> bool:
        return report.id == ticket.id and report.state in ENDED

    def _follow(self, run: BackupRun, ticket: BackupTicket, report: BackupTicketReport) -> None:
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
        report = _counted(report, run)
        found = run.progress.report
        if found is None:
            self._ended(report, TicketState.FAILED, run.progress.problem or "")
            return
        lacking = len(found.lost)
        words = f"not in the backup: {lacking:,} FlowFiles and handles, {found.lost[0].reason}" if lacking else ""
        report = msgspec.structs.replace(report, generation=found.generation, damaged=found.damaged_files)
        self._ended(report, TicketState.COMPLETED, words)

    def _ended(self, report: BackupTicketReport, state: TicketState, message: str) -> None:
        ended = time_of(self._host.clock.now_millis())
        self.report = msgspec.structs.replace(report, state=state, ended=ended, message=message[:1024])
        self._log.info("backup ended", ticket=report.id, state=str(state), bytes=report.bytes_done)


def _counted(report: BackupTicketReport, run: BackupRun) -> BackupTicketReport:
    found = run.progress
    return msgspec.structs.replace(
        report,
        files_done=found.files_done,
        files=found.files,
        bytes_done=found.bytes_done,
        bytes=found.bytes,
    )
