"""What an agent's words wake: events at once, sums and heartbeats when it is time for sums."""

import asyncio
from typing import Any, cast

import pytest

from tests.operator.support import Script
from ullage.contract import HEARTBEAT_SECONDS
from ullage_operator.cluster.api import ApiClient
from ullage_operator.objects import Object
from ullage_operator.repository.cache import InformerCache
from ullage_operator.settings import OperatorSettings

PAUSE = float(HEARTBEAT_SECONDS)


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
        script = Script("ContentRepositoryNode", events)

        def changed(key: tuple[str, str] | None, is_quiet: bool) -> None:
            assert key == ("a", "flows")
            found.append(is_quiet)

        cache = InformerCache(cast("ApiClient", script), OperatorSettings(), changed, lambda: script.seconds)
        await cache.start()
        await script.told.wait()
        await cache.stop()

    asyncio.run(run())
    return found


def test_a_heartbeat_and_sums_wait() -> None:
    """They come from each node all the time; what they change is written once a minute anyway."""
    sums = {"space": {"liveBytes": 5}, "leases": 2, "reclaimedBytes": 7}
    events = [(0, "ADDED", words(2)), (PAUSE, "MODIFIED", words(3)), (PAUSE, "MODIFIED", words(4, **sums))]

    assert woken(events) == [False, True, True]


@pytest.mark.parametrize(
    "events",
    [
        {"wanted": ["Rewrite"]},
        {"ticket": {"id": "t", "state": "Completed"}},
        {"settingsGeneration": 2},
        {"volumes": [1]},
    ],
)
def test_anything_else_is_news(events: dict[str, Any]) -> None:
    """What an agent wants, what it has done, and what it now obeys."""
    assert woken([(0, "ADDED", words(2)), (PAUSE, "MODIFIED", words(3, **events))]) == [False, False]


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
