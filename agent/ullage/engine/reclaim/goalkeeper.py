"""Keeps a goal of compaction: looks at what is dead and since when, has it decided on, and remembers what was decided.

    look      survey -> files with dead bytes, since when, what hinders each    every minute
    decide    goals.py: which files, how fast, what will be missed              pure
    act       the compactor: a plan of these files alone, at that rate

Since when a file has had dead bytes is known from one look to the next, and not written down: of what was dead before
the start only a bound is known, which is taken for true where it makes compaction do more, and not where it would tell
of a miss that is none.
"""

import math
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple

from ullage.contract import Calendar, CompactionTrigger, ContentRepositorySpec, MaintenanceOperation
from ullage.engine.byteranges import allocated_bytes
from ullage.engine.passed import KeptOpen
from ullage.engine.reclaim.execute import ReclamationParts
from ullage.engine.reclaim.goals import (
    DeadFile,
    GoalDecision,
    GoalSight,
    Hindrance,
    decide,
    horizon,
)
from ullage.engine.reclaim.plan import retention_is_over
from ullage.engine.reclaim.policies import Candidate, load_policy
from ullage.engine.reclaim.report import ReclamationReport
from ullage.engine.reclaim.survey import ResourceFigures, SpaceSurvey
from ullage.engine.repositories import FlowFileRepository
from ullage.enums import GoalHindrance

LOOK_SECONDS: Final = 60.0
"""How often it is looked and decided."""

LATELY_SECONDS: Final = 1_800.0
FORMERLY_SECONDS: Final = 6 * 3_600.0
"""Over what time rates are averaged: the faster of both is believed, so that a burst counts, and what it leads to."""

IDLE_TRANSACTIONS: Final = 1.0
"""A second: fewer, and nobody else is taken to need the disk."""

MEASURED_BYTES_MIN: Final = 4 << 20
"""What a run must have copied to say how fast the disk is."""

BEHIND: Final = 0.8
"""A run that copied at less than this part of what it was allowed is held to be as fast as the disk."""

OPEN_LEAD: Final = 0.25
"""When a file with dead bytes is closed to writers, as a part of the age that these may reach."""

COPIES_PER_DEAD_MAX: Final = 20.0


class GoalFigures(NamedTuple):
    """What is known of a goal at the last look. `oldest_millis`: since when the oldest dead byte has been dead for
    certain; 0: none is.
    """

    millis: int
    disk_to_live: float
    dead_bytes: int
    oldest_millis: int
    dead_per_second: float
    copied_per_second: float
    hindered_bytes: int
    decision: GoalDecision
    deadlines: Mapping[int, int]
    """Of the files that nothing hinders: when the age of their dead bytes has to be over; 0: at no time, or nobody can
    promise it.
    """


class _Since(NamedTuple):
    """When the oldest dead bytes of a file died: not before one moment, for certain not after the other."""

    earliest: int
    latest: int


