"""Which nodes a repository is on, as the scheduler and the DaemonSet controller would say. Pure."""

import math
from collections.abc import Mapping
from typing import Any, Final

from ullage.contract import ContentRepositorySpec, TaintEffect, Toleration, TolerationOperator
from ullage_operator.observation import ClusterNode, Taint

DAEMON_TAINTS: Final = frozenset(
    f"node.kubernetes.io/{name}"
    for name in ("not-ready", "unreachable", "disk-pressure", "memory-pressure", "pid-pressure", "unschedulable")
)
"""Every DaemonSet's pods put up with these; ours on claims do too, since data does not move."""


def places(spec: ContentRepositorySpec, cluster_node: ClusterNode) -> bool:
    """Whether the node should have an agent."""
    if any(cluster_node.labels.get(key) != value for key, value in spec.node_selector.items()):
        return False
    if not _affine(spec.affinity, cluster_node):
        return False
    hard = [taint for taint in cluster_node.taints if taint.effect != TaintEffect.PREFER_NO_SCHEDULE]
    return all(_tolerated(taint, spec.tolerations) for taint in hard)


def _tolerated(taint: Taint, tolerations: tuple[Toleration, ...]) -> bool:
    return taint.key in DAEMON_TAINTS or any(_tolerates(toleration, taint) for toleration in tolerations)


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect is not None and toleration.effect != taint.effect:
        return False
    if toleration.operator == TolerationOperator.EXISTS:
        return toleration.key in ("", taint.key)
    return (toleration.key, toleration.value) == (taint.key, taint.value)


def _affine(affinity: Mapping[str, Any], cluster_node: ClusterNode) -> bool:
    required = (affinity.get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    if not required:
        return True
    return any(_matches(term, cluster_node) for term in required.get("nodeSelectorTerms") or ())


def _matches(term: Mapping[str, Any], cluster_node: ClusterNode) -> bool:
    """A term without any expression matches nothing, as in Kubernetes."""
    expressions = [(cluster_node.labels, each) for each in term.get("matchExpressions") or ()]
    expressions += [({"metadata.name": cluster_node.name}, each) for each in term.get("matchFields") or ()]
    return bool(expressions) and all(_holds(labels, each) for labels, each in expressions)


def _holds(labels: Mapping[str, str], expression: Mapping[str, Any]) -> bool:  # noqa: PLR0911 - one for each word
    values = expression.get("values") or ()
    value = labels.get(str(expression.get("key")))
    match expression.get("operator"):
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt":
            return _number(value) > _number(next(iter(values), None), math.inf)
        case "Lt":
            return _number(value, math.inf) < _number(next(iter(values), None))
    return False


def _number(text: str | None, otherwise: float = -math.inf) -> float:
    """What is no whole number compares as false."""
    return int(text) if text is not None and text.removeprefix("-").isdecimal() else otherwise
