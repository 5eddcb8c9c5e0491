"""The account of one repository: what of its disk is there for what.

`dead` is worked out from the ledger alone. `explain` walks the directories too, so that its sum is what the filesystem
says of them, to the block.
"""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from ullage.contract import Calendar, CompactionTrigger, ContentRepositorySpec
from ullage.engine.byteranges import allocated_bytes
from ullage.engine.content.containers import ContainerDirectory
from ullage.engine.content.reserve import NAME as RESERVE
from ullage.engine.files import Files, FileSize
from ullage.engine.ledger.placement import leased_by
from ullage.engine.model import Action
from ullage.engine.reclaim.accounting import (
    Dead,
    DeletedBytes,
    Grounds,
    Obstacle,
    Share,
    blocks_of,
    fitted,
    once,
    shares_of,
    summed,
    summed_apart,
    worth_of,
)
from ullage.engine.reclaim.compactor import HEAVY, Compactor
from ullage.engine.reclaim.execute import ReclamationParts
from ullage.engine.reclaim.goalkeeper import GoalFigures
from ullage.engine.reclaim.pacing import OPERATIONS
from ullage.engine.reclaim.plan import ReclamationPlan, ReclamationStep, plan_release, plan_truncation, step_on
from ullage.engine.reclaim.reclamation import Reclaimer
from ullage.engine.reclaim.returns import ExpectedReturn, Forecast, TaskTime
from ullage.engine.reclaim.survey import ContainerFigures, ResourceFigures, SpaceSurvey
from ullage.enums import SpaceUse

LEASES_ASKED = 100
"""Leases that are asked one by one which files they keep; of more, all are said to end with the last."""

NOT_PERIODIC = "spec.compaction runs by itself only with enabled: true and the trigger Periodic"

DIRECTORIES = {"swap": SpaceUse.SWAP, "provenance": SpaceUse.PROVENANCE}
"""What lies in directories of the root."""


class _Entry(NamedTuple):
    """A file or a directory, as the filesystem has it."""

    path: str
    size: FileSize
    is_directory: bool


