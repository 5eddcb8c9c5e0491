"""`ullage plan` and `ullage reclaim`: what could come back, and making it so."""

from collections import Counter
from datetime import datetime, timedelta
from typing import Annotated, Any

import msgspec
import typer

from ullage_agent.cli.choice import Config, Json, Override, Root, opened
from ullage_agent.cli.exits import end_if_closed
from ullage_agent.cli.interrupts import interrupts
from ullage_agent.cli.output import bar, console, many, print_json, size, table, tell
from ullage_agent.contract import Duration, Quantity
from ullage_agent.engine.model import Action
from ullage_agent.engine.reclaim.plan import Plan, Step
from ullage_agent.engine.reclaim.report import Report

LISTED_STEPS = 20
"""Steps of a plan that people see; --json has all."""

COSTS = {
    Action.ARCHIVE: "moved to the archive, whole and unused",
    Action.DELETE: "deleted, whole and unused",
    Action.TRUNCATE: "cut, a dead tail each",
    Action.PUNCH: "punched, dead in the middle",
    Action.REWRITE: "rewritten",
}

Policy = Annotated[
    str | None, typer.Option(help="StatsBased, CompactAll, or another one; else that of spec.compaction.policy.")
]
Guards = Annotated[
    bool,
    typer.Option("--respect-guards", help="Only under the guards of spec.compaction, as the periodic run does."),
]


def plan(
    ctx: typer.Context,
    policy: Policy = None,
    respect_guards: Guards = False,
    root: Root = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Show what `reclaim` would do, for how many bytes copied. Changes nothing."""
    with opened(ctx, root, config) as repository, interrupts.allowed():
        made = repository.reclamation.compactor.plan(policy=policy, keeps_guards=respect_guards)
    _print_plan(made, as_json)


def reclaim(
    ctx: typer.Context,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan, change nothing.")] = False,
    policy: Policy = None,
    bytes_per_second: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="What may be copied a second on each disk, such as 50Mi; 0: no limit."),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN", help="Begin nothing after it: 30m (from now), 06:00 (local time), or a date and time."
        ),
    ] = None,
    respect_guards: Guards = False,
    override: Override = False,
    root: Root = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Give every dead byte back at the lowest cost: delete, cut and punch first, which copies nothing, then rewrite.

    Unused resource claims go to the archive first where that is enabled. Ctrl-C stops after the step it is in.
    """
    rate = None if bytes_per_second is None else _rate(bytes_per_second)
    seconds = None if until is None else _seconds_until(until, datetime.now().astimezone())
    with opened(ctx, root, config, overrides_windows=override) as repository:
        compactor = repository.reclamation.compactor
        made = compactor.plan(policy=policy, keeps_guards=respect_guards)
        if dry_run:
            _print_plan(made, as_json)
            return
        end = None if seconds is None else repository.clock.monotonic() + seconds
        ticket = repository.reclamation.ticket(end, lambda: interrupts.is_pending)
        with bar("Reclaiming", len(made.steps) or None, is_bytes=False) as progress:
            report = compactor.execute(made, ticket, rate, lambda steps, _: progress.reach(steps))
        _print_report(report, made, as_json)
    end_if_closed(report)


def _rate(text: str) -> int:
    try:
        return Quantity.parse(text)
    except ValueError as error:
        raise typer.BadParameter(f"--bytes-per-second: {error}") from error


def _seconds_until(text: str, now: datetime) -> float:
    """From a duration, a time of day (the next one), or a date and time; what is past is 0."""
    try:
        return Duration.parse(text).seconds
    except ValueError:
        pass  # no duration: a time, or nothing we know
    try:
        if len(text) == len("06:00"):
            hour, minute = map(int, text.split(":"))
            end = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
            end = end if end > now else end + timedelta(days=1)
        else:
            end = datetime.fromisoformat(text).astimezone()
    except ValueError as error:
        raise typer.BadParameter(
            f"--until: {text!r} is no time: write 30m, 06:00 or 2026-01-31T06:00:00+01:00"
        ) from error
    return max(0.0, (end - now).total_seconds())


def _print_plan(made: Plan, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "steps": [_step(step) for step in made.steps],
                "frees_bytes": made.frees_bytes,
                "copies_bytes": made.copies_bytes,
                "reason": made.reason,
                "notes": made.notes,
            }
        )
        return
    if made.steps:
        shown = made.steps[:LISTED_STEPS]
        rows = [
            (
                step.action.name.lower(),
                step.resource,
                step.container,
                size(step.copies_bytes) if step.copies_bytes else "-",
                len(step.holes) or "-",
                size(step.frees_bytes),
            )
            for step in shown
        ]
        console().print(table(("action", ">resource claim", "container", ">copies", ">holes", ">frees"), rows))
        if len(made.steps) > len(shown):
            tell(f"and {len(made.steps) - len(shown):,} more")
    tell(
        f"{many(len(made.steps), 'step')}: {size(made.frees_bytes)} to give back for {size(made.copies_bytes)} copied; "
        "nothing was changed"
    )
    _tell_why(made)


def _tell_why(made: Plan) -> None:
    for line in (*made.notes, made.reason):
        if line:
            tell(line)


def _step(step: Step) -> dict[str, Any]:
    return msgspec.structs.asdict(step) | {"action": step.action.name.lower()}


def _print_report(report: Report, made: Plan, as_json: bool) -> None:
    if as_json:
        print_json(_document(report, made))
        return
    for action, count in sorted(report.done.items()):
        tell(f"{many(count, 'resource claim')} {COSTS[action]}")
    tell(
        f"{size(max(0, report.freed_bytes))} given back, {size(report.copied_bytes)} copied, {report.seconds:.1f} s"
        + (" (stopped before the end)" if report.is_stopped else "")
    )
    if report.emergency:
        tell(f"{many(report.emergency, 'step')} ran without permission: a container is nearly full")
    for reason, count in Counter(left.reason for left in report.left).most_common():
        tell(f"{many(count, 'resource claim')} left: {reason}")
    if report.skipped:
        tell(f"{report.skipped:,} were overtaken by events and left alone")
    for problem in report.problems:
        tell(f"problem: {problem}")
    _tell_why(made)


def _document(report: Report, made: Plan) -> dict[str, Any]:
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
