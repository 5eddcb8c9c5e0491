"""Runs of reclamation that somebody asked for: one at a time, in a thread of its own, each under a ticket.

A ticket says what is permitted on this node: by the windows of spec.maintenance and, in a cluster, by what the operator
granted, which knows of Spark's executors and of other nodes. Out of hours there is none, unless whoever asks overrides
that; it is written down in the run, in the audit log and in the status.
"""

import threading
from collections import deque
from typing import Final

import msgspec

from ullage_agent.contract import MaintenanceOperation
from ullage_agent.engine.model import format_uuid, new_uuids
from ullage_agent.engine.reclaim.pacing import Ticket
from ullage_agent.engine.reclaim.permission import OPERATIONS, Permission, without_windows
from ullage_agent.engine.reclaim.plan import Plan
from ullage_agent.engine.reclaim.report import Report
from ullage_agent.metrics import Metrics
from ullage_agent.service.errors import NotFound, RunUnderWay, WindowClosed
from ullage_agent.service.host import Host
from ullage_agent.service.limits import Limits
from ullage_agent.service.log import logger
from ullage_agent.windows import Calendar, Verdict

NOT_ASKED: Final = Permission(is_granted=False, reason="it was not asked for")

OVERRIDE: Final = "the windows were overridden"


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is to do. `bytes_per_second` None: as the settings say; 0: no limit. `resources`, if any: only these
    resource claims, each with the generation for which somebody has planned it.
    """

    policy: str | None = None
    operations: tuple[MaintenanceOperation, ...] = tuple(MaintenanceOperation)
    bytes_per_second: int | None = None
    keeps_guards: bool = False
    overrides_windows: bool = False
    resources: frozenset[tuple[int, int]] | None = None


class Run:
    """One run: what was asked, by whom, how far it is, and its report."""

    def __init__(self, owner: str, wish: Wish, began_millis: int, reason: str, key: str | None = None) -> None:
        self.id = format_uuid(new_uuids(1)[0])
        self.key = key
        self.owner = owner
        self.wish = wish
        self.reason = reason
        self.began_millis = began_millis
        self.ended_millis: int | None = None
        self.plan: Plan | None = None
        self.steps_done = 0
        self.freed_bytes = 0
        self.report: Report | None = None
        self.error: Exception | None = None
        self.stop = threading.Event()

    @property
    def is_over(self) -> bool:
        return self.ended_millis is not None


class Runs:
    """The last runs of a service, the present one included. Thread-safe."""

    def __init__(self, host: Host, limits: Limits, metrics: Metrics) -> None:
        self._host = host
        self._metrics = metrics
        self._lock = threading.Lock()
        self._runs: deque[Run] = deque(maxlen=limits.runs_kept)
        self._thread: threading.Thread | None = None
        self._log = logger("reclamation")
        self._audit = logger("audit")

    def verdicts(self) -> list[Verdict]:
        """For each operation whether it is allowed now, until when or from when on, and why."""
        calendar = Calendar(self._host.spec.maintenance)
        now = self._host.clock.now_millis()
        return [calendar.verdict(operation, now) for operation in MaintenanceOperation]

    def begin(self, owner: str, wish: Wish, key: str | None = None) -> Run:
        """Start a run, or find the one that was started with this key. WindowClosed if nothing of it is allowed now;
        RunUnderWay if there is another.
        """
        with self._lock:
            for run in self._runs if key is not None else ():
                if (run.owner, run.key) == (owner, key):
                    return run
            if self._runs and not self._runs[-1].is_over:
                raise RunUnderWay(f"run {self._runs[-1].id} of {self._runs[-1].owner} is under way: wait, or stop it")
            run = Run(owner, wish, self._host.clock.now_millis(), "", key)
            ticket = self._ticket(run)
            if wish.overrides_windows:
                self._metrics.count("window_overrides_total")
                self._audit.warning("windows overridden", owner=owner, run=run.id, operations=list(wish.operations))
            self._runs.append(run)
            self._thread = threading.Thread(target=self._carry_out, args=(run, ticket), name="ullage-run", daemon=True)
            self._thread.start()
            return run

    def all(self) -> list[Run]:
        """The runs that are remembered, oldest first."""
        with self._lock:
            return list(self._runs)

    def find(self, id: str) -> Run:
        for run in self.all():
            if run.id == id:
                return run
        raise NotFound(f"there is no run {id}: only the last few are remembered")

    def close(self) -> None:
        """Stop the present run after its present action, and wait for it."""
        for run in self.all():
            run.stop.set()
        if self._thread is not None:
            self._thread.join()

    def _ticket(self, run: Run) -> Ticket:
        """What is permitted now of what was asked for; WindowClosed if that is nothing."""
        wish, clock = run.wish, self._host.clock
        maintenance, now = self._host.spec.maintenance, clock.now_millis()
        granted = self._host.repository.reclamation.permission
        permission = without_windows(maintenance) if wish.overrides_windows else granted
        permissions = {
            action: permission(operation, now) if operation in wish.operations else NOT_ASKED
            for action, operation in OPERATIONS.items()
        }
        ticket = Ticket(
            permissions,
            is_revoked=lambda: run.stop.is_set() or self._host.repository.reclamation.permission is not granted,
        )
        wanted = [action for action, operation in OPERATIONS.items() if operation in wish.operations]
        if refusal := self._host.repository.reclamation.refusal(wanted, ticket):
            calendar = Calendar(maintenance)
            opens = [calendar.verdict(operation, now).opens_millis for operation in wish.operations]
            raise WindowClosed(
                f"{refusal}. Whoever has the verb reclaim may override the windows; what is paused stays paused",
                min((each for each in opens if each is not None), default=None),
            )
        run.reason = OVERRIDE if wish.overrides_windows else permission(wish.operations[0], now).reason
        return ticket

    def _carry_out(self, run: Run, ticket: Ticket) -> None:
        compactor = self._host.repository.reclamation.compactor
        try:
            made = compactor.plan(policy=run.wish.policy, keeps_guards=run.wish.keeps_guards)
            run.plan = _only(made, run.wish.resources)

            def progress(steps: int, freed_bytes: int) -> None:
                run.steps_done, run.freed_bytes = steps, freed_bytes

            run.report = compactor.execute(run.plan, ticket, run.wish.bytes_per_second, progress)
            self._log.info("run ended", run=run.id, owner=run.owner, freed_bytes=run.report.freed_bytes)
        except Exception as error:  # noqa: BLE001 - it is kept in the run, where whoever asked finds it
            run.error = error
            self._log.error("run failed", run=run.id, owner=run.owner, exc_info=error)
        finally:
            outcome = "failed" if run.error else "stopped" if run.stop.is_set() else "done"
            self._metrics.count("runs_total", outcome)
            run.ended_millis = self._host.clock.now_millis()


def _only(plan: Plan, resources: frozenset[tuple[int, int]] | None) -> Plan:
    """The steps that were planned elsewhere, unless what they are about has changed since then."""
    if resources is None:
        return plan
    steps = tuple(step for step in plan.steps if (step.resource, step.generation) in resources)
    left = len(resources) - len(steps)
    notes = (f"{left} of {len(resources)} chosen resource claims have changed, or there is nothing to gain any more",)
    return plan._replace(steps=steps, deferred=(), notes=(*plan.notes, *(notes if left else ())))
