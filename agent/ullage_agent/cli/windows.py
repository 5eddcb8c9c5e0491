"""When reclamation may run."""

import time
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from ullage.contract import Calendar, MaintenanceOperation, MaintenanceSettings, WindowStatus, in_words
from ullage_agent.cli.choice import ChosenRepository
from ullage_agent.cli.options import command, on_repository, option
from ullage_agent.cli.output import print_json, print_rows, say, tell


@command()
@option(
    "--at",
    metavar="TIME",
    help="Show them at this moment: 2026-03-29T01:30 in the schedules' time zone, or with +01:00 behind it.",
)
@on_repository
def windows(where: ChosenRepository, at: str | None, as_json: bool) -> None:
    """Show for each operation whether the windows allow it now, and why; when that ends, and when they open next.

    Works on the configuration alone: a repository of this machine need not exist and is not opened.
    """
    show_windows(where.maintenance(), at, as_json)


def show_windows(maintenance: MaintenanceSettings, at: str | None, as_json: bool) -> None:
    """On stdout: what the windows permit at a moment, now if none is given."""
    calendar = Calendar(maintenance)
    millis = round(time.time() * 1000) if at is None else _millis(at, maintenance)
    statuses = [calendar.status(operation, millis) for operation in MaintenanceOperation]
    if as_json:
        print_json(
            {
                "at": in_words(millis, maintenance),
                "millis": millis,
                "problems": calendar.problems,
                "operations": [msgspec.to_builtins(status) for status in statuses],
            }
        )
        return
    for problem in calendar.problems:
        say(f"problem: {problem}")
    print_rows(("operation", "now", "until", "why"), [_row(status, maintenance) for status in statuses])
    tell(f"at {in_words(millis, maintenance)}")


def _row(status: WindowStatus, maintenance: MaintenanceSettings) -> tuple[Any, ...]:
    if not status.is_allowed:
        until = "-" if status.opens_millis is None else in_words(status.opens_millis, maintenance)
        return status.operation, "closed", until, status.reason
    until = "-" if status.closes_millis is None else in_words(status.closes_millis, maintenance)
    if status.closes_millis is not None:
        until += f", then {status.overrun.lower()}"
    return status.operation, "open" if status.may_start else "no new starts", until, status.reason


def _millis(text: str, maintenance: MaintenanceSettings) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise click.UsageError(f"--at: {text!r} is no time such as 2026-03-29T01:30") from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=Calendar(maintenance).zone or UTC)
    return round(moment.timestamp() * 1000)
