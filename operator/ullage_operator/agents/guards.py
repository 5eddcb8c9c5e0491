"""Pods that keep a node from autoscalers and drains while content would go with it. Pure.

Autoscalers and `kubectl drain` pass over the pods of DaemonSets, as agents are: they remove the node under them. A pod
of a StatefulSet that says that it may not be evicted, and whose PodDisruptionBudget allows no disruption, they heed.
"""

from collections.abc import Sequence
from typing import Final

from ullage_operator.objects import Object, RepositoryObject, confined, dressed
from ullage_operator.settings import DEFAULT_PODS, PodSettings

GUARD_LABEL: Final = "ullage.dev/guard"
"""Label of guards: the name of their repository. They have none of the labels by which agents are found."""

KEPT: Final = {
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "karpenter.sh/do-not-disrupt": "true",
}

WAITS: Final = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit()); signal.pause()"
"""The first process of a container does not end by SIGTERM by itself."""

RESOURCES: Final = {
    "requests": {"cpu": "1m", "memory": "16Mi"},
    "limits": {"cpu": "100m", "memory": "64Mi"},
}


def guard_objects(
    repository: RepositoryObject, image: str, nodes: Sequence[str], *, pods: PodSettings = DEFAULT_PODS
) -> list[Object]:
    """One pod pinned to each of these nodes, and the budget that keeps them; nothing for none."""
    if not nodes:
        return []
    labels = {GUARD_LABEL: repository.name}
    spec = {"maxUnavailable": 0, "selector": {"matchLabels": labels}}
    budget = repository.owned("PodDisruptionBudget", f"{repository.name}-ullage-guard", spec=spec)
    return [budget, *(_guard(repository, image, node, labels, pods) for node in nodes)]


def _guard(repository: RepositoryObject, image: str, node: str, labels: dict[str, str], pods: PodSettings) -> Object:
    name = repository.node_name(node, "guard-")
    own = {**labels, "ullage.dev/guards": name}
    pinned = {"key": "metadata.name", "operator": "In", "values": [node]}
    required = {"nodeSelectorTerms": [{"matchFields": [pinned]}]}
    container = {
        "name": "guard",
        "image": repository.spec.image or image,
        "command": ["python3", "-c", WAITS],
        "resources": RESOURCES,
        "securityContext": confined(),
    }
    pod = {
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
        "tolerations": [{"operator": "Exists"}],  # a cordoned node is guarded too, until it is drained
        "containers": [container],
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
    }
    template = dressed({"metadata": {"labels": own, "annotations": KEPT}, "spec": pod}, pods)
    spec = {
        "replicas": 1,
        "serviceName": repository.service,
        "selector": {"matchLabels": own},
        "podManagementPolicy": "Parallel",
        "template": template,
    }
    return repository.owned("StatefulSet", name, spec=spec)
