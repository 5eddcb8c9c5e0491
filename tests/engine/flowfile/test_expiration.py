import os

from tests.engine.flowfile.steps import SMALL, define, numbers, peek, resident
from tests.failing_files import FailingFiles
from tests.support import Workshop, committing, drain, put_all, put_each
from ullage.engine.engine import Engine


def test_a_poll_drops_what_has_expired(workshop: Workshop, repository: Engine) -> None:
    """What a poll finds expired is gone for good: not handed out, not back after a restart."""
    define(repository, expiration_millis=10_000)
    put_all(repository, "q", numbers(3))
    workshop.clock.advance(9.999)
    put_all(repository, "q", numbers(1, 3))
    assert peek(repository, "q") == numbers(4)

    workshop.clock.advance(0.001)
    with repository.session() as session:
        assert [session.read(record).read() for record in session.get_many("q", 10)] == [b"3"]

    assert repository.queue("q").figures().flow_files == 1
    assert drain(workshop.crash(), "q") == [b"3"]


def test_expire_removes_without_a_poll(workshop: Workshop) -> None:
    """`expire` finds expired FlowFiles wherever they are in memory, and says how many."""
    repository = workshop.make(flow_file={"swap_threshold": 3, "swap_batch": 3})
    queue = define(repository, expiration_millis=10_000)
    put_all(repository, "q", numbers(5))
    with committing(repository) as session:
        for record in session.get_many("q", 1):
            session.penalize(record, 60_000)
            session.transfer(record, "q")
    workshop.clock.advance(11)
    put_all(repository, "q", [b"young"])

    assert repository.queues.expire() == 5

    assert drain(repository, "q") == [b"young"]
    assert queue.figures() == (0, 0, 0, 0, 0, 0, 0)


def test_age_counts_from_the_entry_into_the_flow(workshop: Workshop, repository: Engine) -> None:
    """Moving from queue to queue does not make a FlowFile younger."""
    define(repository, expiration_millis=10_000)
    put_all(repository, "first", numbers(1))
    workshop.clock.advance(20)
    with committing(repository) as session:
        session.transfer_many(session.get_many("first", 1), "q")

    assert drain(repository, "q") == []


def test_held_flow_files_do_not_expire(workshop: Workshop, repository: Engine) -> None:
    """What a session holds is its own until it gives it back."""
    define(repository, expiration_millis=10_000)
    put_all(repository, "q", numbers(1))
    session = repository.session()
    (record,) = session.get_many("q", 1)
    workshop.clock.advance(11)

    assert repository.queues.expire() == 0
    assert session.read(record).read() == b"0"

    session.rollback()
    assert repository.queues.expire() == 1


def test_more_than_one_slice_expires(workshop: Workshop, repository: Engine) -> None:
    """Expired FlowFiles go in transactions of a thousand; none is forgotten."""
    queue = define(repository, expiration_millis=10_000)
    put_all(repository, "q", [b""] * 2_500)
    workshop.clock.advance(11)

    assert drain(repository, "q") == []
    assert queue.figures() == (0, 0, 0, 0, 0, 0, 0)


def test_swap_files_are_opened_only_for_what_has_expired(workshop: Workshop, files: FailingFiles) -> None:
    """A swap file whose youngest entry says that nothing in it can have expired stays shut."""
    repository = workshop.make(flow_file=SMALL)
    define(repository, expiration_millis=10_000)
    put_each(repository, "q", numbers(12))
    workshop.clock.advance(9)
    opened = files.count("open", "*.swap")

    assert repository.queues.expire() == 0
    assert files.count("open", "*.swap") == opened

    workshop.clock.advance(2)
    assert repository.queues.expire() == 12
    assert files.count("open", "*.swap") == opened + 2


def test_expired_ones_leave_a_swap_file_that_stays_out(workshop: Workshop) -> None:
    """A swap file, also a later one, is written anew without its expired FlowFiles; order and memory stay."""
    repository = workshop.make(flow_file=SMALL)
    queue = define(repository, expiration_millis=10_000)
    put_all(repository, "before", [b"old"])
    workshop.clock.advance(8)
    put_each(repository, "q", numbers(10))
    with committing(repository) as session:  # an old one in the middle of the second swap file
        session.transfer_many(session.get_many("before", 1), "q")
    put_each(repository, "q", numbers(5, 10))
    names = [summary.name for summary in queue.swap_summaries()]
    before = resident(queue)
    workshop.clock.advance(3)

    assert repository.queues.expire() == 1

    after = [summary.name for summary in queue.swap_summaries()]
    assert [old == new for old, new in zip(names, after, strict=True)] == [True, False, True]
    assert resident(queue) == before
    assert (queue.figures().flow_files, queue.figures().swapped) == (15, 8)
    assert drain(workshop.crash(), "q") == numbers(15)


def test_a_wholly_expired_swap_file_goes(workshop: Workshop) -> None:
    """When nothing in a swap file is left, the file goes with the next checkpoint."""
    repository = workshop.make(flow_file=SMALL)
    queue = define(repository, expiration_millis=10_000)
    put_each(repository, "q", numbers(12))
    directory = repository.swap_files.directory
    assert len(os.listdir(directory)) == 2
    workshop.clock.advance(11)

    assert repository.queues.expire() == 12
    repository.checkpoint()

    assert queue.figures().swapped == 0
    assert os.listdir(directory) == []


def test_a_longer_expiration_spares_what_is_swapped(workshop: Workshop) -> None:
    """Redefining the expiration counts for swap files too: their summaries hold dates, not verdicts."""
    repository = workshop.make(flow_file=SMALL)
    define(repository, expiration_millis=10_000)
    put_each(repository, "q", numbers(12))
    workshop.clock.advance(11)

    define(repository, expiration_millis=60_000)

    assert repository.queues.expire() == 0
    assert drain(repository, "q") == numbers(12)
