from collections.abc import Callable
from typing import Any

import pytest

from tests.engine.flowfile.steps import SMALL, define, peek, put_each
from tests.support import Workshop, drain, put_all
from ullage_agent.engine.errors import SessionMisuse
from ullage_agent.engine.repository import Repository

Step = Callable[[Workshop, Repository], Repository]


def roll_back_in_parts(workshop: Workshop, repository: Repository) -> Repository:
    """Two sessions hold a part each; the one that took the first part gives it back first."""
    first, second = repository.session(), repository.session()
    first.get_many("q", 2)
    second.get_many("q", 2)
    first.rollback()
    second.rollback()
    return repository


AFTERWARDS: dict[str, Step] = {
    "at once": lambda workshop, repository: repository,
    "after a restart": lambda workshop, repository: workshop.reopen(),
    "after a crash": lambda workshop, repository: workshop.crash(),
    "after rollbacks": roll_back_in_parts,
}


@pytest.mark.parametrize("afterwards", AFTERWARDS.values(), ids=AFTERWARDS)
def test_first_in_first_out(workshop: Workshop, afterwards: Step) -> None:
    """FlowFiles come in the order in which they were committed."""
    repository = workshop.make()
    define(repository)
    put_each(repository, "q", [b"3", b"1", b"4", b"15", b"9"])

    repository = afterwards(workshop, repository)

    assert drain(repository, "q") == [b"3", b"1", b"4", b"15", b"9"]


@pytest.mark.parametrize("afterwards", AFTERWARDS.values(), ids=AFTERWARDS)
@pytest.mark.parametrize(
    ("priority", "expected"),
    [("OldestFirst", [b"old", b"young", b"child"]), ("NewestFirst", [b"child", b"young", b"old"])],
)
def test_by_the_start_of_the_lineage(
    workshop: Workshop, afterwards: Step, priority: str, expected: list[bytes]
) -> None:
    """OldestFirst and NewestFirst go by when the lineage began, not by when the FlowFile was queued."""
    repository = workshop.make()
    define(repository, priority=priority)
    put_all(repository, "before", [b"old"])
    workshop.clock.advance(1)
    put_all(repository, "q", [b"young"])
    workshop.clock.advance(1)
    put_all(repository, "q", [b"child"])
    with repository.session() as session:
        for record in session.get_many("before", 1):
            session.transfer(record, "q")
        session.commit()

    repository = afterwards(workshop, repository)

    assert drain(repository, "q") == expected


@pytest.mark.parametrize("afterwards", AFTERWARDS.values(), ids=AFTERWARDS)
def test_largest_first(workshop: Workshop, afterwards: Step) -> None:
    """The size of the content decides, then the order of arrival."""
    repository = workshop.make()
    define(repository, priority="LargestFirst")
    put_each(repository, "q", [b"bb", b"a", b"dddd", b"cc", b""])

    repository = afterwards(workshop, repository)

    assert drain(repository, "q") == [b"dddd", b"bb", b"cc", b"a", b""]


@pytest.mark.parametrize("afterwards", AFTERWARDS.values(), ids=AFTERWARDS)
def test_by_an_attribute(workshop: Workshop, afterwards: Step) -> None:
    """Numbers come before words, words before FlowFiles without the attribute; each ascending, then by arrival."""
    repository = workshop.make()
    define(repository, priority="PriorityAttribute", priority_attribute="rank")
    put_all(repository, "q", [b"none"])
    for rank in ["b", "10", "9", "-1", "a", "10"]:
        put_all(repository, "q", [rank.encode()], rank=rank)
    put_all(repository, "q", [b"none too"], other="1")

    repository = afterwards(workshop, repository)

    assert drain(repository, "q") == [b"-1", b"9", b"10", b"10", b"a", b"b", b"none", b"none too"]


def test_swapped_out_are_the_lowest(workshop: Workshop) -> None:
    """Whatever the order, the FlowFiles that leave memory are those that would come last."""
    repository = workshop.make(flow_file=SMALL)
    define(repository, priority="LargestFirst")
    put_each(repository, "q", [b"x" * size for size in range(1, 10)])

    assert [len(content) for content in peek(repository, "q", 6)] == [9, 8, 7, 6, 5, 4]
    assert repository.queue("q").figures().swapped == 3


@pytest.mark.parametrize("priority", ["NewestFirst", "LargestFirst"])
def test_a_restart_keeps_the_highest_in_front(workshop: Workshop, priority: str) -> None:
    """With the lowest in swap files, a restart serves the highest from memory first, as before it."""
    repository = workshop.make(flow_file=SMALL)
    define(repository, priority=priority)
    for size in range(1, 12):
        workshop.clock.advance(1)
        put_all(repository, "q", [b"x" * size])
    before = peek(repository, "q", 6)

    repository = workshop.crash()

    assert before == [b"x" * size for size in (9, 8, 7, 6, 5, 4)]
    assert [len(content) for content in peek(repository, "q", 6)] == [11, 10, 9, 8, 7, 6]
    assert repository.queue("q").figures().swapped == 3


def test_a_new_priority_sorts_what_is_in_memory(workshop: Workshop) -> None:
    """Redefining a queue orders its active FlowFiles and its overflow anew, and lasts."""
    repository = workshop.make(flow_file={"swap_threshold": 3, "swap_batch": 3})
    define(repository)
    put_each(repository, "q", [b"1", b"22", b"333", b"4444", b"55555"])

    define(repository, priority="LargestFirst")
    assert peek(repository, "q") == [b"55555", b"4444", b"333", b"22", b"1"]

    repository = workshop.reopen()
    assert peek(repository, "q") == [b"55555", b"4444", b"333", b"22", b"1"]

    define(repository)
    assert drain(repository, "q") == [b"1", b"22", b"333", b"4444", b"55555"]


def test_a_new_priority_finds_swapped_flow_files_too(workshop: Workshop) -> None:
    """Redefining a queue loses nothing of what is swapped out, held or penalized."""
    repository = workshop.make(flow_file=SMALL)
    define(repository, priority="LargestFirst")
    sizes = [5, 1, 12, 3, 8, 2, 9, 11, 4, 7, 6, 10]
    put_each(repository, "q", [b"x" * size for size in sizes])
    with repository.session() as session:
        held = session.get("q")
        assert held is not None

        define(repository)
        session.transfer(held, "q")
        session.commit()

    assert sorted(len(content) for content in drain(repository, "q")) == sorted(sizes)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"priority": "BestFirst"}, "there is no priority 'BestFirst'"),
        ({"count_max": -1}, "must not be negative"),
        ({"name": ""}, "1 to 255 characters"),
        ({"name": "q" * 256}, "1 to 255 characters"),
    ],
)
def test_an_impossible_definition_is_refused(workshop: Workshop, settings: dict[str, Any], message: str) -> None:
    """What no start could obey never reaches the log."""
    repository = workshop.make()

    with pytest.raises(SessionMisuse, match=message):
        define(repository, **settings)

    assert workshop.reopen().queues.all() == []
