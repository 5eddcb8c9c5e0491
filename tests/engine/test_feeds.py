"""Feeds: what a stream has taken waits for it, and for nobody else, until it is read or the stream is given up."""

import random

import pytest

from tests.support import Workshop, claim_of, drain, put_all
from ullage.engine.engine import Engine
from ullage.engine.feeds import LASTS_MILLIS, FeedBatch, Reader
from ullage.engine.maintenance import MaintenanceRunner
from ullage.engine.model import EventType
from ullage.errors import Forbidden, InvalidArgument, QuotaReached
from ullage.wire.provenance import EventQuery

HELD = "stream:orders:in"
MINUTE = 60_000


def filled(workshop: Workshop, count: int = 6) -> Engine:
    repository = workshop.make()
    put_all(repository, "in", [bytes([number]) for number in range(count)])
    return repository


def contents(repository: Engine, after: int, through: int) -> list[bytes]:
    records = repository.feeds.records("orders", "in", after, through)
    return [repository.reader.read(claim_of(record), record.start, record.size) for record in records]


def test_what_is_taken_is_read_in_order_and_removed_once_it_is_done(workshop: Workshop) -> None:
    """In batches; places go on from one to the next, and the queue's order is kept."""
    repository = filled(workshop)
    feeds = repository.feeds

    first = feeds.take("orders", "in", 0, 4)
    assert (first.taken, first.waiting) == (4, 2)
    assert contents(repository, 0, first.through) == [b"\0", b"\1", b"\2", b"\3"]
    put_all(repository, "in", [b"new"])
    second = feeds.take("orders", "in", first.through, 10)
    assert (second.taken, second.waiting) == (3, 0)
    assert contents(repository, first.through, second.through) == [b"\4", b"\5", b"new"]

    assert feeds.done("orders", "in", first.through) == 4
    assert feeds.done("orders", "in", first.through) == 0
    assert contents(repository, 0, second.through) == [b"\4", b"\5", b"new"]
    assert feeds.take("orders", "in", second.through, 10) == FeedBatch(second.through, 0, 0)
    events = repository.history.query(EventQuery(types=["DROP"], limit=100)).events
    assert [event.component for event in events] == [HELD] * 4


def test_taking_again_takes_the_same(workshop: Workshop) -> None:
    """Whoever lost the answer, or died before it was written down, gets it again; after a crash too."""
    repository = filled(workshop)
    taken = repository.feeds.take("orders", "in", 0, 4)

    for find in (workshop.crash, workshop.reopen):
        repository = find()
        assert repository.feeds.take("orders", "in", 0, 4) == taken
        assert contents(repository, 0, taken.through) == [b"\0", b"\1", b"\2", b"\3"]
    fewer = repository.feeds.take("orders", "in", 0, 2)
    assert (fewer.taken, fewer.waiting) == (2, 4)
    more = repository.feeds.take("orders", "in", 0, 5)
    assert (more.taken, more.waiting) == (5, 1)
    since = workshop.clock.now_millis()
    assert repository.feeds.take("orders", "in", 0, 0) == FeedBatch(0, 0, 6, since_millis=since)


def test_nobody_else_gets_what_a_stream_has_taken_and_nothing_of_it_expires(workshop: Workshop) -> None:
    """The queue's own expiration ends with the taking; two streams share a queue, each FlowFile read by one."""
    repository = workshop.make()
    repository.queues.define("in", priority="FirstInFirstOut", count_max=0, bytes_max=0, expiration_millis=MINUTE)
    put_all(repository, "in", [b"a", b"b", b"c"])
    taken = repository.feeds.take("orders", "in", 0, 1)
    other = repository.feeds.take("audit", "in", 0, 1)
    workshop.clock.advance(120)
    repository.queues.expire()

    assert drain(repository, "in") == []
    assert contents(repository, 0, taken.through) == [b"a"]
    assert len(repository.feeds.records("audit", "in", 0, other.through)) == 1


