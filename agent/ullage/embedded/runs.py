"""Runs of reclamation that somebody asked for: one at a time, in a thread of its own, each under a ticket.

A ticket says what is permitted on this node: by the windows of spec.maintenance and, in a cluster, by what the operator
granted, which knows of Spark's executors and of other nodes. Out of hours there is none, unless whoever asks overrides
that; it is written down in the run, and told to who listens.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from ullage.contract import Calendar, MaintenanceOperation, Permission, without_windows
from ullage.engine import documents
from ullage.engine.engine import Engine
from ullage.engine.model import format_uuid, new_uuids
from ullage.engine.reclaim.pacing import OPERATIONS, RunTicket
from ullage.engine.reclaim.plan import ReclamationPlan
from ullage.engine.reclaim.policies import load_policy
from ullage.engine.reclaim.report import ReclamationReport
from ullage.engine.uninterrupted import uninterrupted
from ullage.enums import Action
from ullage.errors import NotFound, RunUnderWay, UllageError, WindowClosed
from ullage.wire.problems import problem_of
from ullage.wire.space import RunProgress, RunRequest

NOT_ASKED: Final = Permission(is_granted=False, reason="it was not asked for")
OVERRIDE: Final = "the windows were overridden"

RUNS_KEPT: Final = 20
"""Runs that are remembered."""

UPKEEP_KEPT: Final = 500
"""The same of what nobody asked for: at one a minute, those of eight hours."""


class RequestedRun:
    """One run: who asked for what, and in `progress` how far it is."""

    def __init__(self, owner: str, request: RunRequest, began_millis: int, key: str | None) -> None:
        self.owner, self.request, self.key = owner, request, key
        self.progress = RunProgress(
            id=format_uuid(new_uuids(1)[0]),
            owner=owner,
            reason="",
            overrides_windows=request.override,
            operations=request.operations,
            began_millis=began_millis,
            ended_millis=None,
            plan=None,
            steps_done=0,
            freed_bytes=0,
            report=None,
            problem=None,
            slug=None,
        )
        self.error: Exception | None = None
        self.stop = threading.Event()
        self.over = threading.Event()

    @property
    def outcome(self) -> str:
        """Done, stopped or failed, once it is over."""
        return "failed" if self.error else "stopped" if self.stop.is_set() else "done"

    def note(self, **known: object) -> None:
        """What is known now; the thread that carries it out says it."""
        self.progress = msgspec.structs.replace(self.progress, **known)


class ReclamationRuns:
    """The last runs of a repository, the present one included. Thread-safe."""

    def __init__(self, engine: Engine, kept: int = RUNS_KEPT) -> None:
        self._engine = engine
        self._listeners: list[Callable[[RequestedRun], None]] = []
        self._lock = threading.Lock()
        self._runs: deque[RequestedRun] = deque(maxlen=kept)
        self._thread: threading.Thread | None = None
        self._upkeep: deque[RunProgress] = deque(maxlen=UPKEEP_KEPT)
        self._here = threading.local()
        engine.report_listeners.append(self._reported)

    def hear(self, listener: Callable[[RequestedRun], None]) -> None:
        """From now on it is told of each run that begins by passing over the windows, and of each that has ended."""
        self._listeners.append(listener)

    @uninterrupted  # or a run that nobody carries out may be under way for ever
    def begin(self, owner: str, request: RunRequest, key: str | None = None) -> RequestedRun:
        """Start a run, or find the one that was started with this key.

        WindowClosed if nothing of it is allowed now; CompactionRefused if the settings let nobody punch or rewrite by
        hand, and that was asked for too; RunUnderWay if there is another; UnknownPlugin for a policy that there is not.
        """
        if request.policy is not None:
            load_policy(request.policy)  # rather than in the run, of which nobody may look at the end
        with self._lock:
            for run in self._runs if key is not None else ():
                if (run.owner, run.key) == (owner, key):
                    return run
            if self._runs and not self._runs[-1].over.is_set():
                last = self._runs[-1].progress
                raise RunUnderWay(f"run {last.id} of {last.owner} is under way: wait, or stop it")
            self._engine.compactor.require_admin(actions_of(request))
            run = RequestedRun(owner, request, self._engine.clock.now_millis(), key)
            ticket = self._ticket(run)
            if request.override:
                self._tell(run)
            thread = threading.Thread(target=self._carry_out, args=(run, ticket), name="ullage-run", daemon=True)
            thread.start()  # RuntimeError: there are too many
            self._runs.append(run)
            self._thread = thread
            return run

    def all(self) -> list[RequestedRun]:
        """The runs that are remembered, oldest first."""
        with self._lock:
            return list(self._runs)

    def upkeep(self) -> list[RunProgress]:
        """What the repository gave back by itself, oldest first: a run each time that it was anything, of no owner."""
        with self._lock:
            return list(self._upkeep)

    def find(self, id: str) -> RequestedRun:
        """One of them; NotFound."""
        for run in self.all():
            if run.progress.id == id:
                return run
        raise NotFound(f"there is no run {id}: only the last few are remembered")

    def close(self) -> None:
        """Stop the present run after its present action, and wait for it."""
        for run in self.all():
            run.stop.set()
        if self._thread is not None:
            self._thread.join()

    def _ticket(self, run: RequestedRun) -> RunTicket:
        """What is permitted now of what was asked for; WindowClosed if that is nothing."""
        request, reclamation = run.request, self._engine.reclamation
        maintenance, now = self._engine.spec.maintenance, self._engine.clock.now_millis()
        granted = reclamation.permission
        permission = without_windows(maintenance) if request.override else granted
        permissions = {
            action: permission(operation, now) if operation in request.operations else NOT_ASKED
            for action, operation in OPERATIONS.items()
        }
        until = None if request.seconds is None else self._engine.clock.monotonic() + request.seconds
        ticket = RunTicket(permissions, until, lambda: run.stop.is_set() or reclamation.permission is not granted)
        if refusal := reclamation.refusal(actions_of(request), RunTicket(permissions)):
            calendar = Calendar(maintenance)
            opens = [calendar.status(operation, now).opens_millis for operation in request.operations]
            raise WindowClosed(
                f"{refusal}. The right reclaim:create lets one override the windows; what is paused stays paused",
                min((each for each in opens if each is not None), default=None),
            )
        run.note(reason=OVERRIDE if request.override else permission(request.operations[0], now).reason)
        return ticket

    def _reported(self, name: str, report: ReclamationReport) -> None:
        if report.freed_bytes <= 0 or getattr(self._here, "is_asked", False):
            return  # what was asked for is a run of its own
        now = self._engine.clock.now_millis()
        permission = self._engine.reclamation.permission
        operations = [OPERATIONS[action] for action in report.done if action in OPERATIONS]
        reasons = dict.fromkeys(permission(operation, now).reason for operation in operations)
        why = "a disk was nearly full" if report.emergency else ", ".join(reasons)
        run = RunProgress(
            id=format_uuid(new_uuids(1)[0]),
            owner="",
            reason=f"{name}: {why}",
            overrides_windows=False,
            operations=operations,
            began_millis=now - int(report.seconds * 1000),
            ended_millis=now,
            plan=None,
            steps_done=sum(report.done.values()),
            freed_bytes=report.freed_bytes,
            report=documents.run_report(report),
            problem=None,
            slug=None,
        )
        with self._lock:
            self._upkeep.append(run)

    def _tell(self, run: RequestedRun) -> None:
        for listener in self._listeners:
            listener(run)

    def _carry_out(self, run: RequestedRun, ticket: RunTicket) -> None:
        request = run.request
        self._here.is_asked = True
        try:
            if MaintenanceOperation.DELETE in request.operations and request.resources is None:
                self._engine.reclamation.adopt_orphans()
            plan = _only(planned(self._engine, request), request.resources)
            run.note(plan=msgspec.structs.replace(documents.reclamation_plan(plan), steps=[]))

            def progress(steps: int, freed_bytes: int) -> None:
                run.note(steps_done=steps, freed_bytes=freed_bytes)

            report = self._engine.compactor.execute(plan, ticket, request.bytes_per_second, progress)
            run.note(report=documents.run_report(report, self._engine.account.dead(self._engine.spec)))
        except Exception as error:  # noqa: BLE001 - it is kept in the run, where whoever asked finds it
            run.error = error
            # What went wrong unforeseen is only named: it may tell more than it should.
            text = str(error) if isinstance(error, UllageError) else type(error).__name__
            run.note(problem=text, slug=problem_of(error).slug)
        finally:
            run.note(ended_millis=self._engine.clock.now_millis())
            run.over.set()
            self._tell(run)


def actions_of(request: RunRequest) -> frozenset[Action]:
    """What was asked for, as the engine calls it."""
    return frozenset(action for action, operation in OPERATIONS.items() if operation in request.operations)


def planned(engine: Engine, request: RunRequest) -> ReclamationPlan:
    """What a run would do now. InvalidArgument for a policy that there is not."""
    if request.operations == [MaintenanceOperation.TRUNCATE]:
        return _truncation(engine, eager=not request.respects_guards)
    return engine.compactor.plan(
        policy=request.policy,
        keeps_guards=request.respects_guards,
        actions=actions_of(request),
        empties_archive=request.archive,
    )


def _truncation(engine: Engine, *, eager: bool) -> ReclamationPlan:
    """Dead tails alone: all of them, or those for which the conditions of spec.truncation hold, as they must for the
    periodic task.
    """
    plan = engine.reclamation.plan_truncation(eager=eager)
    if not plan.deferred:
        return plan
    left = sum(step.frees_bytes for step in plan.deferred)
    return plan._replace(notes=(f"{len(plan.deferred)} dead tails of {left} bytes are left for later",))


def _only(plan: ReclamationPlan, resources: list[tuple[int, int]] | None) -> ReclamationPlan:
    """The steps that were planned elsewhere, unless what they are about has changed since then."""
    if resources is None:
        return plan
    chosen = frozenset(resources)
    steps = tuple(step for step in plan.steps if (step.resource, step.generation) in chosen)
    left = len(chosen) - len(steps)
    notes = (f"{left} of {len(chosen)} chosen resource claims have changed, or there is nothing to gain any more",)
    return plan._replace(steps=steps, deferred=(), notes=(*plan.notes, *(notes if left else ())))
