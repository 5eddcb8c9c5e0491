from typing import Any

import msgspec
import pytest

from tests.operator.support import HOUR, NOW, READY, changed, decided, fleet, node, repository, ticket
from ullage.contract import RepositoryStatus, RunSpec, RunStatus, time_of
from ullage_operator.observation import AgentPod, ClusterNode, RunObject, Taint
from ullage_operator.repository.conditions import news
from ullage_operator.repository.decide import Decision


def condition(decision: Decision, type: str) -> tuple[str, str]:
    found = next(c for c in decision.status.conditions if c.type == type)
    return str(found.status), found.reason


def test_every_matching_node_gets_an_object() -> None:
    """Also before its agent exists."""
    assert sorted(decided(fleet(3, objects={})).nodes) == ["node-0", "node-1", "node-2"]


def test_the_same_observation_gives_the_same_status() -> None:
    """What was written is not written again: a status is stable under its own repetition."""
    first = decided(fleet(3)).status

    again = decided(fleet(3, repository=repository(status=first))).status

    assert first == again


def test_a_lost_node_keeps_its_object() -> None:
    """Its data may come back: it is Degraded, and nothing is released."""
    seen = changed(fleet(2), cluster_nodes=(ClusterNode(name="node-0", labels={}),))

    decision = decided(seen)

    assert set(decision.nodes) == {"node-0", "node-1"}
    assert decision.released == ()
    assert condition(decision, "Degraded") == ("True", "NodeLost")


def test_nodes_that_cannot_read_what_they_store_are_named() -> None:
    """In one condition of the repository, which is not about those that are gone."""
    lacking = msgspec.structs.replace(READY, type="DataUnavailable", reason="VolumeAway")
    seen = fleet(2)
    objects = seen.objects | {"node-1": node("node-1", conditions=(READY, lacking))}

    decision = decided(changed(seen, objects=objects))

    assert condition(decided(seen), "DataUnavailable") == ("False", "AllThere")
    assert condition(decision, "DataUnavailable") == ("True", "OnNodes")
    assert "node-1" in next(c.message for c in decision.status.conditions if c.type == "DataUnavailable")
    assert condition(decision, "Degraded") == ("False", "Well")


def test_what_was_lost_is_given_up_by_the_uid_of_the_object_only() -> None:
    """An object whose node is there is made anew, without a ticket; one whose node is gone goes; others stay."""
    seen = changed(fleet(3), cluster_nodes=(ClusterNode(name="node-0", labels={}),))
    objects = {name: node(name, release=name, ticket=ticket()) for name in ("node-0", "node-1")}
    objects["node-2"] = node("node-2", release="data-lost")

    decision = decided(changed(seen, objects=objects))

    assert [found.spec.node_name for found in decision.released] == ["node-0", "node-1"]
    assert sorted(decision.nodes) == ["node-0", "node-2"]
    assert decision.nodes["node-0"].ticket is None


@pytest.mark.parametrize("is_paused", [False, True])
def test_a_deleted_object_stays_as_long_as_its_node_holds_content(is_paused: bool) -> None:
    """Whether or not the node is there, and told; where nothing is held it goes, and one is made anew for a node that
    is there, unless hands are kept off.
    """
    held = {name: node(name, is_going=True) for name in ("node-0", "node-1")}
    empty = {name: node(name, is_going=True, repository_uuid="") for name in ("node-2", "node-3")}
    there = tuple(ClusterNode(name=name, labels={}) for name in ("node-0", "node-2"))
    seen = fleet(0, cluster_nodes=there, objects=held | empty, repository=repository(is_paused=is_paused))

    decision = decided(seen)

    assert [found.spec.node_name for found in decision.released] == ["node-2", "node-3"]
    assert sorted(decision.nodes) == ([] if is_paused else ["node-0", "node-1", "node-2"])
    assert condition(decision, "Degraded") == ("True", "ObjectDeleted")
    assert "node-0, node-1." in next(c.message for c in decision.status.conditions if c.type == "Degraded")
    given_up = seen.objects | {name: node(name, is_going=True, release=name) for name in held}
    assert is_paused or len(decided(changed(seen, objects=given_up)).released) == 4


@pytest.mark.parametrize("is_paused", [False, True])
def test_the_ticket_of_a_run_that_was_deleted_is_taken_back(is_paused: bool) -> None:
    """At once, also while the repository is left alone; a run of the same name that came later has no part in it."""
    asked = RunSpec(repository="flows")
    who: dict[str, Any] = {"name": "now", "uid": "uid of now", "created": time_of(NOW - HOUR)}
    run = RunObject(**who, generation=1, spec=asked, status=RunStatus())
    objects = {"node-0": node("node-0", ticket=ticket(run="now"), wanted=())}
    seen = fleet(1, objects=objects, runs=(run,), repository=repository(is_paused=is_paused))
    later = msgspec.structs.replace(run, uid="another", created=time_of(NOW))

    kept = decided(seen).nodes.get("node-0")

    assert (kept is None) if is_paused else (kept == objects["node-0"].spec)
    for runs in ((), (later,)):
        given = decided(changed(seen, runs=runs)).nodes["node-0"].ticket
        assert given is None or given.id != "t1"


def test_an_object_without_data_goes_with_its_node() -> None:
    """Nothing was ever stored there, so there is nothing to admit."""
    seen = changed(fleet(1), cluster_nodes=(), objects={"node-0": node("node-0", repository_uuid="")})

    assert len(decided(seen).released) == 1


