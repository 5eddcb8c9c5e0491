"""When reclamation may run."""

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from ullage_agent.cli.choice import Config, Json, Root, chosen_spec
from ullage_agent.cli.output import print_json, print_table, say, tell
from ullage_agent.cli.service import Ca, TokenFile, Url, chosen_service, connected
from ullage_agent.contract import Maintenance, MaintenanceOperation
from ullage_agent.windows import Calendar, Verdict, in_words

if TYPE_CHECKING:
    from ullage_agent.client.documents import Verdict as ServedVerdict


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
    url: Url = None,
    token_file: TokenFile = None,
    ca: Ca = None,
    as_json: Json = False,
) -> None:
    """Show for each operation whether the windows allow it now, and why; when that ends, and when they open next.

    Works on the configuration alone: the repository need not exist and is not opened.
    """
    service = chosen_service(ctx, root, config, url, token_file, ca)
    if service is not None:
        if at is not None:
            raise typer.BadParameter("--at goes with a configuration: a service says how it is now")
        with connected(service) as client:
            _print_served(client.windows(), as_json)
        return
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


def _print_served(verdicts: "list[ServedVerdict]", as_json: bool) -> None:
    now = round(time.time() * 1000)
    if as_json:
        operations = [msgspec.to_builtins(verdict) for verdict in verdicts]
        print_json({"at": _here(now), "millis": now, "problems": [], "operations": operations})
        return
    rows = []
    for verdict in verdicts:
        millis = verdict.closes_millis if verdict.is_allowed else verdict.opens_millis
        state = "closed" if not verdict.is_allowed else "open" if verdict.may_start else "no new starts"
        rows.append((verdict.operation, state, "-" if millis is None else _here(millis), verdict.reason))
    print_table(("operation", "now", "until", "why"), rows)


def _here(millis: int) -> str:
    """In this machine's zone: the service's is not told."""
    return datetime.fromtimestamp(millis / 1000, UTC).astimezone().isoformat(timespec="seconds")


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
