"""Compaction of one repository: plan it, and run it, each disk at its own pace.

    plan    survey, dead runs of files worth it, policy    -> frozen plan
    run     delete, truncate, punch                        quick, under the lock that all short runs share
            rewrite, group by group                        paced; disks side by side, each in a thread of its own

Short runs (cleaning, truncation) go on while a rewrite is under way: whoever derives a step takes its resource claims,
and leaves alone what is in other hands.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import msgspec

from ullage.contract import CompactionTrigger, ContentRepositorySpec
from ullage.engine.beside import Beside, Work
from ullage.engine.content.writer import BACK_PRESSURE_WAIT_SECONDS
from ullage.engine.ledger.placement import held_by
from ullage.engine.model import Action
from ullage.engine.reclaim.compaction import CompactionRequest, plan_compaction, worth_a_look
from ullage.engine.reclaim.execute import CUTTING, ReclamationParts
from ullage.engine.reclaim.goalkeeper import GoalKeeper
from ullage.engine.reclaim.pacing import RunTicket, TokenBucket
from ullage.engine.reclaim.plan import ReclamationPlan, ReclamationStep
from ullage.engine.reclaim.policies import load_policy
from ullage.engine.reclaim.reclamation import Reclaimer
from ullage.engine.reclaim.report import OnReport, ReclamationReport
from ullage.engine.reclaim.rewrite import Rewriter
from ullage.engine.reclaim.survey import ResourceFigures, SpaceSurvey
from ullage.engine.repositories import FlowFileRepository
from ullage.errors import CompactionRefused, ContentMissing, ContentWriteFailed

HEAVY = frozenset({Action.PUNCH, Action.REWRITE})
"""What only compaction does."""

NAME = "compact"
"""Of its runs, where they are reported."""

Progress = Callable[[int, int], None]
"""Gets steps done, and bytes given back so far."""


class Compactor:
    """Thread-safe; heavy runs exclude each other."""

    def __init__(
        self,
        parts: ReclamationParts,
        reclamation: Reclaimer,
        rewriter: Rewriter,
        log: FlowFileRepository,
        spec: ContentRepositorySpec,
        on_report: OnReport,
    ) -> None:
        self._parts = parts
        self._reclamation = reclamation
        self._rewriter = rewriter
        self._tell = on_report
        self._spec = spec
        load_policy(spec.compaction.policy)  # one that there is not is told at the open, not in an hour
        self._heavy_lock = threading.Lock()
        self.goal = GoalKeeper(parts, log, self.held_back)

    def adopt(self, spec: ContentRepositorySpec) -> None:
        """New settings, from the next plan on. UnknownPlugin for a policy that there is not."""
        load_policy(spec.compaction.policy)
        self._spec = spec

    def plan(
        self,
        *,
        policy: str | None = None,
        keeps_guards: bool = False,
        actions: frozenset[Action] | None = None,
        frees_wanted: int = 0,
        empties_archive: bool = False,
    ) -> ReclamationPlan:
        """What a run would do now; changes nothing. With the guards and a goal: what the goal asks for now.
        UnknownPlugin for a policy that there is not.
        """
        survey, only = self._reclamation.survey(), None
        if keeps_guards and self._spec.compaction.goal.is_set:
            only = self.goal.look(self._spec, survey).chosen
        wish = CompactionRequest(
            load_policy(policy or self._spec.compaction.policy),
            keeps_guards and only is None,  # whoever chose has heeded them
            frees_wanted=frees_wanted,
            unpunchable=self._unpunchable(),
            leased=self.held_back(survey.resources),
            unchangeable=self.held_back(survey.resources, Action.PUNCH),
            empties_archive=empties_archive,
            only=only,
        )
        if actions is not None:
            wish = wish._replace(actions=actions)
        return plan_compaction(self._with_runs(survey, only), self._spec, wish)

    def execute(
        self,
        plan: ReclamationPlan,
        ticket: RunTicket | None = None,
        bytes_per_second: int | None = None,
        on_progress: Progress | None = None,
    ) -> ReclamationReport:
        """Run a plan once: what moves no bytes first, then the rewrites. Stops between actions when the ticket ends.

        Without a ticket, what is permitted now. `bytes_per_second` replaces the setting; 0: no limit.
        """
        ticket = ticket or self._reclamation.ticket()
        rate = int(self._spec.compaction.bytes_per_second) if bytes_per_second is None else bytes_per_second
        with self._heavy_lock:
            report = self._execute(plan, ticket, rate, on_progress)
        self.goal.ran(report, rate)
        return self._tell(NAME, report)

    def _execute(
        self, plan: ReclamationPlan, ticket: RunTicket, rate: int, on_progress: Progress | None
    ) -> ReclamationReport:
        began = self._parts.clock.monotonic()
        report = self._reclamation.execute(plan, ticket, on_progress)
        progress = _Progress(report, sum(step.action != Action.REWRITE for step in plan.steps), on_progress)
        disks = self._by_disk(plan, report)
        if len(disks) == 1:
            self._run_disk(disks[0], ticket, rate, progress)
        elif disks:
            runs = [Work(partial(self._run_disk, groups, ticket, rate, progress)) for groups in disks]
            for run in runs:
                run.wait()
            failures = [run.failure for run in runs if run.failure is not None]
            # What was given back on the other disks is told all the same.
            report.problems += map(str, failures)
            ours = OSError, ContentWriteFailed, ContentMissing
            grave = [error for error in failures if not isinstance(error, ours)]
            if grave or len(failures) == len(disks):
                raise [*grave, *failures][0]
        report.seconds = self._parts.clock.monotonic() - began
        return report

    def require_admin(self, actions: Collection[Action]) -> None:
        """CompactionRefused if somebody asks for actions that the settings do not let people begin."""
        settings = self._spec.compaction
        if HEAVY.isdisjoint(actions) or (settings.enabled and CompactionTrigger.ADMIN in settings.triggers):
            return
        setting = (
            f"spec.compaction.triggers is [{', '.join(settings.triggers)}], without Admin"
            if settings.enabled
            else "spec.compaction.enabled is false"
        )
        raise CompactionRefused(
            f"{setting}: nobody may punch or rewrite by hand; change the setting, or ask for Delete and Truncate alone"
        )

    def run(self, trigger: CompactionTrigger, ticket: RunTicket | None = None) -> ReclamationReport:
        """Plan and execute, if the settings allow this trigger; with the guards, which only people may pass over."""
        settings = self._spec.compaction
        has_goal = settings.goal.is_set and trigger == CompactionTrigger.PERIODIC
        if not settings.enabled or trigger not in settings.triggers:
            if has_goal:
                self._look()  # what will be missed is to be known all the same
            return ReclamationReport()
        if trigger == CompactionTrigger.ADMIN:
            return self.execute(self.plan(), ticket)
        ticket = ticket or self._reclamation.ticket()
        if refusal := self._reclamation.refusal(HEAVY, ticket):
            if has_goal:
                self._look()
            return self._tell(NAME, ReclamationReport(refusal=refusal))
        plan = self.plan(keeps_guards=True, actions=self._permitted(ticket))
        if has_goal and not plan.steps:
            return ReclamationReport()  # nothing to tell, each minute
        return self.execute(plan, ticket, self.goal_rate)

    def _look(self) -> None:
        self.goal.look(self._spec, self._reclamation.survey())

    @property
    def goal_rate(self) -> int | None:
        """How fast the goal has what it chose last copied; None: as the settings say."""
        figures = self.goal.figures
        return None if figures is None or not figures.decision.rate else figures.decision.rate

    def relieve(self) -> None:
        """Writers wait for room: clean and truncate, and where that is not enough punch and rewrite until it is."""
        settings = self._spec.compaction
        if not self._reclamation.relieve() or self._parts.content.has_room():
            return
        if not settings.enabled or CompactionTrigger.PRESSURE not in settings.triggers:
            return
        if not self._heavy_lock.acquire(blocking=False):
            return  # a run is under way, and frees what it can
        try:
            end = self._parts.clock.monotonic() + BACK_PRESSURE_WAIT_SECONDS
            ticket = self._reclamation.ticket(end, self._parts.content.has_room)
            actions = self._permitted(ticket)
            if actions:
                report = self._execute(self.plan(actions=actions), ticket, int(settings.bytes_per_second), None)
                self._tell(NAME, report)
        finally:
            self._heavy_lock.release()

    @contextmanager
    def held(self, keeper: str) -> Iterator[None]:
        """Nothing at all is given back while this lasts, for the reason given; runs that are under way end first."""
        with self._heavy_lock, self._reclamation.held(keeper):
            yield

    @property
    def is_busy(self) -> bool:
        """Whether a run is under way, by itself or asked for."""
        return not self._reclamation.keeper and (self._heavy_lock.locked() or self._reclamation.is_busy)

    def _permitted(self, ticket: RunTicket) -> frozenset[Action]:
        """What only compaction does, deleting and truncating having tasks and settings of their own."""
        return frozenset(action for action in HEAVY if not ticket.refusal(action, self._parts.clock))

    def held_back(self, resources: Iterable[ResourceFigures], action: Action = Action.REWRITE) -> frozenset[int]:
        """Those files that leases, descriptors in somebody's hands, or records that were set aside keep from being
        rewritten, or changed otherwise.
        """
        with self._parts.ledger.lock:
            held = held_by(self._parts.ledger, self._parts.clock.now_millis())
        found = self._parts.passed.indexes() if action in CUTTING else set[int]()
        for figures in resources if held else ():
            with self._parts.ledger.lock:
                entry = self._parts.ledger.entry(figures.resource)
                if entry is not None and held.refuses(self._parts.ledger, entry, action):
                    found.add(figures.resource)
        return frozenset(found)

    def _unpunchable(self) -> frozenset[str]:
        if not self._spec.compaction.punch.enabled:
            return frozenset()
        return frozenset(
            name
            for name, container in self._parts.content.containers.items()
            if container.is_available and not container.can_punch()
        )

    def _with_runs(self, survey: SpaceSurvey, only: Collection[int] | None) -> SpaceSurvey:
        """The survey with the dead runs of files, of any or of these, that may have some worth punching."""
        wanted = set(worth_a_look(survey, self._spec))
        if only is not None:
            wanted &= set(only)
        if not wanted:
            return survey
        resources = [
            msgspec.structs.replace(figures, dead_runs=tuple(self._reclamation.dead_runs(figures)))
            if figures.resource in wanted
            else figures
            for figures in survey.resources
        ]
        return survey._replace(resources=tuple(resources))

    def _by_disk(self, plan: ReclamationPlan, report: ReclamationReport) -> list[list[list[ReclamationStep]]]:
        """The groups of rewrites, by the disk that their container lies on; left are those whose disk is away."""
        groups: dict[int, list[ReclamationStep]] = {}
        for step in plan.steps:
            if step.action == Action.REWRITE:
                groups.setdefault(step.group, []).append(step)
        disks: dict[int, list[list[ReclamationStep]]] = {}
        for group in groups.values():
            container = self._parts.content.containers[group[0].container]
            try:
                device = container.device() if container.is_writable else None
            except OSError:
                device = None
            if device is None:
                reason = container.condition.reason or f"container {container.name} can't be written"
                report.leave([step.resource for step in group], reason)
            else:
                disks.setdefault(device, []).append(group)
        return list(disks.values())

    def _run_disk(
        self, groups: Sequence[Sequence[ReclamationStep]], ticket: RunTicket, rate: int, progress: "_Progress"
    ) -> None:
        """The rewrites of one disk, one after the other. Without a budget the end of each, which waits for syncs and
        unlinks, is done beside the copying of the next.
        """
        bucket = TokenBucket(rate, self._parts.clock)
        with Beside[ReclamationReport]() as finisher:
            for group in groups:
                rewrite = self._rewriter.begin(group, ticket, bucket)
                try:
                    progress.add(finisher.finish())
                except BaseException:
                    self._rewriter.give_up(rewrite)
                    raise
                finisher.begin(partial(self._rewriter.finish, rewrite))
                if rate:
                    progress.add(finisher.finish())
            progress.add(finisher.finish())


class _Progress:
    """What the disks have done together, in `report`."""

    def __init__(self, report: ReclamationReport, steps: int, on_progress: Progress | None) -> None:
        self._report = report
        self._steps = steps
        self._on_progress = on_progress
        self._lock = threading.Lock()

    def add(self, done: ReclamationReport | None) -> None:
        """One group is done, if any: count it, and tell."""
        if done is None:
            return
        with self._lock:
            self._report.merge(done)
            self._steps += done.done[Action.REWRITE] + len(done.left) + done.skipped
            if self._on_progress is not None:
                self._on_progress(self._steps, self._report.freed_bytes)