class SpaceAccount:
    """Thread-safe. While others write, files and ledger are of neighbouring moments; a quiet repository's is exact."""

    def __init__(
        self, files: Files, root: str, parts: ReclamationParts, reclaimer: Reclaimer, compactor: Compactor
    ) -> None:
        self._files = files
        self._root = root
        self._parts = parts
        self._reclaimer = reclaimer
        self._compactor = compactor
        self.times: Callable[[], Mapping[str, TaskTime]] = dict
        """When each task that the repository runs by itself is due; none before somebody runs them."""

    def dead(self, spec: ContentRepositorySpec) -> list[Share]:
        """The dead bytes of content and why they are there, by the ledger; live ones are left out."""
        survey = self._reclaimer.survey()
        return summed(self._shares(survey, self._grounds(survey, spec), once))

    def forecast(self, spec: ContentRepositorySpec) -> list[ExpectedReturn]:
        """The same, and when each comes back."""
        survey = self._reclaimer.survey()
        grounds = self._grounds(survey, spec)
        forecast = Forecast(grounds, self._reclaimer.permission, self.times())
        return forecast.of(summed_apart(self._shares(survey, grounds, iter)))

    def _shares(
        self, survey: SpaceSurvey, grounds: Grounds, of_file: Callable[[Iterator[Share]], Iterator[Share]]
    ) -> Iterator[Share]:
        """What is dead of each file, and the orphans of the last look."""
        for figures in self._looked_at(survey):
            for share in of_file(shares_of(figures, self._dead(figures), grounds)):
                if share.use not in (SpaceUse.LIVE, SpaceUse.ROUNDING):
                    yield share
        for kept in self._parts.passed.kept():
            why = f"unlinked, and open in the hands of {', '.join(kept.holders[:3])}"
            yield Share(kept.container, SpaceUse.LEASE, 1, kept.bytes, why, action=Action.DELETE)
        for name, (files, count) in self._reclaimer.orphans.figures.items():
            yield Share(name, SpaceUse.ORPHAN, files, count)

    def _looked_at(self, survey: SpaceSurvey) -> Iterable[ResourceFigures]:
        """The files of which a block may be dead. With swap files that is any: what resident and swapped FlowFiles
        share counts twice as live.
        """
        if self._parts.ledger.swaps:
            return self._reclaimer.figures()
        known = {figures.resource for figures in survey.resources}
        more = survey.tombstoned.keys() | self._parts.content.open_lengths().keys()
        return (*survey.resources, *self._reclaimer.figures(sorted(more - known)))

    def explain(self, spec: ContentRepositorySpec) -> list[Share]:
        """Every allocated byte below the root and the containers, by what it is there for. Reads all directories."""
        survey = self._reclaimer.survey()
        grounds = self._grounds(survey, spec)
        figures = {one.resource: one for one in self._reclaimer.figures()}
        containers = [one for one in self._parts.content.containers.values() if isinstance(one, ContainerDirectory)]
        paths = {container.path for container in containers}
        shares = list(self._of_root(paths))
        elsewhere = self._parts.content.containers.keys() - {container.name for container in containers}
        for one in (
            figures.values() if elsewhere else ()
        ):  # in memory, or a package's own: there are no files to look at
            if one.container in elsewhere:
                shares += once(shares_of(one, self._dead(one), grounds))
        for container in containers:
            if not container.is_available:  # what is there now, if anything, is not ours
                continue
            for entry in self._walk(container.path, paths - {container.path}):
                shares += self._of_content(container, entry, figures, grounds)
        return summed(shares)

    def _of_root(self, containers: set[str]) -> Iterator[Share]:
        for entry in self._walk(self._root, containers):
            allocated = entry.size.allocated_bytes
            if entry.is_directory:
                yield Share("", SpaceUse.DIRECTORY, 1, allocated)
                continue
            top, _, rest = os.path.relpath(entry.path, self._root).partition(os.sep)
            use = DIRECTORIES.get(top, SpaceUse.OTHER) if rest else SpaceUse.OTHER
            if top == "flowfile":
                use = SpaceUse.SNAPSHOT if rest.startswith("snapshot") else SpaceUse.LOG
                use = SpaceUse.RESERVE if rest == RESERVE else use
            elif top == "provenance" and rest.startswith("index"):
                use = SpaceUse.INDEX
            yield Share("", use, 1, allocated)

    def _of_content(
        self, container: ContainerDirectory, entry: _Entry, figures: dict[int, ResourceFigures], grounds: Grounds
    ) -> Iterator[Share]:
        """The shares of a file of a container."""
        allocated = entry.size.allocated_bytes
        name = container.name
        claim = None if entry.is_directory else container.claim_at(entry.path)
        if entry.is_directory:
            yield Share(name, SpaceUse.DIRECTORY, 1, allocated)
        elif entry.path == os.path.join(container.path, RESERVE):
            yield Share(name, SpaceUse.RESERVE, 1, allocated)
        elif claim is None:
            yield Share(name, SpaceUse.OTHER, 1, allocated)
        elif found := figures.get(claim.index):
            yield from once(fitted(shares_of(found, self._dead(found), grounds), allocated))
        elif claim.index in self._parts.content.open_lengths():
            yield Share(name, SpaceUse.WRITING, 1, allocated)
        else:
            yield Share(name, SpaceUse.ORPHAN, 1, allocated)

    def _walk(self, path: str, without: set[str]) -> Iterator[_Entry]:
        """What lies at and below a path, which may vanish meanwhile; other containers are left out."""
        try:
            size = self._files.size(path)
        except FileNotFoundError:
            return
        try:
            names = self._files.list_directory(path)
        except NotADirectoryError:
            yield _Entry(path, size, False)
            return
        yield _Entry(path, size, True)
        for name in names:
            below = os.path.join(path, name)
            if below not in without:
                yield from self._walk(below, without)

    def _dead(self, figures: ResourceFigures) -> Dead | None:
        """A file that is partly dead, looked into; None for those of which the survey says enough."""
        if figures.is_free or not figures.is_sealed or figures.archived_millis or figures.output:
            return None
        if not figures.dead_bytes and not self._parts.ledger.swaps:
            return None
        liveness = self._parts.scanner.examine_if_known(figures.resource)
        if liveness is None:
            return None
        used = liveness.live_bytes
        runs = liveness.dead_runs(figures.length, figures.holes)
        return Dead(used, max(0, used - figures.live_bytes), blocks_of(runs))

    def _grounds(self, survey: SpaceSurvey, spec: ContentRepositorySpec) -> Grounds:
        """What holds dead bytes back now."""
        settings = spec.compaction
        possible = self._compactor.plan().steps
        guarded = self._compactor.plan(keeps_guards=True)
        goal = self._compactor.goal.figures
        due, why = list(plan_release(survey.resources, spec.archive, survey.evacuated).steps), NOT_PERIODIC
        due += plan_truncation(survey, spec).steps
        if settings.enabled and CompactionTrigger.PERIODIC in settings.triggers:
            asked = guarded.steps if goal is None else _asked_by(goal, possible, survey)
            heavy = [step for step in asked if step.action in HEAVY]
            due += [*heavy, *self._punched_when_cut(spec, {step.resource for step in heavy})]
            why = _why_not_due(guarded, goal)
        return Grounds(
            survey.millis,
            spec,
            {
                index: DeletedBytes(count, *(millis + settings.deleted_retention for millis in deleted))
                for index, (count, *deleted) in survey.tombstoned.items()
            },
            self._leases(survey),
            {each.resource for each in survey.resources if self._parts.ledger.set_aside.may_mean(each.resource)},
            worth_of(due),
            worth_of(possible),
            self._refusals(survey.millis, spec),
            {container.name: why for container in survey.containers},
            {container.name: _why_not_cut(container, spec) for container in survey.containers},
            sum(step.copies_bytes for step in due),
            {each.name for each in survey.containers if each.usage.percentage > spec.archive.max_usage_percentage},
            self._reclaimer.orphans.adoption_millis,
            {} if goal is None else goal.deadlines,
            survey.evacuated,
            {each.name for each in survey.containers if each.archived_claims and _is_pressed(each, spec)},
            self._compactor.is_busy,
            self._reclaimer.keeper,
        )

    def _punched_when_cut(self, spec: ContentRepositorySpec, others: Collection[int]) -> list[ReclamationStep]:
        """Holes in files whose tails a plan of all actions cuts first: compaction by itself cuts none."""
        if not spec.compaction.punch.enabled:
            return []
        punches = self._compactor.plan(keeps_guards=True, actions=frozenset({Action.PUNCH})).steps
        return [step for step in punches if step.resource not in others]

    def _refusals(self, millis: int, spec: ContentRepositorySpec) -> dict[Action, Obstacle]:
        calendar = Calendar(spec.maintenance)
        refusals: dict[Action, Obstacle] = {}
        for action, operation in OPERATIONS.items():
            permission = self._reclaimer.permission(operation, millis)
            if not permission.is_granted:
                refusals[action] = Obstacle(permission.reason, calendar.status(operation, millis).opens_millis or 0)
        return refusals

    def _leases(self, survey: SpaceSurvey) -> dict[int, Obstacle]:
        """Which files leases keep from being rewritten, and until when."""
        found: dict[int, Obstacle] = {}
        leased = self._compactor.held_back(survey.resources)
        if not leased:
            return found
        standing = [lease for lease in self._parts.ledger.leases.values() if lease.expires_millis > survey.millis]
        last = max((lease.expires_millis for lease in standing), default=0)
        asked = standing if len(standing) <= LEASES_ASKED else []
        for index in leased:
            if self._parts.ledger.set_aside.may_mean(index):
                continue  # told of by itself
            with self._parts.ledger.lock:
                entry = self._parts.ledger.entry(index)
                if entry is None:
                    continue
                holding = [
                    lease
                    for lease in asked
                    if leased_by([lease], survey.millis).refuses(self._parts.ledger, entry, Action.REWRITE)
                ]
            holders = ", ".join(sorted({lease.holder for lease in holding})[:3])
            until = max((lease.expires_millis for lease in holding), default=last)
            found[index] = Obstacle(f"leased by {holders}" if holders else "leased", until)
        return found


