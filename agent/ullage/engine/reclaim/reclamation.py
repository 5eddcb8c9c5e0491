"""Reclamation of one repository: when to survey, plan and execute, one run at a time.

What died is noted when its transaction is applied (`Ledger.released`) and looked at only when that is durable. The
note is a shortcut: after a restart, or whenever it was lost, a survey derives the same from the ledger.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from ullage.contract import ContentRepositorySpec, PermissionFor
from ullage.engine.byteranges import ByteRange
from ullage.engine.model import Action, ResourceClaim
from ullage.engine.passed import PassedFiles
from ullage.engine.reclaim.execute import Executor, ReclamationParts
from ullage.engine.reclaim.orphans import Orphans
from ullage.engine.reclaim.pacing import OPERATIONS, RunTicket
from ullage.engine.reclaim.plan import (
    ReclamationPlan,
    plan_archive_cleaning,
    plan_release,
    plan_truncation,
)
from ullage.engine.reclaim.report import OnReport, ReclamationReport
from ullage.engine.reclaim.survey import ResourceFigures, SpaceSurvey
from ullage.engine.reclaim.surveyor import Surveyor, TombstonesIn
from ullage.engine.repositories import FlowFileRepository
from ullage.engine.uninterrupted import uninterrupted

OLDEST_MAX = 10_000
"""Archived resource claims of a container that go at once; beyond that the ledger is asked again."""

CLEAN = "clean"
"""Of runs of cleaning, where they are reported: they obey the windows alone."""

RELEASING = (Action.DELETE, Action.ARCHIVE)
"""What cleaning does."""


class Reclaimer:
    """Thread-safe; runs exclude each other."""

    def __init__(
        self,
        parts: ReclamationParts,
        executor: Executor,
        log: FlowFileRepository,
        tombstones_in: TombstonesIn,
        spec: ContentRepositorySpec,
        permission: PermissionFor,
        on_report: OnReport,
    ) -> None:
        self._parts = parts
        self._executor = executor
        self._spec = spec
        self._log = log
        self._permission = permission
        self._tell = on_report
        self._run_lock = threading.Lock()
        self._is_derived = False
        self.keeper = ""
        """What keeps all runs from beginning; empty: nothing does."""
        self._surveyor = Surveyor(parts.ledger, tombstones_in)
        self.orphans = Orphans(parts)

    @property
    def passed(self) -> PassedFiles:
        """Files of which clients have descriptors."""
        return self._parts.passed

    @property
    def permission(self) -> PermissionFor:
        """What says whether a run may begin (`permission.py`)."""
        return self._permission

    def permit(self, permission: PermissionFor) -> None:
        """Ask this one from now on. What the last one granted is taken back: runs under way stop where they can."""
        self._permission = permission

    def adopt(self, spec: ContentRepositorySpec) -> None:
        """New settings, from the next run on."""
        self._spec = spec

    def survey(self) -> SpaceSurvey:
        """What the disk holds now, and the orphans of the last look; forgotten pins hold nothing any more."""
        self._parts.forgotten.give_back()
        content = self._parts.content
        found = self._surveyor.survey(
            content.containers.values(),
            self._parts.clock.now_millis(),
            content.open_lengths(),
            self.orphans.figures,
        )
        kept = Counter[str]()
        for each in self._parts.passed.kept():
            kept[each.container] += each.bytes
        if not kept:
            return found
        containers = tuple(
            each._replace(disk_bytes=each.disk_bytes + kept[each.name], held_bytes=kept[each.name])
            for each in found.containers
        )
        return found._replace(containers=containers)

    def figures(self, indexes: Iterable[int] | None = None) -> Iterator[ResourceFigures]:
        """The figures of every resource claim, or of these, each of its own moment: one step each."""
        self._parts.forgotten.give_back()
        asked = self._parts.ledger.indexes(0) if indexes is None else indexes
        return self._surveyor.figures(asked, self._parts.content.open_lengths())

    def survey_problems(self) -> list[str]:
        """Figures of the last survey that are not what they should be: for `check`."""
        return self._surveyor.problems(self._parts.content.open_lengths())

    def dead_runs(self, figures: ResourceFigures) -> list[ByteRange]:
        """The dead bytes of one file that are not holes yet; none where a swap file has to be read to know."""
        liveness = self._parts.scanner.examine_if_known(figures.resource)
        return [] if liveness is None else liveness.dead_runs(figures.length, figures.holes)

    def plan_truncation(self, *, eager: bool = False) -> ReclamationPlan:
        """Dead tails that could be cut off now."""
        with self._run_lock:
            self._begin()
            return plan_truncation(self.survey(), self._spec, eager=eager)

    def ticket(
        self,
        until_monotonic: float | None = None,
        is_revoked: Callable[[], bool] = lambda: False,
        permission: PermissionFor | None = None,
    ) -> RunTicket:
        """What is permitted now, or by `permission`, for one run; taken back when the own permission changes."""
        granted, millis = self._permission, self._parts.clock.now_millis()
        asked = permission or granted
        permissions = {action: asked(operation, millis) for action, operation in OPERATIONS.items()}
        return RunTicket(permissions, until_monotonic, lambda: is_revoked() or self._permission is not granted)

    def refusal(self, actions: Iterable[Action], ticket: RunTicket) -> str:
        """Why nothing of this may begin, on no container; empty if something may."""
        actions = tuple(actions)
        refusals = [ticket.refusal(action, self._parts.clock) for action in actions]
        containers = [each for each in self._parts.content.containers.values() if each.is_available]
        free = min((container.usage().free_percentage for container in containers), default=100.0)
        if not all(refusals) or any(ticket.is_emergency(action, free) for action in actions):
            return ""
        return "; ".join(dict.fromkeys(refusals))

    def execute(
        self,
        plan: ReclamationPlan,
        ticket: RunTicket | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> ReclamationReport:
        """Carry out the steps of a plan that move no bytes; `compactor.execute` also does the rewrites.

        Without a ticket, what is permitted now.
        """
        ticket = ticket or self.ticket()
        with self._run_lock:
            report = self._begin()
            report.merge(self._executor.execute(plan, ticket, on_progress))
        return report

    def clean(self, ticket: RunTicket | None = None) -> ReclamationReport:
        """Move free resource claims to the archive (or delete them), and delete what the archive no longer keeps.

        Without a ticket, what is permitted now.
        """
        ticket = ticket or self.ticket()
        with self._run_lock:
            report = self._clean(ticket)
        return self._tell(CLEAN, report)

    def truncate(self) -> ReclamationReport:
        """One run of the truncation task: what died durably since the last one, and what was deferred."""
        ticket = self.ticket()
        with self._run_lock:
            report = self._truncate(ticket)
        return self._tell("truncate", report)

    def adopt_orphans(self) -> int:
        """Take up files that a crash left without a record, as resource claims without claimants; returns how many.

        From then on they are archived, or deleted, like other dead content. Only an open repository can do it, so
        snapshot, logs, swap summaries and containers have all been read without error.
        """
        with self._run_lock:
            return self.orphans.adopt()

    def tend_orphans(self) -> int:
        """What the periodic task does: look for orphans when there may be some, and adopt them after their grace;
        how many it adopted.
        """
        if self.orphans.is_look_due:
            self.orphans.look()
        return self.adopt_orphans() if self.orphans.is_adoption_due else 0

    @contextmanager
    def held(self, keeper: str) -> Iterator[None]:
        """Nothing is given back while this lasts; runs wait, and writers under pressure are not relieved. `keeper` says
        why, to who asks.
        """
        with self._run_lock:
            self.keeper = keeper
            try:
                yield
            finally:
                self.keeper = ""

    @property
    def is_busy(self) -> bool:
        """Whether a run is under way that moves no bytes."""
        return self._run_lock.locked() and not self.keeper

    def relieve(self) -> bool:
        """A writer waits for room: clean and truncate now, unless a run is under way already; whether none was."""
        if not self._run_lock.acquire(blocking=False):
            return False
        try:
            ticket = self.ticket()
            reports = (CLEAN, self._clean(ticket)), ("truncate", self._truncate(ticket))
        finally:
            self._run_lock.release()
        for name, report in reports:
            self._tell(name, report)
        return True

    def resume(self, intents: list[ResourceClaim]) -> ReclamationReport:
        """Finish what a crash cut short."""
        report = ReclamationReport()
        if intents:
            self._executor.finish(intents, report)
        return report

    @uninterrupted
    def _commit_seals(self) -> None:
        """Make seals of files that a failed or rolled back session left behind durable."""
        seals = self._parts.content.take_seals()
        if seals:
            try:
                self._parts.committer.commit(seals, creates=False)
            except BaseException:
                self._parts.content.return_seals(seals)
                raise

    def _begin(self) -> ReclamationReport:
        """Before each run: finish what an earlier one could not, and seal what sessions left behind.

        An intent stands in the ledger from its append on. If its commit failed, it may not be on disk, and neither may
        the deaths that it builds on: CommitOutcomeUnknown, and nothing is touched.

            removal of X, intent to delete its file | sync fails, log stops | unlink | restart: X lives, without file
        """
        report = ReclamationReport()
        if self._executor.pending():
            self._log.wait_durable(self._log.last_id)
            self._executor.finish_pending(report)
        self._commit_seals()
        return report

    def _clean(self, ticket: RunTicket) -> ReclamationReport:
        if refusal := self.refusal(RELEASING, ticket):
            return ReclamationReport(refusal=refusal)
        report = self._begin()
        evacuated = {name for name, container in self._parts.content.containers.items() if container.evacuates}
        plan = plan_release(self.survey().resources, self._spec.archive, evacuated)
        report.merge(self._executor.execute(plan, ticket))
        self._clean_archive(report, ticket)
        return report

    def _clean_archive(self, report: ReclamationReport, ticket: RunTicket) -> None:
        """Delete by retention and usage, over and over as long as there may be older ones than were looked at."""
        while True:
            plan = plan_archive_cleaning(self.survey(), self._spec.archive, OLDEST_MAX)
            done = self._executor.execute(plan, ticket)
            report.merge(done)
            if len(plan.steps) < OLDEST_MAX or not done.done:
                return

    def _truncate(self, ticket: RunTicket) -> ReclamationReport:
        if refusal := self.refusal([Action.TRUNCATE], ticket):
            return ReclamationReport(refusal=refusal)
        report = self._begin()
        try:
            candidates = self._take_candidates()
            survey = self.survey()
            plan = plan_truncation(survey, self._spec, candidates=candidates)
            done = self._executor.execute(plan, ticket)
        except BaseException:
            # What was taken is not lost: the next run looks at everything, as the first one does.
            self._is_derived = False
            raise
        report.merge(done)
        kept = [step.resource for step in (*plan.deferred, *(plan.steps if done.skipped or done.left else ()))]
        # What is still written may end below a dead tail; nothing says so again when it is sealed.
        kept += [figures.resource for figures in survey.resources if not figures.is_sealed and figures.dead_tail_bytes]
        self._parts.ledger.note_released(kept)
        return report

    def _take_candidates(self) -> set[int] | None:
        """Resource claims whose deaths are durable; None, meaning all, on the first run after a start."""
        if not self._is_derived:
            self._is_derived = True
            return None
        return self._parts.ledger.take_released(self._log.durable)