def test_what_waits_for_too_long_goes_back(workshop: Workshop) -> None:
    """Each sign of the stream begins its time anew; then others get it, behind what is in the queue."""
    repository = filled(workshop, 3)
    feeds = repository.feeds
    maintenance = MaintenanceRunner(repository)
    taken = feeds.take("orders", "in", 0, 2, 10 * MINUTE)
    workshop.clock.advance(9 * 60)
    assert feeds.take("orders", "in", 0, 2, 10 * MINUTE) == taken
    workshop.clock.advance(9 * 60)
    maintenance.run_due()
    assert len(feeds.records("orders", "in", 0, taken.through)) == 2

    workshop.clock.advance(2 * 60)
    maintenance.run_due()

    assert feeds.records("orders", "in", 0, taken.through) == []
    assert maintenance.failures == []
    assert drain(repository, "in") == [b"\2", b"\0", b"\1"]


def test_whose_a_stream_is_outlives_a_restart(workshop: Workshop) -> None:
    """As long as anything waits for it; and what it does to FlowFiles is told as by whom it was."""
    ann, bob = Reader("ann", "ann"), Reader("bob", "bob")
    repository = filled(workshop, 2)
    taken = repository.feeds.take("orders", "in", 0, 1, reader=ann)
    for find in (workshop.crash, workshop.reopen):
        repository = find()
        with pytest.raises(Forbidden, match="somebody else's"):
            repository.feeds.take("orders", "in", 0, 1, reader=bob)
        with pytest.raises(Forbidden):
            repository.feeds.done("orders", "in", taken.through, bob)
        with pytest.raises(Forbidden):
            repository.feeds.give_back("orders", "in", 0, bob)
    assert repository.feeds.done("orders", "in", taken.through, ann) == 1
    assert repository.feeds.owner("orders", "in") == ""
    assert repository.feeds.take("orders", "in", taken.through, 1, reader=bob).taken == 1
    assert repository.feeds.owner("orders", "in") == "bob"

    events = repository.history.query(EventQuery()).events
    assert [event.component_type for event in events if event.type == EventType.DROP] == ["ann"]


def test_after_a_restart_its_time_begins_anew(workshop: Workshop) -> None:
    """It is not logged; a stream that never comes back loses what it had taken all the same."""
    repository = filled(workshop, 3)
    repository.feeds.take("orders", "in", 0, 2, 10 * MINUTE)
    repository = workshop.crash()
    assert repository.feeds.expire() == 0
    workshop.clock.advance(LASTS_MILLIS / 1000 - 1)
    assert repository.feeds.expire() == 0
    workshop.clock.advance(2)

    assert repository.feeds.expire() == 2
    assert sorted(drain(repository, "in")) == [b"\0", b"\1", b"\2"]


def test_what_was_taken_and_not_planned_can_be_given_back(workshop: Workshop) -> None:
    """What a checkpoint needs stays: everything up to the place that it names."""
    repository = filled(workshop)
    first = repository.feeds.take("orders", "in", 0, 2)
    repository.feeds.take("orders", "in", first.through, 2)

    assert repository.feeds.give_back("orders", "in", first.through) == 2

    assert contents(repository, 0, 1 << 62) == [b"\0", b"\1"]
    assert drain(repository, "in") == [b"\4", b"\5", b"\2", b"\3"]


def test_no_more_is_taken_than_a_queue_keeps_in_memory(workshop: Workshop) -> None:
    """The rest stays where it is; a smaller threshold after a restart hides nothing."""
    repository = workshop.make(flow_file={"swap_threshold": 10, "swap_batch": 5})
    put_all(repository, "in", [bytes([number]) for number in range(30)])
    first = repository.feeds.take("orders", "in", 0, 100)
    assert (first.taken, first.waiting) == (10, 20)
    assert repository.feeds.take("orders", "in", first.through, 100).taken == 0

    repository = workshop.reopen(flow_file={"swap_threshold": 4, "swap_batch": 2})
    repository.queues.swap_out_all()
    assert contents(repository, 0, first.through) == [bytes([number]) for number in range(10)]
    assert repository.feeds.done("orders", "in", first.through) == 10
    assert repository.feeds.take("orders", "in", first.through, 100).taken == 4


