"""Reclamation of one repository: when to survey, plan and execute, one run at a time.

What died is noted when its transaction is applied (`Ledger.released`) and looked at only when that is durable. The
note is a shortcut: after a restart, or whenever it was lost, a survey derives the same from the ledger.
"""

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice

import msgspec

from ullage_agent.contract import ContentRepositorySpec
from ullage_agent.engine.clock import Clock
from ullage_agent.engine.content.containers import ARCHIVE
from ullage_agent.engine.content.store import ContentRepository
from ullage_agent.engine.files import Files
from ullage_agent.engine.flowfile.ledger import Ledger, SwapContent
from ullage_agent.engine.model import Action, FlowFile, ResourceClaim
from ullage_agent.engine.reclaim.anatomy import Anatomist
from ullage_agent.engine.reclaim.compactor import Compactor
from ullage_agent.engine.reclaim.execute import Executor, charged_bytes
from ullage_agent.engine.reclaim.orphans import Orphan, find_orphans, make_durable
from ullage_agent.engine.reclaim.pacing import Ticket
from ullage_agent.engine.reclaim.permission import OPERATIONS, default_permission
from ullage_agent.engine.reclaim.plan import (
    Plan,
    Step,
    oldest_archived,
    plan_archive_cleaning,
    plan_release,
    plan_truncation,
)
from ullage_agent.engine.reclaim.report import Report
from ullage_agent.engine.reclaim.survey import ResourceFigures, Survey, figures_of, take_survey
from ullage_agent.engine.runs import Run
from ullage_agent.engine.wal.log import WriteAheadLog

CLEANING_SLICE = 10_000
"""Resource claims looked at together: to forget figures of all of them at once would stop all threads."""

ADOPTION_SLICE = 1_000
"""Orphans one transaction adopts."""

OLDEST_MAX = 10_000
"""Archived resource claims remembered as next to go, as in NiFi; beyond that the ledger is asked again."""

CLEAN = "clean"
"""Of runs of cleaning, where they are reported: they obey the windows alone."""

RELEASING = (Action.DELETE, Action.ARCHIVE)
"""What cleaning does."""


