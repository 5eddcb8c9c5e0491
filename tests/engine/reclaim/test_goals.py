"""What is decided for a goal, and what is foreseen: of numbers alone."""

from typing import Any

import pytest

from ullage.contract import Duration, GoalSettings
from ullage.engine.reclaim.goals import (
    LEADS,
    RATES,
    DeadFile,
    GoalDecision,
    GoalSight,
    Hindrance,
    decide,
    horizon,
)
from ullage.enums import GoalDecider, GoalHindrance

NOW = 1_700_000_000_000
HOUR = 3_600_000
MB = 1 << 20
DAY = GoalSettings(max_dead_age=Duration(24 * HOUR))
TIGHT = GoalSettings(disk_to_live=1.2)
LIMIT = Hindrance(GoalHindrance.LIMIT, "below a threshold", "another threshold")
LEASE = Hindrance(GoalHindrance.HOLDER, "leased", "releasing it")


def file(number: int, hours: float, gives: int = MB, copies: int = MB, hindrance: Hindrance | None = None) -> DeadFile:
    """One whose oldest byte has been dead for so long."""
    return DeadFile(number, NOW - int(hours * HOUR), gives, copies, hindrance)


def sight(*files: DeadFile, goal: GoalSettings = DAY, spans: Any = None, **more: Any) -> GoalSight:
    """Open all the time, at 1 MiB a second, with nothing else dying."""
    seen = GoalSight(
        millis=NOW,
        goal=goal,
        files=files,
        live_bytes=1000 * MB,
        dead_bytes=sum(each.gives_bytes for each in files),
        bytes_per_second=MB,
        spans=((NOW, NOW + horizon(goal)),) if spans is None else spans,
    )
    return seen._replace(**more)


def test_what_is_young_is_left_alone() -> None:
    """It may die yet, and would be copied for nothing; so is everything where nothing is dead."""
    assert decide(sight()) == GoalDecision()
    assert decide(sight(file(1, 0), file(2, 11))) == GoalDecision()


def test_when_the_first_comes_to_its_time_others_go_with_it() -> None:
    """Half its age and more, the oldest first, at the slowest rate that will do; what is younger waits."""
    decision = decide(sight(file(1, 7), file(2, 13), file(3, 5), file(4, 12)))

    assert decision.chosen == (2, 4, 1)
    assert decision.rate == MB * RATES[0]
    assert (decision.decider, decision.miss) == (GoalDecider.GOAL, None)


def test_more_that_dies_makes_it_faster_then_earlier() -> None:
    """The slowest with which nothing is missed; with a disk nobody else uses, at once at the full rate."""
    rates = []
    for dead_per_second in (0.1 * MB, 0.2 * MB, 0.4 * MB, 0.9 * MB):
        decision = decide(sight(file(1, 20), dead_per_second=dead_per_second))
        assert decision.miss is None
        rates.append(decision.rate)
    assert rates == [int(MB * part) for part in RATES]

    early = sight(file(1, 0.3 * 24), is_idle=True)
    assert decide(early._replace(is_idle=False)).chosen == ()
    assert (decide(early).chosen, decide(early).rate) == ((1,), MB)


def test_before_a_long_night_without_a_window_more_is_taken() -> None:
    """What would come to its time while nothing is permitted is taken while something is."""
    waits = sight(file(1, 0.4 * 24))
    closing = waits._replace(spans=((NOW, NOW + HOUR), (NOW + 20 * HOUR, NOW + 48 * HOUR)))

    assert decide(waits).chosen == ()
    assert (decide(closing).chosen, decide(closing).miss) == ((1,), None)
    assert LEADS[1] * 24 < 0.4 * 24 < LEADS[0] * 24


