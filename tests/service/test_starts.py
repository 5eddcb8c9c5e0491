"""When requests over HTTP are begun: of each who asks one at a time, and no more than its turns have use for."""

import asyncio
from contextlib import ExitStack

import pytest

from tests.service.test_fairness import GOOD, GREEDY, Story
from ullage_agent.service.http.starts import AHEAD_MAX, HELD_MAX, Starts


def test_of_each_one_request_is_begun_at_a_time() -> None:
    """Of hundreds that came before somebody else's one is begun before it, and none is left."""
    starts, begun = Starts(Story().turns), list[str]()

    async def begin(whose: str) -> None:
        await starts.begin(whose)
        begun.append(whose)

    async def tell() -> None:
        greedy = [asyncio.create_task(begin("greedy")) for _ in range(300)]
        good = asyncio.create_task(begin("good"))
        greedy[7].cancel()
        await asyncio.gather(good, *greedy, return_exceptions=True)
        await asyncio.sleep(0)
        await begin("later")

    asyncio.run(tell())

    assert begun == ["greedy", "good", *["greedy"] * 298, "later"]


@pytest.mark.parametrize("is_shared", [True, False])
def test_no_more_are_begun_than_keep_the_turns_busy(is_shared: bool) -> None:
    """Of a principal whose requests wait for turns; while one has the node for itself all of them are begun."""
    story = Story()
    starts, begun = Starts(story.turns), 0
    if is_shared:
        story.want(GOOD)
        story.want(GREEDY)
    turn = asyncio.Event()

    async def ask() -> None:
        nonlocal begun
        await starts.begin("greedy")
        begun += 1
        with starts.ahead("greedy"):
            await turn.wait()

    async def tell() -> list[int]:
        asked = [asyncio.create_task(ask()) for _ in range(3 * AHEAD_MAX)]
        seen = []
        for _ in range(2):
            for _ in range(20 * AHEAD_MAX):
                await asyncio.sleep(0)
            seen.append(begun)
            turn.set()
        await asyncio.gather(*asked)
        return seen

    assert asyncio.run(tell()) == [AHEAD_MAX if is_shared else 3 * AHEAD_MAX, 3 * AHEAD_MAX]


def test_what_is_not_begun_is_bounded() -> None:
    """Of clients that send requests and go away: the quotas are asked about what is beyond, rather than nothing."""
    story = Story()
    starts, begun = Starts(story.turns), 0
    story.want(GOOD)
    story.want(GREEDY)

    async def ask() -> None:
        nonlocal begun
        await starts.begin("greedy")
        begun += 1

    async def tell() -> int:
        with ExitStack() as ahead:
            for _ in range(AHEAD_MAX):
                ahead.enter_context(starts.ahead("greedy"))
            asked = [asyncio.create_task(ask()) for _ in range(HELD_MAX + 7)]
            for _ in range(20):
                await asyncio.sleep(0)
            found = begun
            for each in asked:
                each.cancel()
        return found

    assert asyncio.run(tell()) == 7
