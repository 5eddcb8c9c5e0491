"""A fleet as one document: what the objects of the cluster say of a repository, its nodes and its runs. Pure."""

from collections.abc import Iterable
from typing import Any, Final

from ullage.contract import HEARTBEAT_SECONDS
from ullage_agent.cli.output import many, size
from ullage_agent.kubectl.ages import seconds_since, span
from ullage_agent.kubectl.copies import backup_document, restore_document

Object = dict[str, Any]

SILENT_MILLIS: Final = 3 * HEARTBEAT_SECONDS * 1000
"""After so long without a heartbeat an agent is not believed to be there any more, as the operator has it."""

HOPED: Final = dict.fromkeys(
    (
        *("Accepted", "Applied", "Reachable", "Provisioned", "Ready", "Replicated", "Drained"),
        *("BackupCurrent", "BackupVerified"),
    ),
    "True",
)
"""Conditions that are well when they hold; of any other it is well when they do not."""

CALM: Final = frozenset({"Reconciling", "Reclaiming", "MaintenanceDeferred", "Paused"})
"""Conditions that say what goes on, and no trouble."""

NOT_ASKED: Final = "NotAsked"
"""The reason of a condition that is unknown since nobody wants what it is about."""

RETURNING: Final = {
    "byItselfBytes": "with the next runs",
    "windowBytes": "when a window opens",
    "retentionBytes": "when retentions end",
    "heldBytes": "when readers let go",
    "unaskedBytes": "only when asked for",
}
"""When dead bytes come back, in words."""

RUNS_SHOWN: Final = 5


def fleet_document(
    repository: Object,
    nodes: Iterable[Object],
    runs: Iterable[Object],
    now_millis: int,
    backups: Iterable[Object] = (),
    restores: Iterable[Object] = (),
) -> Object:
    """All that `status` shows, in bytes and RFC 3339: the same for people and programs."""
    metadata, status = repository["metadata"], repository.get("status") or {}
    mine = [node_document(each, now_millis) for each in nodes if _is_of(each, metadata)]
    mine.sort(key=lambda each: (not each["trouble"], -each["deadBytes"], each["node"]))
    told = [run_document(each) for each in runs if _is_of(each, metadata)]
    told.sort(key=lambda each: str(each["created"]), reverse=True)
    return {
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "ready": condition(status, "Ready"),
        "replicated": _if_asked(status, "Replicated"),
        "window": status.get("nextWindow") or "",
        "nodesWanted": status.get("nodes", 0),
        "totals": {
            key: sum(each[key] for each in mine)
            for key in ("liveBytes", "soleCopyBytes", "deadBytes", "archivedBytes", "freeBytes")
        },
        "returning": {key: sum(each["returning"][key] for each in mine) for key in RETURNING},
        "now": [_in_words(each) for each in _conditions(status) if each["type"] in CALM and each["status"] != "False"],
        "trouble": troubles(status),
        "nodes": mine,
        "runs": told,
        "backups": _latest(backup_document(each, now_millis) for each in backups if _is_of(each, metadata)),
        "restores": _latest(restore_document(each) for each in restores if _is_of(each, metadata)),
    }


def _latest(found: Iterable[Object]) -> list[Object]:
    """What somebody asked for last comes first; before all of it what is in trouble."""
    ordered = sorted(found, key=lambda each: str(each["created"]), reverse=True)
    return sorted(ordered, key=lambda each: not each["trouble"])


def drain_document(found: Object, now_millis: int) -> Object:
    """How far one repository's part of a drained node is. An agent that was not heard of, or has yet to read that it is
    to drain, says nothing of it.
    """
    spec, status = found["spec"], found.get("status") or {}
    said = next((each for each in _conditions(status) if each["type"] == "Drained"), {})
    age = seconds_since(status.get("heartbeat"), now_millis)
    is_heard = age is not None and age * 1000 <= SILENT_MILLIS and spec.get("draining", False)
    is_heard = is_heard and status.get("observedGeneration", 0) >= found["metadata"]["generation"]
    return {
        "namespace": found["metadata"]["namespace"],
        "repository": spec["repository"],
        "drained": said.get("status", "Unknown") if is_heard else "Unknown",
        "reason": said.get("reason", "Silent") if is_heard else "Waits",
        "soleCopyBytes": status.get("soleCopyBytes", 0),
    }


def node_document(found: Object, now_millis: int) -> Object:
    """One node of a fleet."""
    spec, status = found["spec"], found.get("status") or {}
    space, ticket = status.get("space") or {}, spec.get("ticket")
    age = seconds_since(status.get("heartbeat"), now_millis)
    return {
        "node": spec["nodeName"],
        "ready": "Unknown" if age is None or age * 1000 > SILENT_MILLIS else condition(status, "Ready"),
        "secondsSinceHeartbeat": age,
        "liveBytes": space.get("liveBytes", 0),
        "deadBytes": space.get("deadBytes", 0),
        "archivedBytes": space.get("archivedBytes", 0),
        "freeBytes": space.get("freeBytes", 0),
        "capacityBytes": space.get("capacityBytes", 0),
        "freePercentage": space.get("freePercentage"),
        "soleCopyBytes": status.get("soleCopyBytes", 0),
        "returning": {key: (space.get("returning") or {}).get(key, 0) for key in RETURNING},
        "disks": len(status.get("volumes") or ()),
        "disksAway": list(status.get("containersAway") or ()),
        "leases": status.get("leases", 0),
        "wanted": list(status.get("wanted") or ()),
        "ticket": None if ticket is None else {"operations": ticket["operations"], "until": ticket["notAfter"]},
        "trouble": _node_troubles(spec, status, age),
        "version": status.get("version") or "",
    }


