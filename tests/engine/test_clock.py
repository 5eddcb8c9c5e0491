"""A machine's clock that is wrong by years: nothing dies by it, nothing new carries its time, until it is accepted."""

import gc
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

import pytest

from tests.support import ManualClock, Workshop, content_sizes, drain, put_all
from ullage.clock import LATEST_MILLIS, Clock
from ullage.contract import Duration
from ullage.engine.believed import PLAUSIBLE_MILLIS, BelievedClock
from ullage.engine.engine import Engine
from ullage.engine.maintenance import MaintenanceRunner
from ullage.engine.model import Answer, new_uuids
from ullage.errors import InvalidArgument, UllageError
from ullage.wire.provenance import EventQuery

DAY = 86_400_000
YEARS = 11 * 365 * DAY
WRITE, ATTEMPT, LEASE, KEY = *new_uuids(3), b"k" * 32
BEGAN = ManualClock().millis


def turn(workshop: Workshop) -> None:
    """Two turns of everything that maintenance does, a minute and more apart."""
    upkeep = MaintenanceRunner(workshop.repository)
    for _ in range(2):
        workshop.clock.advance(61)
        upkeep.run_due()
        workshop.repository.reclamation.clean()
        workshop.repository.provenance.step()
    assert upkeep.failures == []


def has(workshop: Workshop, handle: str) -> bool:
    return any(record.uuid.hex() == handle.replace("-", "") for record in workshop.repository.ledger.flow_files())


def handle_with_ttl(workshop: Workshop) -> Callable[[], bool]:
    id = workshop.repository.handles.put(b"content", ttl_millis=DAY)
    return lambda: has(workshop, id)


def tombstone(workshop: Workshop) -> Callable[[], bool]:
    id = workshop.repository.handles.put(b"content")
    workshop.repository.handles.delete(id)
    return lambda: has(workshop, id)


def expiring_flow_file(workshop: Workshop) -> Callable[[], bool]:
    queues = workshop.repository.queues
    queues.define("dying", priority="FirstInFirstOut", count_max=0, bytes_max=0, expiration_millis=DAY)
    put_all(workshop.repository, "dying", [b"content"])
    return lambda: workshop.repository.queue("dying").figures().flow_files == 1


def archived_content(workshop: Workshop) -> Callable[[], bool]:
    put_all(workshop.repository, "read", [b"x" * 2_000_000])
    drain(workshop.repository, "read")
    workshop.repository.checkpoint()
    workshop.repository.reclamation.clean()
    archived = {name for name in content_sizes(workshop.path) if "archive" in name}
    assert archived
    return lambda: archived <= set(content_sizes(workshop.path))


