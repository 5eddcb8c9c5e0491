"""Several operators on a real API server: one is ended, killed or frozen, and what was written too late."""

import asyncio
import os
import select
import signal
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import msgspec
import pytest
from kubernetes import aio

from tests.cluster.errors import ClusterError
from tests.cluster.fault_proxy import FaultProxy
from tests.cluster.fleet import Fleet
from tests.cluster.operator_process import QUICK, Operator, condition, done_by, now_text, objects, repository, say_ready
from tests.cluster.workloads import made
from tests.operator.support import ticket
from ullage.contract import API_VERSION
from ullage_operator.cluster.api import ApiClient
from ullage_operator.content import let_go
from ullage_operator.election import LEASE_SECONDS
from ullage_operator.install import NAMESPACE
from ullage_operator.objects import RepositoryObject
from ullage_operator.observation import NodeObject, Observation
from ullage_operator.repository.apply import Applier
from ullage_operator.repository.build import Desired
from ullage_operator.repository.cache import InformerCache
from ullage_operator.repository.decide import Decision
from ullage_operator.settings import OperatorSettings

NODES = ("worker-0", "worker-1", "worker-2")
TAKEOVER_SECONDS_MAX = 15.0
"""What docs/install.md promises."""

HANDOVER_SECONDS_MAX = LEASE_SECONDS / 2
"""A look and a write, and what a busy machine adds: far less than a lease that nobody has given back."""

WAKING_SECONDS_MAX = 30.0


class Replica:
    """An operator's process, and all that it asks of the API server."""

    def __init__(self, fleet: Fleet, name: str) -> None:
        self.name = name
        self.proxy = FaultProxy(fleet, lambda: None)
        self.proxy.start()
        settings = QUICK | {"ULLAGE_OPERATOR_IDENTITY": name}
        self.operator = Operator(fleet, settings, f"http://127.0.0.1:{self.proxy.port}")

    def close(self, number: int) -> None:
        self.operator.end(number)
        self.proxy.stop()


@pytest.fixture
def pair(fleet: Fleet, operator: Operator, place: str) -> Iterator[tuple[Replica, Replica]]:
    """One that works, and one that stands by, instead of the module's own."""
    operator.end()
    first, second = Replica(fleet, "first"), Replica(fleet, "second")
    for replica in (first, second):
        replica.proxy.tell(place, {})
    try:
        first.operator.start()
        first.operator.until("it holds the lease", lambda: lease(fleet)["holderIdentity"] == "first")
        second.operator.start()
        second.operator.until("it stands by", second.operator.answers)
        yield first, second
    finally:
        first.close(signal.SIGKILL)
        second.close(signal.SIGTERM)
        operator.start()


def lease(fleet: Fleet) -> dict[str, Any]:
    """What it says; nobody has it where there is none."""
    found = fleet.get("leases", "--namespace", NAMESPACE)["items"]
    return {"holderIdentity": "", **(found[0]["spec"] if found else {})}


def moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def say_done(fleet: Fleet, place: str) -> None:
    """Each agent does at once what its ticket says."""
    for node, each in objects(fleet, place, "flows").items():
        given, said = each["spec"].get("ticket"), (each.get("status") or {}).get("ticket") or {}
        if given is not None and said.get("id") != given["id"]:
            say_ready(fleet, place, node, ticket=done_by(given, freedBytes=1, ended=now_text()))


def is_over(fleet: Fleet, place: str) -> bool:
    found = fleet.get("reclamationrun", "now", "--namespace", place).get("status") or {}
    return bool(found.get("phase") == "Completed")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP])
