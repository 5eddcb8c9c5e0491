"""What a goal asks of compaction now, and whether it will be held. Pure: what is seen goes in, a decision comes out.

The goals are a bound of disk / live, and of how long a byte may be dead. Both are looked at as a queue: bytes that died
wait in the order in which they died, each must have been given back before its time, and a rewrite serves them at no
more than `bytesPerSecond` while windows permit it. The decision is the laziest and slowest with which a simulation of
what lies ahead misses nothing:

    slower        leaves the disk to whoever else uses it
    lazier        leaves files alone for longer, so that more of what they hold dies first and need not be copied
    idle          what the disk does not need now is spent before it is needed

What thresholds of the spec keep from compaction no decision passes over: then they are what the prediction names.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Literal, NamedTuple

from ullage.contract import GoalSettings
from ullage.enums import GoalDecider, GoalHindrance

LEADS: Final = (0.5, 0.25, 0.0)
"""When a file is taken up, as a part of the age that its dead bytes may reach: the laziest first."""

RATES: Final = (0.125, 0.25, 0.5, 1.0)
"""Parts of what may be copied a second: the slowest first."""

IDLE_LEAD: Final = 0.25
"""The same for a disk that nobody else uses. Not 0: what dies together need not be copied in between."""

STEPS: Final = 160
"""Steps of a simulation."""

STEP_MILLIS_MIN: Final = 60_000
HORIZON_MILLIS: Final = 24 * 3_600_000
"""How far ahead is looked, at least; else twice as far as a byte may be dead."""

MARGIN: Final = 0.9
"""Of what a goal allows this much is used: what is decided acts a moment later, on figures of a moment before."""

RATE_UNKNOWN: Final = 10 << 20
"""Bytes a second that a disk is taken to copy where no limit is set and nothing was measured yet."""

RUN_SECONDS: Final = 600
"""What a run takes at most, about: then what has changed meanwhile is looked at anew."""

Spans = Sequence[tuple[int, int]]
"""When rewrites are permitted: moments, in order, from and to."""


Bound = Literal["diskToLive", "maxDeadAge"]
"""Which of the goals."""


class Hindrance(NamedTuple):
    """Why a file is not to be rewritten, and what would help."""

    kind: GoalHindrance
    reason: str
    helps: str


class DeadFile(NamedTuple):
    """A file with bytes that compaction may give back. The oldest of them died at `since_millis` or later; it gives so
    many back, for so many copied, unless something hinders it. `known_millis`: since when one of them has been dead for
    certain, where that is less than may be; 0: the same.
    """

    resource: int
    since_millis: int
    gives_bytes: int
    copies_bytes: int
    hindrance: Hindrance | None = None
    known_millis: int = 0

    @property
    def certain_millis(self) -> int:
        """Since when its oldest dead byte has been dead at the least: what a miss is told by."""
        return self.known_millis or self.since_millis


class GoalSight(NamedTuple):
    """All that a decision is made of. `dead_per_second` is what comes to be given back, `copies_per_dead` what that
    costs; `copied_per_second` is what rewrites were seen to do at their fastest, 0: unknown. `spans` reach as far as
    `horizon` says.
    """

    millis: int
    goal: GoalSettings
    files: Sequence[DeadFile]
    live_bytes: int
    dead_bytes: int
    bytes_per_second: int
    spans: Spans
    dead_per_second: float = 0.0
    copies_per_dead: float = 1.0
    copied_per_second: float = 0.0
    is_idle: bool = False


class Miss(NamedTuple):
    """That a goal will not be held: which, from when on, why, and what would help."""

    millis: int
    goal: Bound
    hindrance: Hindrance


class GoalDecision(NamedTuple):
    """Which files are taken now, in order, how fast, and what is to be expected. `rate` 0: nothing is to be done."""

    chosen: tuple[int, ...] = ()
    rate: int = 0
    decider: GoalDecider = GoalDecider.NOBODY
    miss: Miss | None = None


def horizon(goal: GoalSettings) -> int:
    """How far ahead a decision looks."""
    return max(HORIZON_MILLIS, 2 * int(goal.max_dead_age or 0))


def decide(seen: GoalSight) -> GoalDecision:
    """The laziest and slowest way to hold the goals; where there is none, all that may be done, and why it won't do."""
    free = [file for file in seen.files if file.hindrance is None]
    full = _full_rate(seen)
    waiting = _together(free, _step(seen))
    lead, rate, ahead = _way(seen, waiting, full)
    if seen.is_idle and seen.goal.max_dead_age is not None:
        lead, rate = min(lead, IDLE_LEAD), full
    chosen = _chosen(seen, free, lead, rate)
    misses = [*_hindered(seen), *_foreseen(seen, free, waiting, ahead)]
    miss = min(misses, key=lambda each: each.millis, default=None)
    decider = GoalDecider.GOAL if chosen else GoalDecider.NOBODY
    if not chosen and miss is not None and miss.hindrance.kind == GoalHindrance.LIMIT:
        decider = GoalDecider.THRESHOLDS
    return GoalDecision(tuple(chosen), rate if chosen else 0, decider, miss)


