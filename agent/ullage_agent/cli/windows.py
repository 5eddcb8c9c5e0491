"""When reclamation may run."""

import time
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
import typer

from ullage_agent.cli.choice import Config, Json, Root, chosen_spec
from ullage_agent.cli.output import print_json, print_table, say, tell
from ullage_agent.contract import Maintenance, MaintenanceOperation
from ullage_agent.windows import Calendar, Verdict, in_words


def windows(
    ctx: typer.Context,
    at: Annotated[
        str | None,
        typer.Option(
            "--at", metavar="TIME", help="At this moment: 2026-03-29T01:30, in the schedules' zone, or +01:00."
        ),
    ] = None,
    root: Root = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Show for each operation whether the windows allow it now, and why; when that ends, and when they open next.

    Works on the configuration alone: the repository need not exist and is not opened.
    """
    maintenance = chosen_spec(ctx, root, config).maintenance
    calendar = Calendar(maintenance)
    millis = round(time.time() * 1000) if at is None else _millis(at, maintenance)
    verdicts = [calendar.verdict(operation, millis) for operation in MaintenanceOperation]
    if as_json:
        print_json(
            {
                "at": in_words(millis, maintenance),
                "millis": millis,
                "problems": calendar.problems,
                "operations": [msgspec.to_builtins(verdict) for verdict in verdicts],
            }
        )
        return
    for problem in calendar.problems:
        say(f"problem: {problem}")
    print_table(("operation", "now", "until", "why"), [_row(verdict, maintenance) for verdict in verdicts])
    tell(f"at {in_words(millis, maintenance)}")


def _row(verdict: Verdict, maintenance: Maintenance) -> tuple[Any, ...]:
    if not verdict.is_allowed:
        until = "-" if verdict.opens_millis is None else in_words(verdict.opens_millis, maintenance)
        return verdict.operation, "closed", until, verdict.reason
    until = "-" if verdict.closes_millis is None else in_words(verdict.closes_millis, maintenance)
    if verdict.closes_millis is not None:
        until += f", then {verdict.overrun.lower()}"
    return verdict.operation, "open" if verdict.may_start else "no new starts", until, verdict.reason


def _millis(text: str, maintenance: Maintenance) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(f"--at: {text!r} is no time such as 2026-03-29T01:30") from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=Calendar(maintenance).zone or UTC)
    return round(moment.timestamp() * 1000)
