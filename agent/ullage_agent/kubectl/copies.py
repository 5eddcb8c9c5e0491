"""Backups of a repository, and what brings one back, as one document and as `status` shows them. Pure."""

from typing import Any, Final

from ullage_agent.cli.output import many, size
from ullage_agent.kubectl.ages import seconds_since, seconds_until, span

Object = dict[str, Any]

BACKUP_COLUMNS: Final = ("backup", "phase", "nodes", "copied", ">written", ">next", "verified")
RESTORE_COLUMNS: Final = ("restore", "node", "phase", "progress", "place")

NO_NEWS: Final = frozenset({"Never", "NotAsked", "Waiting", "Suspended"})
"""Reasons of conditions that do not hold, and of which nobody needs to hear."""


def backup_document(found: Object, now_millis: int) -> Object:
    """One ContentBackup: its last run, and what its last verification has found."""
    spec, status = found["spec"], found.get("status") or {}
    verification = status.get("verification")
    return {
        "name": found["metadata"]["name"],
        "created": found["metadata"].get("creationTimestamp"),
        "bucket": spec["bucket"],
        "schedule": spec.get("schedule") or "",
        "suspended": bool(spec.get("suspend")),
        **_run_of(status),
        "copiedBytes": status.get("bytes", 0),
        "lastSuccess": status.get("lastSuccess"),
        "secondsSinceSuccess": seconds_since(status.get("lastSuccess"), now_millis),
        "nextRun": status.get("nextRun"),
        "secondsToNext": seconds_until(status.get("nextRun"), now_millis),
        "verification": None if verification is None else _verification(verification, now_millis),
        "trouble": _troubles(status, ("BackupCurrent", "BackupVerified")),
    }


def _run_of(status: Object) -> Object:
    counts = {key: status.get(key, 0) for key in ("nodes", "nodesDone", "nodesFailed")}
    return {"phase": status.get("phase") or "Pending", **counts, "message": status.get("message") or ""}


def _verification(found: Object, now_millis: int) -> Object:
    return {
        **_run_of(found),
        "nodesDamaged": found.get("nodesDamaged", 0),
        "samplePercentage": found.get("samplePercentage", 0),
        "readFiles": found.get("files", 0),
        "readBytes": found.get("bytes", 0),
        "lastCompleted": found.get("lastCompleted"),
        "secondsSinceCompleted": seconds_since(found.get("lastCompleted"), now_millis),
        "nextRun": found.get("nextRun"),
        "damagedSince": found.get("damagedSince"),
        "damage": found.get("damage") or "",
    }


def restore_document(found: Object) -> Object:
    """One ContentRestore."""
    spec, status = found["spec"], found.get("status") or {}
    return {
        "name": found["metadata"]["name"],
        "created": found["metadata"].get("creationTimestamp"),
        "node": spec["node"],
        "backup": spec.get("backup") or "",
        "place": status.get("place") or spec.get("place") or "",
        "phase": status.get("phase") or "Pending",
        "progress": status.get("progress") or "",
        "generation": status.get("generation", 0),
        "lost": status.get("lost", 0),
        "erased": status.get("erased", 0),
        "message": status.get("message") or "",
        "trouble": _troubles(status),
    }


def _troubles(status: Object, hoped: tuple[str, ...] = ()) -> list[str]:
    """Conditions that hold though they should not, and those of `hoped` that should and do not, in their own words."""
    said: dict[str, list[str]] = {}
    for each in status.get("conditions") or ():
        is_bad = each["status"] == "True" if each["type"] == "Stalled" else each["status"] == "False"
        if is_bad and each["type"] in ("Stalled", *hoped) and each["reason"] not in NO_NEWS:
            words = f"{each['reason']}: {each['message']}" if each.get("message") else each["reason"]
            said.setdefault(words, []).append(f"{each['type']} is {each['status']}")
    return [f"{' and '.join(types)}, {words}" for words, types in said.items()]


def backup_row(each: Object) -> tuple[str, ...]:
    """A backup's line in the table of `status`."""
    since, following = each["secondsSinceSuccess"], each["secondsToNext"]
    return (
        each["name"],
        each["phase"],
        _done(each),
        size(each["copiedBytes"]),
        "never" if since is None else f"{span(since)} ago",
        ("suspended" if each["suspended"] else "-") if following is None else f"in {span(following)}",
        _verified(each["verification"]),
    )


def _verified(found: Object | None) -> str:
    """How the last verification was, and how long ago."""
    if found is None:
        return "not asked for"
    if found["damagedSince"]:
        return f"damage on {many(found['nodesDamaged'] or 1, 'node')}"
    if found["phase"] in ("Running", "Failed"):
        return f"{found['phase'].lower()}, {_done(found)}"
    since = found["secondsSinceCompleted"]
    return "not yet" if since is None else f"whole {span(since)} ago, {found['samplePercentage']} % read"


def restore_row(each: Object) -> tuple[str, ...]:
    """A restoration's line in the table of `status`."""
    return each["name"], each["node"], each["phase"], each["progress"] or "-", each["place"] or "-"


def _done(each: Object) -> str:
    failed = f", {each['nodesFailed']} failed" if each["nodesFailed"] else ""
    return f"{each['nodesDone']} of {each['nodes']}{failed}"
