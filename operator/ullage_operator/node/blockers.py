"""Which applications may read on a node: pods of Spark and others, from their labels. Pure.

Spark labels its pods itself, whoever submits: `spark-role`, `spark-app-selector`, `spark-app-name`. Operators add their
own application's name. An executor that is kept after its end is labelled `spark-exec-inactive`.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

SPARK: Final = "spark-role in (driver,executor,connect-server)"
"""Selector of the pods that are followed. Masters and workers of stand-alone clusters read nothing themselves."""

_BLOCKS: Final = "ullage.dev/blocks-reclamation"
OPTED_IN: Final = f"{_BLOCKS},{_BLOCKS}!=false"
"""Selector: a pod that wants the same, whatever it is. Who writes True or yes means it too."""

IGNORED: Final = "ullage.dev/ignored"
"""Label with "true" on driver and executors of an application that nobody waits for."""

NAMES: Final = (
    "sparkoperator.k8s.io/app-name",
    "sparkoperator.k8s.io/connect-name",
    "spark.operator/spark-app-name",
    "spark-app-name",
    "spark-app-selector",
    "app.kubernetes.io/name",
)
"""Labels that name the application, the most telling first."""


def is_live(pod: Mapping[str, Any]) -> bool:
    """Whether it may be reading. One that is being deleted is until it is gone."""
    labels = pod["metadata"].get("labels") or {}
    if labels.get("spark-exec-inactive") == "true" or labels.get(IGNORED) == "true":
        return False
    return (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")


def application(pod: Mapping[str, Any]) -> str:
    """`namespace/name` of what the pod belongs to."""
    metadata = pod["metadata"]
    labels = metadata.get("labels") or {}
    name = next((labels[label] for label in NAMES if labels.get(label)), metadata["name"])
    return f"{metadata.get('namespace', '')}/{name}"


def by_node(pods: Iterable[Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    """Applications of each node, by name."""
    found: dict[str, set[str]] = {}
    for pod in pods:
        node = (pod.get("spec") or {}).get("nodeName")
        if node and is_live(pod):
            found.setdefault(node, set()).add(application(pod))
    return {node: tuple(sorted(names)) for node, names in found.items()}
