"""Making, emptying, measuring and checking a repository."""

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from ullage_agent.cli.choice import Config, Json, Override, Root, chosen_spec, opened
from ullage_agent.cli.exits import ExitCode, end_if_closed
from ullage_agent.cli.figures import survey_document, survey_table
from ullage_agent.cli.interrupts import interrupts
from ullage_agent.cli.output import bar, console, many, print_json, say, size, table, tell
from ullage_agent.cli.served_space import served_survey
from ullage_agent.cli.service import Ca, TokenFile, Url, chosen_service, connected
from ullage_agent.engine.check import CheckReport
from ullage_agent.engine.model import Action
from ullage_agent.engine.reclaim.plan import Plan
from ullage_agent.engine.reclaim.report import Report
from ullage_agent.engine.repair import RepairStep, execute_repair, plan_repair
from ullage_agent.engine.repository import Repository

if TYPE_CHECKING:
    from ullage_agent.client import Client

LISTED_STEPS = 20
"""Steps of a plan that people see; --json has all."""


def init(ctx: typer.Context, root: Root = None, config: Config = None, as_json: Json = False) -> None:
    """Make an empty repository. An init that was interrupted is finished."""
    spec = chosen_spec(ctx, root, config)
    identity = Repository.initialize(spec)
    path = spec.storage.host_path.path
    if as_json:
        print_json({"repository": identity.repository, "root": path, "containers": identity.containers})
    else:
        tell(f"made repository {identity.repository} in {path}")