class GoalKeeper:
    """Of one repository. Thread-safe."""

    def __init__(
        self,
        parts: ReclamationParts,
        log: FlowFileRepository,
        held_back: Callable[[Iterable[ResourceFigures]], Collection[int]],
    ) -> None:
        self._parts = parts
        self._log = log
        self._held_back = held_back
        self._lock = threading.Lock()
        self._since: dict[int, _Since] = {}
        self._looked: tuple[float, int, int, int] | None = None  # monotonic, millis, transaction, bytes to be had
        self._freed = 0
        self._rates = (0.0, 0.0)
        self._copies_per_dead = 1.0
        self._copied_per_second = 0.0
        self._is_idle = False
        self.figures: GoalFigures | None = None
        """As of the last look; None before it, and where there is no goal."""

    def look(self, spec: ContentRepositorySpec, survey: SpaceSurvey) -> GoalDecision:
        """What is to be done now. Rates are measured between looks that are at least half a minute apart."""
        with self._lock:
            if not spec.compaction.goal.is_set:
                self.figures = None
                return GoalDecision()
            files = self._files(survey, spec)
            self._measure(files, survey.millis)
            sight = self._sight(survey, spec, files)
            decision = decide(sight)
            known = [self._since[file.resource].latest for file in files]
            self.figures = GoalFigures(
                survey.millis,
                (sight.live_bytes + sight.dead_bytes) / sight.live_bytes if sight.live_bytes else 0.0,
                sight.dead_bytes,
                min(known, default=0),
                sight.dead_per_second,
                self._copied_per_second,
                sum(file.gives_bytes for file in files if file.hindrance is not None),
                decision,
                _deadlines(files, spec, decision),
            )
        if self._is_held_open(survey, spec):
            self._parts.content.retire_idle()  # a file that waits for its next writer is closed, to be rewritten
        return decision

    def ran(self, report: ReclamationReport, rate: int) -> None:
        """A run of compaction did this, at no more than `rate`."""
        with self._lock:
            self._freed += max(0, report.freed_bytes)
            if report.copied_bytes < MEASURED_BYTES_MIN or report.seconds <= 0:
                return
            achieved = report.copied_bytes / report.seconds
            if not rate or achieved < BEHIND * rate:
                self._copied_per_second = achieved
            elif rate > self._copied_per_second:
                self._copied_per_second = 0.0  # the disk can do more than was ever asked of it

    def _files(self, survey: SpaceSurvey, spec: ContentRepositorySpec) -> list[DeadFile]:
        """What has dead bytes that nothing keeps on purpose, each with what hinders its rewrite."""
        dead = [figures for figures in survey.resources if _is_dead(figures, survey, spec)]
        kept = self._parts.passed.kept()
        self._note(dead, kept, survey.millis)
        hindrances = _Hindrances(survey, spec, self._held_back(dead), dead)
        since = self._since
        gone = [
            DeadFile(one, since[one].earliest, each.bytes, 0, _open_still(each), since[one].latest)
            for each in kept
            if (one := each.resource)
        ]
        return gone + [
            DeadFile(
                figures.resource,
                self._since[figures.resource].earliest,
                _gain(figures),
                figures.live_bytes,
                hindrance,
                self._since[figures.resource].latest,
            )
            for figures in dead
            if (hindrance := hindrances.of(figures)) is not None or not figures.is_free
        ]

    def _note(self, dead: Iterable[ResourceFigures], kept: Iterable[KeptOpen], millis: int) -> None:
        """Since when each of these has been dead, by what is known of it."""
        before = None if self._looked is None else self._looked[1]
        found: dict[int, _Since] = {}
        for figures in dead:
            known = self._since.get(figures.resource)
            if known is None:
                earliest = figures.created_millis if before is None else before
                known = _Since(min(earliest, millis), min(millis, figures.last_death_millis or millis))
            found[figures.resource] = known
        for each in kept:
            gone = _Since(each.since_millis, each.since_millis)
            found[each.resource] = self._since.get(each.resource, gone)
        self._since = found

    def _measure(self, files: Iterable[DeadFile], millis: int) -> None:
        """How fast bytes come to be given back, and for how many copied."""
        now, gives, copies = self._parts.clock.monotonic(), 0, 0
        for file in files:
            gives += file.gives_bytes
            copies += file.copies_bytes
        if gives:
            self._copies_per_dead = min(COPIES_PER_DEAD_MAX, copies / gives)
        last = self._log.last_id
        if self._looked is None:
            self._looked = now, millis, last, gives
            return
        seconds = now - self._looked[0]
        if seconds < LOOK_SECONDS / 2:
            return
        came = max(0, gives - self._looked[3] + self._freed) / seconds
        lately, formerly = self._rates
        lately += (came - lately) * (1 - math.exp(-seconds / LATELY_SECONDS))
        formerly += (came - formerly) * (1 - math.exp(-seconds / FORMERLY_SECONDS))
        self._rates = lately, formerly
        self._is_idle = (last - self._looked[2]) / seconds < IDLE_TRANSACTIONS
        self._looked, self._freed = (now, millis, last, gives), 0

    def _sight(self, survey: SpaceSurvey, spec: ContentRepositorySpec, files: list[DeadFile]) -> GoalSight:
        settings = spec.compaction
        until = survey.millis + horizon(settings.goal)
        spans = Calendar(spec.maintenance).spans(MaintenanceOperation.REWRITE, survey.millis, until)
        return GoalSight(
            survey.millis,
            settings.goal,
            files,
            sum(container.live_bytes for container in survey.containers),
            sum(file.gives_bytes for file in files),
            int(settings.bytes_per_second),
            tuple(spans),
            max(self._rates),
            self._copies_per_dead,
            self._copied_per_second,
            self._is_idle,
        )

    def _is_held_open(self, survey: SpaceSurvey, spec: ContentRepositorySpec) -> bool:
        """Whether the time of a file has come that is only not rewritten because it may be appended to."""
        goal, figures = spec.compaction.goal, self.figures
        is_full = goal.disk_to_live is not None and figures is not None and figures.disk_to_live > goal.disk_to_live
        least = 0.0 if is_full or goal.max_dead_age is None else OPEN_LEAD * int(goal.max_dead_age)
        if not is_full and goal.max_dead_age is None:
            return False
        opened = [one.resource for one in survey.resources if not one.is_sealed and one.resource in self._since]
        return any(survey.millis - self._since[resource].earliest >= least for resource in opened)


