"""Stores: what the watch says and what our own writes answer, in whatever order they arrive."""

import asyncio
from typing import Any, cast

from tests.operator.support import Script
from ullage_operator.cluster.api import ApiClient
from ullage_operator.cluster.informer import Informer
from ullage_operator.errors import ApiError
from ullage_operator.objects import Object


def daemon_set(version: int, ready: int) -> Object:
    return {
        "metadata": {"namespace": "a", "name": "flows", "resourceVersion": str(version)},
        "status": {"numberReady": ready},
    }


def after(events: list[tuple[str, Object]], answer: Object) -> list[Object]:
    """What a store holds once the watch has told its events, and then the answer to a write arrives."""

    async def run() -> list[Object]:
        script = Script("DaemonSet", [(0.0, event, found) for event, found in events])
        store = Informer(cast("ApiClient", script), "DaemonSet")
        store.start()
        await script.told.wait()
        store.put(answer)
        await store.stop()
        return list(store.objects.values())

    return asyncio.run(run())


def test_an_answer_that_the_watch_has_passed_does_not_hide_what_came_since() -> None:
    """Else the object would stay as it was until something else changes it."""
    events = [("ADDED", daemon_set(7, 0)), ("MODIFIED", daemon_set(9, 3))]

    assert after(events, daemon_set(7, 0)) == [daemon_set(9, 3)]


def test_an_answer_does_not_bring_back_what_is_gone() -> None:
    """Deletions have versions, too."""
    events = [("ADDED", daemon_set(7, 0)), ("DELETED", daemon_set(10, 0))]

    assert after(events, daemon_set(7, 0)) == []


def test_an_answer_is_there_before_the_watch_brings_it() -> None:
    """The next reconciliation sees what this one wrote, numbers of different length included."""
    assert after([("ADDED", daemon_set(9, 0))], daemon_set(10, 3)) == [daemon_set(10, 3)]
    assert after([], daemon_set(2, 0)) == [daemon_set(2, 0)]


def test_of_two_answers_the_newer_one_stays() -> None:
    """Kopf may tell of an object what it was before our last write to it."""

    async def run() -> None:
        store = Informer(cast("ApiClient", Script("DaemonSet", [])), "DaemonSet")
        for version in (12, 11):
            store.put(daemon_set(version, version))
        assert list(store.objects.values()) == [daemon_set(12, 12)]

    asyncio.run(run())


def test_what_an_answer_has_brought_is_no_news_and_what_somebody_else_wrote_is() -> None:
    """Where that is wished for: a status that we write ourselves starts no pass, and one that is edited does."""

    async def run(*, tells_answers: bool) -> list[Object]:
        told: list[Object] = []

        def tell(found: Object) -> None:
            told.append(found)
            if found == daemon_set(6, 6):
                store.put(daemon_set(7, 7))

        events = [(0.0, "MODIFIED", daemon_set(version, version)) for version in (7, 8)]
        script = Script("DaemonSet", [*events, (0.0, "DELETED", daemon_set(9, 8))], {"DaemonSet": [daemon_set(6, 6)]})
        store = Informer(cast("ApiClient", script), "DaemonSet", on_change=tell, tells_answers=tells_answers)
        store.start()
        await script.told.wait()
        await store.stop()
        return told

    others = [daemon_set(6, 6), daemon_set(8, 8), daemon_set(9, 8)]
    assert asyncio.run(run(tells_answers=False)) == others
    assert asyncio.run(run(tells_answers=True)) == [others[0], daemon_set(7, 7), *others[1:]]


def test_a_store_that_a_bug_has_ended_says_so() -> None:
    """The kubelet starts the process anew then; else it would decide on what was true once."""

    async def run() -> None:
        def fail(_: Object) -> None:
            raise KeyError("nodeName")

        script = Script("DaemonSet", [(0.0, "ADDED", daemon_set(2, 0))])
        store = Informer(cast("ApiClient", script), "DaemonSet", on_change=fail)
        store.start()
        said = [store.has_ended]
        await store.listed.wait()
        await asyncio.sleep(0)
        said.append(store.has_ended)
        await store.stop()
        assert said == [False, True]

    asyncio.run(run())


def test_a_store_that_is_refused_says_so_and_is_not_waited_for() -> None:
    """A right that is missing comes back when somebody gives it, and not by waiting at the start."""

    class Refusing(Script):
        async def list(self, kind: str, *_: Any) -> tuple[list[Object], str]:
            raise ApiError(403, "GET daemonsets: forbidden")

    async def run() -> None:
        store = Informer(cast("ApiClient", Refusing("DaemonSet", [])), "DaemonSet")
        store.start()
        await store.answered.wait()
        assert (store.listed.is_set(), store.refusal) == (False, "GET daemonsets: forbidden (status 403)")
        await store.stop()

    asyncio.run(run())


def test_a_namespace_that_is_named_twice_is_waited_for_once() -> None:
    """ULLAGE_OPERATOR_NAMESPACES=a,a would else keep the operator from ever starting."""

    async def run() -> None:
        store = Informer(cast("ApiClient", Script("DaemonSet", [])), "DaemonSet", namespaces=("a", "a"))
        store.start()
        await asyncio.wait_for(store.listed.wait(), 10)
        await store.stop()

    asyncio.run(run())
