from collections.abc import Callable

import pytest

from tests.engine.flowfile.steps import SMALL, define, numbers, peek
from tests.failing_files import FailingFiles
from tests.support import Workshop, committing, drain, put_all, put_each
from ullage.engine.engine import Engine
from ullage.engine.model import FlowFileRecord
from ullage.engine.working import PENALTY_MILLIS
from ullage.errors import QueueNotFound, RepositoryStopped


def has(name: str, value: str) -> Callable[[FlowFileRecord], bool]:
    """A filter by attribute."""
    return lambda record: record.attribute_map().get(name) == value


def test_a_filter_takes_what_it_accepts(repository: Engine) -> None:
    """`get_by` hands out matching FlowFiles in order, up to the count, and leaves the others in theirs."""
    for number in range(6):
        put_all(repository, "q", [str(number).encode()], kind="odd" if number % 2 else "even")

    with repository.session() as session:
        odd = session.get_by("q", has("kind", "odd"), 2)
        assert [session.read(record).read() for record in odd] == [b"1", b"3"]
        assert peek(repository, "q") == [b"0", b"2", b"4", b"5"]

    assert drain(repository, "q") == numbers(6)


def test_a_filter_may_use_the_queue(repository: Engine) -> None:
    """A filter is asked without the queue's lock: it may look at the queue, and poll from it."""
    put_all(repository, "q", numbers(4))
    thief = repository.session()

    def wanted(record: FlowFileRecord) -> bool:
        thief.get_many("q", 1)
        return repository.queue("q").figures().flow_files == 4

    with repository.session() as session:
        assert session.get_by("q", wanted) == []
    thief.rollback()
    assert drain(repository, "q") == numbers(4)


def test_a_filter_that_fails_takes_nothing(repository: Engine) -> None:
    """An error in the filter reaches the caller, and every FlowFile is still there."""
    put_all(repository, "q", numbers(3))

    def wanted(record: FlowFileRecord) -> bool:
        raise LookupError(record.id)

    with repository.session() as session, pytest.raises(LookupError):
        session.get_by("q", wanted)

    assert drain(repository, "q") == numbers(3)


def test_a_filter_drops_expired_ones(workshop: Workshop, repository: Engine) -> None:
    """Polling by filter never hands out what has expired."""
    define(repository, expiration_millis=10_000)
    put_all(repository, "q", numbers(2), kind="a")
    workshop.clock.advance(11)
    put_all(repository, "q", [b"young"], kind="a")

    with repository.session() as session:
        assert len(session.get_by("q", has("kind", "a"))) == 1

    assert repository.queue("q").figures().flow_files == 1


def test_a_filter_reaches_swapped_ones_once_memory_is_empty(workshop: Workshop) -> None:
    """What is swapped out is looked at when nothing before it is left."""
    repository = workshop.make(flow_file=SMALL)
    put_each(repository, "q", numbers(9), kind="a")
    with committing(repository) as session:
        session.remove_many(session.get_many("q", 6))

    with repository.session() as session:
        assert len(session.get_by("q", has("kind", "a"))) == 3


def test_penalized_ones_wait(workshop: Workshop, repository: Engine) -> None:
    """A penalized FlowFile is out of polls until its time is over, then back in its place."""
    put_each(repository, "q", numbers(3))
    with committing(repository) as session:
        (record,) = session.get_many("q", 1)
        session.penalize(record)
        session.transfer(record, "q")
    put_all(repository, "q", [b"later"])

    assert peek(repository, "q") == [b"1", b"2", b"later"]
    workshop.clock.advance(PENALTY_MILLIS / 1000)
    assert drain(repository, "q") == [b"1", b"2", b"0", b"later"]


def test_a_penalty_ends_with_the_process(workshop: Workshop, repository: Engine) -> None:
    """Penalties are not kept over a restart; the FlowFiles are."""
    put_all(repository, "q", numbers(2))
    with repository.session() as session:
        session.get_many("q", 2)
        session.rollback(penalize=True)

    assert drain(workshop.reopen(), "q") == numbers(2)


