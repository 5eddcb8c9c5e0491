"""Observations to decide on, made by hand: a fleet of agents that serve, at one moment."""

from typing import Any

import msgspec

from ullage_agent.contract import ContentRepository, MaintenanceOperation, parse
from ullage_agent.fleet import (
    Condition,
    ConditionStatus,
    NodeSpec,
    NodeStatus,
    Space,
    Ticket,
    TicketReport,
    TicketState,
    object_name,
)
from ullage_operator.observe import Agent, Blockers, Machine, NodeObject, Observation, Wish
from ullage_operator.settings import Settings
from ullage_operator.times import text_of

NOW = 1_772_323_200_000  # 2026-03-01T00:00:00Z, a Sunday
MINUTE = 60_000
HOUR = 60 * MINUTE
SETTINGS = Settings()
WANTED = (MaintenanceOperation.REWRITE,)


def document(spec: dict[str, Any] | None = None, name: str = "flows") -> ContentRepository:
    return parse(
        {
            "apiVersion": "ullage.dev/v1alpha1",
            "kind": "ContentRepository",
            "metadata": {"name": name, "namespace": "data"},
            "spec": spec or {},
        }
    )


def wish(spec: dict[str, Any] | None = None, *, name: str = "flows", **fields: Any) -> Wish:
    given: dict[str, Any] = {
        "uid": name,
        "generation": 1,
        "created_millis": NOW - HOUR,
        "document": document(spec, name),
    }
    return Wish(namespace="data", name=name, **(given | fields))


def ready(now: int = NOW) -> tuple[Condition, ...]:
    return (
        Condition(type="Ready", status=ConditionStatus.TRUE, reason="Serves", last_transition_time=text_of(now - HOUR)),
    )


def node(name: str, **fields: Any) -> NodeObject:
    """An agent that serves and wants a rewrite; fields of spec and status by name."""
    spec: dict[str, Any] = {"repository": "flows", "node_name": name}
    spec |= {key: fields.pop(key) for key in ("ticket", "deferral", "cordoned") if key in fields}
    now = fields.pop("heard", NOW)
    status: dict[str, Any] = {
        "settings_generation": 1,
        "heartbeat": text_of(now),
        "repository_uuid": f"uuid-{name}",
        "volumes": ("8:1",),
        "space": Space(free_percentage=50.0),
        "wanted": WANTED,
        "conditions": ready(),
    }
    own = {key: fields.pop(key) for key in ("is_released",) if key in fields}
    if "report" in fields:
        status["ticket"] = fields.pop("report")
    return NodeObject(
        name=object_name("flows", name),
        uid=name,
        generation=1,
        spec=NodeSpec(**spec),
        status=NodeStatus(**(status | fields)),
        **own,
    )


def fleet(count: int, spec: dict[str, Any] | None = None, **fields: Any) -> Observation:
    """So many nodes with an agent each."""
    names = [f"node-{number}" for number in range(count)]
    given: dict[str, Any] = {
        "now_millis": NOW,
        "wish": wish(spec),
        "machines": tuple(Machine(name=name, labels={"kubernetes.io/hostname": name}) for name in names),
        "objects": {name: node(name) for name in names},
        "agents": {name: Agent(node=name, address="10.0.0.1", is_ready=True) for name in names},
        "blockers": Blockers(),
    }
    return Observation(**(given | fields))


def changed(seen: Observation, **fields: Any) -> Observation:
    return msgspec.structs.replace(seen, **fields)


def ticket(**fields: Any) -> Ticket:
    given: dict[str, Any] = {
        "id": "t1",
        "operations": WANTED,
        "generation": 1,
        "not_before": text_of(NOW - MINUTE),
        "not_after": text_of(NOW + HOUR),
    }
    return Ticket(**(given | fields))


def report(state: TicketState, **fields: Any) -> TicketReport:
    return TicketReport(**({"id": "t1", "state": state, "ended": text_of(NOW - MINUTE)} | fields))
