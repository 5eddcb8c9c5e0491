"""Reclamation of one repository: when to survey, plan and execute, one run at a time.

What died is noted when its transaction is applied (`Ledger.released`) and looked at only when that is durable. The
note is a shortcut: after a restart, or whenever it was lost, a survey derives the same from the ledger.
"""

import threading
from collections.abc import Callable, Iterable, Sequence

from ullage_agent.contract import ContentRepositorySpec
from ullage_agent.engine.clock import Clock
from ullage_agent.engine.content.store import ContentRepository
from ullage_agent.engine.files import Files
from ullage_agent.engine.flowfile.ledger import Ledger
from ullage_agent.engine.model import Operation, ResourceClaim
from ullage_agent.engine.reclaim.execute import Executor, Report
from ullage_agent.engine.reclaim.plan import (
    Plan,
    oldest_archived,
    plan_archive_cleaning,
    plan_release,
    plan_truncation,
)
from ullage_agent.engine.reclaim.survey import ResourceFigures, Survey, take_survey
from ullage_agent.engine.wal.log import WriteAheadLog

OLDEST_MAX = 10_000
"""Archived resource claims remembered as next to go, as in NiFi; beyond that the ledger is asked again."""


class Reclamation:
    """Thread-safe; runs exclude each other."""

    def __init__(
        self,
        files: Files,
        ledger: Ledger,
        content: ContentRepository,
        commit: Callable[[Sequence[Operation]], None],
        clock: Clock,
        spec: ContentRepositorySpec,
        log: WriteAheadLog,
    ) -> None:
        self._ledger = ledger
        self._content = content
        self._commit = commit
        self._clock = clock
        self._spec = spec
        self._log = log
        self._executor = Executor(files, ledger, content, commit, clock)
        self._run_lock = threading.Lock()
        self._oldest: list[ResourceFigures] = []
        self._is_derived = False

    def survey(self) -> Survey:
        """What the disk holds now."""
        lengths = self._content.open_lengths()
        return take_survey(self._ledger, self._content.containers.values(), self._clock.now_millis(), lengths)

    def plan_truncation(self, *, eager: bool = False) -> Plan:
        """Dead tails that could be cut off now."""
        self.commit_seals()
        return plan_truncation(self.survey(), self._spec, eager=eager)

    def execute(
        self,
        plan: Plan,
        should_stop: Callable[[], bool] = lambda: False,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> Report:
        """Carry out a plan."""
        with self._run_lock:
            return self._executor.execute(plan, should_stop, on_progress)

    def clean(self) -> Report:
        """Move free resource claims to the archive (or delete them), and delete what the archive no longer keeps."""
        with self._run_lock:
            self.commit_seals()
            released = self._executor.execute(plan_release(self.survey(), self._spec.archive))
            cleaned = self._clean_archive()
        for action, count in cleaned.done.items():
            released.done[action] = released.done.get(action, 0) + count
        released.freed_bytes += cleaned.freed_bytes
        released.skipped += cleaned.skipped
        return released

    def truncate(self) -> Report:
        """One run of the truncation task: what died durably since the last one, and what was deferred."""
        with self._run_lock:
            self.commit_seals()
            candidates = self._take_candidates()
            survey = self.survey()
            plan = plan_truncation(survey, self._spec, candidates=candidates)
            report = self._executor.execute(plan)
            self._keep_candidates(step.resource for step in plan.deferred)
        return report

    def relieve(self) -> None:
        """A writer waits for room: clean now, unless a run is under way already."""
        if self._run_lock.locked():
            return
        self.clean()

    def resume(self, intents: list[ResourceClaim]) -> Report:
        """Finish what a crash cut short."""
        report = Report()
        if intents:
            self._executor.finish(intents, report)
        return report

    def commit_seals(self) -> None:
        """Make seals of files that a failed or rolled back session left behind durable."""
        seals = self._content.take_seals()
        if seals:
            self._commit(seals)

    def _clean_archive(self) -> Report:
        survey = self.survey()
        if not self._oldest:
            self._oldest = oldest_archived(survey, OLDEST_MAX)
        current = {figures.resource: figures for figures in survey.resources if figures.archived_millis}
        oldest = [current[figures.resource] for figures in self._oldest if figures.resource in current]
        plan = plan_archive_cleaning(oldest, survey.containers, self._spec.archive, survey.millis)
        report = self._executor.execute(plan)
        going = {step.resource for step in plan.steps}
        self._oldest = [figures for figures in oldest if figures.resource not in going]
        return report

    def _take_candidates(self) -> set[int] | None:
        """Resource claims whose deaths are durable; None, meaning all, on the first run after a start."""
        if not self._is_derived:
            self._is_derived = True
            return None
        durable = self._log.durable
        with self._ledger.lock:
            ready = {index for index, transaction in self._ledger.released.items() if transaction <= durable}
            for index in ready:
                del self._ledger.released[index]
        return ready

    def _keep_candidates(self, indexes: Iterable[int]) -> None:
        with self._ledger.lock:
            for index in indexes:
                self._ledger.released.setdefault(index, 0)
