"""Which nodes take nothing new, and ship what only they have, since they are to go. Pure."""

from collections.abc import Collection, Mapping

from ullage.contract import ConditionStatus, NodeSpec, ReplicationMode
from ullage_operator.objects import RepositoryObject
from ullage_operator.observation import ClusterNode, NodeObject, Observation


def drains(
    repository: RepositoryObject, found: NodeObject | None, host: ClusterNode | None, hosts: Collection[str]
) -> bool:
    """Whether the agent of a node is told so. `host`: the node as the cluster has it, `hosts`: those that are selected.

    Whom somebody names is drained in any mode. A cordon, or a selection that has changed, drains only what can be
    shipped: anywhere else it would stop the programs of a node that comes back in a minute, and save nothing.
    """
    if found is not None and found.drain == "true":
        return True
    if repository.spec.replication.mode == ReplicationMode.NONE or host is None:
        return False
    return host.is_cordoned or host.name not in hosts


def is_drained(found: NodeObject) -> bool:
    """Whether nothing is lost with the node: its agent says so, and has read that it is to take nothing new. What it
    said of an earlier drain is about what it held then.
    """
    has_read = found.spec.draining and found.status.observed_generation >= found.generation
    said = ("Drained", ConditionStatus.TRUE)
    return has_read and any((each.type, each.status) == said for each in found.status.conditions)


def guarded(seen: Observation, nodes: Mapping[str, NodeSpec]) -> list[str]:
    """The nodes that are kept from whoever removes nodes: those that are there, hold content, and are not drained."""
    if not seen.repository.spec.replication.guard:
        return []
    there = {each.name for each in seen.cluster_nodes}
    return [node for node in sorted(nodes) if node in there and _is_guarded(seen.objects.get(node), nodes[node])]


def _is_guarded(found: NodeObject | None, wanted: NodeSpec) -> bool:
    if found is None or found.is_released or not (found.status.repository_uuid or found.trouble):
        return False
    return not (wanted.draining and is_drained(found))
