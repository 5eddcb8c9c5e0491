"""Passes over a fleet: what they ask of the API server, and how they leave the event loop to its watches."""

import asyncio
import math
import sys
import threading
from collections import Counter
from types import FrameType
from typing import NamedTuple, Self, cast

import pytest

from tests.operator.support import NOW, Server
from ullage.contract import object_name, time_of
from ullage_operator.cluster.api import ApiClient
from ullage_operator.errors import ApiError, OperatorError
from ullage_operator.objects import Object
from ullage_operator.repository.reconcile import Reconciler
from ullage_operator.settings import OperatorSettings

KEY = ("data", "flows")
LABELS = {
    "app.kubernetes.io/managed-by": "ullage-operator",
    "app.kubernetes.io/name": "ullage-agent",
    "ullage.dev/repository": "flows",
}
EXPONENT_MAX = 1.1
LOOP_SHARE_MAX = 0.05
STRETCH_MAX = 0.05
QUIET, ONE_POD = 2, 3


class Work(NamedTuple):
    """Of one pass: functions called, Python's own among them, which no other process disturbs; those of them on the
    event loop's thread, the longest stretch of these without a look at its sockets, and requests.
    """

    all: int
    on_loop: int
    stretch: int
    asked: Counter[str]


class Meter:
    """Counts the calls of all threads that are begun after it."""

    def __init__(self) -> None:
        self._loop = threading.get_ident()
        self.clear()

    def clear(self) -> None:
        self.on_loop = self.elsewhere = self.stretch = self._since = 0

    def __enter__(self) -> Self:
        threading.setprofile(self._called)
        sys.setprofile(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _called(self, frame: FrameType, event: str, argument: object) -> None:
        if event not in ("call", "c_call"):
            return
        if threading.get_ident() != self._loop:
            self.elsewhere += 1
            return
        if event == "call" and frame.f_code.co_name == "_run_once":  # the loop has looked at its sockets
            self._since = 0
        self._since += 1
        self.on_loop += 1
        self.stretch = max(self.stretch, self._since)


class Fleet:
    """A repository on so many nodes, and what becomes of it."""

    def __init__(self, count: int, server: Server | None = None) -> None:
        self.names = [f"node-{number}" for number in range(count)]
        self.server = server or Server(time_of(NOW))
        self.server.keep("ContentRepository", "flows", "data", spec={"maintenance": {"maxConcurrentNodes": "100%"}})
        for name in self.names:
            ready = {"conditions": [{"type": "Ready", "status": "True"}]}
            self.server.keep("Node", name, spec={}, status=ready)
        self.reconciler = Reconciler(cast("ApiClient", self.server), OperatorSettings(), lambda: NOW)

    def pod_is_ready(self, name: str, ready: str = "True") -> None:
        status = {"phase": "Running", "podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": ready}]}
        pod = {"metadata": {"labels": LABELS}, "spec": {"nodeName": name}, "status": status}
        self.reconciler.cache.agents.put(self.server.keep("Pod", name, "data", **pod))

    def agent_says(self, name: str, **more: object) -> None:
        status = {
            "heartbeat": time_of(NOW),
            "settingsGeneration": 1,
            "repositoryUuid": "u",
            "volumes": [f"{name}:1"],
            "wanted": ["Rewrite"],
            "conditions": [{"type": "Ready", "status": "True", "reason": "Serves", "lastTransitionTime": time_of(NOW)}],
            **more,
        }
        found = self.server.keep("ContentRepositoryNode", object_name("flows", name), "data", status=status)
        self.reconciler.cache.node_objects.put(found)


def passes(count: int) -> list[Work]:
    """Of a fleet: objects are made, tickets are given, nothing has changed, one pod has."""
    found: list[Work] = []

    async def run(meter: Meter) -> None:
        fleet = Fleet(count)
        await fleet.reconciler.cache.start()

        async def one() -> None:
            fleet.server.asked.clear()
            meter.clear()
            await fleet.reconciler.reconcile(KEY)
            counted = meter.on_loop + meter.elsewhere, meter.on_loop, meter.stretch
            found.append(Work(*counted, Counter(fleet.server.asked)))

        await one()
        for name in fleet.names:
            fleet.pod_is_ready(name)
            fleet.agent_says(name)
        await one()
        await one()
        fleet.pod_is_ready("node-0", "False")
        await one()
        await fleet.reconciler.stop()

    with Meter() as meter:
        asyncio.run(run(meter))
    return found


