"""The operator beside a fleet of played nodes: `python -m bench.operator [--quick] [--write-docs]`; half an hour.

A real etcd, API server and controllers, kwok's nodes, and the operator as a process of its own with its service
account. What agents would write is written by this process, at the pace of real ones: so nothing here is idle that is
not idle in a cluster.

    apply ── node objects ── agents report ── tickets ── pods settle ── idle, heartbeats only ── a Spark executor comes
"""

import argparse
import asyncio
import contextlib
import json
import math
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil
import yaml
from kubernetes.aio.client import Configuration

from bench.table import Row, Target, describe_machine, duration, markdown, write_docs
from tests.cluster.fleet import Fleet, fleet_running
from tests.cluster.operator_process import Operator, now_text, repository
from tests.cluster.workloads import executor
from ullage.contract import HEARTBEAT_SECONDS
from ullage_operator.cluster.api import ApiClient
from ullage_operator.install import NAME, NAMESPACE
from ullage_operator.objects import path_of

ROOT: Final = Path(__file__).parents[1]
DOCUMENT: Final = ROOT / "docs" / "performance.md"
TABLE: Final = "bench-operator"
PLACE: Final = "bench"
FULL: Final = ((10, 1), (100, 1), (1_000, 1), (5_000, 1), (100, 20))
QUICK: Final = ((5, 1), (20, 1))
IDLE_SECONDS: Final = 125.0
"""Twice as long as sums wait, so that two additions of them are in it."""

POLL_SECONDS: Final = 0.25
SETTLE_SECONDS_MAX: Final = 1_200.0
"""Two cores play the nodes of the largest fleet, too."""

NODES_A_REQUEST: Final = 200
KIND: Final = "ContentRepositoryNode"
USER: Final = f"system:serviceaccount:{NAMESPACE}:{NAME}"
"""The operator, as the API server counts its requests."""

Calls = Counter[str]
"""Requests by verb and resource."""


def root_of(number: int) -> str:
    """Where a repository lies; the operator allows each by itself."""
    return f"/var/lib/bench/{number}"


@dataclass
class Figures:
    """Of one size."""

    nodes: int
    repositories: int
    seconds: dict[str, float] = field(default_factory=dict)
    idle_writes_a_node_hour: float = 0.0
    idle_cpu_share: float = 0.0
    cpu_seconds: float = 0.0
    memory_mib: float = 0.0
    calls_until_settled: Calls = field(default_factory=Counter)
    calls_a_quiet_minute: Calls = field(default_factory=Counter)

    @property
    def objects(self) -> int:
        return self.nodes * self.repositories