def run_document(found: Object) -> Object:
    """One ReclamationRun."""
    spec, status = found["spec"], found.get("status") or {}
    return {
        "name": found["metadata"]["name"],
        "created": found["metadata"].get("creationTimestamp"),
        "phase": status.get("phase") or "Pending",
        "dryRun": bool(spec.get("dryRun")),
        "nodes": status.get("nodes", 0),
        "nodesDone": status.get("nodesDone", 0),
        "nodesFailed": status.get("nodesFailed", 0),
        "freed": status.get("freed") or "0",
        "copied": status.get("copied") or "0",
        "message": status.get("message") or "",
    }


def condition(status: Object, type: str) -> str:
    """Whether a condition holds: True, False or Unknown."""
    return str(next((each["status"] for each in _conditions(status) if each["type"] == type), "Unknown"))


def _if_asked(status: Object, type: str) -> str:
    """The same; nothing where nobody wants what it is about."""
    found = (each["status"] for each in _conditions(status) if each["type"] == type and each["reason"] != NOT_ASKED)
    return str(next(found, ""))


def troubles(status: Object) -> list[str]:
    """The conditions that are not as one would hope, in their own words."""
    return [
        f"{each['type']} is {each['status']}: {_words(each)}"
        for each in _conditions(status)
        if each["type"] not in CALM
        and each["status"] != HOPED.get(each["type"], "False")
        and each["reason"] != NOT_ASKED
    ]


def _conditions(status: Object) -> list[Object]:
    return list(status.get("conditions") or ())


def _words(condition: Object) -> str:
    return str(condition.get("message") or condition["reason"])


def _in_words(condition: Object) -> str:
    return f"{condition['type']}: {_words(condition)}"


def _node_troubles(spec: Object, status: Object, age: int | None) -> list[str]:
    found = troubles(status)
    if age is None:
        found.insert(0, "its agent has not spoken yet")
    elif age * 1000 > SILENT_MILLIS:
        found.insert(0, f"its agent has been silent for {span(age)}")
    if status.get("unavailableContents"):
        found.append(f"{many(status['unavailableContents'], 'content')} can't be read")
    if status.get("recordsSetAside"):
        found.append(f"{many(status['recordsSetAside'], 'record')} set aside")
    if away := status.get("containersAway"):
        found.append(f"the disk is away of: {', '.join(away)}")
    if deferral := spec.get("deferral"):
        found.append(f"waits for {', '.join(deferral['waitsFor'])}")
    return found


def _is_of(found: Object, repository: Object) -> bool:
    is_here = bool(found["metadata"]["namespace"] == repository["namespace"])
    return is_here and bool(found["spec"].get("repository") == repository["name"])


def node_cells(each: Object) -> dict[str, str]:
    """A node's line in the table of `status`, by the titles of the columns."""
    free = each["freePercentage"]
    away = f" ({len(each['disksAway'])} away)" if each["disksAway"] else ""
    return {
        "node": each["node"],
        "ready": each["ready"],
        ">disks": f"{each['disks']}{away}",
        ">live": size(each["liveBytes"]),
        ">dead": size(each["deadBytes"]),
        ">archive": size(each["archivedBytes"]),
        ">free": "-" if free is None else f"{free:.0f}%",
        ">leases": str(each["leases"]),
        "ticket": "-" if each["ticket"] is None else ", ".join(each["ticket"]["operations"]),
        ">seen": "-" if each["secondsSinceHeartbeat"] is None else span(each["secondsSinceHeartbeat"]),
    }


NODE_VIEWS: Final = (
    ("node", "ready", ">disks", ">live", ">dead", ">archive", ">free", ">leases", "ticket", ">seen"),
    ("node", "ready", ">disks", ">dead", ">free", "ticket", ">seen"),
    ("node", "ready", ">dead", ">free", ">seen"),
)
"""Columns from the widest screen to the narrowest: a fleet stays on one, and -o json has them all."""


def run_row(each: Object) -> tuple[str, ...]:
    """A run's line in the table of `status`."""
    done = f"{each['nodesDone']} of {each['nodes']}"
    failed = f", {each['nodesFailed']} failed" if each["nodesFailed"] else ""
    phase = f"{each['phase']} (dry run)" if each["dryRun"] else each["phase"]
    return each["name"], phase, done + failed, each["freed"], each["copied"], each["message"] or "-"


RUN_COLUMNS: Final = ("run", "phase", "nodes", ">freed", ">copied", "message")