@pytest.fixture(scope="module")
def few() -> list[Work]:
    return passes(500)


@pytest.fixture(scope="module")
def many() -> list[Work]:
    return passes(2_000)


def test_a_pass_grows_as_the_fleet_does(few: list[Work], many: list[Work]) -> None:
    """Reading what is followed and writing what differs included."""
    exponents = [math.log(large.all / small.all) / math.log(4) for small, large in zip(few, many, strict=True)]

    assert max(exponents) <= EXPONENT_MAX


def test_the_event_loop_is_free_while_a_pass_is_made(few: list[Work], many: list[Work]) -> None:
    """Watches are heard, and the kubelet gets its answer: between two looks at the sockets there is a small part of a
    pass, however much it writes; and of one that writes nothing other threads do what grows with the fleet.
    """
    assert max(each.stretch / each.all for each in many) <= STRETCH_MAX
    assert many[QUIET].on_loop / many[QUIET].all <= LOOP_SHARE_MAX
    assert many[QUIET].on_loop <= 1.2 * few[QUIET].on_loop


def test_a_pass_asks_for_nothing_but_what_it_changes(few: list[Work]) -> None:
    """Two requests for each node until all have tickets; then none, until something happens."""
    assert [each.asked["patch ContentRepositoryNode"] for each in few] == [500, 500, 0, 0]
    assert few[QUIET].asked == {}
    assert few[ONE_POD].asked == {
        "patch EndpointSlice": 1,
        "patch ContentRepository/status": 1,
        "patch Event": 2,
    }


class SlowServer(Server):
    """Takes its time for one kind of objects."""

    slow = ""

    async def apply(self, document: Object, subresource: str = "") -> Object:
        for _ in range(1_000 if document["kind"] == self.slow else 1):
            await asyncio.sleep(0)
        return await super().apply(document, subresource)


@pytest.mark.parametrize("slow", ["ServiceAccount", "ConfigMap", "Secret", "RoleBinding"])
def test_pods_are_asked_for_when_all_is_there_that_they_need(slow: str) -> None:
    """A DaemonSet that is there before its ServiceAccount has its pods refused, and is tried again minutes later."""
    server = SlowServer(time_of(NOW))
    server.slow = slow

    async def run() -> None:
        fleet = Fleet(1, server)
        await fleet.reconciler.cache.start()
        await fleet.reconciler.reconcile(KEY)
        await fleet.reconciler.stop()

    asyncio.run(run())
    made = {kind: int(each["metadata"]["resourceVersion"]) for (kind, _, _), each in server.objects.items()}
    assert made[slow] < made["DaemonSet"]


class RefusingServer(Server):
    """Gives no right to look at pods."""

    async def list(
        self, kind: str, namespace: str | None = None, labels: str = "", fields: str = ""
    ) -> tuple[list[Object], str]:
        if kind == "Pod":
            raise ApiError(403, "pods is forbidden")
        return await super().list(kind, namespace, labels, fields)


def test_who_may_not_look_at_pods_says_so_and_changes_nothing() -> None:
    """At the start too: else it would wait for a right in silence, while the status of before says that all is well."""
    server = RefusingServer(time_of(NOW))

    async def run() -> None:
        fleet = Fleet(1, server)
        await fleet.reconciler.cache.start()
        with pytest.raises(OperatorError, match="pods is forbidden"):
            await fleet.reconciler.reconcile(KEY)
        await fleet.reconciler.stop()

    asyncio.run(run())
    conditions = server.objects["ContentRepository", "data", "flows"]["status"]["conditions"]
    told = {each["type"]: (each["status"], each["message"]) for each in conditions}
    assert told["Stalled"][0] == "True"
    assert "pods is forbidden" in told["Stalled"][1]
    assert not any(kind == "DaemonSet" for kind, _, _ in server.objects)
