"""What a forecast tells is kept: through the real engine on a clock that the test moves, for each kind of dead byte.

A world is made that has dead bytes of one kind, or of several, its forecast is asked for at a moment of no meaning, and
then time goes on with nothing else happening. At each run: no more has come back than what may, and no less than what
must have.
"""

import os
import random
from collections import Counter
from typing import Any, Final

import pytest

from tests.engine.reclaim.test_orphans import leave_orphan
from tests.engine.reclaim.test_permission import LOOSE, leave_dead
from tests.engine.reclaim.test_returns import TASKS, dead_bytes
from tests.support import Workshop, claim_of, committing, containers, put_all
from ullage.contract import (
    Calendar,
    Duration,
    GoalSettings,
    MaintenanceOperation,
    PunchSettings,
    Quantity,
    Window,
)
from ullage.engine.engine import Engine
from ullage.engine.maintenance import MaintenanceRunner
from ullage.engine.reclaim.returns import ExpectedReturn, TaskTime
from ullage.enums import GivenBack, SpaceUse

KB, MB, MINUTE, HOUR = 1 << 10, 1 << 20, 60_000, 3_600_000
FULL: Final = bool(os.environ.get("ULLAGE_GOAL_FULL"))
SEEDS: Final = range(20 if FULL else 1)
"""With `make goal-full` twenty worlds of each kind."""

REWRITES: Final = {**LOOSE["compaction"], "bytes_per_second": Quantity(4 * MB)}
RARELY: Final = Duration(10 * MINUTE)
"""How often the archive is cleaned here: what is not looked at each minute is cheap to try for hours."""


class World:
    """One repository, its tasks run a little late each, and what was told of it."""

    def __init__(self, workshop: Workshop, seed: int, **sections: Any) -> None:
        self.random = random.Random(seed)
        self.workshop = workshop
        archive = {"enabled": False, **sections.pop("archive", {}), "cleanup_frequency": RARELY}
        self.sections = {"storage": containers(c1=64 * MB), **LOOSE, "compaction": REWRITES, **sections}
        self.sections["archive"] = archive
        self.open(workshop.make(**self.sections))

    def open(self, repository: Engine) -> None:
        """Its tasks begin."""
        self.repository = repository
        repository.reclamation.permit(Calendar(repository.spec.maintenance).permission)
        self.upkeep = MaintenanceRunner(repository)
        self.upkeep.run_due()

    @property
    def now(self) -> int:
        return self.workshop.clock.now_millis()

    def pass_time(self, millis: float) -> None:
        """Until a moment, each run up to a second late."""
        while (left := millis - self.now) > 0:
            times = self.upkeep.times()
            due = min(times[name].due_millis for name in TASKS)
            late = self.random.random() * 0.99
            self.workshop.clock.advance(min(left / 1000, max(0, due - self.now) / 1000 + late))
            self.upkeep.run_due()
        assert self.upkeep.failures == []

    def settle(self) -> None:
        """Up to a moment of no meaning; what sessions left open is closed, as every run begins by doing."""
        self.pass_time(self.now + self.random.randrange(90 * MINUTE))
        self.repository.content.retire_idle()
        self.repository.reclamation.plan_truncation()

    def forecast(self) -> list[ExpectedReturn]:
        return self.repository.account.forecast(self.repository.spec)

    def keep(self, told: list[ExpectedReturn], hours: float = 2.5) -> None:
        """Time goes on, and what was told is what comes; how much of it had a latest is said."""
        end, asked = self.now + int(hours * HOUR), self.now
        assert told
        dated = sum(each.bytes for each in told if each.latest_millis)
        print(f"{sum(each.bytes for each in told)} bytes told, {dated} of them with a latest")
        while self.now < end:
            times = self.upkeep.times()
            due = min(times[name].due_millis for name in TASKS)
            self.pass_time(min(end, max(due, self.now) + 1 + self.random.randrange(1000)))
            left = dead_bytes(self.repository)
            may = [each for each in told if not 0 < each.earliest_millis <= self.now]
            must = [each for each in told if 0 < each.latest_millis <= self.now]
            assert left >= sum(each.bytes for each in may), (self.now - asked, left, shown(told, asked))
            still = sum(each.bytes for each in told) - sum(each.bytes for each in must)
            assert left <= still, (self.now - asked, left, shown(told, asked))


def shown(told: list[ExpectedReturn], asked: int) -> list[tuple[object, ...]]:
    """For people who read of a failure: minutes from when it was told."""
    return [
        (
            each.use,
            each.when,
            each.action.name,
            each.bytes,
            (each.earliest_millis - asked) / MINUTE if each.earliest_millis else 0,
            (each.latest_millis - asked) / MINUTE if each.latest_millis else 0,
        )
        for each in told
    ]


