"""When dead bytes come back: what is said beforehand is what then happens, on a clock that the test moves."""

from typing import Any

import pytest

from tests.engine.reclaim.test_permission import LOOSE, NIGHT, leave_dead
from tests.support import Workshop, claim_of, committing, containers, put_all
from ullage.contract import Calendar, Duration, MaintenanceOperation, Permission, Quantity, Window
from ullage.engine.engine import Engine
from ullage.engine.maintenance import MaintenanceRunner
from ullage.engine.model import Action
from ullage.engine.reclaim.returns import ExpectedReturn
from ullage.enums import GivenBack, SpaceUse

KB, MB = 1 << 10, 1 << 20
HOUR = 3_600_000
ALL_NIGHT = Window(
    name="night", schedule="0 2 * * *", duration=Duration(4 * HOUR), operations=tuple(MaintenanceOperation)
)
TASKS = ("clean", "truncate", "compact", "purge", "orphans")
"""That bytes come back by; what else there is runs along."""

NOT_DEAD = {SpaceUse.LIVE, SpaceUse.ROUNDING, SpaceUse.OVERHEAD, SpaceUse.DIRECTORY, SpaceUse.RESERVE, SpaceUse.OTHER}


def forecast(repository: Engine) -> list[ExpectedReturn]:
    """Of what is sealed: as each run begins by doing."""
    repository.content.retire_idle()
    repository.reclamation.plan_truncation()
    return repository.account.forecast(repository.spec)


def dead_bytes(repository: Engine, *uses: SpaceUse) -> int:
    """All that is dead or kept, or what of it is there for these reasons."""
    shares = repository.account.dead(repository.spec)
    return sum(share.bytes for share in shares if not uses or share.use in uses)


def live_until(workshop: Workshop, upkeep: MaintenanceRunner, millis: int) -> None:
    """Let time go on to a moment, everything that falls due done when it does."""
    while (left := millis - workshop.clock.now_millis()) > 0:
        times = upkeep.times()
        soonest = min(times[name].due_millis for name in TASKS) - workshop.clock.now_millis()
        workshop.clock.advance(min(left, max(1, soonest)) / 1000)
        upkeep.run_due()
    assert upkeep.failures == []


def only(found: list[ExpectedReturn], use: SpaceUse) -> ExpectedReturn:
    [one] = [each for each in found if each.use == use]
    return one


def served(workshop: Workshop, **sections: Any) -> tuple[Engine, MaintenanceRunner]:
    """One whose tasks are run, with windows obeyed."""
    repository = workshop.make(**sections)
    repository.reclamation.permit(Calendar(repository.spec.maintenance).permission)
    return repository, MaintenanceRunner(repository)


def test_what_is_due_is_back_when_it_was_said(workshop: Workshop) -> None:
    """Whole files, tails and middles, each by its operation: still there a moment before, gone at the latest."""
    paced = {**LOOSE, "compaction": LOOSE["compaction"] | {"bytes_per_second": Quantity(50 * KB)}}
    repository, upkeep = served(workshop, **paced)
    upkeep.run_due()  # compaction also runs at the start, and then each hour
    leave_dead(repository)

    found = {each.action: each for each in forecast(repository)}

    assert set(found) == {Action.DELETE, Action.TRUNCATE, Action.REWRITE}
    assert {each.when for each in found.values()} == {GivenBack.NEXT_RUN}
    all_of_it = dead_bytes(repository)
    for action in (Action.DELETE, Action.REWRITE):
        each = found[action]
        live_until(workshop, upkeep, each.earliest_millis - 1)
        still = all_of_it - sum(one.bytes for one in found.values() if one.latest_millis < each.earliest_millis)
        assert dead_bytes(repository) == still, action
        live_until(workshop, upkeep, each.latest_millis)
        assert dead_bytes(repository) <= still - each.bytes, action
    rate = repository.spec.compaction.bytes_per_second
    took = found[Action.REWRITE].latest_millis - found[Action.REWRITE].earliest_millis
    assert took == 4 * 110 * KB * 1000 // rate + upkeep.times()["compact"].behind_millis
    assert dead_bytes(repository) < 10 * KB


