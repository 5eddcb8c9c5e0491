"""Every field that a cluster obeys changes what the operator builds or decides."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests.operator.support import HOUR, NOW, SETTINGS, changed, document, fleet, node, planning_run, repository
from ullage.contract import Deferral, PlanningResult, PlanningStatus, RepositoryStatus, time_of
from ullage_operator.agents import pods
from ullage_operator.agents.claims import claim_objects
from ullage_operator.node.draining import guarded
from ullage_operator.observation import Blockers, ObservedPlanning
from ullage_operator.planning.build import run_object
from ullage_operator.repository import build
from ullage_operator.repository.decide import decide, deletes_data


class Case(NamedTuple):
    """A setting, and what is to differ from the default; `base` holds in both."""

    spec: dict[str, Any]
    observe: Callable[[dict[str, Any]], object]
    base: dict[str, Any] = {}  # noqa: RUF012 - never changed


def built(spec: dict[str, Any]) -> object:
    return build.shared_objects(repository(spec), "agent:1")


def on_node(spec: dict[str, Any]) -> object:
    """The agent of a node on local volumes, and its claims."""
    return pods.stateful_set(repository(spec), "agent:1", "node-0"), claim_objects(fleet(1, spec), ["node-0"])


def tickets(spec: dict[str, Any]) -> object:
    """Who gets one of ten nodes, two of which have waited five hours for Spark."""
    waiting = Deferral(since=time_of(NOW - 5 * HOUR), waits_for=("data/job",))
    busy: dict[str, tuple[str, ...]] = {"node-0": ("data/job",), "node-1": ("data/job",)}
    objects = {
        name: node(name, deferral=waiting if name in busy else None) for name in map("node-{}".format, range(10))
    }
    decision = decide(fleet(10, spec, objects=objects, blockers=Blockers(by_node=busy)), SETTINGS)
    return [name for name, made in decision.nodes.items() if made.ticket is not None]


def kept(spec: dict[str, Any]) -> object:
    """Which nodes are kept from autoscalers."""
    seen = fleet(2, spec)
    return guarded(seen, decide(seen, SETTINGS).nodes)


def planned(spec: dict[str, Any]) -> object:
    """What becomes of planning at midnight, with four old runs and one that is due; and the object that runs it."""
    told = PlanningStatus(next_run=time_of(NOW), last_run=time_of(NOW - HOUR), result=PlanningResult.SUCCEEDED)
    seen = fleet(
        1, spec, planning=ObservedPlanning(runs=tuple(planning_run(NOW - hours * HOUR) for hours in range(1, 5)))
    )
    seen = changed(seen, repository=repository(spec, status=RepositoryStatus(observed_generation=1, planning=told)))
    due = decide(seen, SETTINGS).planning
    made = None
    if due.begin is not None:
        made = run_object(seen.repository, "spark:1", due.begin, is_application=False, has_authority=True)
    return due, made


def selectors(spec: dict[str, Any]) -> object:
    return document(spec).spec.maintenance.blockers.pod_selectors


LOCAL = {"storage": {"localPersistentVolume": {"storageClassName": "local", "size": "1Gi"}}}
OWN = [{"name": "c1", "subPath": "c1", "localPersistentVolume": LOCAL["storage"]["localPersistentVolume"]}]
HOURLY = {"planning": {"schedule": "0 * * * *"}}
SHIPPED = {"mode": "Async", "url": "s3://flows/replicas"}
ALL_NODES = {"maintenance": {"maxConcurrentNodes": "100%"}}


SOME = {"namespaceSelector": {"matchLabels": {"team": "flows"}}}


def hourly(**planning: Any) -> dict[str, Any]:
    return {"planning": HOURLY["planning"] | planning}


def blocking(**spark: Any) -> dict[str, Any]:
    return {"maintenance": ALL_NODES["maintenance"] | {"blockers": {"sparkPods": spark}}}


CASES = {
    "nodeSelector": Case({"nodeSelector": {"disk": "fast"}}, built),
    "tolerations": Case({"tolerations": [{"operator": "Exists"}]}, built),
    "affinity": Case({"affinity": {"nodeAffinity": {}}}, built),
    "priorityClassName": Case({"priorityClassName": "content"}, built),
    "resources.requests": Case({"resources": {"requests": {"cpu": "1"}}}, built),
    "resources.limits": Case({"resources": {"limits": {"memory": "1Gi"}}}, built),
    "image": Case({"image": "mine:2"}, built),
    "updateStrategy.type": Case({"updateStrategy": {"type": "OnDelete"}}, built),
    "updateStrategy.maxUnavailable": Case({"updateStrategy": {"maxUnavailable": "25%"}}, built),
    "deletionPolicy": Case({"deletionPolicy": "Delete"}, lambda spec: deletes_data(document(spec).spec)),
    "storage.localPersistentVolume": Case(LOCAL, built),
    "storage.containers.localPersistentVolume": Case(
        {"storage": {**LOCAL["storage"], "containers": OWN}}, on_node, LOCAL
    ),
    "network.clients": Case({"network": {"clients": [SOME]}}, built),
    "network.clients.namespaceSelector": Case({"network": {"clients": [SOME]}}, built, {"network": {"clients": [{}]}}),
    "network.clients.podSelector": Case(
        {"network": {"clients": [{"podSelector": {"matchLabels": {"a": "b"}}}]}}, built, {"network": {"clients": [{}]}}
    ),
    "network.scrapers": Case({"network": {"scrapers": [SOME]}}, built),
    "replication.credentialsSecret": Case(
        {"replication": {**SHIPPED, "credentialsSecret": "keys"}}, built, {"replication": SHIPPED}
    ),
    "replication.guard": Case({"replication": {"guard": True}}, kept),
    "maintenance.maxConcurrentNodes": Case({"maintenance": {"maxConcurrentNodes": 3}}, tickets),
    "maintenance.blockers.sparkPods.mode": Case(blocking(mode="Ignore"), tickets, ALL_NODES),
    "maintenance.blockers.sparkPods.maxDefer": Case(blocking(maxDefer="1h"), tickets, ALL_NODES),
    "planning.schedule": Case(HOURLY, planned),
    "planning.image": Case(hourly(image="mine:2"), planned, HOURLY),
    "planning.suspend": Case(hourly(suspend=True), planned, HOURLY),
    "planning.activeDeadline": Case(hourly(activeDeadline="5m"), planned, HOURLY),
    "planning.historyLimit": Case(hourly(historyLimit=1), planned, HOURLY),
    "maintenance.blockers.podSelectors": Case(
        {"maintenance": {"blockers": {"podSelectors": [{"matchLabels": {"app": "x"}}]}}}, selectors
    ),
}


@pytest.mark.parametrize("field", CASES)
def test_a_field_changes_what_the_operator_does(field: str) -> None:
    """Two specs that differ in this field alone lead to different objects or decisions."""
    case = CASES[field]

    assert case.observe(case.base) != case.observe(case.spec)


@pytest.mark.parametrize(("field", "value"), [("storageClassName", "other"), ("size", "2Gi")])
def test_a_claim_is_what_was_asked_for(field: str, value: str) -> None:
    """Class and size of a local volume reach the claim."""
    other = {**LOCAL["storage"]["localPersistentVolume"], field: value}

    assert on_node(LOCAL) != on_node({"storage": {"localPersistentVolume": other}})