class Scene:
    """One fleet with its operator, and the agents that are played."""

    def __init__(self, fleet: Fleet, operator: Operator, api: ApiClient, figures: Figures) -> None:
        self.fleet, self.operator, self.api, self.figures = fleet, operator, api, figures
        self.process = psutil.Process(operator.pid)
        self.names = [f"flows{number}" for number in range(figures.repositories)]

    async def play(self) -> None:
        """Everything that is measured, in its order."""
        figures = self.figures
        began = time.monotonic()
        for number, name in enumerate(self.names):
            own = {
                "storage": {"hostPath": {"path": root_of(number)}},
                "maintenance": {"maxConcurrentNodes": "100%"},
            }
            await self.api.apply(repository(PLACE, own, name))
        await self.until("all node objects", self._are_made)
        figures.seconds["objects"] = time.monotonic() - began
        await self._report(wanted=["Rewrite"])
        await self.until("all tickets", self._have_tickets)
        figures.seconds["tickets"] = time.monotonic() - began
        await self.until("all pods", self._are_settled)
        figures.seconds["settled"] = time.monotonic() - began
        figures.cpu_seconds = sum(self.process.cpu_times()[:2])
        figures.calls_until_settled = self._calls()
        await self._stay_idle()
        figures.seconds["noticed"] = await self._notice()
        figures.memory_mib = self.process.memory_info().rss / 2**20

    async def until(self, what: str, holds: Callable[[], Awaitable[bool]]) -> None:
        """Ask until it holds; TimeoutError says what did not come."""
        end = time.monotonic() + SETTLE_SECONDS_MAX
        while not await holds():
            if time.monotonic() > end:
                raise TimeoutError(f"{self.figures.nodes} nodes: waited in vain for {what}")
            await asyncio.sleep(POLL_SECONDS)

    async def _objects(self) -> list[dict[str, Any]]:
        found, _ = await self.api.list(KIND, PLACE)
        return found

    async def _are_made(self) -> bool:
        return len(await self._objects()) == self.figures.objects

    async def _have_tickets(self) -> bool:
        return all(each["spec"].get("ticket") for each in await self._objects())

    async def _are_settled(self) -> bool:
        found, _ = await self.api.list("ContentRepository", PLACE)
        told = [{c["type"]: c["status"] for c in (each.get("status") or {}).get("conditions", ())} for each in found]
        return all(each.get("Reconciling") == "False" and each.get("Ready") == "True" for each in told)

    async def _report(self, **status: Any) -> None:
        """What agents say first."""
        found, _ = await self.api.list("ContentRepository", PLACE)
        generations = {each["metadata"]["name"]: each["metadata"]["generation"] for each in found}
        now = now_text()
        ready = {"type": "Ready", "status": "True", "reason": "Serves", "lastTransitionTime": now}
        every = {"heartbeat": now, "repositoryUuid": "u", "conditions": [ready], **status}

        async def one(spec: dict[str, Any], name: str) -> None:
            volume = [
                f"{spec['repository']}:1"
            ]  # each repository on a disk of its own: none waits for another's ticket
            own = {"settingsGeneration": generations[spec["repository"]], "volumes": volume}
            await self._patch(name, every | own)

        await asyncio.gather(*(one(each["spec"], each["metadata"]["name"]) for each in await self._objects()))

    async def _patch(self, name: str, status: dict[str, Any]) -> None:
        path = path_of(KIND, PLACE, name, "status")
        content = "application/merge-patch+json"
        await self.api._write("PATCH", KIND, path, body={"status": status}, content=content)  # noqa: SLF001

    async def _stay_idle(self) -> None:
        """Heartbeats only, at the pace of real agents; what the operator writes and burns meanwhile."""
        names = [each["metadata"]["name"] for each in await self._objects()]
        pause = HEARTBEAT_SECONDS / len(names)
        writes, cpu, before = self.operator.writes(), sum(self.process.cpu_times()[:2]), self._calls()
        began = time.monotonic()
        beats = 0
        while (passed := time.monotonic() - began) < IDLE_SECONDS:
            for name in names[beats : int(passed / pause)]:
                await self._patch(name, {"heartbeat": now_text()})
                beats += 1
            await asyncio.sleep(POLL_SECONDS)
        hours = (time.monotonic() - began) / 3600
        told = self._calls() - before
        self.figures.calls_a_quiet_minute = Counter({what: round(n / hours / 60) for what, n in told.items()})
        self.figures.idle_writes_a_node_hour = (self.operator.writes() - writes) / hours / self.figures.nodes
        self.figures.idle_cpu_share = (sum(self.process.cpu_times()[:2]) - cpu) / (hours * 3600)

    def _calls(self) -> Calls:
        """Of the operator, since it was started."""
        found: Calls = Counter()
        for line in self.fleet.audit_log.read_text(encoding="utf-8").splitlines():
            request = json.loads(line)
            place = request.get("objectRef") or {"resource": "discovery"}
            found["/".join(filter(None, (f"{request['verb']} {place['resource']}", place.get("subresource"))))] += 1
        return found

    async def _notice(self) -> float:
        """From the creation of an executor's pod until its node's ticket is taken back."""
        began = time.monotonic()
        await self.api.apply(executor(PLACE, "fleet-0"))

        async def is_deferred() -> bool:
            found = [each["spec"] for each in await self._objects() if each["spec"]["nodeName"] == "fleet-0"]
            return all("deferral" in each and "ticket" not in each for each in found)

        await self.until("the executor to be noticed", is_deferred)
        return time.monotonic() - began


def _with_nodes(fleet: Fleet, count: int) -> None:
    """As `add_nodes`, for any number."""
    for first in range(0, count, NODES_A_REQUEST):
        fleet.apply(*fleet.node_documents(range(first, min(count, first + NODES_A_REQUEST))))
    fleet.wait_until(
        "all nodes are ready", lambda: fleet.kubectl("get", "nodes", "--no-headers").count(" Ready ") == count
    )