def lease(workshop: Workshop) -> Callable[[], bool]:
    id = workshop.repository.leases.acquire("reader", DAY // 24, holds_files=True).id
    return lambda: id in {each.id for each in workshop.repository.leases.all()}


def open_write(workshop: Workshop) -> Callable[[], bool]:
    workshop.repository.staging.begin(WRITE, "test", queue="in")
    workshop.repository.staging.stage(WRITE, ATTEMPT, 0, [b"content"])
    return lambda: len(workshop.repository.staging.pending()) == 1


def answer(workshop: Workshop) -> Callable[[], bool]:
    now = workshop.repository.clock.now_millis()
    workshop.repository.committer.commit([Answer(KEY, b"request", b"answer", now)], creates=True)
    return lambda: len(workshop.repository.ledger.answers) == 1


def event(workshop: Workshop) -> Callable[[], bool]:
    put_all(workshop.repository, "kept", [b"content"])
    workshop.repository.provenance.drain()
    return lambda: workshop.repository.history.query(EventQuery()).removed_through == 0


def feed(workshop: Workshop) -> Callable[[], bool]:
    put_all(workshop.repository, "streamed", [b"content"])
    workshop.repository.feeds.take("stream", "streamed", 0, 1)
    return lambda: workshop.repository.queue("streamed").figures().flow_files == 0


KINDS = [
    handle_with_ttl,
    tombstone,
    expiring_flow_file,
    archived_content,
    lease,
    open_write,
    answer,
    event,
    feed,
]
"""Everything that dies by time. That there is no other: `test_no_part_has_another_clock`."""


def clocks_of(engine: Engine) -> set[Clock]:
    """All that can be reached from an engine."""
    found: set[Clock] = set()
    seen: set[int] = set()
    waiting: list[Any] = [engine]
    while waiting:
        each = waiting.pop()
        if id(each) in seen or isinstance(each, type | ModuleType):
            continue
        seen.add(id(each))
        if isinstance(each, Clock):
            found.add(each)
        elif isinstance(each, FunctionType):
            waiting += [cell.cell_contents for cell in each.__closure__ or () if cell != type(cell)()]
        else:
            waiting += gc.get_referents(each)
    return found


def test_no_part_has_another_clock(workshop: Workshop) -> None:
    """So that nothing, of whatever kind, can die by the machine's where it is not believed."""
    repository = workshop.make()

    assert clocks_of(repository) == {repository.clock}


@pytest.mark.parametrize("how", ["none", "clean", "crash"])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_dies_by_a_clock_that_is_years_ahead(
    workshop: Workshop, kind: Callable[[Workshop], Callable[[], bool]], how: str
) -> None:
    """At a start and while running; what is due by it goes once a person has accepted it, and not before."""
    workshop.make(provenance={"max_storage_time": Duration(DAY)}, claims={"max_flow_files": 1})
    is_there = kind(workshop)
    assert is_there()

    workshop.clock.wrong_by = YEARS
    workshop.restart(how)
    turn(workshop)
    assert is_there()

    workshop.repository.accept_clock()
    put_all(workshop.repository, "newest", [b"an event file is never the newest one"])
    workshop.repository.provenance.drain()
    turn(workshop)
    workshop.clock.advance(2 * DAY / 1000)  # feeds count from the start
    turn(workshop)
    assert not is_there()


@pytest.mark.parametrize("wrong_by", [YEARS, -BEGAN, -BEGAN - 5, LATEST_MILLIS, (1 << 63) - 1 - BEGAN])
def test_work_goes_on_in_the_time_that_is_believed(workshop: Workshop, wrong_by: int) -> None:
    """Records get the time of the last commit and what has passed since; when the machine is right again, it is
    followed, and what was written meanwhile lives as long as it should.
    """
    workshop.make().handles.put(b"before")
    workshop.clock.wrong_by = wrong_by
    repository = workshop.crash()
    assert repository.clock.look().reason
    workshop.clock.advance(3_600)

    handle = repository.handles.put(b"content", ttl_millis=DAY)
    (record,) = [each for each in repository.ledger.flow_files() if each.expires_millis]
    assert record.entry_millis == BEGAN + 3_600_000
    assert repository.history.query(EventQuery()).events[-1].millis == BEGAN + 3_600_000
    assert "clock" in repository.check().clock
    assert repository.check().problems == ()

    workshop.clock.wrong_by = 0
    assert repository.clock.look() == (BEGAN + 3_600_000,) * 2
    turn(workshop)
    repository = workshop.crash()
    assert repository.check().clock == ""
    assert has(workshop, handle)
    workshop.clock.advance(DAY / 1000)
    turn(workshop)
    assert not has(workshop, handle)


def test_what_was_accepted_is_believed_after_a_restart(workshop: Workshop) -> None:
    """Also the way back: a clock that was accepted wrongly is believed no more than another."""
    workshop.make()
    for wrong_by in (YEARS, 0):
        workshop.clock.wrong_by = wrong_by
        assert workshop.repository.clock.look().reason
        assert not workshop.repository.accept_clock().reason
        assert not workshop.crash().clock.look().reason
        assert workshop.repository.clock.now_millis() == workshop.clock.now_millis()


@pytest.mark.parametrize("machine", [-1, LATEST_MILLIS + 1, (1 << 63) - 1, 1 << 80])
def test_what_is_no_time_cannot_be_accepted(workshop: Workshop, machine: int) -> None:
    """Nor is it believed by a repository that knows no other; a right one is followed as soon as there is one."""
    clock = workshop.clock
    clock.wrong_by = machine - clock.millis
    repository = workshop.make()
    put_all(repository, "in", [b"content"])
    with pytest.raises(InvalidArgument, match="no time"):
        repository.accept_clock()
    assert repository.history.query(EventQuery()).events

    clock.wrong_by = 0
    assert (repository.clock.now_millis(), repository.clock.look().reason) == (clock.millis, "")


def test_a_quiet_repository_knows_what_time_it_is(workshop: Workshop) -> None:
    """Where nothing is committed a snapshot a day says it, so that the next start believes its clock."""
    repository = workshop.make()
    for _ in range(40):
        workshop.clock.advance(DAY / 1000)
        MaintenanceRunner(repository)._checkpoint()

    assert not workshop.crash().clock.look().reason


def test_a_clock_is_followed_as_far_as_it_is_plausible() -> None:
    """Step by step, in both directions, also by one that is rarely asked; a jump beyond is noticed at once, also after
    weeks of it, and ends by itself.
    """
    machine = ManualClock()
    clock = BelievedClock(machine)
    clock.believe(machine.millis - PLAUSIBLE_MILLIS)
    for _ in range(5):
        assert clock.now_millis() == machine.now_millis()
        machine.advance(PLAUSIBLE_MILLIS / 1000 * 3)  # what has passed is known, however long it was
        assert clock.now_millis() == machine.now_millis()
        machine.wrong_by += PLAUSIBLE_MILLIS - 1
        assert clock.now_millis() == machine.now_millis()
    clock.look()  # as maintenance does
    right = machine.wrong_by
    for jump in (PLAUSIBLE_MILLIS + 1, -PLAUSIBLE_MILLIS - 1):
        machine.wrong_by = right + jump
        for _ in range(3):
            assert clock.now_millis() == machine.now_millis() - jump
            machine.advance(PLAUSIBLE_MILLIS / 1000)
            clock.look()
        machine.wrong_by = right
        assert clock.now_millis() == machine.now_millis()
        clock.look()


def test_an_error_of_rounding_does_not_add_up() -> None:
    """A clock that is not believed may be asked a thousand times in each millisecond."""
    machine = ManualClock()
    clock = BelievedClock(machine)
    clock.believe(machine.millis)
    machine.wrong_by, began = YEARS, machine.millis
    monotonic = began / 1000
    machine.monotonic = lambda: monotonic  # type: ignore[method-assign]
    for _ in range(10_000):
        monotonic += 0.0001
        clock.now_millis()

    assert clock.now_millis() - began in (999, 1_000)


def test_a_lost_lease_of_a_wrong_clock_is_over_in_its_time(workshop: Workshop) -> None:
    """What is begun while the clock is wrong ends when its own time has passed: space does not wait for a person."""
    repository = workshop.make()
    workshop.clock.wrong_by = YEARS
    id = repository.leases.acquire("reader", 60_000, holds_files=True).id
    turn(workshop)

    assert repository.leases.all() == []
    with pytest.raises(UllageError):
        repository.leases.renew(id, 60_000)