def test_out_of_hours_it_names_the_opening(workshop: Workshop) -> None:
    """Not before the window opens, and at the first run of the task that it holds for."""
    repository, upkeep = served(workshop, maintenance={"windows": (ALL_NIGHT,)}, **LOOSE)
    upkeep.run_due()
    leave_dead(repository)
    opens = Calendar(repository.spec.maintenance).status(MaintenanceOperation.DELETE, workshop.clock.now_millis())
    assert opens.opens_millis is not None

    found = [each for each in forecast(repository) if each.use == SpaceUse.WINDOW]

    assert {each.action for each in found} == {Action.DELETE, Action.TRUNCATE, Action.REWRITE}
    assert {each.when for each in found} == {GivenBack.WINDOW_OPENS}
    assert {each.earliest_millis for each in found} == {opens.opens_millis}
    assert all("night" in each.reason and "--override" in each.helps for each in found)
    latest = {each.action: each.latest_millis for each in found}
    assert 0 <= latest[Action.DELETE] - opens.opens_millis <= 62_000
    before = dead_bytes(repository)
    live_until(workshop, upkeep, opens.opens_millis - 1)
    assert dead_bytes(repository) == before
    live_until(workshop, upkeep, latest[Action.DELETE])
    assert dead_bytes(repository) <= before - only_of(found, Action.DELETE).bytes
    # How long a rewrite without a limit takes nobody can tell.
    assert latest[Action.REWRITE] == 0


def only_of(found: list[ExpectedReturn], action: Action) -> ExpectedReturn:
    [one] = [each for each in found if each.action == action]
    return one


