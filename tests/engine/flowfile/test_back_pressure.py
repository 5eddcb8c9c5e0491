from typing import Any

import pytest

from tests.engine.flowfile.steps import define, numbers
from tests.support import Workshop, committing, put_all, put_each
from ullage.engine.engine import Engine
from ullage.errors import BackPressure


@pytest.mark.parametrize(
    ("limit", "fits", "message"),
    [
        ({"count_max": 3}, numbers(2), r"queue q is full: 3 FlowFiles.*limits 3"),
        ({"bytes_max": 10}, [b"x" * 9], "10 bytes"),
    ],
)
def test_a_full_queue_refuses_sources(
    repository: Engine, limit: dict[str, Any], fits: list[bytes], message: str
) -> None:
    """At `count_max` FlowFiles, or `bytes_max` bytes, `require_room` raises, naming queue and limits; not below it."""
    define(repository, **limit)
    put_all(repository, "q", fits)
    with repository.session() as session:
        session.require_room("q")

    put_all(repository, "q", [b"x"])

    with repository.session() as session, pytest.raises(BackPressure, match=message):
        session.require_room("q")


def test_no_limit_is_no_limit(repository: Engine) -> None:
    """0 means that the queue is never full."""
    define(repository)
    put_all(repository, "q", numbers(50))

    assert not repository.queue("q").is_full


def test_held_swapped_and_penalized_count(workshop: Workshop) -> None:
    """A queue is as full as what it owns, wherever that is."""
    repository = workshop.make(flow_file={"swap_threshold": 2, "swap_batch": 2})
    queue = define(repository, count_max=8)
    put_each(repository, "q", numbers(8))
    holder = repository.session()
    holder.get_many("q", 1)
    with committing(repository) as session:
        (record,) = session.get_many("q", 1)
        session.penalize(record)
        session.transfer(record, "q")

    figures = queue.figures()
    assert (figures.flow_files, figures.held, figures.penalized) == (8, 1, 1)
    assert figures.swapped >= 2
    assert queue.is_full
    holder.rollback()


def test_bytes_follow_content_that_changes(repository: Engine) -> None:
    """When a session changes the size of what it took, the source loses the old size and the target gains the new."""
    source, target = define(repository), define(repository, "t")
    put_all(repository, "q", [b"four", b"seven.."])

    with committing(repository) as session:
        for record in session.get_many("q", 2):
            session.transfer(session.write(record, b"a much longer content"), "t")

    assert (source.figures().flow_files, source.figures().size_bytes) == (0, 0)
    assert (target.figures().flow_files, target.figures().size_bytes) == (2, 42)


def test_the_limits_outlive_a_restart(workshop: Workshop, repository: Engine) -> None:
    """Settings and fill are as before."""
    define(repository, count_max=2)
    put_all(repository, "q", numbers(2))

    repository = workshop.reopen()

    assert repository.queue("q").is_full
    assert repository.queue("q").definition.count_max == 2