def _deadlines(files: Iterable[DeadFile], spec: ContentRepositorySpec, decision: GoalDecision) -> Mapping[int, int]:
    age = int(spec.compaction.goal.max_dead_age or 0)
    is_held = bool(age) and decision.miss is None
    return {file.resource: file.since_millis + age if is_held else 0 for file in files if file.hindrance is None}


def _is_dead(figures: ResourceFigures, survey: SpaceSurvey, spec: ContentRepositorySpec) -> bool:
    """Whether it has whole blocks that nothing keeps on purpose."""
    if figures.archived_millis or figures.output or figures.has_intent or _gain(figures) <= 0:
        return False
    return figures.is_free or retention_is_over(figures, spec, survey.millis)


def _open_still(kept: KeptOpen) -> Hindrance:
    why = f"its file is unlinked, and open in the hands of {', '.join(kept.holders[:3])}"
    return Hindrance(GoalHindrance.HOLDER, why, "revoking the lease, and the end of the reader")


def _gain(figures: ResourceFigures) -> int:
    return figures.allocated_bytes - allocated_bytes(figures.live_bytes)


class _Hindrances:
    """Why files may not be rewritten, at one moment."""

    def __init__(
        self,
        survey: SpaceSurvey,
        spec: ContentRepositorySpec,
        leased: Collection[int],
        dead: Iterable[ResourceFigures],
    ) -> None:
        settings = spec.compaction
        self._leased = leased
        self._settings = settings
        self._evacuated = survey.evacuated
        self._used = {container.name: container.usage.percentage for container in survey.containers}
        self._is_off = not settings.enabled or CompactionTrigger.PERIODIC not in settings.triggers
        policy = load_policy(settings.policy)
        candidates = [Candidate(figures, figures.allocated_bytes) for figures in dead if figures.is_changeable]
        chosen = policy.choose(candidates, settings, survey.millis)
        self._chosen = {each.figures.resource for each in chosen}
        gains: Counter[str] = Counter()
        for each in chosen:
            gains[each.figures.container] += _gain(each.figures)
        least = settings.min_reclaim * settings.output_size if policy.has_guards else 0
        self._too_little = {name: (gains[name], least) for name in self._used if gains[name] < least}
        opening = Calendar(spec.maintenance).status(MaintenanceOperation.DELETE, survey.millis)
        self._delete = "" if opening.is_allowed else opening.reason

    def of(self, figures: ResourceFigures) -> Hindrance | None:
        """The first that there is; a file in which nothing lives is deleted, unless windows say otherwise."""
        if figures.is_free:
            if not (self._delete and figures.is_sealed):
                return None
            return Hindrance(GoalHindrance.WINDOW, self._delete, "windows of Delete that open before")
        if not figures.is_sealed:
            return Hindrance(GoalHindrance.HOLDER, "its file is being written", "nothing: its writer closes it")
        if not figures.is_proved:
            why = "its file is to be read first, after an unclean end"
            return Hindrance(GoalHindrance.HOLDER, why, "`ullage check --deep` names what does not read back")
        if figures.resource in self._leased:
            return Hindrance(GoalHindrance.HOLDER, "a lease keeps it as it is", "releasing or revoking the lease")
        return self._limit(figures)

    def _limit(self, figures: ResourceFigures) -> Hindrance | None:
        """A threshold of the spec."""
        settings = self._settings
        name, used = figures.container, self._used.get(figures.container, 100.0)
        if self._is_off:
            why = "spec.compaction runs by itself only with enabled: true and the trigger Periodic"
            return Hindrance(GoalHindrance.LIMIT, why, "spec.compaction.triggers")
        if used < settings.min_used_percentage:
            why = (
                f"container {name} is {used:.0f}% used, below spec.compaction.minUsedPercentage "
                f"({settings.min_used_percentage}%)"
            )
            return Hindrance(GoalHindrance.LIMIT, why, "a lower spec.compaction.minUsedPercentage")
        if figures.resource not in self._chosen:
            why = f"more of it lives than spec.compaction.maxLiveFraction ({settings.max_live_fraction}) allows"
            return Hindrance(GoalHindrance.LIMIT, why, "a higher spec.compaction.maxLiveFraction")
        if name in self._too_little:
            gain, least = self._too_little[name]
            why = f"rewrites in container {name} would free {gain} bytes, fewer than minReclaim ({least})"
            return Hindrance(GoalHindrance.LIMIT, why, "a lower spec.compaction.minReclaim")
        return None