def test_the_younger_of_two_with_one_directory_is_not_started() -> None:
    """Accepted is False with the reason, and hands stay off; the older one goes on."""
    older = repository(
        {"storage": {"hostPath": {"path": "/a/data/flows"}}}, name="older", created_millis=NOW - 2 * HOUR
    )
    younger = repository({"storage": {"hostPath": {"path": "/a"}}})

    decision = decided(fleet(1, repository=younger, others=(older,)))

    assert condition(decision, "Accepted") == ("False", "PathConflict")
    assert (decision.keeps_hands_off, decision.nodes) == (True, {})
    assert not decided(fleet(1, repository=older, others=(younger,))).keeps_hands_off


def test_one_path_on_different_nodes_is_no_conflict() -> None:
    """Repositories that never meet do not get in each other's way."""
    here = {"storage": {"hostPath": {"path": "/a/data/flows"}}, "nodeSelector": {"kubernetes.io/hostname": "node-0"}}
    there = {"storage": {"hostPath": {"path": "/a"}}, "nodeSelector": {"kubernetes.io/hostname": "node-1"}}
    older = repository(here, name="older", created_millis=NOW - 2 * HOUR)

    assert condition(decided(fleet(2, repository=repository(there), others=(older,))), "Accepted") == ("True", "Valid")


@pytest.mark.parametrize(
    ("maintenance", "field"),
    [
        ({"timeZone": "Mars/Olympus"}, "spec.maintenance.timeZone"),
        (
            {"windows": [{"name": "a", "schedule": "61 * * * *", "duration": "1h"}]},
            "spec.maintenance.windows[0].schedule",
        ),
    ],
)
def test_what_cel_cannot_say_is_said_in_the_status(maintenance: dict[str, Any], field: str) -> None:
    """A zone or cron that cannot be read: not accepted, and the message names the field."""
    decision = decided(fleet(1, {"maintenance": maintenance}))

    assert condition(decision, "Accepted") == ("False", "InvalidWindow")
    assert field in decision.status.conditions[0].message


def test_a_paused_repository_is_left_alone() -> None:
    """The annotation keeps the operator's hands off everything but the status."""
    decision = decided(fleet(2, repository=repository(is_paused=True)))

    assert (decision.keeps_hands_off, decision.nodes) == (True, {})
    assert condition(decision, "Paused") == ("True", "Annotation")


@pytest.mark.parametrize(
    ("spec", "is_placed"),
    [
        ({}, False),
        ({"tolerations": [{"operator": "Exists"}]}, True),
        ({"tolerations": [{"key": "role", "value": "gpu", "effect": "NoSchedule"}]}, True),
        ({"tolerations": [{"key": "role", "value": "cpu"}]}, False),
    ],
)
def test_taints_are_those_of_the_scheduler(spec: dict[str, Any], is_placed: bool) -> None:
    """A tainted node gets an agent only where the taint is tolerated; that it is not ready matters to nobody."""
    taints = (Taint("role", "gpu", "NoSchedule"), Taint("node.kubernetes.io/not-ready", "", "NoExecute"))
    seen = fleet(0, spec, cluster_nodes=(ClusterNode(name="node-0", labels={}, taints=taints),))

    assert bool(decided(seen).nodes) == is_placed


@pytest.mark.parametrize(
    ("operator", "values", "is_placed"),
    [
        ("In", ["a", "b"], True),
        ("NotIn", ["a"], False),
        ("Exists", [], True),
        ("DoesNotExist", [], False),
        ("Gt", ["1"], False),
    ],
)
def test_node_affinity_is_that_of_the_scheduler(operator: str, values: list[str], is_placed: bool) -> None:
    """Required node affinity chooses nodes, operator by operator."""
    term = {"matchExpressions": [{"key": "zone", "operator": operator, "values": values}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    seen = fleet(
        0, {"affinity": {"nodeAffinity": required}}, cluster_nodes=(ClusterNode(name="n", labels={"zone": "a"}),)
    )

    assert bool(decided(seen).nodes) == is_placed


def test_news_are_told_when_a_condition_turns() -> None:
    """A node is lost: one event. The same again: none."""
    calm = decided(fleet(2)).status
    lost = changed(fleet(2, repository=repository(status=calm)), cluster_nodes=(ClusterNode(name="node-0", labels={}),))

    after = decided(lost).status

    events = list(news("ContentRepository", calm.conditions, after.conditions))
    told = {("Warning", "DegradedTrue"), ("Warning", "ReadyFalse"), ("Warning", "ReachableFalse")}
    assert {(kind, reason) for kind, reason, _ in events} == told
    again = decided(changed(lost, repository=repository(status=after))).status
    assert list(news("ContentRepository", after.conditions, again.conditions)) == []


@pytest.mark.parametrize("agents", [{}, {"node-0": AgentPod(node="node-0", address="10.0.0.1", is_ready=False)}])
def test_an_agent_whose_pod_is_not_ready_serves_nobody(agents: dict[str, AgentPod]) -> None:
    """Though it said a moment ago that it serves. Its ticket stays: a busy node does not undo what it has begun."""
    seen = fleet(1, {"maintenance": {"windows": []}}, agents=agents)

    decision = decided(seen)

    ready = next(each for each in decision.status.conditions if each.type == "Ready")
    assert (ready.status, decision.status.nodes_ready) == ("False", 0)
    assert "node-0" in ready.message
    assert decision.nodes["node-0"].ticket is not None


def test_sums_are_rounded() -> None:
    """A byte more changes no status."""
    assert decided(fleet(2)).status.live == RepositoryStatus().live
