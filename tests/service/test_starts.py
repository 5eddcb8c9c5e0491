"""When requests over HTTP are begun: of each one at a time, and no more than its turns have use for."""

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

import pytest

from tests.service.test_fairness import GOOD, GREEDY, Story
from ullage_agent.service.http.starts import AHEAD_MAX, STRANGERS, HeldRequest, Starts
from ullage_agent.service.limits import Limits

GREEDY_TOKEN, GOOD_TOKEN = 1, 2


class Connection:
    """One that nobody has ended."""

    def __init__(self, peer: str = "10.0.0.1") -> None:
        self.peer = peer

    def fileno(self) -> int:
        return -1

    def cut_off(self) -> None:
        raise AssertionError("it is there")


PEER = Connection()


def starts_of(story: Story, limits: Limits | None = None) -> Starts:
    """Those that know whose the two tokens are."""
    found = Starts(story.turns, limits or Limits())
    found.know(GREEDY_TOKEN, GREEDY[0])
    found.know(GOOD_TOKEN, GOOD[0])
    return found


def told(tell: Callable[[], object]) -> None:
    """In an event loop, which goes on for a while."""

    async def run() -> None:
        tell()
        await passes()

    asyncio.run(run())


async def passes(count: int = 500) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_of_each_one_request_is_begun_at_a_time() -> None:
    """Of hundreds that came before somebody else's one is begun before it; one that is dropped is not begun."""
    starts, begun = starts_of(Story()), list[str]()

    def begin(token: int, whose: str) -> HeldRequest | None:
        return starts.begin(token, PEER, partial(begun.append, whose))

    def tell() -> None:
        greedy = [begin(GREEDY_TOKEN, "greedy") for _ in range(300)]
        begin(GOOD_TOKEN, "good")
        assert begun == ["greedy", "good"]
        assert greedy[7] is not None
        starts.drop(greedy[7])

    told(tell)
    told(lambda: begin(GOOD_TOKEN, "later"))

    assert begun == ["greedy", "good", *["greedy"] * 298, "later"]
    assert starts.held == (0, 0)


def test_of_an_address_that_nobody_knows_a_few_are_begun_at_a_time() -> None:
    """Each with another token: of one that comes with many at once the first is not before anybody else's first."""
    starts, begun = starts_of(Story()), list[str]()

    def tell() -> None:
        for number in range(3 * STRANGERS):
            starts.begin(77, PEER, partial(begun.append, f"many {number}"))
        for number in range(3):
            starts.begin(100 + number, PEER, partial(begun.append, f"new {number}"))
        starts.begin(77, Connection("10.0.0.2"), partial(begun.append, "elsewhere"))
        assert begun == [*(f"many {number}" for number in range(STRANGERS)), "elsewhere"]

    told(tell)

    after = begun[STRANGERS + 1 :]
    assert after[0] == f"many {STRANGERS}"
    assert {"new 0", "new 1", "new 2"} == set(after[1:4])
    assert len(begun) == 3 * STRANGERS + 4


@pytest.mark.parametrize("is_shared", [True, False])
def test_no_more_are_begun_than_keep_the_turns_busy(is_shared: bool) -> None:
    """Of a principal whose requests wait for turns; while one has the node for itself all of them are begun."""
    story = Story()
    starts, begun = starts_of(story), 0
    if is_shared:
        story.want(GOOD)
        story.want(GREEDY)
    turn = asyncio.Event()

    async def ask() -> None:
        with starts.ahead(GREEDY[0]):
            await turn.wait()

    async def tell() -> list[int]:
        tasks = set()

        def start() -> None:
            nonlocal begun
            begun += 1
            tasks.add(asyncio.create_task(ask()))

        for _ in range(3 * AHEAD_MAX):
            starts.begin(GREEDY_TOKEN, PEER, start)
            await passes(1)
        seen = []
        for _ in range(2):
            await passes()
            seen.append(begun)
            turn.set()
        await asyncio.gather(*tasks)
        return seen

    assert asyncio.run(tell()) == [AHEAD_MAX if is_shared else 3 * AHEAD_MAX, 3 * AHEAD_MAX]


def test_at_the_end_nothing_is_held() -> None:
    """All of it is begun, to be refused: a stop waits for nobody's turn."""
    story = Story()
    starts, begun = starts_of(story), list[int]()
    story.want(GOOD)
    story.want(GREEDY)

    async def tell() -> None:
        with ExitStack() as ahead:
            for _ in range(AHEAD_MAX):
                ahead.enter_context(starts.ahead(GREEDY[0]))
            for number in range(5):
                starts.begin(GREEDY_TOKEN, PEER, partial(begun.append, number))
            await passes()
            assert begun == []
            starts.end()
            await passes()

    asyncio.run(tell())

    assert begun == [0, 1, 2, 3, 4]


def test_bodies_of_what_is_not_begun_are_bounded() -> None:
    """Of each, and altogether; what is thrown away and what is dropped counts no more."""
    starts = starts_of(Story(), Limits(held_bytes=100, held_bytes_each=70))

    async def tell() -> None:
        def held(token: int) -> HeldRequest:
            found = starts.begin(token, PEER, lambda: None) or starts.begin(token, PEER, lambda: None)
            assert found is not None
            return found

        first, second, other = held(GREEDY_TOKEN), held(GREEDY_TOKEN), held(GOOD_TOKEN)
        assert starts.grow(first, 40)
        assert starts.grow(second, 30)
        assert not starts.grow(second, 1)
        assert starts.held == (3, 40)
        assert starts.grow(other, 60)
        assert not starts.grow(second, 1)
        starts.drop(other)
        assert starts.grow(second, 30)
        starts.drop(first)
        assert starts.held == (1, 30)
        await passes()
        assert starts.held == (0, 0)

    asyncio.run(tell())