def drop(
    ctx: typer.Context,
    queue: Annotated[str | None, typer.Argument(help="Every FlowFile of it goes.", show_default=False)] = None,
    handle: Annotated[str | None, typer.Option("--handle", metavar="UUID", help="Delete this handle instead.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    root: Root = None,
    config: Config = None,
    url: Url = None,
    token_file: TokenFile = None,
    ca: Ca = None,
    as_json: Json = False,
) -> None:
    """Remove all FlowFiles of a queue, or delete a handle (`undelete` brings that back while its retention lasts).

    Their content is dead from then on; `clean` and `truncate` give its space back.
    """
    if (queue is None) == (handle is None):
        raise typer.BadParameter("say either a QUEUE or --handle UUID")
    service = chosen_service(ctx, root, config, url, token_file, ca)
    if service is not None:
        with connected(service) as client:
            _drop_served(client, queue, handle, yes, as_json)
        return
    with opened(ctx, root, config) as repository:
        if handle is not None:
            repository.handles.delete(handle)
            _tell_or_print({"handle": handle, "state": "deleted"}, f"deleted handle {handle}", as_json)
            return
        assert queue is not None
        found = repository.queues.find(queue)
        figures = found.figures()
        if not yes:
            with interrupts.allowed():
                _confirm(f"Drop {many(figures.flow_files, 'FlowFile')} ({size(figures.size_bytes)}) of queue {queue}?")

        with bar(f"Dropping {queue}", figures.flow_files, is_bytes=False) as progress:

            def on_progress(dropped: int) -> None:
                progress.reach(dropped)
                interrupts.check()

            dropped = repository.queues.drop(found, on_progress)
    _tell_or_print(
        {"queue": queue, "dropped": dropped}, f"dropped {many(dropped, 'FlowFile')} of queue {queue}", as_json
    )


def _drop_served(client: "Client", queue: str | None, handle: str | None, yes: bool, as_json: bool) -> None:
    if handle is not None:
        client.delete(handle)
        _tell_or_print({"handle": handle, "state": "deleted"}, f"deleted handle {handle}", as_json)
        return
    assert queue is not None
    if not yes:
        found = client.queues.find(queue)
        _confirm(f"Drop {many(found.flow_files, 'FlowFile')} ({size(found.size_bytes)}) of queue {queue}?")
    dropped = client.queues.drop(queue)
    _tell_or_print(
        {"queue": queue, "dropped": dropped}, f"dropped {many(dropped, 'FlowFile')} of queue {queue}", as_json
    )


def undelete(
    ctx: typer.Context,
    uuid: Annotated[str, typer.Argument(help="Of a deleted handle.")],
    root: Root = None,
    config: Config = None,
    url: Url = None,
    token_file: TokenFile = None,
    ca: Ca = None,
    as_json: Json = False,
) -> None:
    """Bring a deleted handle back."""
    service = chosen_service(ctx, root, config, url, token_file, ca)
    if service is not None:
        with connected(service) as client:
            client.undelete(uuid)
    else:
        with opened(ctx, root, config) as repository:
            repository.handles.undelete(uuid)
    _tell_or_print({"handle": uuid, "state": "live"}, f"handle {uuid} is back", as_json)


def survey(
    ctx: typer.Context,
    root: Root = None,
    config: Config = None,
    url: Url = None,
    token_file: TokenFile = None,
    ca: Ca = None,
    as_json: Json = False,
) -> None:
    """Show what the disk holds: live and dead content, and what could be given back.

    `tails` is dead content that `truncate` can cut off, `unused` what lies in resource claims that nobody uses and
    `clean` takes away; both are part of `dead`. `archive` and `deleted` (handles that can still be
    undeleted) are not part of `disk`. `ratio` is disk / live, `used` the share of the
    container's capacity, or of its volume, that is taken.
    """
    service = chosen_service(ctx, root, config, url, token_file, ca)
    if service is not None:
        with connected(service) as client:
            document = served_survey(client)
    else:
        with opened(ctx, root, config) as repository, interrupts.allowed():
            taken = repository.reclamation.survey()
            document = {"repository": repository.identity.repository, "root": repository.root} | survey_document(taken)
    if as_json:
        print_json(document)
        return
    console().print(survey_table(document))


def truncate(
    ctx: typer.Context,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan, change nothing.")] = False,
    respect_threshold: Annotated[
        bool,
        typer.Option(
            "--respect-threshold", help="Only under the conditions of spec.truncation, as the periodic task does."
        ),
    ] = False,
    override: Override = False,
    root: Root = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Cut dead tails off resource claims that are still in use. Moves no bytes."""
    with opened(ctx, root, config, overrides_windows=override) as repository:
        plan = repository.reclamation.plan_truncation(eager=not respect_threshold)
        if dry_run:
            _print_plan(plan, as_json)
            return
        with bar("Truncating", len(plan.steps) or None, is_bytes=False) as progress:

            def on_progress(steps: int, _: int) -> None:
                progress.reach(steps)
                interrupts.check()

            report = repository.reclamation.execute(plan, on_progress=on_progress)
    _print_report(report, plan, as_json)
    end_if_closed(report)


def clean(
    ctx: typer.Context,
    orphans: Annotated[
        bool, typer.Option("--orphans", help="Also take up content files that a crash left and nothing refers to.")
    ] = False,
    override: Override = False,
    root: Root = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Give back what nobody refers to any more: expired FlowFiles and handles, unused resource claims, old archive.

    With the archive enabled, unused resource claims move there first and go when its retention is over, or when the
    volume is fuller than spec.archive.maxUsagePercentage.
    """
    with opened(ctx, root, config, overrides_windows=override) as repository:
        expired = repository.queues.expire()
        purged = repository.handles.purge()
        adopted = repository.reclamation.adopt_orphans() if orphans else 0
        report = repository.reclamation.clean()
    document = _report_document(report)
    document |= {"expired_flow_files": expired, "purged_handles": purged, "adopted_orphans": adopted}
    done = document["done"]
    text = (
        f"{many(expired, 'FlowFile')} expired, {many(purged, 'handle')} purged; "
        f"{many(done['archive'], 'resource claim')} archived, {done['delete']:,} deleted: "
        f"{size(report.freed_bytes)} given back"
    )
    if orphans:
        text = f"{many(adopted, 'orphan')} taken up; {text}"
    if report.emergency:
        say(f"{many(report.emergency, 'step')} ran without permission: a container is nearly full")
    _tell_or_print(document, text, as_json)
    end_if_closed(report)


def check(
    ctx: typer.Context,
    deep: Annotated[bool, typer.Option("--deep", help="Also read every live byte against its checksum.")] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Mend what can be mended without losing anything, then check again.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --repair: show what it would do, change nothing.")
    ] = False,
    root: Root = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Verify everything against everything; exit code 1 if something contradicts.

    Opening alone already does what every start does: it finishes what a crash cut short and removes what a crash left
    of logs, snapshots and swap files. `--repair` adopts orphans (for `clean` to take away), records the true length
    of a file whose dead tail is longer or shorter than it should be, forgets the record of a file that nobody uses
    and that is gone, and removes leftovers. Whatever else was found it leaves alone and lists.
    """
    if dry_run and not repair:
        raise typer.BadParameter("--dry-run goes with --repair: a check changes nothing")
    with opened(ctx, root, config) as repository:
        with bar("Checking", None) as progress, interrupts.allowed():
            plan = plan_repair(repository, deep=deep, on_progress=progress.reach)
        report = plan.report
        if repair and plan.steps and not dry_run:
            execute_repair(repository, plan)
            with bar("Checking again", None) as progress, interrupts.allowed():
                report = repository.check(deep=deep, on_progress=progress.reach)
    steps = plan.steps if repair else ()
    if as_json:
        document = {
            "problems": report.problems,
            "orphans": report.orphans,
            "flow_files": report.flow_files,
            "resource_claims": report.resource_claims,
            "bytes_verified": report.bytes_verified,
        }
        repairs = {"repairs": [step._asdict() for step in steps], "repaired": not dry_run} if repair else {}
        print_json(document | repairs)
    else:
        _print_check(report, steps, "would " if dry_run else "did ", is_deep=deep)
    if report.problems:
        raise typer.Exit(ExitCode.PROBLEMS)


def _print_check(report: CheckReport, steps: Sequence[RepairStep], did: str, *, is_deep: bool) -> None:
    screen = console()
    for step in steps:
        length = f", {size(step.length)}" if step.length else ""
        screen.print(f"{did}{step.mend}: {step.path}{length}", soft_wrap=True)
    for problem in report.problems:
        screen.print(f"problem: {problem}", soft_wrap=True)
    for orphan in report.orphans:
        screen.print(f"orphan, which nothing refers to: {orphan}", soft_wrap=True)
    verified = f", {size(report.bytes_verified)} verified" if is_deep else ""
    tell(
        f"{report.flow_files:,} FlowFiles and handles, {many(report.resource_claims, 'resource claim')}{verified}: "
        f"{many(len(report.problems), 'problem')}, {many(len(report.orphans), 'orphan')}"
    )


def checkpoint(ctx: typer.Context, root: Root = None, config: Config = None, as_json: Json = False) -> None:
    """Write a snapshot and drop the logs it covers, so that the next start is quick."""
    started = time.monotonic()
    with opened(ctx, root, config) as repository:
        with bar("Writing the snapshot", None, is_bytes=False) as progress:
            repository.checkpoint(progress.reach)
        covered = repository.log.snapshot_id
        written = repository.log.snapshot_bytes
    seconds = time.monotonic() - started
    document = {"last_transaction": covered, "snapshot_bytes": written}
    _tell_or_print(document, f"snapshot of {size(written)} up to transaction {covered:,}, {seconds:.1f} s", as_json)


def _print_plan(plan: Plan, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "steps": [_step(step) for step in plan.steps],
                "frees_bytes": plan.frees_bytes,
                "deferred": [_step(step) for step in plan.deferred],
                "reason": plan.reason,
            }
        )
        return
    if plan.steps:
        shown = plan.steps[:LISTED_STEPS]
        rows = [
            (step.action.name.lower(), step.resource, step.container, size(step.length), size(step.frees_bytes))
            for step in shown
        ]
        console().print(table(("action", ">resource claim", "container", ">cut to", ">frees"), rows))
        if len(plan.steps) > len(shown):
            tell(f"and {len(plan.steps) - len(shown):,} smaller ones")
    tell(f"{many(len(plan.steps), 'dead tail')}, {size(plan.frees_bytes)} to give back; nothing was changed")
    _tell_deferred(plan)


def _step(step: Any) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.structs.asdict(step)
    return fields | {"action": step.action.name.lower()}


def _print_report(report: Report, plan: Plan, as_json: bool) -> None:
    if as_json:
        deferred = {"deferred": len(plan.deferred), "reason": plan.reason}
        print_json(_report_document(report) | deferred)
        return
    tell(f"cut {many(report.done.get(Action.TRUNCATE, 0), 'dead tail')}: {size(report.freed_bytes)} given back")
    if report.emergency:
        say(f"{many(report.emergency, 'step')} ran without permission: a container is nearly full")
    if report.skipped:
        tell(f"{report.skipped:,} were overtaken by events and left alone")
    _tell_deferred(plan)


def _report_document(report: Report) -> dict[str, Any]:
    done = {action.name.lower(): report.done.get(action, 0) for action in Action if action != Action.NONE}
    return {
        "done": done,
        "freed_bytes": report.freed_bytes,
        "skipped": report.skipped,
        "refused": report.refused,
        "emergency": report.emergency,
    }


def _tell_deferred(plan: Plan) -> None:
    if plan.deferred:
        deferred_bytes = sum(step.frees_bytes for step in plan.deferred)
        tell(f"{many(len(plan.deferred), 'dead tail')} ({size(deferred_bytes)}) left for later: {plan.reason}")
    elif plan.reason:
        tell(plan.reason)


def _tell_or_print(document: dict[str, Any], text: str, as_json: bool) -> None:
    if as_json:
        print_json(document)
    else:
        tell(text)


def _confirm(question: str) -> None:
    """Ask; whoever cannot be asked must say --yes."""
    if not sys.stdin.isatty():
        raise typer.BadParameter(f"{question} Say --yes: there is no terminal to ask on")
    if not typer.confirm(question):
        raise typer.Exit(ExitCode.OK)