_Waiting = Sequence[tuple[int, int, int]]
"""What waits, in order: since when, what it gives and what it costs."""


def _step(seen: GoalSight) -> int:
    """Of a simulation."""
    return max(STEP_MILLIS_MIN, horizon(seen.goal) // STEPS)


def _together(files: Iterable[DeadFile], step: int) -> _Waiting:
    """Those of about the same age as one, as old as the oldest of them: there may be a hundred thousand."""
    found: dict[int, tuple[int, int, int]] = {}
    for file in files:
        since, gives, copies = found.get(file.since_millis // step, (file.since_millis, 0, 0))
        found[file.since_millis // step] = (
            min(since, file.since_millis),
            gives + file.gives_bytes,
            copies + file.copies_bytes,
        )
    return sorted(found.values())


def _way(seen: GoalSight, waiting: _Waiting, full: int) -> tuple[float, int, "_Ahead"]:
    """The laziest and slowest that will do, and what comes of it; where something is late already, nothing is slow."""
    ways = [(lead, max(1, int(full * part))) for part in RATES for lead in LEADS]
    until = seen.millis + horizon(seen.goal)
    share = _permitted(seen.spans, seen.millis, until) / (until - seen.millis)
    least = min(full, seen.dead_per_second * seen.copies_per_dead / MARGIN / max(share, 0.001))
    for lead, rate in ways:
        if rate < least:
            continue  # what waits would grow, to be missed beyond what is looked at
        ahead = _ahead(seen, waiting, lead, rate)
        if ahead.missed is None and (not ahead.is_behind or rate == full):
            return lead, rate, ahead
    return *ways[-1], _ahead(seen, waiting, *ways[-1])


def _full_rate(seen: GoalSight) -> int:
    """The most that may be copied a second, and can be as far as was seen."""
    known = int(seen.copied_per_second)
    allowed = seen.bytes_per_second or known or RATE_UNKNOWN
    return max(1, min(allowed, known) if known else allowed)


def _dead_max(seen: GoalSight) -> int | None:
    """Dead bytes that the bound of disk / live allows."""
    bound = seen.goal.disk_to_live
    return None if bound is None else int((bound - 1) * seen.live_bytes)


def _chosen(seen: GoalSight, free: Iterable[DeadFile], lead: float, rate: int) -> list[int]:
    """Once a file's time has come: it and those of half its age, the oldest first, so that outputs are filled. Then
    those that give most for what they cost, as many as disk / live asks for. No more than a run has time for.
    """
    age = int(seen.goal.max_dead_age or 0)
    files = sorted(free, key=lambda file: (file.since_millis, file.resource))
    chosen: list[DeadFile] = []
    if age and files and seen.millis - files[0].since_millis >= lead * age:
        chosen = [file for file in files if seen.millis - file.since_millis >= lead * age / 2]
    bound = _dead_max(seen)
    if bound is not None:
        excess = seen.dead_bytes + seen.dead_per_second * _gap(seen) / 1000 - MARGIN * bound
        excess -= sum(file.gives_bytes for file in chosen)
        taken = {file.resource for file in chosen}
        rest = [file for file in files if file.resource not in taken]
        for file in sorted(rest, key=lambda each: (each.copies_bytes / max(1, each.gives_bytes), each.since_millis)):
            if excess <= 0:
                break
            chosen.append(file)
            excess -= file.gives_bytes
    budget = rate * RUN_SECONDS
    fitting: list[int] = []
    for file in chosen:
        fitting.append(file.resource)
        budget -= file.copies_bytes
        if budget <= 0:
            break
    return fitting


def _gap(seen: GoalSight) -> int:
    """How long nothing can be given back after the present opening: what dies meanwhile must have room."""
    ends = [end for start, end in seen.spans if start <= seen.millis < end]
    if not ends:
        return 0
    later = [start for start, _ in seen.spans if start > ends[0]]
    last = seen.millis + horizon(seen.goal)
    return max(0, min(later, default=last) - ends[0]) if ends[0] < last else 0


class _Batch:
    """Bytes that died together, in the simulation."""

    __slots__ = ("copies", "gives", "since")

    def __init__(self, since: float, gives: float, copies: float) -> None:
        self.since, self.gives, self.copies = since, gives, copies


class _Ahead(NamedTuple):
    """What a simulation finds: when a goal that is held now is missed, and which; whether one is missed now, and when
    it is held again (0: not as far as is looked).
    """

    missed: tuple[int, Bound] | None
    is_behind: bool
    held_millis: int


def _ahead(seen: GoalSight, now_waiting: _Waiting, lead: float, rate: float) -> _Ahead:
    """What comes of rewrites that go on like this."""
    age = None if seen.goal.max_dead_age is None else int(seen.goal.max_dead_age)
    bound = _dead_max(seen)
    waiting = deque(_Batch(*each) for each in now_waiting)
    dead = float(seen.dead_bytes)
    is_full = bound is not None and dead > bound
    is_late = age is not None and bool(waiting) and waiting[0].since + age < seen.millis
    is_behind, held = is_full or is_late, 0
    step = _step(seen)
    for at in range(seen.millis, seen.millis + horizon(seen.goal), step):
        end = at + step
        came = seen.dead_per_second * step / 1000
        dead += came
        if came:
            waiting.append(_Batch(at, came, came * seen.copies_per_dead))
        is_wanted = _wanting(bound, dead, age, lead, end)
        dead -= _served(waiting, rate * _permitted(seen.spans, at, end) / 1000, is_wanted)
        due = None if age is None or not waiting else int(waiting[0].since + age)
        # What is late at the beginning is told as that, and no miss that lies ahead.
        is_late = is_late and due is not None and due < seen.millis
        is_full = is_full and bound is not None and dead > bound
        if due is not None and not is_late and due < at:
            return _Ahead((max(seen.millis, due), "maxDeadAge"), is_behind, held)
        if bound is not None and not is_full and dead > bound:
            return _Ahead((at, "diskToLive"), is_behind, held)
        if not held and not is_late and not is_full:
            held = end
    return _Ahead(None, is_behind, held)


def _wanting(
    bound: int | None, dead: float, age: int | None, lead: float, millis: int
) -> Callable[[_Batch, float], bool]:
    """Whether a batch is to be given back at that moment, after so many bytes of others were."""

    def is_wanted(batch: _Batch, given: float) -> bool:
        is_old = age is not None and millis - batch.since >= lead * age
        return is_old or (bound is not None and dead - given > MARGIN * bound)

    return is_wanted


def _served(waiting: deque[_Batch], budget: float, is_wanted: Callable[[_Batch, float], bool]) -> float:
    """Give back what is wanted for so many bytes copied; how many came back."""
    given = 0.0
    while waiting and (budget > 0 or not waiting[0].copies) and is_wanted(waiting[0], given):
        batch = waiting[0]
        if batch.copies <= budget:
            given += batch.gives
            budget -= batch.copies
            waiting.popleft()
            continue
        part = budget / batch.copies
        given += batch.gives * part
        batch.gives *= 1 - part
        batch.copies -= budget
        budget = 0
    return given


def _permitted(spans: Spans, since: int, until: int) -> int:
    """For how long of this time rewrites are permitted."""
    return sum(max(0, min(end, until) - max(start, since)) for start, end in spans)


def _hindered(seen: GoalSight) -> list[Miss]:
    """What files that may not be rewritten are going to miss: their age, and the room that they take."""
    held = [file for file in seen.files if file.hindrance is not None]
    misses = []
    age, bound = seen.goal.max_dead_age, _dead_max(seen)
    last = seen.millis + horizon(seen.goal)
    for file in held:
        assert file.hindrance is not None
        if age is not None and file.certain_millis + int(age) < last:
            misses.append(Miss(max(seen.millis, file.certain_millis + int(age)), "maxDeadAge", file.hindrance))
    kept = sum(file.gives_bytes for file in held)
    if bound is not None and kept > bound:
        most = max(held, key=lambda file: file.gives_bytes)
        assert most.hindrance is not None
        misses.append(Miss(seen.millis, "diskToLive", most.hindrance))
    return misses


def _foreseen(seen: GoalSight, free: Sequence[DeadFile], waiting: _Waiting, ahead: _Ahead) -> Iterator[Miss]:
    """What is missed now, and what is going to be though everything is done that may be: what would have to change."""
    bound = _dead_max(seen)
    age = int(seen.goal.max_dead_age or 0)
    is_full = bound is not None and seen.dead_bytes > bound
    is_late = age > 0 and any(file.certain_millis + age < seen.millis for file in free)
    which: Bound = "diskToLive" if is_full else "maxDeadAge"
    if ahead.is_behind and ahead.held_millis and (is_full or is_late):
        why = "what was dead before is being given back"
        yield Miss(seen.millis, which, Hindrance(GoalHindrance.BACKLOG, why, "nothing: it takes its time"))
    if ahead.missed is None and (not ahead.is_behind or ahead.held_millis):
        return
    millis, which = ahead.missed or (seen.millis, which)
    yield Miss(millis, which, _hindrance(seen, waiting))


def _hindrance(seen: GoalSight, waiting: _Waiting) -> Hindrance:
    """What is in the way: that without which the goal would be held."""
    full = _full_rate(seen)
    open_always = seen._replace(spans=((seen.millis, seen.millis + horizon(seen.goal)),))

    def is_held(rate: float) -> bool:
        ahead = _ahead(open_always, waiting, 0.0, rate)
        return ahead.missed is None and (not ahead.is_behind or ahead.held_millis > 0)

    if is_held(full):
        why = "windows permit too little time for what dies"
        return Hindrance(GoalHindrance.WINDOW, why, "longer or more windows for Rewrite")
    if seen.bytes_per_second and full >= seen.bytes_per_second and is_held(1000.0 * full):
        why = f"spec.compaction.bytesPerSecond ({seen.bytes_per_second}) is too little for what dies"
        return Hindrance(GoalHindrance.LIMIT, why, "a higher spec.compaction.bytesPerSecond")
    why = f"more dies than the disk copies ({full} bytes a second)"
    return Hindrance(GoalHindrance.DISK, why, "faster or more disks, or a looser goal")