def test_another_takes_over_and_no_ticket_is_given_twice(
    fleet: Fleet, pair: tuple[Replica, Replica], place: str, number: signal.Signals
) -> None:
    """In the midst of a run, with a ticket out; who wakes after that writes nothing, though much has happened."""
    first, second = pair
    first.operator.runs(place)
    for node in NODES:
        say_ready(fleet, place, node)
    fleet.apply(made(API_VERSION, "ReclamationRun", "now", place, spec={"repository": "flows"}))
    first.operator.until("a ticket is given", lambda: len(first.proxy.given) == 1)
    assert second.proxy.writes == []

    before = lease(fleet)
    if number == signal.SIGSTOP:
        os.kill(first.operator.pid, number)
    else:
        first.operator.end(number)
    ended = time.time()
    second.operator.until("it takes over", lambda: lease(fleet)["holderIdentity"] == "second")
    taken = moment(lease(fleet)["acquireTime"])
    if number == signal.SIGTERM:
        assert taken - ended <= HANDOVER_SECONDS_MAX
    else:
        assert taken - moment(before["renewTime"]) > LEASE_SECONDS
        assert taken - ended <= TAKEOVER_SECONDS_MAX
    print(f"{number.name}: the lease was taken after {taken - ended:.1f} s")

    written = len(first.proxy.writes)
    fleet.apply(repository(place, name="other"))
    second.operator.until("another is looked after", lambda: condition(fleet, place, "Reconciling", "other") == "False")

    def has_run() -> bool:
        say_done(fleet, place)
        return is_over(fleet, place)

    second.operator.until("the run is over", has_run)
    if number == signal.SIGSTOP:
        wake(fleet, first)
    assert first.proxy.writes[written:] == []
    given = [node for replica in pair for node, _ in replica.proxy.given]
    assert sorted(given) == list(NODES)


def wake(fleet: Fleet, replica: Replica) -> None:
    """It finds out that another works, and ends."""
    descriptor = os.pidfd_open(replica.operator.pid)
    os.kill(replica.operator.pid, signal.SIGCONT)
    has_ended, _, _ = select.select([descriptor], [], [], WAKING_SECONDS_MAX)
    os.close(descriptor)
    if not has_ended:
        raise ClusterError(f"{replica.name} goes on\n{replica.operator.tail()}")
    replica.operator.end()
    assert replica.operator.is_logged("second holds the lease now")


def test_what_is_written_too_late_gives_no_ticket_and_takes_none(fleet: Fleet, operator: Operator, place: str) -> None:
    """Neither over what has taken it back, nor for a node that was released, nor over a later one; but whoever takes
    one back need not have heard of the last heartbeat. The next pass is soon.
    """
    operator.runs(place)
    operator.end()
    try:
        asyncio.run(_given_late(fleet, place))
    finally:
        operator.start()


async def _given_late(fleet: Fleet, place: str) -> None:
    connection = aio.client.Configuration()
    await aio.config.load_kube_config(config_file=str(fleet.kubeconfig), client_configuration=connection)
    api = ApiClient(connection)
    settings = OperatorSettings()
    applier = Applier(api, InformerCache(api, settings, lambda key, is_quiet: None), settings)
    try:
        found = await api.get("ContentRepository", place, "flows")
        assert found is not None
        flows = RepositoryObject.of(found)

        async def seen() -> Observation:
            listed, _ = await api.list("ContentRepositoryNode", place)
            by_node = {each["spec"]["nodeName"]: NodeObject.of(each) for each in listed}
            return Observation(now_millis=0, repository=flows, objects=by_node)

        async def write(at: Observation, *, is_given: bool, is_cordoned: bool = False) -> int | None:
            given = ticket() if is_given else None
            spec = msgspec.structs.replace(at.objects[NODES[0]].spec, ticket=given, cordoned=is_cordoned)
            decision = Decision(status=flows.status, nodes={NODES[0]: spec})
            return await applier.apply(at, decision, Desired(objects=[], obsolescent=()))

        early = await seen()
        assert await write(early, is_given=True) is None
        given = await seen()
        assert given.objects[NODES[0]].spec.ticket is not None
        assert await write(early, is_given=False, is_cordoned=True) is not None
        assert await seen() == given

        say_ready(fleet, place, NODES[0])  # taking back does not wait until that is heard of
        assert await write(given, is_given=False) is None

        assert await write(early, is_given=True) is not None
        taken_back = await seen()
        assert taken_back.objects[NODES[0]].spec.ticket is None

        name = taken_back.objects[NODES[0]].name
        found = await api.get("ContentRepositoryNode", place, name)
        assert found is not None
        await let_go(api, found)
        await api.delete("ContentRepositoryNode", place, name)
        assert await write(taken_back, is_given=True) is not None
        assert await api.get("ContentRepositoryNode", place, name) is None
    finally:
        await api.aclose()