class Reclamation:
    """Thread-safe; runs exclude each other."""

    def __init__(
        self,
        files: Files,
        ledger: Ledger,
        content: ContentRepository,
        commit: Callable[..., None],
        clock: Clock,
        spec: ContentRepositorySpec,
        log: WriteAheadLog,
        read_swap: Callable[[str], SwapContent],
        oldest_max: int = OLDEST_MAX,
    ) -> None:
        self._files = files
        self._ledger = ledger
        self._content = content
        self._commit = commit
        self._clock = clock
        self._spec = spec
        self._log = log
        anatomist = self._anatomist = Anatomist(ledger, read_swap)
        self._executor = Executor(files, ledger, content, anatomist, commit, clock)
        self.compactor = Compactor(self, files, ledger, content, anatomist, self._executor, commit, clock, spec)
        self._run_lock = threading.Lock()
        self.oldest_max = oldest_max
        self._oldest: dict[str, list[ResourceFigures]] = {}
        self._is_derived = False
        self.permission = default_permission(spec.maintenance)
        """Asked when a run begins (`permission.py`)."""
        self.on_report: Callable[[str, Report], None] = lambda _name, _report: None
        """Gets the name of each run (clean, truncate, compact, reclaim) and what it did, from its thread: to log and
        to count. `report.emergency` is above 0 where a nearly full disk overruled the windows.
        """
        self.tombstones: Callable[[], Iterable[FlowFile]] = tuple

    def adopt(self, spec: ContentRepositorySpec) -> None:
        """New settings, from the next run on. SessionMisuse, nothing changed, for a policy that there is not."""
        self.compactor.adopt(spec)
        self._spec = spec

    def survey(self, *, orphans: bool = False) -> Survey:
        """What the disk holds now; with `orphans` also the files that no record names, for which it reads all
        directories.
        """
        lengths = self._content.open_lengths()
        survey = take_survey(
            self._ledger, self._content.containers.values(), self._clock.now_millis(), lengths, self.tombstones()
        )
        if orphans:
            survey = survey._replace(orphans=tuple(find_orphans(self._files, self._ledger, self._content)))
        return survey

    def dead_runs(self, figures: ResourceFigures) -> list[Run]:
        """The dead bytes of one file that are not holes yet; none where a swap file has to be read to know."""
        anatomy = self._anatomist.examine_if_known(figures.resource)
        return [] if anatomy is None else list(anatomy.dead_runs(figures.length, figures.holes))

    def plan_truncation(self, *, eager: bool = False) -> Plan:
        """Dead tails that could be cut off now."""
        with self._run_lock:
            self._begin()
            return plan_truncation(self.survey(), self._spec, eager=eager)

    def ticket(self, until_monotonic: float | None = None, is_revoked: Callable[[], bool] = lambda: False) -> Ticket:
        """What is permitted now, for one run; taken back when `permission` changes."""
        permission, millis = self.permission, self._clock.now_millis()
        permissions = {action: permission(operation, millis) for action, operation in OPERATIONS.items()}
        return Ticket(permissions, until_monotonic, lambda: is_revoked() or self.permission is not permission)

    def refusal(self, actions: Iterable[Action], ticket: Ticket) -> str:
        """Why nothing of this may begin, on no container; empty if something may."""
        actions = tuple(actions)
        refusals = [ticket.refusal(action, self._clock) for action in actions]
        free = [container.usage().free_percentage for container in self._content.containers.values()]
        if not all(refusals) or any(ticket.is_emergency(action, min(free)) for action in actions):
            return ""
        return "; ".join(dict.fromkeys(refusals))

    def tell(self, name: str, report: Report) -> Report:
        """Hand a report to who watches, and return it."""
        self.on_report(name, report)
        return report

    def execute(
        self,
        plan: Plan,
        should_stop: Callable[[], bool] = lambda: False,
        on_progress: Callable[[int, int], None] | None = None,
        ticket: Ticket | None = None,
    ) -> Report:
        """Carry out the steps of a plan that move no bytes; `compactor.execute` also does the rewrites.

        Without a ticket, what is permitted now.
        """
        ticket = ticket or self.ticket()
        with self._run_lock:
            report = self._begin()
            report.merge(self._executor.execute(plan, should_stop, on_progress, ticket))
        return report

    def clean(self) -> Report:
        """Move free resource claims to the archive (or delete them), and delete what the archive no longer keeps."""
        ticket = self.ticket()
        with self._run_lock:
            report = self._clean(ticket)
        return self.tell(CLEAN, report)

    def truncate(self) -> Report:
        """One run of the truncation task: what died durably since the last one, and what was deferred."""
        ticket = self.ticket()
        with self._run_lock:
            report = self._truncate(ticket)
        return self.tell("truncate", report)

    def adopt_orphans(self) -> int:
        """Take up files that a crash left without a record, as resource claims without claimants; returns how many.

        From then on they are archived, or deleted, like other dead content. Only an open repository can do it, so
        snapshot, logs, swap summaries and containers have all been read without error.
        """
        with self._run_lock:
            millis = self._clock.now_millis()
            orphans = [o for o in find_orphans(self._files, self._ledger, self._content) if o.is_adoptable]
            make_durable(self._files, self._content, orphans)
            adopted = [
                msgspec.structs.replace(
                    orphan.claim,
                    length=orphan.length,
                    sealed=True,
                    generation=1,
                    archived_millis=millis if _is_archived(orphan) else 0,
                    last_death_millis=millis,
                )
                for orphan in orphans
                if orphan.claim is not None
            ]
            for first in range(0, len(adopted), ADOPTION_SLICE):
                claims = adopted[first : first + ADOPTION_SLICE]
                self._commit(claims)
                for claim in claims:
                    self._content.container_of(claim).add_bytes(charged_bytes(claim))
            return len(adopted)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nothing is given back while this lasts; runs wait, and writers under pressure are not relieved."""
        with self.compactor.held(), self._run_lock:
            yield

    def relieve(self) -> None:
        """A writer waits for room: clean and truncate now, unless a run is under way already."""
        if not self._run_lock.acquire(blocking=False):
            return
        try:
            ticket = self.ticket()
            reports = (CLEAN, self._clean(ticket)), ("truncate", self._truncate(ticket))
        finally:
            self._run_lock.release()
        for name, report in reports:
            self.tell(name, report)
        self.compactor.relieve()

    def resume(self, intents: list[ResourceClaim]) -> Report:
        """Finish what a crash cut short."""
        report = Report()
        if intents:
            self._executor.finish(intents, report)
        return report

    def _commit_seals(self) -> None:
        """Make seals of files that a failed or rolled back session left behind durable."""
        seals = self._content.take_seals()
        if seals:
            try:
                self._commit(seals)
            except BaseException:
                self._content.return_seals(seals)
                raise

    def _begin(self) -> Report:
        """Before each run: finish what an earlier one could not, and seal what sessions left behind.

        An intent stands in the ledger from its append on. If its commit failed, it may not be on disk, and neither may
        the deaths that it builds on: CommitOutcomeUnknown, and nothing is touched.

            removal of X, intent to delete its file | sync fails, log stops | unlink | restart: X lives, without file
        """
        report = Report()
        pending = self._executor.pending()
        if pending:
            self._log.wait_durable(self._log.last_id)
            self._executor.finish(pending, report)
        self._commit_seals()
        return report

    def _clean(self, ticket: Ticket) -> Report:
        if refusal := self.refusal(RELEASING, ticket):
            return Report(refusal=refusal)
        report = self._begin()
        evacuated = {name for name, container in self._content.containers.items() if container.evacuates}
        figures = figures_of(self._ledger, self._content.open_lengths())
        while some := list(islice(figures, CLEANING_SLICE)):
            report.merge(self._executor.execute(plan_release(some, self._spec.archive, evacuated), ticket=ticket))
        self._clean_archive(report, ticket)
        return report

    def _clean_archive(self, report: Report, ticket: Ticket) -> None:
        """Delete by retention and usage, over and over as long as all of the oldest ones went."""
        while True:
            survey = self.survey()
            is_exhausted = False
            current = {figures.resource: figures for figures in survey.resources if figures.archived_millis}
            steps: list[Step] = []
            for container in survey.containers:
                known = self._oldest.get(container.name, [])
                oldest = [current[figures.resource] for figures in known if figures.resource in current]
                if not oldest:
                    oldest = oldest_archived(survey, container.name, self.oldest_max)
                plan = plan_archive_cleaning(oldest, [container], self._spec.archive, survey.millis)
                going = {step.resource for step in plan.steps}
                steps.extend(plan.steps)
                self._oldest[container.name] = [figures for figures in oldest if figures.resource not in going]
                is_exhausted |= bool(going) and not self._oldest[container.name]
            done = self._executor.execute(Plan(tuple(steps)), ticket=ticket)
            report.merge(done)
            if not is_exhausted or not done.done:
                return

    def _truncate(self, ticket: Ticket) -> Report:
        if refusal := self.refusal([Action.TRUNCATE], ticket):
            return Report(refusal=refusal)
        report = self._begin()
        try:
            candidates = self._take_candidates()
            survey = self.survey()
            plan = plan_truncation(survey, self._spec, candidates=candidates)
            done = self._executor.execute(plan, ticket=ticket)
        except BaseException:
            # What was taken is not lost: the next run looks at everything, as the first one does.
            self._is_derived = False
            raise
        report.merge(done)
        kept = [step.resource for step in (*plan.deferred, *(plan.steps if done.skipped or done.left else ()))]
        # What is still written may end below a dead tail; nothing says so again when it is sealed.
        kept += [figures.resource for figures in survey.resources if not figures.is_sealed and figures.dead_tail_bytes]
        self._keep_candidates(kept)
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


def _is_archived(orphan: Orphan) -> bool:
    return os.path.basename(os.path.dirname(orphan.path)) == ARCHIVE
