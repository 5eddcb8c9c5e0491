"""Goals are held under four loads, for a simulated day through the real engine, or the miss is told long before."""

import os
from typing import Any

import pytest

from tests.engine.reclaim.goalworld import HOUR, KB, LOADS, MB, World, settings
from tests.support import Workshop, claim_of, committing
from ullage.contract import Duration, GoalSettings, MaintenanceOperation, PunchSettings, Window
from ullage.engine.reclaim import goalkeeper
from ullage.enums import GivenBack, GoalDecider, GoalHindrance

FULL = bool(os.environ.get("ULLAGE_GOAL_FULL"))
STEP_SECONDS = 60 if FULL else 900
HOURS = 24.0 if FULL else 8.0
"""A day, looked at each minute, with `make goal-full`; here a third of one, a quarter of an hour at a time."""

MANNERS = [(load, is_busy) for load in LOADS for is_busy in (True, False) if FULL or is_busy or load == "steady"]
BOUNDED = list(LOADS) if FULL else ["steady", "one hot queue"]

AGE = GoalSettings(max_dead_age=Duration(3 * HOUR))
RATIO = GoalSettings(disk_to_live=1.4)
HALF_HOUR = HOUR // 2


@pytest.mark.parametrize(("load", "is_busy"), MANNERS)
def test_no_byte_is_dead_for_longer_than_the_goal_allows(
    workshop: Workshop, load: str, is_busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest there ever was is younger; and nothing was foreseen that did not come. A disk that others use is left
    alone for as long as that will do.
    """
    if is_busy:
        monkeypatch.setattr(goalkeeper, "IDLE_TRANSACTIONS", 0.0)
    world = World(workshop, 1, STEP_SECONDS, **settings(AGE))

    seen = world.live(HOURS, LOADS[load])

    assert 0 < seen.oldest_millis <= 3 * HOUR
    assert seen.alarms == []
    print(f"{load}: oldest {seen.oldest_millis / HOUR:.2f} h, copied {seen.copied_bytes / seen.put_bytes:.2f} of put")


@pytest.mark.parametrize("load", BOUNDED)
def test_the_disk_holds_no_more_than_the_goal_allows(workshop: Workshop, load: str) -> None:
    """Once there is enough that lives to speak of a ratio; what a burst leaves is back within the hour."""
    world = World(workshop, 2, STEP_SECONDS, **settings(RATIO, bytes_per_second=256 * KB))
    seen = world.live(HOURS - 1, LOADS[load])

    settled = seen.ratios[len(seen.ratios) // 3 :]
    over = [ratio for ratio in settled if ratio > 1.4]
    assert len(over) * STEP_SECONDS <= len(settled) * STEP_SECONDS / 12
    assert seen.ratios[-1] <= 1.4
    print(f"{load}: at most {max(settled):.2f}, copied {seen.copied_bytes / seen.put_bytes:.2f} of put")


def test_without_a_goal_the_same_load_leaves_older_bytes(workshop: Workshop) -> None:
    """Thresholds alone hold no age: what the goal does is the goal's doing."""
    world = World(workshop, 1, STEP_SECONDS, **settings(GoalSettings(), max_live_fraction=0.3))
    seen = world.live(8, LOADS["steady"])
    assert seen.oldest_millis > 3 * HOUR
    assert seen.misses == []


def test_what_the_goal_takes_later_has_its_date(workshop: Workshop) -> None:
    """Dead bytes that are too young for the goal come back by it: not by themselves is said of none."""
    world = World(workshop, 6, 300, **settings(AGE))
    world.put(*["q", "kept"] * 10)
    world.live(0.2, lambda world, number: world.drop("q", 10) if number == 0 else None)

    coming = world.repository.account.forecast(world.repository.spec)

    assert {each.when for each in coming} == {GivenBack.NEXT_RUN}
    assert {each.reason for each in coming} == {"spec.compaction.goal"}
    assert all(abs(each.latest_millis - (world.began + 3 * HOUR)) <= 300_000 for each in coming)
    world.live(world.hours + 3, lambda *_: None)
    assert world.repository.account.forecast(world.repository.spec) == []


def test_after_a_start_files_are_as_old_as_they_may_be(workshop: Workshop) -> None:
    """What died before is not known to be young: it is taken at once, and nobody is alarmed."""
    world = World(workshop, 7, 300, **settings(AGE))
    world.put(*["q", "kept"] * 10)
    world.live(4, lambda world, number: None)
    world.drop("q", 10)

    repository = workshop.reopen()
    decision = repository.compactor.goal.look(repository.spec, repository.reclamation.survey())

    assert len(decision.chosen) == 1
    assert decision.miss is None


def test_a_single_block_comes_back_too_and_guards_are_asked_once(workshop: Workshop) -> None:
    """What is worth no run by itself; and minReclaim is about all there is, not about what is taken now."""
    world = World(workshop, 8, 300, **settings(AGE, min_reclaim=1, output_size=MB))
    repository = world.repository
    with committing(repository) as session:
        session.ingest("dies", [bytes(8 * KB)])
        session.ingest("kept", [bytes(150 * KB)] * 10)
    for _ in range(10):
        with committing(repository) as session:
            for _ in range(3):
                session.ingest("later", [bytes(150 * KB)])
                session.ingest("kept", [bytes(20 * KB)])

    def load(world: World, number: int) -> None:
        if number == 0:
            world.drop("dies", 1)
        if number == 10:
            world.drop("later", 30)

    seen = world.live(1.4, load)

    assert 0 < seen.oldest_millis < 1.2 * HOUR
    assert 1500 * KB <= seen.copied_bytes < 1600 * KB
    assert seen.alarms[:1] == [] or seen.alarms[0][1].hindrance.kind == GoalHindrance.LIMIT


def test_a_lease_in_the_way_is_told_half_an_hour_before(workshop: Workshop) -> None:
    """By what it is, and when; let go, it is over."""
    world = World(workshop, 3, 300, **settings(AGE), leases={"max_duration": Duration(24 * HOUR)})
    repository = world.repository
    world.put(*["q"] * 20)
    [first] = repository.queue("q").records()[:1]
    lease = repository.leases.acquire("reader", 20 * HOUR, [claim_of(first).resource])

    def once(world: World, number: int) -> None:
        if number == 0:
            world.drop("q", 10)

    seen = world.live(2.4, once)
    assert seen.alarms
    moment, miss = seen.alarms[0]
    assert (miss.goal, miss.hindrance.kind) == ("maxDeadAge", GoalHindrance.HOLDER)
    assert miss.millis - moment >= HALF_HOUR
    assert abs(miss.millis - (world.began + 3 * HOUR)) <= 600_000

    repository.leases.revoke(lease.id)
    before = len(seen.alarms)
    world.live(world.hours + 2, lambda *_: None)
    assert len(seen.alarms) <= before + 1
    assert seen.oldest_millis <= 3 * HOUR + 600_000


def test_windows_that_are_too_short_are_told_half_an_hour_before(workshop: Workshop) -> None:
    """What dies when the window has closed is going to be too old before it opens again."""
    night = Window(
        name="night",
        schedule="0 22 * * *",
        duration=Duration(HOUR),
        operations=(MaintenanceOperation.PUNCH, MaintenanceOperation.REWRITE),
    )
    world = World(workshop, 4, 900, **settings(AGE), maintenance={"windows": (night,)})
    seen = world.live(6, LOADS["steady"])

    moment, miss = seen.alarms[0]
    assert miss.hindrance.kind == GoalHindrance.WINDOW
    assert miss.millis - moment >= HALF_HOUR
    assert seen.oldest_millis > 3 * HOUR  # and so it came


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"max_live_fraction": 0.01}, "maxLiveFraction"),
        ({"min_used_percentage": 99}, "minUsedPercentage"),
        ({"min_reclaim": 1000}, "minReclaim"),
        ({"triggers": ()}, "trigger Periodic"),
    ],
)
def test_thresholds_hold_and_are_named(workshop: Workshop, more: dict[str, Any], words: str) -> None:
    """The goal passes over none of them: nothing is copied, and the status says which decided."""
    sections = settings(AGE, **more)
    sections["compaction"]["punch"] = PunchSettings(enabled=False)
    world = World(workshop, 5, 900, **sections)
    seen = world.live(3, LOADS["steady"])
    figures = world.repository.compactor.goal.figures

    assert seen.copied_bytes == 0
    assert figures is not None
    assert figures.decision.decider == GoalDecider.THRESHOLDS
    assert figures.decision.miss is not None
    assert words in figures.decision.miss.hindrance.reason