def _is_pressed(container: ContainerFigures, spec: ContentRepositorySpec) -> bool:
    """Whether dead tails are cut as soon as the archive is empty."""
    return spec.truncation.enabled and container.usage.percentage >= spec.truncation.usage_threshold_percentage


def _why_not_cut(container: ContainerFigures, spec: ContentRepositorySpec) -> str:
    """Why the task of truncation leaves dead tails alone."""
    if not spec.truncation.enabled:
        return "spec.truncation.enabled is false"
    if container.archived_claims:
        return f"spec.truncation.mode is Pressure, and the archive of container {container.name} still has content"
    return (
        f"container {container.name} is {container.usage.percentage:.0f}% used, below "
        f"spec.truncation.usageThresholdPercentage ({spec.truncation.usage_threshold_percentage}%)"
    )


def _asked_by(goal: GoalFigures, possible: Iterable[ReclamationStep], survey: SpaceSurvey) -> Iterator[ReclamationStep]:
    """What a goal takes in its time, which is all that nothing hinders: also files that are worth no run by hand."""
    found = {step.resource for step in possible if step.action in HEAVY}
    yield from (step for step in possible if step.resource in goal.deadlines)
    for figures in survey.resources:
        if figures.resource in goal.deadlines and figures.resource not in found and not figures.is_free:
            gain = figures.allocated_bytes - allocated_bytes(figures.live_bytes)
            yield step_on(figures, Action.REWRITE, figures.length, gain, copies_bytes=figures.live_bytes)


def _why_not_due(guarded: ReclamationPlan, goal: GoalFigures | None) -> str:
    """Why compaction leaves alone what it could give back."""
    if goal is not None:
        miss = goal.decision.miss
        return "spec.compaction.goal does not ask for it" if miss is None else miss.hindrance.reason
    return "; ".join(dict.fromkeys((*guarded.notes, guarded.reason))) or "below the thresholds of spec.compaction"
