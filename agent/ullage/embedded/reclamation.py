"""Space over the engine's reclamation."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from heapq import nsmallest
from typing import Final

from ullage.contract import (
    Calendar,
    CompactionTrigger,
    MaintenanceOperation,
    MaintenanceSettings,
    Opening,
    PermissionFor,
    Ticket,
    WindowStatus,
    without_windows,
)
from ullage.embedded.runs import ReclamationRuns, actions_of, planned
from ullage.engine import documents
from ullage.engine.engine import Engine
from ullage.engine.reclaim.pacing import OPERATIONS
from ullage.engine.reclaim.policies import POLICIES
from ullage.engine.reclaim.survey import ResourceFigures
from ullage.enums import Action
from ullage.errors import NotFound, WindowClosed
from ullage.interface.checks import checked_number, checked_run, checked_seconds, checked_text
from ullage.interface.reclamation import Reclamation
from ullage.wire.space import (
    CleaningReport,
    CompactionPolicies,
    GoalStatus,
    Plan,
    ResourceClaimMap,
    ResourceClaimPage,
    ResourceClaimUsage,
    RunProgress,
    RunReport,
    RunRequest,
    SpaceExplanation,
    SpaceForecast,
    Survey,
)

HEAVY: Final = frozenset({Action.PUNCH, Action.REWRITE})


class EmbeddedReclamation(Reclamation):
    """The space of one engine; runs that are asked for here belong to `owner`."""

    def __init__(self, engine: Engine, runs: ReclamationRuns, owner: str) -> None:
        self._engine = engine
        self._runs = runs
        self._owner = owner

    def permit(self, permission: PermissionFor) -> None:
        """When space may be given back from now on. Runs under way stop after their present action."""
        self._engine.reclamation.permit(permission)

    def hear(self, listener: Callable[[str, RunReport], None]) -> None:
        """From now on it is told of each run, asked for or not, by its name: clean, truncate, compact or reclaim."""
        self._engine.report_listeners.append(lambda name, report: listener(name, documents.run_report(report)))

    def wanted(self) -> set[MaintenanceOperation]:
        """What there would be to do now, as the settings have it."""
        spec = self._engine.spec
        found: set[MaintenanceOperation] = set()
        if spec.truncation.enabled and self._engine.reclamation.plan_truncation().steps:
            found.add(MaintenanceOperation.TRUNCATE)
        if spec.compaction.enabled and CompactionTrigger.PERIODIC in spec.compaction.triggers:
            plan = self._engine.compactor.plan(keeps_guards=True, actions=HEAVY)
            found |= {OPERATIONS[step.action] for step in plan.steps if step.action in HEAVY}
        return found

    def carry_out(self, ticket: Ticket, is_revoked: Callable[[], bool]) -> str:
        """Run what a ticket of the operator permits; why it was not all, if so. Who listens is told what was done."""
        reclamation, compactor = self._engine.reclamation, self._engine.compactor
        request = RunRequest(
            policy=ticket.policy or None, operations=list(ticket.operations), respects_guards=not ticket.run
        )
        if ticket.run:
            compactor.require_admin(actions_of(request))
        plan = planned(self._engine, request)  # people pass over the guards, windows do not
        rate = ticket.bytes_per_second
        if rate is None and not ticket.run:
            rate = compactor.goal_rate
        report = compactor.execute(plan, reclamation.ticket(is_revoked=is_revoked), rate)
        if MaintenanceOperation.TRUNCATE in ticket.operations and not ticket.run:
            report.merge(reclamation.truncate())
        return report.refusal or ("stopped before its end" if report.is_stopped else "")

    def survey(self) -> Survey:
        found = self._engine.reclamation.survey()
        held = self._engine.compactor.held_back(self._engine.reclamation.figures())
        leased: Counter[str] = Counter()
        for figures in self._engine.reclamation.figures() if held else ():
            if figures.resource in held:
                leased[figures.container] += figures.allocated_bytes
        for container in found.containers:
            leased[container.name] += container.held_bytes
        usages = [documents.container_usage(figures, leased[figures.name]) for figures in found.containers]
        return Survey(millis=found.millis, containers=usages)

    def explain(self) -> SpaceExplanation:
        shares = list(map(documents.space_share, self._engine.account.explain(self._engine.spec)))
        allocated = sum(share.bytes for share in shares)
        return SpaceExplanation(millis=self._engine.clock.now_millis(), allocated_bytes=allocated, shares=shares)

    def forecast(self) -> SpaceForecast:
        coming = list(map(documents.space_coming, self._engine.account.forecast(self._engine.spec)))
        dead = sum(each.bytes for each in coming)
        is_known = self._engine.reclamation.orphans.are_known
        return SpaceForecast(
            millis=self._engine.clock.now_millis(), dead_bytes=dead, coming=coming, orphans_known=is_known
        )

    def goal(self) -> GoalStatus:
        return documents.goal_status(self._engine.spec.compaction.goal, self._engine.compactor.goal.figures)

    def resources(self) -> Iterator[ResourceClaimUsage]:
        found, leased = self._figures(sorted(self._engine.ledger.indexes(0)))
        yield from (documents.resource_claim_usage(figures, leased) for figures in found)

    def page(self, after: int, limit: int) -> ResourceClaimPage:
        """Some of them by index, from behind `after` on."""
        indexes = nsmallest(limit + 1, self._engine.ledger.indexes(after))
        found, leased = self._figures(indexes[:limit])
        page = [documents.resource_claim_usage(figures, leased) for figures in found]
        return ResourceClaimPage(resources=page, next=indexes[limit - 1] if len(indexes) > limit else None)

    def resource(self, index: int) -> ResourceClaimMap:
        checked_number(index, "a resource claim", 0)
        found, leased = self._figures([index])
        if not found:
            raise NotFound(f"there is no resource claim {index}")
        return documents.resource_claim_map(found[0], self._engine.reclamation.dead_runs(found[0]), leased)

    def policies(self) -> CompactionPolicies:
        return CompactionPolicies(names=POLICIES.names(), configured=str(self._engine.spec.compaction.policy))

    def windows(self) -> list[WindowStatus]:
        calendar, now = Calendar(self._engine.spec.maintenance), self._engine.clock.now_millis()
        return [calendar.status(operation, now) for operation in MaintenanceOperation]

    def openings(self) -> list[Opening]:
        return Calendar(self._engine.spec.maintenance).openings(self._engine.clock.now_millis())

    def maintenance(self) -> MaintenanceSettings:
        return self._engine.spec.maintenance

    def _plan(self, request: RunRequest) -> Plan:
        plan = planned(self._engine, request)
        if MaintenanceOperation.DELETE in request.operations:
            found = [orphan for orphan in self._engine.reclamation.orphans.look() if orphan.is_adoptable]
            note = f"{len(found)} orphans of {sum(orphan.allocated_bytes for orphan in found)} bytes are taken up first"
            plan = plan._replace(notes=(*plan.notes, note)) if found else plan
        return documents.reclamation_plan(plan)

    def begin(self, request: RunRequest) -> RunProgress:
        return self._runs.begin(self._owner, checked_run(request)).progress

    def run(self, id: str, *, wait_seconds: float = 0) -> RunProgress:
        found = self._runs.find(checked_text(id, "a run"))
        found.over.wait(checked_seconds(wait_seconds, "wait_seconds"))
        return found.progress

    def stop(self, id: str) -> RunProgress:
        found = self._runs.find(checked_text(id, "a run"))
        found.stop.set()
        return found.progress

    def clean(self, *, adopts_orphans: bool = False, override: bool = False) -> CleaningReport:
        engine, reclamation = self._engine, self._engine.reclamation
        permission = without_windows(engine.spec.maintenance) if override else reclamation.permission
        expired, purged = engine.queues.expire(), engine.handles.purge()
        adopted = reclamation.adopt_orphans() if adopts_orphans else 0
        report = reclamation.clean(reclamation.ticket(permission=permission))
        if report.refusal:
            raise WindowClosed(report.refusal)
        return CleaningReport(
            expired_flow_files=expired,
            purged_handles=purged,
            adopted_orphans=adopted,
            report=documents.run_report(report),
        )

    def runs(self) -> list[RunProgress]:
        return [run.progress for run in self._runs.all()]

    def _figures(self, indexes: Iterable[int]) -> tuple[list[ResourceFigures], frozenset[int]]:
        """Those of these resource claims that are there, and which of them leases keep from being rewritten."""
        found = list(self._engine.reclamation.figures(indexes))
        return found, self._engine.compactor.held_back(found)
