"""What an agent's words wake: events at once, sums and heartbeats when it is time for sums."""

import asyncio
from typing import Any, cast

import pytest

from tests.operator.support import Script
from ullage.contract import HEARTBEAT_SECONDS
from ullage_operator.cluster.api import ApiClient
from ullage_operator.objects import Object
from ullage_operator.repository.cache import InformerCache, refusal
from ullage_operator.settings import OperatorSettings

PAUSE = float(HEARTBEAT_SECONDS)


def words(version: int, **status: Any) -> Object:
    return {
        "metadata": {"namespace": "a", "name": "flows-w1", "resourceVersion": str(version), "uid": "u"},
        "spec": {"repository": "flows", "nodeName": "w1"},
        "status": {"heartbeat": str(version), "wanted": [], **status},
    }


def told(kind: str, events: list[tuple[float, str, Object]], *known: Object) -> list[tuple[Any, bool]]:
    """Which repositories these events wake, and whether that was quiet. `known`: node objects."""
    found: list[tuple[Any, bool]] = []

    async def run() -> None:
        script = Script(kind, events, {"ContentRepositoryNode": [*known]})

        def changed(key: tuple[str, str] | None, is_quiet: bool) -> None:
            found.append((key, is_quiet))

        cache = InformerCache(cast("ApiClient", script), OperatorSettings(), changed, lambda: script.seconds)
        await cache.start()
        await script.told.wait()
        await cache.stop()

    asyncio.run(run())
    return found[len(known) :]


def woken(events: list[tuple[float, str, Object]]) -> list[bool]:
    """For each event, whether it was quiet; all are about the one repository."""
    found = told("ContentRepositoryNode", events)
    assert {key for key, _ in found} == {("a", "flows")}
    return [is_quiet for _, is_quiet in found]


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


def on(node: str, repository: str) -> Object:
    metadata = {"namespace": "a", "name": f"{repository}-{node}", "resourceVersion": "1", "uid": "u"}
    return {"metadata": metadata, "spec": {"repository": repository, "nodeName": node}}


def test_a_pod_of_spark_wakes_those_on_its_node() -> None:
    """None before it has a node, which is how every pod begins; and what follows pods goes on."""

    def pod(version: int, **spec: Any) -> Object:
        return {"metadata": {"namespace": "b", "name": "e", "resourceVersion": str(version)}, "spec": spec}

    events = [(0.0, "ADDED", pod(2)), (0.0, "MODIFIED", pod(3, nodeName="w1")), (0.0, "DELETED", pod(4, nodeName="w1"))]

    found = told("Pod", events, on("w1", "flows"), on("w2", "flows"), on("w2", "others"), on("w1", "more"))

    # Two stores follow pods: of Spark, and of who wants the same.
    assert sorted(found) == sorted([(("a", name), False) for name in ("flows", "more") for _ in range(4)])


def made_or_not(reason: str, seconds: int) -> Object:
    """An event of a DaemonSet."""
    message = f'Error creating: pods "w-{seconds}" is forbidden' if reason == "FailedCreate" else "Created pod: w-1"
    return {"reason": reason, "lastTimestamp": f"2026-01-01T00:00:{seconds:02}Z", "message": message}


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([], ""),
        ([("FailedCreate", 1)], "Error creating: pods is forbidden"),
        ([("FailedCreate", 1), ("SuccessfulCreate", 2)], ""),
        ([("FailedCreate", 2), ("SuccessfulCreate", 2)], "Error creating: pods is forbidden"),
        ([("FailedCreate", 3), ("SuccessfulCreate", 2)], "Error creating: pods is forbidden"),
        ([("SuccessfulDelete", 3), ("FailedCreate", 1)], "Error creating: pods is forbidden"),
    ],
)
def test_pods_are_refused_until_one_is_made(events: list[tuple[str, int]], said: str) -> None:
    """A roll that follows a refusal lacks pods for moments, and what was refused before is no reason for that."""
    assert refusal([made_or_not(reason, seconds) for reason, seconds in events]) == said
