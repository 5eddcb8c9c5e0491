"""What an agent's words wake: news at once, sums and heartbeats when it is time for sums."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from ullage_agent.fleet import HEARTBEAT_SECONDS
from ullage_operator.api import Api, Object
from ullage_operator.surroundings import Surroundings

PAUSE = float(HEARTBEAT_SECONDS)


class Script:
    """An API server that tells one kind's events, some seconds apart."""

    def __init__(self, events: list[tuple[float, str, Object]]) -> None:
        self._events = events
        self.seconds = 0.0
        self.told = asyncio.Event()

    async def list(self, *_: Any) -> tuple[list[Object], str]:
        return [], "1"

    async def watch(self, kind: str, *_: Any) -> AsyncIterator[tuple[str, Object]]:
        if kind == "ContentRepositoryNode":
            for pause, event, found in self._events:
                self.seconds += pause
                yield event, found
            self.told.set()
        await asyncio.Event().wait()


def words(version: int, **status: Any) -> Object:
    return {
        "metadata": {"namespace": "a", "name": "flows-w1", "resourceVersion": str(version), "uid": "u"},
        "spec": {"repository": "flows", "nodeName": "w1"},
        "status": {"heartbeat": str(version), "wanted": [], **status},
    }


def woken(events: list[tuple[float, str, Object]]) -> list[bool]:
    """For each event, whether it was quiet; all are about the one repository."""
    found: list[bool] = []

    async def run() -> None:
        script = Script(events)

        def changed(key: tuple[str, str] | None, is_quiet: bool) -> None:
            assert key == ("a", "flows")
            found.append(is_quiet)

        surroundings = Surroundings(cast("Api", script), (), changed, lambda: script.seconds)
        await surroundings.start()
        await script.told.wait()
        await surroundings.stop()

    asyncio.run(run())
    return found


def test_a_heartbeat_and_sums_wait() -> None:
    """They come from each node all the time; what they change is written once a minute anyway."""
    sums = {"space": {"liveBytes": 5}, "leases": 2, "reclaimedBytes": 7}
    events = [(0, "ADDED", words(2)), (PAUSE, "MODIFIED", words(3)), (PAUSE, "MODIFIED", words(4, **sums))]

    assert woken(events) == [False, True, True]


@pytest.mark.parametrize(
    "news",
    [
        {"wanted": ["Rewrite"]},
        {"ticket": {"id": "t", "state": "Completed"}},
        {"settingsGeneration": 2},
        {"volumes": [1]},
    ],
)
def test_anything_else_is_news(news: dict[str, Any]) -> None:
    """What an agent wants, what it has done, and what it now obeys."""
    assert woken([(0, "ADDED", words(2)), (PAUSE, "MODIFIED", words(3, **news))]) == [False, False]


def test_a_heartbeat_after_a_silence_is_news() -> None:
    """The node was perhaps counted as lost; and one that goes and comes again begins anew."""
    events = [
        (0, "ADDED", words(2)),
        (3 * PAUSE, "MODIFIED", words(3)),
        (PAUSE, "MODIFIED", words(4)),
        (1, "DELETED", words(5)),
        (1, "ADDED", words(6)),
    ]

    assert woken(events) == [False, False, True, False, False]
