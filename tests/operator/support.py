"""Observations to decide on, made by hand: a fleet of agents that serve, at one moment."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from ullage.contract import (
    Condition,
    ConditionStatus,
    ContentRepository,
    MaintenanceOperation,
    NodeSpec,
    NodeStatus,
    PlanningResult,
    Space,
    Ticket,
    TicketReport,
    TicketState,
    object_name,
    parse,
    time_of,
)
from ullage_operator.objects import VERSION_OF, Object, RepositoryObject
from ullage_operator.observation import AgentPod, Blockers, ClusterNode, NodeObject, Observation, PlanningRun
from ullage_operator.planning.build import run_name
from ullage_operator.repository.decide import Decision, decide
from ullage_operator.settings import OperatorSettings

NOW = 1_772_323_200_000  # 2026-03-01T00:00:00Z, a Sunday
MINUTE = 60_000
HOUR = 60 * MINUTE
SETTINGS = OperatorSettings(images=("mine:2",), roots=("/var/lib/ullage", "/a", "/a/data/flows"))
WANTED = (MaintenanceOperation.REWRITE,)
SINCE = time_of(NOW - HOUR)
READY = Condition(type="Ready", status=ConditionStatus.TRUE, reason="Serves", last_transition_time=SINCE)


class Script:
    """An API server that tells one kind's events, some seconds apart, in an order that a real one cannot be made to
    show at will.
    """

    def __init__(
        self, kind: str, events: list[tuple[float, str, Object]], known: dict[str, list[Object]] | None = None
    ) -> None:
        """`known`: what there is before, by kind."""
        self._kind, self._events, self._known = kind, events, known or {}
        self.seconds = 0.0
        self.told = asyncio.Event()

    async def list(self, kind: str, *_: Any) -> tuple[list[Object], str]:
        return self._known.get(kind, []), "1"

    async def watch(self, kind: str, *_: Any) -> AsyncIterator[tuple[str, Object]]:
        if kind == self._kind:
            for pause, event, found in self._events:
                self.seconds += pause
                yield event, found
            self.told.set()
        await asyncio.Event().wait()


class Server:
    """An API server that keeps what it is told and counts what it is asked, for thousands of nodes: a real one takes
    minutes to come by them. `now` is when everything in it was made. Who asks waits, as for every answer of a network.
    """

    def __init__(self, now: str) -> None:
        self._now = now
        self._version = 1
        self.objects: dict[tuple[str, str, str], Object] = {}
        self.asked: Counter[str] = Counter()

    def keep(self, kind: str, name: str, namespace: str = "", **fields: Any) -> Object:
        """An object as it is from now on, with its metadata added to."""
        key = kind, namespace, name
        found = self.objects.get(key, {})
        self._version += 1
        known = {"namespace": namespace, "name": name, "uid": f"{kind} {name}", "creationTimestamp": self._now}
        metadata = {"generation": 1, **known, **found.get("metadata", {}), **fields.pop("metadata", {})}
        whole = {"apiVersion": VERSION_OF[kind], "kind": kind, **found, **fields}
        self.objects[key] = {**whole, "metadata": {**metadata, "resourceVersion": str(self._version)}}
        return self.objects[key]

    async def list(
        self, kind: str, namespace: str | None = None, labels: str = "", fields: str = ""
    ) -> tuple[list[Object], str]:
        await asyncio.sleep(0)
        self.asked[f"list {kind}"] += 1
        wanted = {tuple(each.split("=")) for each in labels.split(",") if "=" in each}
        found = [each for (own, place, _), each in self.objects.items() if own == kind and namespace in (None, place)]
        return [each for each in found if wanted <= (each["metadata"].get("labels") or {}).items()], "1"

    async def get(self, kind: str, namespace: str | None, name: str) -> Object | None:
        await asyncio.sleep(0)
        self.asked[f"get {kind}"] += 1
        return self.objects.get((kind, namespace or "", name))

    async def apply(self, document: Object, subresource: str = "") -> Object:
        kind, metadata = document["kind"], document["metadata"]
        await asyncio.sleep(0)
        self.asked["/".join(filter(None, (f"patch {kind}", subresource)))] += 1
        said = {key: value for key, value in document.items() if key not in ("apiVersion", "kind", "metadata")}
        return self.keep(kind, metadata["name"], metadata.get("namespace", ""), metadata=metadata, **said)

    async def replace(self, document: Object) -> Object:
        kind, metadata = document["kind"], document["metadata"]
        await asyncio.sleep(0)
        self.asked[f"patch {kind}"] += 1
        return self.keep(kind, metadata["name"], metadata["namespace"], metadata=metadata, spec=document["spec"])

    async def delete(self, kind: str, namespace: str | None, name: str, uid: str = "") -> None:
        await asyncio.sleep(0)
        self.asked[f"delete {kind}"] += 1
        self.objects.pop((kind, namespace or "", name), None)

    async def watch(self, *_: Any) -> AsyncIterator[tuple[str, Object]]:
        await asyncio.Event().wait()
        yield "", {}


def document(spec: dict[str, Any] | None = None, name: str = "flows") -> ContentRepository:
    return parse(
        {
            "apiVersion": "ullage.dev/v1alpha1",
            "kind": "ContentRepository",
            "metadata": {"name": name, "namespace": "data"},
            "spec": spec or {},
        }
    )


def repository(spec: dict[str, Any] | None = None, *, name: str = "flows", **fields: Any) -> RepositoryObject:
    if fields.pop("is_paused", False):
        fields["pause"] = "true"
    given: dict[str, Any] = {
        "uid": name,
        "generation": 1,
        "created_millis": NOW - HOUR,
        "document": document(spec, name),
    }
    return RepositoryObject(namespace="data", name=name, **(given | fields))


def node(name: str, **fields: Any) -> NodeObject:
    """An agent that serves and wants a rewrite; fields of spec and status by name."""
    spec: dict[str, Any] = {"repository": "flows", "node_name": name}
    given = ("ticket", "deferral", "cordoned", "finished", "certificate")
    spec |= {key: fields.pop(key) for key in given if key in fields}
    now = fields.pop("heard", NOW)
    status: dict[str, Any] = {
        "settings_generation": 1,
        "heartbeat": time_of(now),
        "repository_uuid": f"uuid-{name}",
        "volumes": ("8:1",),
        "space": Space(free_percentage=50.0),
        "wanted": WANTED,
        "conditions": (READY,),
    }
    release, is_going = fields.pop("release", ""), fields.pop("is_going", False)
    if "report" in fields:
        status["ticket"] = fields.pop("report")
    return NodeObject(
        name=object_name("flows", name),
        uid=name,
        spec=NodeSpec(**spec),
        status=NodeStatus(**(status | fields)),
        release=release,
        is_going=is_going,
        version="1",
    )


def fleet(count: int, spec: dict[str, Any] | None = None, **fields: Any) -> Observation:
    """So many nodes with an agent each."""
    names = [f"node-{number}" for number in range(count)]
    given: dict[str, Any] = {
        "now_millis": NOW,
        "repository": repository(spec),
        "cluster_nodes": tuple(ClusterNode(name=name, labels={"kubernetes.io/hostname": name}) for name in names),
        "objects": {name: node(name) for name in names},
        "agents": {name: AgentPod(node=name, address="10.0.0.1", is_ready=True) for name in names},
        "blockers": Blockers(),
    }
    return Observation(**(given | fields))


def lone(spec: dict[str, Any] | None = None, **fields: Any) -> Observation:
    """One node; fields of its object by name."""
    return fleet(1, spec, objects={"node-0": node("node-0", **fields)})


def decided(seen: Observation) -> Decision:
    return decide(seen, SETTINGS)


def changed(seen: Observation, **fields: Any) -> Observation:
    return msgspec.structs.replace(seen, **fields)


def planning_run(scheduled: int, result: PlanningResult = PlanningResult.SUCCEEDED, **fields: Any) -> PlanningRun:
    """A Job that begins on time, and takes a minute if it has ended."""
    given: dict[str, Any] = {
        "kind": "Job",
        "name": run_name(repository(), scheduled),
        "uid": str(scheduled),
        "scheduled_millis": scheduled,
        "began_millis": scheduled,
        "ended_millis": None if result == PlanningResult.RUNNING else scheduled + MINUTE,
    }
    return PlanningRun(result=result, **(given | fields))


def ticket(**fields: Any) -> Ticket:
    given: dict[str, Any] = {
        "id": "t1",
        "operations": WANTED,
        "generation": 1,
        "not_before": time_of(NOW - MINUTE),
        "not_after": time_of(NOW + HOUR),
    }
    return Ticket(**(given | _whose(fields) | fields))


def report(state: TicketState, **fields: Any) -> TicketReport:
    given: dict[str, Any] = {"id": "t1", "state": state, "ended": time_of(NOW - MINUTE)}
    return TicketReport(**(given | _whose(fields) | fields))


def _whose(fields: dict[str, Any]) -> dict[str, str]:
    return {"run_uid": f"uid of {fields['run']}"} if fields.get("run") else {}
