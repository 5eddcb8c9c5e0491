"""Plans and reports of reclamation as people and scripts see them, made here or by a running service."""

from collections import Counter
from typing import Any

import msgspec

from ullage_agent.cli.output import console, many, print_json, size, table, tell
from ullage_agent.engine.model import Action
from ullage_agent.engine.reclaim.plan import Plan
from ullage_agent.engine.reclaim.report import Report

LISTED_STEPS = 20
"""Steps of a plan that people see; --json has all."""

COSTS = {
    "archive": "moved to the archive, whole and unused",
    "delete": "deleted, whole and unused",
    "truncate": "cut, a dead tail each",
    "punch": "punched, dead in the middle",
    "rewrite": "rewritten",
}


def plan_document(made: Plan) -> dict[str, Any]:
    """A plan as JSON has it."""
    return {
        "steps": [msgspec.structs.asdict(step) | {"action": step.action.name.lower()} for step in made.steps],
        "step_count": len(made.steps),
        "frees_bytes": made.frees_bytes,
        "copies_bytes": made.copies_bytes,
        "reason": made.reason,
        "notes": made.notes,
    }


def print_plan(made: dict[str, Any], as_json: bool) -> None:
    """A plan's document."""
    if as_json:
        print_json(made)
        return
    count = made["step_count"]
    if count:
        shown = made["steps"][:LISTED_STEPS]
        console().print(
            table(("action", ">resource claim", "container", ">copies", ">holes", ">frees"), map(_row, shown))
        )
        if count > len(shown):
            tell(f"and {count - len(shown):,} more")
    tell(
        f"{many(count, 'step')}: {size(made['frees_bytes'])} to give back for {size(made['copies_bytes'])} copied; "
        "nothing was changed"
    )
    _tell_why(made)


def report_document(report: Report, made: Plan) -> dict[str, Any]:
    """What a run did, as JSON has it."""
    return {
        "done": {action.name.lower(): report.done.get(action, 0) for action in Action if action != Action.NONE},
        "freed_bytes": report.freed_bytes,
        "copied_bytes": report.copied_bytes,
        "read_bytes": report.read_bytes,
        "seconds": round(report.seconds, 3),
        "skipped": report.skipped,
        "refused": report.refused,
        "emergency": report.emergency,
        "is_stopped": report.is_stopped,
        "left": [left._asdict() | {"action": left.action.name.lower()} for left in report.left],
        "problems": report.problems,
        "reason": made.reason,
        "notes": made.notes,
    }


def print_report(document: dict[str, Any], as_json: bool) -> None:
    """A report's document. Of what was left a service tells how many steps by reason, we tell each."""
    if as_json:
        print_json(document)
        return
    for action, cost in COSTS.items():
        if count := document["done"].get(action, 0):
            tell(f"{many(count, 'resource claim')} {cost}")
    tell(
        f"{size(max(0, document['freed_bytes']))} given back, {size(document['copied_bytes'])} copied, "
        f"{document['seconds']:.1f} s" + (" (stopped before the end)" if document["is_stopped"] else "")
    )
    if document["emergency"]:
        tell(f"{many(document['emergency'], 'step')} ran without permission: a container is nearly full")
    reasons: Counter[str] = Counter()
    for left in document["left"]:
        reasons[left["reason"]] += left.get("steps", 1)
    for reason, count in reasons.most_common():
        tell(f"{many(count, 'resource claim')} left: {reason}")
    if document["skipped"]:
        tell(f"{document['skipped']:,} were overtaken by events and left alone")
    for problem in document["problems"]:
        tell(f"problem: {problem}")
    _tell_why(document)


def _tell_why(document: dict[str, Any]) -> None:
    for line in (*document["notes"], document["reason"]):
        if line:
            tell(line)


def _row(step: dict[str, Any]) -> tuple[Any, ...]:
    holes = step["holes"] if isinstance(step["holes"], int) else len(step["holes"])
    copies = size(step["copies_bytes"]) if step["copies_bytes"] else "-"
    return step["action"], step["resource"], step["container"], copies, holes or "-", size(step["frees_bytes"])
