"""Pods that keep a node while content would go with it."""

from typing import Any

import msgspec

from tests.operator.support import READY, changed, decided, fleet, node
from ullage.contract import REPOSITORY_LABEL, Condition, ConditionStatus
from ullage_operator.agents.guards import GUARD_LABEL, guard_objects
from ullage_operator.node.draining import guarded
from ullage_operator.observation import ClusterNode, NodeObject, Observation

GUARDED: dict[str, Any] = {"replication": {"guard": True, "mode": "Async", "url": "s3://flows/r"}}


def made(seen: Observation) -> list[Any]:
    return guard_objects(seen.repository, "agent:1", guarded(seen, decided(seen).nodes))


def guards(seen: Observation) -> dict[str, Any]:
    """By the node that each is pinned to."""
    found = {}
    for each in made(seen):
        if each["kind"] == "StatefulSet":
            affinity = each["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
            terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
            found[terms[0]["matchFields"][0]["values"][0]] = each
    return found


def budgets(seen: Observation) -> list[Any]:
    return [each for each in made(seen) if each["kind"] == "PodDisruptionBudget"]


def drained(name: str, *, generation: int = 2, read: int = 2, is_told: bool = True) -> NodeObject:
    """One of whose drain the agent says that it has ended."""
    said = Condition(
        type="Drained",
        status=ConditionStatus.TRUE,
        reason="Shipped",
        last_transition_time=READY.last_transition_time,
    )
    found = node(name, conditions=(READY, said), observed_generation=read)
    return msgspec.structs.replace(
        found, drain="true", generation=generation, spec=msgspec.structs.replace(found.spec, draining=is_told)
    )


def test_each_node_with_content_has_a_pod_that_nobody_evicts() -> None:
    """And none where nobody asks for guards, or where there is nothing to keep."""
    seen = fleet(2, GUARDED)
    empty = node("node-1", repository_uuid="")

    assert (guards(fleet(2)), budgets(fleet(2))) == ({}, [])
    assert set(guards(changed(seen, objects=seen.objects | {"node-1": empty}))) == {"node-0"}
    found = guards(seen)
    assert set(found) == {"node-0", "node-1"}
    pod = found["node-0"]["spec"]["template"]["metadata"]
    assert pod["annotations"]["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"
    assert pod["annotations"]["karpenter.sh/do-not-disrupt"] == "true"
    assert REPOSITORY_LABEL not in pod["labels"]
    [budget] = budgets(seen)
    assert budget["spec"] == {"maxUnavailable": 0, "selector": {"matchLabels": {GUARD_LABEL: "flows"}}}


def test_a_guard_goes_with_the_drain_that_has_ended_or_with_its_node() -> None:
    """What an agent said before it was told to drain, or of an earlier drain, lets no node go."""
    seen = fleet(1, GUARDED)

    def is_guarded(found: NodeObject) -> bool:
        return bool(guards(changed(seen, objects={"node-0": found})))

    assert not is_guarded(drained("node-0"))
    assert is_guarded(drained("node-0", generation=3))
    assert is_guarded(drained("node-0", is_told=False))
    assert is_guarded(msgspec.structs.replace(drained("node-0"), drain=""))
    elsewhere = (ClusterNode(name="node-7", labels={}),)
    assert set(guards(changed(seen, cluster_nodes=elsewhere))) == set()
