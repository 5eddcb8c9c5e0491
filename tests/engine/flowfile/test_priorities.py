from collections.abc import Callable
from typing import Any

import pytest

from tests.engine.flowfile.steps import SMALL, define, peek
from tests.support import Workshop, committing, drain, put_all, put_each
from ullage.engine.engine import Engine

Step = Callable[[Workshop, Engine], Engine]


def roll_back_in_parts(workshop: Workshop, repository: Engine) -> Engine:
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


def ranked(*ranks: str) -> list[tuple[bytes, dict[str, str]]]:
    return [(rank.encode(), {"rank": rank}) for rank in ranks]


@pytest.mark.parametrize("afterwards", AFTERWARDS.values(), ids=AFTERWARDS)
@pytest.mark.parametrize(
    ("settings", "given", "expected"),
    [
        ({}, [b"3", b"1", b"4", b"15", b"9"], [b"3", b"1", b"4", b"15", b"9"]),
        ({"priority": "LargestFirst"}, [b"bb", b"a", b"dddd", b"cc", b""], [b"dddd", b"bb", b"cc", b"a", b""]),
        (
            {"priority": "PriorityAttribute", "priority_attribute": "rank"},
            [b"none", *ranked("b", "10", "9", "-1", "a", "10"), (b"none too", {"other": "1"})],
            [b"-1", b"9", b"10", b"10", b"a", b"b", b"none", b"none too"],
        ),
    ],
    ids=["first in first out", "largest first", "by an attribute"],
)
def test_by_arrival_size_or_attribute(
    workshop: Workshop,
    repository: Engine,
    afterwards: Step,
    settings: dict[str, Any],
    given: list[bytes | tuple[bytes, dict[str, str]]],
    expected: list[bytes],
) -> None:
    """In the order of the commits; by the size of the content, then by arrival; by an attribute: numbers before words,
    words before FlowFiles without it, each ascending, then by arrival.
    """
    define(repository, **settings)
    for each in given:
        content, attributes = each if isinstance(each, tuple) else (each, {})
        put_all(repository, "q", [content], **attributes)

    assert drain(afterwards(workshop, repository), "q") == expected


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
    with committing(repository) as session:
        session.transfer_many(session.get_many("before", 1), "q")

    assert drain(afterwards(workshop, repository), "q") == expected


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
    with committing(repository) as session:
        (held,) = session.get_many("q", 1)

        define(repository)
        session.transfer(held, "q")

    assert sorted(len(content) for content in drain(repository, "q")) == sorted(sizes)