def test_a_window_that_no_run_of_the_task_falls_into_promises_no_run(workshop: Workshop) -> None:
    """Compaction comes each hour at a quarter to: a window of a quarter of an hour at ten is missed every night."""
    repository, upkeep = served(workshop, maintenance={"windows": (NIGHT,)}, **LOOSE)
    start = workshop.clock.now_millis()
    workshop.clock.advance((HOUR - start % HOUR + HOUR * 3 // 4) / 1000)
    upkeep.run_due()
    leave_dead(repository)

    rewrite = only_of(forecast(repository), Action.REWRITE)

    assert (rewrite.when, rewrite.latest_millis) == (GivenBack.WINDOW_OPENS, 0)
    assert rewrite.earliest_millis % (24 * HOUR) == 22 * HOUR


def test_what_the_archive_keeps_comes_when_its_retention_ends(workshop: Workshop) -> None:
    """What is archived, and what the next cleaning is going to archive; on a full volume the next cleaning deletes."""
    repository, upkeep = served(
        workshop, storage=containers(c1=64 * MB), archive={"max_retention_period": Duration(2 * HOUR)}
    )
    put_all(repository, "q", [b"a" * (2 * MB)])
    repository.queues.drop(repository.queue("q"))

    [ahead] = forecast(repository)
    live_until(workshop, upkeep, workshop.clock.now_millis() + 60_000)
    [kept] = forecast(repository)

    assert (ahead.use, ahead.action, ahead.when) == (SpaceUse.DUE, Action.ARCHIVE, GivenBack.RETENTION_ENDS)
    assert (kept.use, kept.action, kept.when) == (SpaceUse.ARCHIVE, Action.DELETE, GivenBack.RETENTION_ENDS)
    assert 0 <= kept.latest_millis - kept.earliest_millis <= 62_000
    assert ahead.earliest_millis <= kept.earliest_millis <= kept.latest_millis <= ahead.latest_millis
    live_until(workshop, upkeep, kept.earliest_millis - 1)
    assert dead_bytes(repository) == 2 * MB
    live_until(workshop, upkeep, kept.latest_millis)
    assert dead_bytes(repository) == 0

    put_all(repository, "full", [b"f" * (20 * MB)] * 2)
    put_all(repository, "q", [b"a" * (2 * MB)])
    repository.queues.drop(repository.queue("q"))
    pressed = only_of(forecast(repository), Action.ARCHIVE)
    assert (pressed.when, pressed.earliest_millis) == (GivenBack.NEXT_RUN, upkeep.times()["clean"].due_millis)


def test_deleted_handles_leases_and_readers_say_what_keeps_bytes(workshop: Workshop) -> None:
    """An undelete until its date; a lease and a session until whoever has them lets go."""
    repository, _ = served(workshop, **LOOSE)
    deleted = repository.handles.put(b"h" * MB)
    repository.handles.delete(deleted)
    with committing(repository) as session:
        [kept] = session.ingest("keep", [b"k" * (100 * KB)])
        session.ingest("drop", [b"d" * (300 * KB)])
    session = repository.session()
    session.get_many("keep", 1)
    repository.leases.acquire("reader", 600_000, [claim_of(kept).resource])
    leave_dead(repository)

    found = forecast(repository)

    gone = only(found, SpaceUse.TOMBSTONE)
    ends = workshop.clock.now_millis() + repository.spec.compaction.deleted_retention
    assert (gone.when, gone.bytes) == (GivenBack.RETENTION_ENDS, MB)
    assert 0 <= gone.earliest_millis - ends <= 60_000
    lease = only(found, SpaceUse.LEASE)
    assert (lease.when, lease.latest_millis) == (GivenBack.HOLDER_LETS_GO, 0)
    assert "reader" in lease.reason
    session.rollback()


def test_what_does_not_come_by_itself_names_its_threshold_and_what_helps(workshop: Workshop) -> None:
    """Each with the command that gives it back, which it then does."""
    repository, upkeep = served(workshop, storage=containers(c1=1 << 30), archive={"enabled": False})
    leave_dead(repository)
    live_until(workshop, upkeep, workshop.clock.now_millis() + 2 * HOUR)

    found = {each.action: each for each in forecast(repository) if each.when == GivenBack.NOT_BY_ITSELF}

    assert set(found) == {Action.TRUNCATE, Action.REWRITE}
    assert "spec.compaction.minUsedPercentage" in found[Action.REWRITE].reason
    assert found[Action.REWRITE].helps == "`ullage reclaim`"
    cut = found[Action.TRUNCATE]
    assert "spec.truncation.usageThresholdPercentage" in cut.reason
    assert cut.helps == "`ullage truncate`"
    assert all(each.earliest_millis == each.latest_millis == 0 for each in found.values())
    before = dead_bytes(repository)
    repository.reclamation.execute(repository.reclamation.plan_truncation(eager=True))
    assert dead_bytes(repository) == before - cut.bytes


def test_a_pause_and_a_missing_ticket_open_nothing(workshop: Workshop) -> None:
    """Paused: no date, and what to set. Without a ticket the window alone promises no end."""
    repository, upkeep = served(workshop, maintenance={"paused": True}, **LOOSE)
    leave_dead(repository)
    paused = only_of(forecast(repository), Action.DELETE)
    assert (paused.when, paused.earliest_millis, paused.latest_millis) == (GivenBack.WINDOW_OPENS, 0, 0)
    assert "paused" in paused.helps

    repository = workshop.reopen(**LOOSE)
    repository.reclamation.permit(lambda *_: Permission(is_granted=False, reason="this node has no ticket"))
    upkeep = MaintenanceRunner(repository)
    waiting = only_of(forecast(repository), Action.TRUNCATE)
    assert (waiting.use, waiting.reason) == (SpaceUse.WINDOW, "this node has no ticket")
    assert (waiting.earliest_millis, waiting.latest_millis) == (workshop.clock.now_millis(), 0)
    assert upkeep.failures == []


def test_nothing_comes_by_itself_where_nobody_runs_the_tasks(workshop: Workshop) -> None:
    """A repository that is only open says so, and promises no end; so does one whose tasks were stopped."""
    repository = leave_dead(workshop.make(**LOOSE))
    for _ in range(2):
        due = only_of(forecast(repository), Action.DELETE)
        assert due.latest_millis == 0
        assert "nobody serves" in due.helps
        upkeep = MaintenanceRunner(repository)
        assert only_of(forecast(repository), Action.DELETE).latest_millis > 0
        upkeep.stop()


@pytest.mark.parametrize("swapped", [False, True])
def test_every_dead_byte_is_in_it_once(workshop: Workshop, swapped: bool) -> None:
    """Together they are the dead bytes of the account, also where FlowFiles are swapped out."""
    flow_file = {"flow_file": {"swap_threshold": 10, "swap_batch": 5}} if swapped else {}
    repository, _ = served(workshop, **LOOSE, **flow_file)
    leave_dead(repository)
    put_all(repository, "swapped", [b"s" * (40 * KB)] * 30)
    with committing(repository) as session:
        session.remove_many(session.get_many("swapped", 5))
    repository.handles.delete(repository.handles.put(b"h" * MB))

    assert bool(repository.ledger.swaps) == swapped
    explained = sum(
        share.bytes
        for share in repository.account.explain(repository.spec)
        if share.container and share.use not in NOT_DEAD
    )
    assert sum(each.bytes for each in forecast(repository)) == dead_bytes(repository)
    assert abs(dead_bytes(repository) - explained) <= 64 * KB  # blocks that the disk has not allocated yet
