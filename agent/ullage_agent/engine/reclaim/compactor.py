"""Compaction of one repository: plan it, and run it, each disk at its own pace.

    plan    survey, dead runs of files worth it, policy    -> frozen plan
    run     delete, truncate, punch                        quick, under the lock that all short runs share
            rewrite, group by group                        paced; disks side by side, each in a thread of its own

Short runs (cleaning, truncation) go on while a rewrite is under way: whoever derives a step takes its resource claims,
and leaves alone what is in other hands.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Protocol

import msgspec

from ullage_agent.contract import CompactionTrigger, ContentRepositorySpec
from ullage_agent.engine.clock import Clock
from ullage_agent.engine.content.store import BACK_PRESSURE_WAIT_SECONDS, ContentRepository
from ullage_agent.engine.files import Files
from ullage_agent.engine.flowfile.held import NOTHING_HELD, held_by
from ullage_agent.engine.flowfile.ledger import Ledger
from ullage_agent.engine.model import Action
from ullage_agent.engine.reclaim.anatomy import Anatomist
from ullage_agent.engine.reclaim.compaction import Wish, plan_compaction, worth_a_look
from ullage_agent.engine.reclaim.execute import Executor
from ullage_agent.engine.reclaim.pacing import Ticket, TokenBucket
from ullage_agent.engine.reclaim.plan import Plan, Step
from ullage_agent.engine.reclaim.policies import load_policy
from ullage_agent.engine.reclaim.report import Report
from ullage_agent.engine.reclaim.rewrite import CommitIf, Rewriter
from ullage_agent.engine.reclaim.survey import Survey

HEAVY = frozenset({Action.PUNCH, Action.REWRITE})
"""What only compaction does."""

NAME = "compact"
"""Of its runs, where they are reported."""

Progress = Callable[[int, int], None]
"""Gets steps done, and bytes given back so far."""


class Host(Protocol):
    """What it needs of the reclamation that it is part of."""

    def survey(self, *, orphans: bool = False) -> Survey:
        """What the disk holds now."""
        ...

    def execute(
        self,
        plan: Plan,
        should_stop: Callable[[], bool] = ...,
        on_progress: Progress | None = None,
        ticket: Ticket | None = None,
    ) -> Report:
        """Carry out the steps that move no bytes."""
        ...

    def ticket(self, until_monotonic: float | None = None, is_revoked: Callable[[], bool] = ...) -> Ticket:
        """What is permitted now."""
        ...

    def refusal(self, actions: Iterable[Action], ticket: Ticket) -> str:
        """Why nothing of this may begin; empty if something may."""
        ...

    def tell(self, name: str, report: Report) -> Report:
        """Pass on what a run did."""
        ...


class Compactor:
    """Thread-safe; heavy runs exclude each other."""

    def __init__(
        self,
        host: Host,
        files: Files,
        ledger: Ledger,
        content: ContentRepository,
        anatomist: Anatomist,
        executor: Executor,
        commit_if: CommitIf,
        clock: Clock,
        spec: ContentRepositorySpec,
    ) -> None:
        self._host = host
        self._files = files
        self._ledger = ledger
        self._content = content
        self._anatomist = anatomist
        self._clock = clock
        self._spec = spec
        load_policy(spec.compaction.policy)  # one that there is not is told at the open, not in an hour
        self._rewriter = Rewriter(
            files, ledger, content, anatomist, executor, commit_if, clock, spec.compaction.output_size
        )
        self._heavy_lock = threading.Lock()

    def adopt(self, spec: ContentRepositorySpec) -> None:
        """New settings, from the next plan on. SessionMisuse for a policy that there is not."""
        load_policy(spec.compaction.policy)
        self._spec = spec

    def plan(
        self,
        *,
        policy: str | None = None,
        keeps_guards: bool = False,
        actions: frozenset[Action] | None = None,
        frees_wanted: int = 0,
    ) -> Plan:
        """What a run would do now; changes nothing. SessionMisuse for a policy that there is not."""
        survey = self._host.survey()
        wish = Wish(
            load_policy(policy or self._spec.compaction.policy),
            keeps_guards,
            frees_wanted=frees_wanted,
            unpunchable=self._unpunchable(survey),
            leased=self._leased(survey, Action.REWRITE),
            unchangeable=self._leased(survey, Action.PUNCH),
        )
        if actions is not None:
            wish = wish._replace(actions=actions)
        return plan_compaction(self._with_runs(survey), self._spec, wish)

    def execute(
        self,
        plan: Plan,
        ticket: Ticket | None = None,
        bytes_per_second: int | None = None,
        on_progress: Progress | None = None,
    ) -> Report:
        """Run a plan once: what moves no bytes first, then the rewrites. Stops between actions when the ticket ends.

        Without a ticket, what is permitted now. `bytes_per_second` replaces the setting; 0: no limit.
        """
        ticket = ticket or self._host.ticket()
        rate = int(self._spec.compaction.bytes_per_second) if bytes_per_second is None else bytes_per_second
        with self._heavy_lock:
            return self._host.tell(NAME, self._execute(plan, ticket, rate, on_progress))

    def _execute(self, plan: Plan, ticket: Ticket, rate: int, on_progress: Progress | None) -> Report:
        began = self._clock.monotonic()
        report = self._host.execute(plan, ticket.is_revoked, on_progress, ticket)
        progress = _Progress(report, sum(step.action != Action.REWRITE for step in plan.steps), on_progress)
        disks = self._by_disk(plan)
        if len(disks) == 1:
            progress.add(self._run_disk(disks[0], ticket, rate, progress))
        elif disks:
            with ThreadPoolExecutor(len(disks), "ullage-rewrite") as pool:
                runs = [pool.submit(self._run_disk, groups, ticket, rate, progress) for groups in disks]
                for run in runs:
                    progress.add(run.result())
        report.seconds = self._clock.monotonic() - began
        return report

    def run(self, trigger: CompactionTrigger, ticket: Ticket | None = None) -> Report:
        """Plan and execute, if the settings allow this trigger; with the guards, which only people may pass over."""
        settings = self._spec.compaction
        if not settings.enabled or trigger not in settings.triggers:
            return Report()
        if trigger == CompactionTrigger.ADMIN:
            return self.execute(self.plan(), ticket)
        ticket = ticket or self._host.ticket()
        if refusal := self._host.refusal(HEAVY, ticket):
            return self._host.tell(NAME, Report(refusal=refusal))
        return self.execute(self.plan(keeps_guards=True, actions=self._permitted(ticket)), ticket)

    def relieve(self) -> None:
        """Writers wait for room, and cleaning was not enough: punch and rewrite until they need not."""
        settings = self._spec.compaction
        if not settings.enabled or CompactionTrigger.PRESSURE not in settings.triggers or self._content.has_room():
            return
        if not self._heavy_lock.acquire(blocking=False):
            return  # a run is under way, and frees what it can
        try:
            end = self._clock.monotonic() + BACK_PRESSURE_WAIT_SECONDS
            ticket = self._host.ticket(end, self._content.has_room)
            actions = self._permitted(ticket)
            if actions:
                report = self._execute(self.plan(actions=actions), ticket, int(settings.bytes_per_second), None)
                self._host.tell(NAME, report)
        finally:
            self._heavy_lock.release()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nothing is punched or rewritten while this lasts; a run that is under way ends first."""
        with self._heavy_lock:
            yield

    def _permitted(self, ticket: Ticket) -> frozenset[Action]:
        """What only compaction does, deleting and truncating having tasks and settings of their own."""
        return frozenset(action for action in HEAVY if not ticket.refusal(action, self._clock))

    def leased(self, survey: Survey) -> frozenset[int]:
        """Files that leases keep from being rewritten."""
        return self._leased(survey, Action.REWRITE)

    def _leased(self, survey: Survey, action: Action) -> frozenset[int]:
        """Files that leases keep from being changed so."""
        held = held_by(list(self._ledger.leases.values()), self._clock.now_millis())
        found: set[int] = set()
        for figures in survey.resources if held != NOTHING_HELD else ():
            with self._ledger.lock:
                entry = self._ledger.entry(figures.resource)
                if entry is not None and held.refuses(self._ledger, entry, action):
                    found.add(figures.resource)
        return frozenset(found)

    def _unpunchable(self, survey: Survey) -> frozenset[str]:
        if not self._spec.compaction.punch.enabled:
            return frozenset()
        return frozenset(c.name for c in survey.containers if not self._files.can_punch(c.path))

    def _with_runs(self, survey: Survey) -> Survey:
        """The survey with the dead runs of files that may have some worth punching."""
        wanted = set(worth_a_look(survey, self._spec))
        if not wanted:
            return survey
        resources = []
        for figures in survey.resources:
            if figures.resource in wanted:
                anatomy = self._anatomist.examine_if_known(figures.resource)
                if anatomy is not None:
                    runs = tuple(anatomy.dead_runs(figures.length, figures.holes))
                    resources.append(msgspec.structs.replace(figures, dead_runs=runs))
                    continue
            resources.append(figures)
        return survey._replace(resources=tuple(resources))

    def _by_disk(self, plan: Plan) -> list[list[list[Step]]]:
        """The groups of rewrites, by the disk that their container lies on."""
        groups: dict[int, list[Step]] = {}
        for step in plan.steps:
            if step.action == Action.REWRITE:
                groups.setdefault(step.group, []).append(step)
        disks: dict[int, list[list[Step]]] = {}
        for group in groups.values():
            path = self._content.containers[group[0].container].path
            disks.setdefault(self._files.usage(path).device, []).append(group)
        return list(disks.values())

    def _run_disk(self, groups: Sequence[Sequence[Step]], ticket: Ticket, rate: int, progress: "_Progress") -> Report:
        """The rewrites of one disk, one after the other. Without a budget the end of each, which waits for syncs and
        unlinks, is done beside the copying of the next.
        """
        report = Report()
        bucket = TokenBucket(rate, self._clock)
        with ThreadPoolExecutor(1, "ullage-finish") if rate == 0 else nullcontext() as finisher:
            ending: Future[Report] | None = None
            for group in groups:
                rewrite = self._rewriter.begin(group, ticket, bucket)
                try:
                    if ending is not None:
                        progress.step(report, ending.result())
                except BaseException:
                    self._rewriter.give_up(rewrite)
                    raise
                if finisher is None:
                    progress.step(report, self._rewriter.finish(rewrite))
                else:
                    ending = finisher.submit(self._rewriter.finish, rewrite)
            if ending is not None:
                progress.step(report, ending.result())
        return report


class _Progress:
    """What the disks have done together."""

    def __init__(self, report: Report, steps: int, on_progress: Progress | None) -> None:
        self._report = report
        self._steps = steps
        self._freed_bytes = report.freed_bytes
        self._on_progress = on_progress
        self._lock = threading.Lock()

    def step(self, report: Report, done: Report) -> None:
        """One group is done: add it to its disk's report, and tell."""
        report.merge(done)
        with self._lock:
            self._steps += done.done.get(Action.REWRITE, 0) + len(done.left) + done.skipped
            self._freed_bytes += done.freed_bytes
            if self._on_progress is not None:
                self._on_progress(self._steps, self._freed_bytes)

    def add(self, report: Report) -> None:
        """One disk is done."""
        self._report.merge(report)