def test_places_decide_over_the_order_of_commits(workshop: Workshop, repository: Engine) -> None:
    """What a session ingested before another one, but committed after it, comes first, as it does after a restart."""
    early, late = repository.session(), repository.session()
    early.ingest("q", numbers(2))
    late.ingest("q", numbers(2, 2))
    late.commit()
    early.commit()

    assert peek(repository, "q") == numbers(4)
    assert drain(workshop.crash(), "q") == numbers(4)


def test_a_drop_spares_what_is_held(workshop: Workshop) -> None:
    """Dropping a queue removes everything that no session holds, and says how many."""
    repository = workshop.make(flow_file=SMALL)
    put_each(repository, "q", numbers(20))
    session = repository.session()
    session.get_many("q", 2)
    seen: list[int] = []

    assert repository.queues.drop(repository.queue("q"), seen.append) == 18

    assert seen[-1] == 18
    assert repository.queue("q").figures() == (2, 2, 2, 0, 0, 0, 0)
    session.rollback()
    assert drain(workshop.crash(), "q") == numbers(2)


def test_a_drop_takes_expired_and_penalized_ones(workshop: Workshop, repository: Engine) -> None:
    """Age and penalty keep nothing from being dropped, and nothing is lost count of."""
    queue = define(repository, expiration_millis=10_000)
    put_all(repository, "q", [b""] * 2_100)
    with repository.session() as session:
        session.get_many("q", 3)
        session.rollback(penalize=True)

    assert repository.queues.drop(queue) == 2_100

    assert queue.figures() == (0, 0, 0, 0, 0, 0, 0)
    assert drain(workshop.reopen(), "q") == []


@pytest.mark.usefixtures("_each_frame_reserves")
def test_a_failed_drop_gives_back_what_is_left(workshop: Workshop, repository: Engine, files: FailingFiles) -> None:
    """When a dropping transaction fails for good reason, the rest of the queue is still there to be polled."""
    queue = define(repository, expiration_millis=10_000)
    put_all(repository, "q", numbers(2_500))
    workshop.clock.advance(11)
    files.fail("allocate", "*.wal", at=2)

    with pytest.raises(OSError, match="Input/output"):
        repository.queues.expire()

    assert queue.figures().held == 0
    assert queue.figures().flow_files == 1_500
    files.heal()
    assert repository.queues.expire() == 1_500


@pytest.mark.usefixtures("_each_frame_reserves")
def test_a_poll_with_expired_ones_survives_a_failure(workshop: Workshop, files: FailingFiles) -> None:
    """If expired FlowFiles cannot be removed now, the poll still hands out what it found, and loses neither."""
    repository = workshop.make()
    queue = define(repository, expiration_millis=10_000)
    put_all(repository, "q", numbers(2))
    workshop.clock.advance(11)
    put_all(repository, "q", [b"young"])
    files.fail("allocate", "*.wal")

    with repository.session() as session:
        assert len(session.get_many("q", 5)) == 1
        assert queue.figures().held == 1

    assert queue.figures().flow_files == 3
    assert drain(repository, "q") == [b"young"]
    assert queue.figures() == (0, 0, 0, 0, 0, 0, 0)


def test_an_unknown_queue_is_named(repository: Engine) -> None:
    """`find` makes no queue: it says which ones there are."""
    repository.queue("inbox")

    with pytest.raises(QueueNotFound, match="no queue 'outbox'"):
        repository.queues.find("outbox")


def test_nothing_is_shown_twice_after_the_log_stopped(workshop: Workshop, files: FailingFiles) -> None:
    """Expired FlowFiles whose removal may have happened do not come back before a restart has told."""
    repository = workshop.make()
    queue = define(repository, expiration_millis=10_000)
    put_all(repository, "q", numbers(2))
    workshop.clock.advance(11)
    files.fail("sync", "*.wal")

    assert repository.log.is_running
    with pytest.raises(Exception, match="may or may not"):
        repository.queues.expire()

    assert queue.figures().held == 2
    with pytest.raises(RepositoryStopped):
        put_all(repository, "q", numbers(1))
    files.heal()
    assert drain(workshop.crash(), "q") == []