def measure(nodes: int, repositories: int) -> Figures:
    """One size, on a fleet of its own."""
    figures = Figures(nodes, repositories)

    async def run(fleet: Fleet, operator: Operator) -> None:
        own = Configuration(
            fleet.url, ssl_ca_cert=str(fleet.ca), cert_file=str(fleet.admin.certificate), key_file=str(fleet.admin.key)
        )
        async with contextlib.aclosing(ApiClient(own)) as api:
            await Scene(fleet, operator, api, figures).play()

    with fleet_running(USER) as fleet:
        documents = list(yaml.safe_load_all((ROOT / "deploy" / "install.yaml").read_text(encoding="utf-8")))
        fleet.apply(*(each for each in documents if each["kind"] == "CustomResourceDefinition"))
        fleet.wait_until("the kinds are served", fleet.serves_all_custom_resources)
        fleet.apply(*(e for e in documents if e["kind"] not in ("CustomResourceDefinition", "Deployment")))
        fleet.create_namespace(PLACE)
        _with_nodes(fleet, nodes)
        roots = ",".join(map(root_of, range(max(count for _, count in FULL))))
        operator = Operator(fleet, settings={"ULLAGE_OPERATOR_ROOTS": roots})
        operator.start()
        try:
            fleet.wait_until("the operator runs", operator.answers)  # its start is no part of what it is asked to do
            asyncio.run(run(fleet, operator))
        finally:
            operator.end()
    return figures


def _counted(what: str, calls: Calls) -> Row:
    told = ", ".join(f"{name} {count}" for name, count in calls.most_common() if count)
    return Row("operator", what, "", (float(calls.total()),), "requests", None, told)


def rows_of(measured: list[Figures]) -> list[Row]:
    """A row for each figure of each size, and how the time grows."""
    rows = []
    for one in measured:
        size = f"{one.nodes:,} nodes, {one.repositories} " + ("repository" if one.repositories == 1 else "repositories")
        said = one.seconds
        rows += [
            Row("operator", f"{size}: apply to all node objects", "", (said["objects"],), "s"),
            Row("operator", f"{size}: apply to all tickets", "", (said["tickets"],), "s", Target(300, True)),
            Row("operator", f"{size}: API writes a node and hour, idle", "", (one.idle_writes_a_node_hour,), "writes"),
            Row("operator", f"{size}: CPU, idle", "a core", (one.idle_cpu_share,), "x", Target(0.05, True)),
            Row("operator", f"{size}: CPU until settled", "", (one.cpu_seconds,), "s"),
            Row("operator", f"{size}: memory", "", (one.memory_mib,), "MiB"),
            _counted(f"{size}: API requests from the operator's start until settled", one.calls_until_settled),
            _counted(f"{size}: API requests in a minute, idle", one.calls_a_quiet_minute),
            Row("operator", f"{size}: an executor comes, its node's ticket is gone", "", (said["noticed"],), "s"),
        ]
    single = [one for one in measured if one.repositories == 1]
    if len(single) > 1:
        small, large = single[-2:]
        for name, what in (("objects", "node objects"), ("tickets", "tickets")):
            exponent = math.log(large.seconds[name] / small.seconds[name]) / math.log(large.nodes / small.nodes)
            told = f"{duration(small.seconds[name])}; {duration(large.seconds[name])}"
            rows.append(
                Row(
                    "operator",
                    f"growth exponent of the time to {what}, {small.nodes:,} to {large.nodes:,} nodes",
                    "",
                    (exponent,),
                    "",
                    Target(1.1, True),
                    told,
                )
            )
    return rows


def main() -> int:
    """Measure, print, and write if asked to."""
    parser = argparse.ArgumentParser(prog="python -m bench.operator", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two small fleets: a minute")
    parser.add_argument("--nodes", type=int, help="one fleet of so many nodes with one repository")
    parser.add_argument("--write-docs", action="store_true", help="put the table into docs/performance.md")
    options = parser.parse_args()
    sizes = ((options.nodes, 1),) if options.nodes else QUICK if options.quick else FULL
    rows = rows_of([measure(*size) for size in sizes])
    machine = describe_machine(Path(tempfile.gettempdir()))
    print(f"{machine}\n\n{markdown(rows)}")
    if options.write_docs:
        write_docs(DOCUMENT, TABLE, rows, machine, is_all=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