@pytest.mark.parametrize(("stream", "queue"), [("", "in"), ("a:b", "in"), ("a" * 101, "in"), ("x", HELD)])
def test_impossible_names_are_refused(workshop: Workshop, stream: str, queue: str) -> None:
    """A name must say where FlowFiles go back to."""
    with pytest.raises(InvalidArgument, match="stream"):
        workshop.make().feeds.take(stream, queue, 0, 1)


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_each_flow_file_is_read_once_whatever_happens(workshop: Workshop, seed: int) -> None:
    """Arrivals, takes, ends and crashes in any order: a reader that remembers its last place sees all, none twice."""
    print("seed", seed)
    random_ = random.Random(seed)
    repository = workshop.make()
    place, arrived, read = 0, 0, []
    for _ in range(40):
        deed = random_.choice(["put", "put", "read", "read", "done", "crash", "take"])
        if deed == "put":
            count = random_.randint(1, 5)
            put_all(repository, "in", [str(arrived + number).encode() for number in range(count)])
            arrived += count
        elif deed == "take":
            repository.feeds.take("orders", "in", place, random_.randint(1, 9))
        elif deed == "done":
            repository.feeds.done("orders", "in", place)
        elif deed == "crash":
            repository = workshop.crash()
        else:
            taken = repository.feeds.take("orders", "in", place, random_.randint(1, 9))
            found = contents(repository, place, taken.through)
            assert len(found) == taken.taken
            read += found
            place = taken.through
    last = repository.feeds.take("orders", "in", place, 1_000)
    read += contents(repository, place, last.through)

    assert read == [str(number).encode() for number in range(arrived)]


def test_a_feed_of_a_queue_that_is_not_there_defines_nothing(workshop: Workshop) -> None:
    """Neither it nor the queue that it would wait in: nothing is written."""
    repository = workshop.make()
    before = repository.log.last_id

    assert repository.feeds.take("orders", "typo", 0, 10) == FeedBatch(0, 0, 0)
    assert repository.feeds.records("orders", "typo", 0, 10) == []
    assert repository.feeds.done("orders", "typo", 10) == 0
    assert repository.feeds.give_back("orders", "typo", 0) == 0
    with repository.session() as session:
        assert session.get("typo") is None
        session.commit()

    assert repository.queues.all() == []
    assert repository.log.last_id == before


def test_names_of_streams_leave_no_more_queues_than_one_may_have(workshop: Workshop) -> None:
    """Whoever takes under ever new names and gives back would leave a queue each, and what it takes to list it."""
    repository = filled(workshop, 1)
    feeds, reader = repository.feeds, Reader("ann", "ann", each_max=3)

    for number in range(8):
        workshop.clock.advance(2 * MINUTE / 1000)
        feeds.expire()
        assert feeds.take(f"s{number}", "in", 0, 1, MINUTE, reader).taken == 1
        assert feeds.give_back(f"s{number}", "in", 0, reader) == 1

    assert [queue.name for queue in repository.queues.all()] == ["in", "stream:s5:in", "stream:s6:in", "stream:s7:in"]
    assert feeds.take("s6", "in", 0, 1, MINUTE, reader).taken == 1
    assert [waiting.stream for waiting in feeds.standing()] == ["s6"]
    assert feeds.take("s0", "in", 0, 1, MINUTE, Reader("bob", "bob", each_max=3)).taken == 0


def test_streams_that_take_nothing_are_bounded_and_forgotten(workshop: Workshop) -> None:
    """Each has a lag, which metrics tell."""
    feeds, reader = filled(workshop, 0).feeds, Reader("ann", "ann", each_max=3)
    for number in range(3):
        feeds.take(f"s{number}", "in", 0, 1, MINUTE, reader)

    with pytest.raises(QuotaReached, match="ann has 3 streams that take"):
        feeds.take("s3", "in", 0, 1, MINUTE, reader)
    feeds.take("s2", "in", 0, 1, MINUTE, reader)
    feeds.take("s3", "in", 0, 1, MINUTE, Reader("bob", "bob", each_max=3))
    assert len(feeds.lags()) == 4

    workshop.clock.advance(2 * MINUTE / 1000)
    assert feeds.expire() == 0
    assert feeds.lags() == []
    feeds.take("s3", "in", 0, 1, MINUTE, reader)
