"""How others read the conditions of our kinds: kstatus, by which Flux waits, and the health check for Argo CD.

kstatus' rules for a kind that it does not know, from its documentation (cli-utils, pkg/kstatus):

    deletionTimestamp                                     Terminating
    status.observedGeneration is not metadata.generation  InProgress
    Reconciling is True                                   InProgress
    Stalled is True                                       Failed
    Ready is False or Unknown                             InProgress
    else                                                  Current
"""

from typing import Any


def kstatus(found: dict[str, Any]) -> str:
    """What kstatus makes of an object."""
    metadata, status = found["metadata"], found.get("status") or {}
    if "deletionTimestamp" in metadata:
        return "Terminating"
    if status.get("observedGeneration", metadata["generation"]) != metadata["generation"]:
        return "InProgress"
    conditions = status.get("conditions") or ()
    for condition in conditions:
        if (condition["type"], condition["status"]) == ("Reconciling", "True"):
            return "InProgress"
        if (condition["type"], condition["status"]) == ("Stalled", "True"):
            return "Failed"
    for condition in conditions:
        if condition["type"] == "Ready" and condition["status"] != "True":
            return "InProgress"
    return "Current"


def argo(found: dict[str, Any]) -> str:
    """What the script of docs/install.md makes of a ContentRepository, line by line."""
    status = found.get("status") or {}
    if not status.get("conditions") or status.get("observedGeneration") != found["metadata"]["generation"]:
        return "Progressing"
    said = {condition["type"]: condition["status"] for condition in status["conditions"]}
    rules = [
        ("Stalled", "True", "Degraded"),
        ("Degraded", "True", "Degraded"),
        ("Paused", "True", "Suspended"),
        ("Reconciling", "True", "Progressing"),
        ("Ready", "True", "Healthy"),
        ("Reachable", "False", "Degraded"),
    ]
    return next((health for type, holds, health in rules if said[type] == holds), "Progressing")
