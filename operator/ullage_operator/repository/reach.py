"""Which nodes serve, and which hold content and do not. Pure.

A node that holds content is looked at whether or not it is selected, and whether or not it is there: until it is
released, somebody may be looking for what lies on it.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple, Self

from ullage.contract import HEARTBEAT_SECONDS, ConditionStatus, OutOfReach, millis_of
from ullage_operator.objects import rounded
from ullage_operator.observation import ClusterNode, NodeObject, Observation

SILENCE_MILLIS: Final = 3 * HEARTBEAT_SECONDS * 1000
"""After three missed heartbeats nobody vouches for a node."""

GRAVITY: Final = ("NodeGone", "Unselected", "NodeNotReady", "NoAgent", "NotServing", "Silent")
"""Reasons why a node is not served, the gravest first."""


class Placement(NamedTuple):
    """Where agents should be, and where they could be. `hosts`: nodes that should have one; `nodes`: all there are."""

    hosts: frozenset[str]
    nodes: dict[str, ClusterNode]

    @classmethod
    def of(cls, seen: Observation, hosts: Iterable[str]) -> Self:
        """Of what was observed."""
        return cls(frozenset(hosts), {each.name: each for each in seen.cluster_nodes})


def holds(found: NodeObject) -> bool:
    """Whether content was ever kept there, or nobody can tell."""
    return bool(found.status.repository_uuid or found.trouble)


def is_let_go(found: NodeObject) -> bool:
    """Whether nothing is forgotten when the object goes: what its node held was given up, or it holds nothing."""
    return found.is_released or not holds(found)


def is_kept(found: NodeObject) -> bool:
    """Whether somebody has deleted the object of a node with content: it stays, and people are told what to do."""
    return found.is_going and not is_let_go(found)


def is_heard(seen: Observation, found: NodeObject) -> bool:
    """Whether the node's agent said anything lately. Not by a clock that is ahead: it would vouch for days."""
    heartbeat = found.status.heartbeat
    return heartbeat is not None and abs(seen.now_millis - millis_of(heartbeat)) <= SILENCE_MILLIS


def says(found: NodeObject, type: str) -> bool:
    """Whether the agent says that the condition holds."""
    return any(each.type == type and each.status == ConditionStatus.TRUE for each in found.status.conditions)


def is_ready(seen: Observation, node: str) -> bool:
    """Whether the node's agent says that it serves, and said so lately."""
    found = seen.objects[node]
    return is_heard(seen, found) and says(found, "Ready")


def serves(seen: Observation, node: str) -> bool:
    """Whether who asks the node gets an answer: its agent says so, and Services lead to its pod. An agent that died
    vouches for itself until its silence is noticed; the kubelet knows at once.
    """
    return node in seen.objects and not seen.is_away(node) and is_ready(seen, node)


def why_not(seen: Observation, node: str, placement: Placement) -> tuple[str, str]:  # noqa: PLR0911 - one for each
    """Why a node is not served, as one of GRAVITY and in words; two empty texts if it is."""
    found, agent, cluster_node = seen.objects.get(node), seen.agents.get(node), placement.nodes.get(node)
    if cluster_node is None:
        return "NodeGone", "the node has left the cluster"
    if node not in placement.hosts:
        return "Unselected", "nodeSelector, affinity or tolerations do not select the node any more"
    if not cluster_node.is_ready:
        return "NodeNotReady", "the node is not ready"
    if agent is None or not agent.is_ready:
        return "NoAgent", "no pod" if agent is None else agent.trouble or "the pod is not ready"
    if found is not None and found.trouble:
        return "NotServing", found.trouble
    if found is None or not is_heard(seen, found):
        return "Silent", _silence(seen, found)
    if not says(found, "Ready"):
        words = next((each.message or each.reason for each in found.status.conditions if each.type == "Ready"), "")
        return "NotServing", words or "the agent does not say that it serves"
    return "", ""


def _silence(seen: Observation, found: NodeObject | None) -> str:
    heartbeat = None if found is None else found.status.heartbeat
    if heartbeat is not None and millis_of(heartbeat) > seen.now_millis:
        return f"the agent's last heartbeat is of {heartbeat}, which is yet to come: set the clock of its node right"
    return "the agent was not heard of lately"


def out_of_reach(seen: Observation, placement: Placement) -> list[OutOfReach]:
    """Nodes that hold content and are not served, the gravest first."""
    found = []
    for node, each in seen.objects.items():
        reason, words = why_not(seen, node, placement) if holds(each) else ("", "")
        if reason:
            live = rounded(each.status.space.live_bytes)
            found.append(OutOfReach(node=node, reason=reason, live=live, message=words[:1024]))
    return sorted(found, key=lambda each: (GRAVITY.index(each.reason), each.node))