def window_of(number: random.Random) -> Window:
    """Open for some hours each day, or now and then for some minutes."""
    hour = number.randrange(24)
    schedule, hours = number.choice([(f"30 {hour} * * *", 4.0), ("10 */3 * * *", 1.5), ("*/45 * * * *", 0.3)])
    return Window(
        name="night", schedule=schedule, duration=Duration(int(hours * HOUR)), operations=tuple(MaintenanceOperation)
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("punches", [False, True] if FULL else [True])
def test_what_is_due_comes_within_the_times_told(workshop: Workshop, seed: int, punches: bool) -> None:
    """Whole files, tails that compaction may take before truncation does, and middles."""
    punch = PunchSettings(enabled=punches)
    world = World(workshop, seed, compaction={**REWRITES, "punch": punch})
    world.settle()
    leave_dead(world.repository)
    for number in range(3):
        with committing(world.repository) as session:  # a dead middle and a dead tail
            session.ingest("keep", [bytes([number]) * (40 * KB)])
            session.ingest("drop", [bytes([number]) * (900 * KB)])
            session.ingest("keep", [bytes([number]) * (40 * KB)])
            session.ingest("drop", [bytes([number]) * (1500 * KB)])
    world.repository.queues.drop(world.repository.queue("drop"))

    told = world.forecast()

    assert {each.when for each in told} <= {GivenBack.NEXT_RUN, GivenBack.NOW, GivenBack.NOT_BY_ITSELF}
    assert sum(each.bytes for each in told if each.latest_millis) > 0
    world.keep(told)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("is_paced", [False, True] if FULL else [True])
def test_out_of_hours_too(workshop: Workshop, seed: int, is_paced: bool) -> None:
    """Windows of any length: what no run is sure to fall into has no latest."""
    maintenance = {"windows": (window_of(random.Random(f"{seed} {is_paced}")),)}
    compaction = {**REWRITES, "bytes_per_second": Quantity(4 * MB if is_paced else 0)}
    world = World(workshop, seed, maintenance=maintenance, compaction=compaction)
    world.settle()
    leave_dead(world.repository)
    world.keep(world.forecast(), 6)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("is_archived", [False, True])
def test_what_passes_the_archive_comes_a_retention_later(workshop: Workshop, seed: int, is_archived: bool) -> None:
    """What the next cleaning archives, and what it has archived."""
    archive = {"enabled": True, "max_retention_period": Duration(2 * HOUR)}
    world = World(workshop, seed, archive=archive)
    world.settle()
    for size in (2 * MB, 300 * KB):
        put_all(world.repository, "q", [bytes(size)])
    world.repository.content.retire_idle()
    world.repository.queues.drop(world.repository.queue("q"))
    if is_archived:
        world.pass_time(world.now + 11 * MINUTE)

    told = world.forecast()

    assert {each.use for each in told} == {SpaceUse.ARCHIVE if is_archived else SpaceUse.DUE}
    assert all(each.latest_millis for each in told)
    world.keep(told, 4)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("has_archive", [False, True] if FULL else [True])
@pytest.mark.parametrize("manner", ["at once", "one after the other", "beside what stays"])
def test_deleted_handles_come_after_their_retention_and_then_the_archive(
    workshop: Workshop, seed: int, has_archive: bool, manner: str
) -> None:
    """A file of theirs alone goes the way of all files; of one whose handles were deleted at different times the first
    may come back by itself.
    """
    archive = {"enabled": has_archive, "max_retention_period": Duration(2 * HOUR)}
    retention = {"deleted_retention": Duration(4 * HOUR)}
    world = World(workshop, seed, archive=archive, compaction={**REWRITES, **retention})
    world.settle()
    count = 5 if manner == "beside what stays" else 4
    handles = world.repository.handles.put_many([bytes([number]) * (300 * KB) for number in range(count)])
    world.repository.content.retire_idle()
    for handle in handles[:4]:
        if manner == "one after the other":
            world.pass_time(world.now + 30 * MINUTE)
        world.repository.handles.delete(handle)
    world.settle()

    told = [each for each in world.forecast() if each.use == SpaceUse.TOMBSTONE]

    assert sum(each.bytes for each in told) == 4 * 300 * KB
    # Of what is left of a file nobody can tell whether it will be worth a run.
    assert all(bool(each.latest_millis) == (manner == "at once") for each in told)
    world.keep(told, 7)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_somebody_holds_is_not_back_before_any_task_runs(workshop: Workshop, seed: int) -> None:
    """A lease and a session let go at any time: what they held may then come by whichever task is first."""
    world = World(workshop, seed)
    world.settle()
    with committing(world.repository) as session:
        [kept] = session.ingest("keep", [bytes(100 * KB)])
        session.ingest("drop", [bytes(300 * KB)])
    lease = world.repository.leases.acquire("reader", 600_000, [claim_of(kept).resource])
    session = world.repository.session()
    session.get_many("keep", 1)
    leave_dead(world.repository)

    told = world.forecast()
    [held] = [each for each in told if each.use == SpaceUse.LEASE]
    assert held.when == GivenBack.HOLDER_LETS_GO
    assert held.latest_millis == 0

    world.repository.leases.release(lease.id)
    session.rollback()
    world.keep(told)


@pytest.mark.parametrize("seed", SEEDS)
def test_while_a_backup_is_under_way_nobody_knows(workshop: Workshop, seed: int) -> None:
    """It holds all files, as a lease does: nothing has a latest, and it is said why."""
    world = World(workshop, seed)
    world.settle()
    leave_dead(world.repository)
    told: list[ExpectedReturn] = []

    def ask(*_: object) -> None:
        if not told:
            told.extend(world.forecast())

    world.repository.backup(f"{workshop.path}-backup", on_progress=ask)

    assert {each.when for each in told} == {GivenBack.HOLDER_LETS_GO}
    assert {each.reason for each in told} == {"a backup is under way"}
    assert not any(each.latest_millis for each in told)
    world.keep(told)
    assert all(each.latest_millis for each in world.forecast() if each.when == GivenBack.NEXT_RUN)


@pytest.mark.parametrize("seed", SEEDS)
def test_while_a_run_is_under_way_anything_may_come(workshop: Workshop, seed: int) -> None:
    """Told in the middle of a run, what it then gives back is not too early."""
    world = World(workshop, seed)
    world.settle()
    told: list[ExpectedReturn] = []

    def ask(name: str, report: Any) -> Any:
        if not told and name == "clean":  # before this pass truncates
            leave_dead(world.repository)
            told.extend(world.forecast())
        return report

    world.repository.report_listeners.append(ask)
    while not told:
        world.pass_time(world.now + MINUTE)
    world.keep(told)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_killed_process_left_is_not_known_before_the_first_look(workshop: Workshop, seed: int) -> None:
    """And from then on it is not back before it was taken up, and has passed the archive if there is one."""
    leave_orphan(workshop)
    has_archive = seed % 2 == 0
    archive = {"enabled": has_archive, "max_retention_period": Duration(2 * HOUR)}
    repository = workshop.crash(archive={**archive, "cleanup_frequency": RARELY})
    world = World.__new__(World)
    world.random, world.workshop = random.Random(seed), workshop
    world.open(repository)
    known = [repository.reclamation.orphans.are_known]
    assert [each for each in world.forecast() if each.use == SpaceUse.ORPHAN] == []

    world.pass_time(world.now + 2 * MINUTE)

    known.append(repository.reclamation.orphans.are_known)
    assert known == [False, True]
    told = [each for each in world.forecast() if each.use == SpaceUse.ORPHAN]
    assert sum(each.bytes for each in told) == 2 * MB
    assert told[0].earliest_millis - world.now >= (2.9 if has_archive else 0.9) * HOUR
    world.keep(told, 3.5)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_goal_takes_everything_in_its_time(workshop: Workshop, seed: int) -> None:
    """Also what is worth no run by hand."""
    goal = GoalSettings(max_dead_age=Duration(3 * HOUR))
    compaction = {**REWRITES, "goal": goal, "max_live_fraction": 0.9999}
    world = World(workshop, seed, compaction=compaction)
    with committing(world.repository) as session:
        session.ingest("dies", [bytes(8 * KB)])
        session.ingest("kept", [bytes(150 * KB)] * 10)
    world.settle()
    leave_dead(world.repository)
    world.repository.queues.drop(world.repository.queue("dies"))
    world.pass_time(world.now + 2 * MINUTE)  # it is looked each minute

    told = world.forecast()

    assert told
    assert all(each.latest_millis for each in told), shown(told, world.now)
    world.keep(told, 3.5)


@pytest.mark.parametrize("seed", SEEDS)
def test_all_kinds_together(workshop: Workshop, seed: int) -> None:
    """Where runs meet each other's bytes: nothing is back too early, nothing too late."""
    number = random.Random(seed)
    archive = {"enabled": number.random() < 0.5, "max_retention_period": Duration(2 * HOUR)}
    sections: dict[str, Any] = {"archive": archive}
    if number.random() < 0.5:
        sections["maintenance"] = {"windows": (window_of(number),)}
    compaction = {**REWRITES, "deleted_retention": Duration(2 * HOUR)}
    world = World(workshop, seed, compaction=compaction, **sections)
    handles = world.repository.handles.put_many([bytes([each]) * (300 * KB) for each in range(6)])
    world.settle()
    leave_dead(world.repository)
    for handle in handles[:3]:
        world.repository.handles.delete(handle)

    told = world.forecast()

    counted = Counter(each.use for each in told)
    assert len(counted) > 1
    world.keep(told, 6)


def test_a_run_comes_between_its_two_moments() -> None:
    """Whatever the lateness of each, up to the one that was told: the first run from a moment on lies between."""
    for seed in range(2_000):
        number = random.Random(seed)
        every, behind = number.choice([60_000, 600_000, 3_600_000]), number.randrange(1, 20_000)
        now, due = 1_000_000, 1_000_000 + number.randrange(1, 3_600_000)
        time = TaskTime(due, every, behind)
        at = now + number.randrange(48 * HOUR)
        run = due + number.randrange(behind + 1)
        while run < at:
            run += every + number.randrange(behind + 1)
        assert time.soonest(at, now) <= run <= time.latest(at, now), seed
