"""Observations to decide on, made by hand: a fleet of agents that serve, at one moment."""

import asyncio
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
from ullage_operator.objects import Object, RepositoryObject
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

    def __init__(self, kind: str, events: list[tuple[float, str, Object]]) -> None:
        self._kind, self._events = kind, events
        self.seconds = 0.0
        self.told = asyncio.Event()

    async def list(self, *_: Any) -> tuple[list[Object], str]:
        return [], "1"

    async def watch(self, kind: str, *_: Any) -> AsyncIterator[tuple[str, Object]]:
        if kind == self._kind:
            for pause, event, found in self._events:
                self.seconds += pause
                yield event, found
            self.told.set()
        await asyncio.Event().wait()


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
    release = fields.pop("release", "")
    if "report" in fields:
        status["ticket"] = fields.pop("report")
    return NodeObject(
        name=object_name("flows", name),
        uid=name,
        spec=NodeSpec(**spec),
        status=NodeStatus(**(status | fields)),
        release=release,
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
    return Ticket(**(given | fields))


def report(state: TicketState, **fields: Any) -> TicketReport:
    return TicketReport(**({"id": "t1", "state": state, "ended": time_of(NOW - MINUTE)} | fields))
