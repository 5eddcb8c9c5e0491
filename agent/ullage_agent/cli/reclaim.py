"""`ullage plan` and `ullage reclaim`: what could come back, and making it so."""

from datetime import datetime, timedelta
from typing import Annotated

import typer

from ullage_agent.cli.choice import Config, Json, Override, Root, opened
from ullage_agent.cli.exits import end_if_closed
from ullage_agent.cli.interrupts import interrupts
from ullage_agent.cli.output import bar
from ullage_agent.cli.plans import plan_document, print_plan, print_report, report_document
from ullage_agent.cli.served_space import served_plan, served_run
from ullage_agent.cli.service import Ca, TokenFile, Url, chosen_service, connected
from ullage_agent.contract import Duration, Quantity

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
    url: Url = None,
    token_file: TokenFile = None,
    ca: Ca = None,
    as_json: Json = False,
) -> None:
    """Show what `reclaim` would do, for how many bytes copied. Changes nothing."""
    service = chosen_service(ctx, root, config, url, token_file, ca)
    if service is not None:
        with connected(service) as client:
            document = served_plan(client, policy, respect_guards)
    else:
        with opened(ctx, root, config) as repository, interrupts.allowed():
            made = repository.reclamation.compactor.plan(policy=policy, keeps_guards=respect_guards)
        document = plan_document(made)
    print_plan(document, as_json)


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
    url: Url = None,
    token_file: TokenFile = None,
    ca: Ca = None,
    as_json: Json = False,
) -> None:
    """Give every dead byte back at the lowest cost: delete, cut and punch first, which copies nothing, then rewrite.

    Unused resource claims go to the archive first where that is enabled. Ctrl-C stops after the step it is in.
    """
    rate = None if bytes_per_second is None else _rate(bytes_per_second)
    seconds = None if until is None else _seconds_until(until, datetime.now().astimezone())
    service = chosen_service(ctx, root, config, url, token_file, ca)
    if service is not None:
        with connected(service) as client:
            if dry_run:
                print_plan(served_plan(client, policy, respect_guards), as_json)
            else:
                run = served_run(client, policy, override, rate, respect_guards, seconds)
                print_report(run, as_json)
        return
    with opened(ctx, root, config, overrides_windows=override) as repository:
        compactor = repository.reclamation.compactor
        made = compactor.plan(policy=policy, keeps_guards=respect_guards)
        if dry_run:
            print_plan(plan_document(made), as_json)
            return
        end = None if seconds is None else repository.clock.monotonic() + seconds
        ticket = repository.reclamation.ticket(end, lambda: interrupts.is_pending)
        with bar("Reclaiming", len(made.steps) or None, is_bytes=False) as progress:
            report = compactor.execute(made, ticket, rate, lambda steps, _: progress.reach(steps))
        print_report(report_document(report, made), as_json)
    end_if_closed(report)


def _rate(text: str) -> int:
    try:
        return int(Quantity.parse(text))
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