@pytest.mark.parametrize(
    ("changed", "kind", "helps"),
    [
        ({"spans": ((NOW, NOW + HOUR // 60),)}, GoalHindrance.WINDOW, "windows"),
        ({"dead_per_second": 3.0 * MB}, GoalHindrance.LIMIT, "bytesPerSecond"),
        ({"dead_per_second": 3.0 * MB, "copied_per_second": MB / 2}, GoalHindrance.DISK, "disks"),
    ],
)
def test_a_miss_is_foreseen_with_what_is_in_the_way(changed: Any, kind: GoalHindrance, helps: str) -> None:
    """Long before: it names the moment, and what would have to be different."""
    seen = sight(file(1, 1), file(2, 2, copies=10 * MB, gives=10 * MB))._replace(**{"dead_per_second": 1.0, **changed})

    miss = decide(seen).miss

    assert miss is not None
    assert (miss.goal, miss.hindrance.kind) == ("maxDeadAge", kind)
    assert helps in miss.hindrance.helps
    assert NOW + HOUR < miss.millis <= NOW + 48 * HOUR


def test_what_thresholds_and_leases_keep_is_foreseen_and_left_alone() -> None:
    """With the time of the first, in its words; and the status can say that thresholds decided."""
    kept = decide(sight(file(1, 20, hindrance=LIMIT), file(2, 3, hindrance=LEASE)))
    both = decide(sight(file(1, 20, hindrance=LEASE), file(2, 13)))

    assert kept.miss is not None
    assert (kept.chosen, kept.decider) == ((), GoalDecider.THRESHOLDS)
    assert (kept.miss.millis, kept.miss.hindrance) == (NOW + 4 * HOUR, LIMIT)
    assert both.miss is not None
    assert (both.chosen, both.decider, both.miss.hindrance) == ((2,), GoalDecider.GOAL, LEASE)


def test_a_bound_of_disk_to_live_takes_what_gives_most() -> None:
    """As many files as it asks for, the cheapest first, before it is reached; below that none."""
    full = sight(
        file(1, 1, gives=60 * MB, copies=60 * MB),
        file(2, 1, gives=60 * MB, copies=10 * MB),
        file(3, 1, gives=75 * MB, copies=50 * MB),
        goal=TIGHT,
    )
    decision = decide(full)
    assert (decision.chosen, decision.decider, decision.miss) == ((2,), GoalDecider.GOAL, None)
    assert decide(full._replace(dead_bytes=150 * MB)) == GoalDecision()


def test_what_was_dead_before_is_a_backlog_and_no_failure() -> None:
    """A goal that is set on an old repository is missed now: it says so, hurries, and expects to hold it."""
    old = decide(sight(file(1, 400), file(2, 300)))
    assert old.miss is not None
    assert (old.chosen, old.rate) == ((1, 2), MB)
    assert (old.miss.millis, old.miss.hindrance.kind) == (NOW, GoalHindrance.BACKLOG)

    full = decide(sight(*(file(number, 1, 50 * MB, 10 * MB) for number in range(8)), goal=TIGHT))
    assert full.miss is not None
    assert (full.miss.goal, full.miss.hindrance.kind) == ("diskToLive", GoalHindrance.BACKLOG)


def test_a_bound_makes_it_do_more_and_tells_of_no_miss() -> None:
    """After a start: what may be old is taken at once, and is no backlog unless it is known to be."""
    unsure = file(1, 400)._replace(known_millis=NOW - HOUR)
    kept = file(2, 400, hindrance=LIMIT)._replace(known_millis=NOW - HOUR)

    decision = decide(sight(unsure, kept))

    assert decision.chosen == (1,)
    assert decision.miss is not None
    assert (decision.miss.millis, decision.miss.hindrance) == (NOW + 23 * HOUR, LIMIT)
    assert decide(sight(unsure)).miss is None


def test_a_run_is_short_enough_to_think_again() -> None:
    """What is chosen at once is bounded by time, whatever waits."""
    decision = decide(sight(*(file(number, 23, copies=100 * MB) for number in range(500))))
    assert decision.rate == MB
    assert len(decision.chosen) == 6


@pytest.mark.parametrize("goal", [DAY, TIGHT, GoalSettings(disk_to_live=1.5, max_dead_age=Duration(HOUR))])
@pytest.mark.parametrize("count", [0, 1, 500])
def test_nothing_hindered_is_ever_chosen(goal: GoalSettings, count: int) -> None:
    """And nothing twice, and never faster than the limit."""
    files = [file(number, number % 50, hindrance=(None, LIMIT, LEASE)[number % 3]) for number in range(count)]
    decision = decide(sight(*files, goal=goal, dead_per_second=100.0))
    assert all(number % 3 == 0 for number in decision.chosen)
    assert len(set(decision.chosen)) == len(decision.chosen)
    assert decision.rate <= MB


def test_many_small_files_are_foreseen_as_one_large_one_is() -> None:
    """What waits since about the same time is weighed together, so that a hundred thousand files cost no minutes."""
    small = decide(sight(*(file(number, 20 + number / 60_000, 100 * MB, 100 * MB) for number in range(500))))
    large = decide(sight(file(1, 20, 50_000 * MB, 50_000 * MB)))

    assert small.miss is not None
    assert large.miss is not None
    assert (small.rate, small.miss.hindrance) == (large.rate, large.miss.hindrance)
    assert abs(small.miss.millis - large.miss.millis) <= HOUR // 2
