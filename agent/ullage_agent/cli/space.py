"""Space: what the disk holds, what could come back, and giving it back."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click
import msgspec

from ullage.clock import moment_of
from ullage.contract import Duration, MaintenanceOperation
from ullage.enums import SpaceUse
from ullage_agent.cli.choice import ChosenRepository
from ullage_agent.cli.exits import ExitCode
from ullage_agent.cli.forecast import show_forecast
from ullage_agent.cli.interrupts import interrupts
from ullage_agent.cli.options import SIZE, command, on_repository, option, override
from ullage_agent.cli.output import bar, console, many, print_json, print_table, say, size, table, tell, tell_or_print

if TYPE_CHECKING:
    from rich.table import Table

    from ullage import Repository
    from ullage.wire.space import ContainerUsage, Plan, RunProgress, RunReport, SpaceExplanation, SpaceShare

LISTED_STEPS = 20
"""Steps of a plan that people see; --json has more."""

COSTS = {
    "archive": "moved to the archive, whole and unused",
    "delete": "deleted, whole and unused",
    "truncate": "cut, a dead tail each",
    "punch": "punched, dead in the middle",
    "rewrite": "rewritten",
}

MEANINGS = {
    SpaceUse.LIVE: "live: FlowFiles and handles point at it",
    SpaceUse.ROUNDING: "rests of blocks in which something lives",
    SpaceUse.WRITING: "in files that are still appended to",
    SpaceUse.TOMBSTONE: "deleted handles that can still be undeleted",
    SpaceUse.ARCHIVE: "kept for replays",
    SpaceUse.PINNED: "a session or a reader uses it",
    SpaceUse.LEASE: "a lease keeps it",
    SpaceUse.WINDOW: "no run is permitted now",
    SpaceUse.UNPROVED: "in files to be read after an unclean end, or that did not read back",
    SpaceUse.INTENT: "about to be given back",
    SpaceUse.DUE: "given back by a run that begins by itself",
    SpaceUse.THRESHOLD: "below the thresholds",
    SpaceUse.ORPHAN: "of transactions that never came; taken up an hour after a start, or by `ullage clean --orphans`",
    SpaceUse.OVERHEAD: "what the filesystem allocates beyond the ends of files",
    SpaceUse.RESERVE: "room that only what makes room may use",
    SpaceUse.LOG: "the write-ahead log",
    SpaceUse.SNAPSHOT: "the last checkpoint",
    SpaceUse.SWAP: "FlowFiles of long queues",
    SpaceUse.PROVENANCE: "provenance events",
    SpaceUse.INDEX: "what finds provenance events",
    SpaceUse.DIRECTORY: "directories",
    SpaceUse.OTHER: "identity files, the lock, and files that are not of this repository",
}
"""What people read of each use."""

NOT_SUMMED = ("name", "used_percentage", "volume", "volume_reason")

POLICY = option(
    "--policy", help="Use this policy, such as StatsBased or CompactAll. The default is spec.compaction.policy."
)
GUARDS = option(
    "--respect-guards", is_flag=True, help="Act only under the guards of spec.compaction, as the periodic run does."
)
ARCHIVE = option(
    "--archive", is_flag=True, help="Also give back what is kept for replays, before its retention is over."
)
DRY_RUN = option("--dry-run", is_flag=True, help="Show the plan and change nothing.")


@command()
@option(
    "--explain", is_flag=True, help="Say of every allocated byte what it is there for, and of dead ones until when."
)
@on_repository
def survey(where: ChosenRepository, explain: bool, as_json: bool) -> None:
    """Show what the disk holds: live and dead content, and what can be given back.

    `tails` is dead content that `truncate` can cut off, `unused` what lies in resource claims that nobody uses and
    `clean` takes away; both are part of `dead`. `archive`, `deleted` (handles that can still be undeleted) and
    `orphans` (files of transactions that never came) are not part of `disk`. `ratio` is disk / live, `used` the share
    of the container's capacity, or of its volume, that is taken. With `--explain` every file and directory is looked
    at, so that the sum is what the filesystem says.
    """
    if explain:
        with where.opened() as repository, interrupts.allowed():
            explanation = repository.reclamation.explain()
        if as_json:
            print_json(msgspec.to_builtins(explanation))
        else:
            _print_explanation(explanation)
        return
    with where.opened() as repository, interrupts.allowed():
        state = repository.state()
    if as_json:
        print_json({"repository": state.repository, "millis": state.now_millis} | survey_document(state.containers))
    else:
        console().print(survey_table(survey_document(state.containers)))


@command()
@POLICY
@GUARDS
@ARCHIVE
@on_repository
def plan(where: ChosenRepository, policy: str | None, respect_guards: bool, archive: bool, as_json: bool) -> None:
    """Show what `reclaim` would do, for how many bytes copied, and when dead bytes come back without it.

    Changes nothing. What does not come back by itself names the limit or threshold that keeps it, and what would help.
    """
    with where.opened() as repository, interrupts.allowed():
        made = repository.reclamation.plan(policy, respects_guards=respect_guards, archive=archive)
        forecast = repository.reclamation.forecast()
    if as_json:
        print_json(msgspec.to_builtins(made) | {"forecast": msgspec.to_builtins(forecast)})
        return
    _print_plan(made, as_json)
    tell("")
    show_forecast(forecast)


@command()
@DRY_RUN
@POLICY
@option(
    "--bytes-per-second", type=SIZE, help="Copy at most this much a second on each disk, such as 50Mi; 0 sets no limit."
)
@option(
    "--until",
    metavar="WHEN",
    help="Begin nothing after this time: 30m (from now), 06:00 (local time), or a date and time.",
)
@GUARDS
@ARCHIVE
@override
@on_repository
def reclaim(
    where: ChosenRepository,
    dry_run: bool,
    policy: str | None,
    bytes_per_second: int | None,
    until: str | None,
    respect_guards: bool,
    archive: bool,
    override: bool,
    as_json: bool,
) -> None:
    """Give dead bytes back at the lowest cost: delete, cut and punch first, which copies nothing, then rewrite.

    Unused resource claims go to the archive first where that is enabled, and stay there for spec.archive: with
    `--archive` that goes too. What is left is listed, with why and until when. Ctrl-C stops after the step it is in.
    """
    seconds = None if until is None else _seconds_until(until, datetime.now().astimezone())
    asked = {"policy": policy, "respects_guards": respect_guards, "archive": archive}
    _plan_or_run(where, dry_run, as_json, asked, override=override, bytes_per_second=bytes_per_second, seconds=seconds)


@command()
@DRY_RUN
@option(
    "--respect-threshold",
    is_flag=True,
    help="Act only under the conditions of spec.truncation, as the periodic task does.",
)
@override
@on_repository
def truncate(where: ChosenRepository, dry_run: bool, respect_threshold: bool, override: bool, as_json: bool) -> None:
    """Cut dead tails off resource claims that are still in use. Moves no bytes."""
    asked = {"operations": [MaintenanceOperation.TRUNCATE], "respects_guards": respect_threshold}
    _plan_or_run(where, dry_run, as_json, asked, override=override)


@command()
@option("--orphans", is_flag=True, help="Also take up content files that a crash left and nothing refers to.")
@override
@on_repository
def clean(where: ChosenRepository, orphans: bool, override: bool, as_json: bool) -> None:
    """Give back what nobody refers to any more: expired FlowFiles and handles, unused resource claims, old archive.

    With the archive enabled, unused resource claims move there first and go when its retention is over, or when the
    volume is fuller than spec.archive.maxUsagePercentage.
    """
    with where.opened() as repository:
        cleaned = repository.reclamation.clean(adopts_orphans=orphans, override=override)
    report = cleaned.report
    text = (
        f"{many(cleaned.expired_flow_files, 'FlowFile')} expired, {many(cleaned.purged_handles, 'handle')} purged; "
        f"{many(report.done['archive'], 'resource claim')} archived, {report.done['delete']:,} deleted: "
        f"{size(report.freed_bytes)} given back"
    )
    if orphans:
        text = f"{many(cleaned.adopted_orphans, 'orphan')} taken up; {text}"
    if report.emergency:
        say(f"{many(report.emergency, 'step')} ran without permission: a container is nearly full")
    tell_or_print(msgspec.to_builtins(cleaned), text, as_json)
    _end_if_refused(report)


def run_to_the_end(repository: Repository, **asked: Any) -> RunProgress:
    """Give space back, and wait. A deferred Ctrl-C stops the run after the action it is in. Raises what the run met."""
    with bar("Reclaiming", None, is_bytes=False) as progress:

        def goes_on(run: RunProgress) -> bool:
            progress.reach(run.steps_done, None if run.plan is None else run.plan.step_count)
            return not interrupts.is_pending

        run = repository.reclamation.reclaim(**asked, on_progress=goes_on)
    if run.problem is not None:
        from ullage.wire.problems import error_of_slug

        raise error_of_slug(run.slug or "", run.problem)
    return run


def survey_document(containers: Iterable[ContainerUsage]) -> dict[str, Any]:
    """The figures of each container and their totals. `disk_to_live` is null where nothing is live."""
    figures = [msgspec.to_builtins(container) for container in containers]
    totals = {name: sum(each[name] for each in figures) for name in figures[0] if name not in NOT_SUMMED}
    totals["disk_to_live"] = totals["disk_bytes"] / totals["live_bytes"] if totals["live_bytes"] else None
    return {"containers": figures, "totals": totals}


def survey_table(document: dict[str, Any]) -> Table:
    """A survey's document as a table, with totals where there are several containers."""
    columns = ["container", ">claims", ">disk", ">live", ">dead", ">tails", ">unused", ">ratio"]
    apart = {
        name: column
        for name, column in (
            ("archived_bytes", ">archive"),
            ("tombstone_bytes", ">deleted"),
            ("orphan_bytes", ">orphans"),
        )
        if document["totals"][name] > 0
    }
    rows = [[each["name"], *_cells(each, apart), f"{each['used_percentage']:.0f}%"] for each in document["containers"]]
    last = [">used"]
    if any(each["volume"] != "available" for each in document["containers"]):
        last.append("volume")
        for row, each in zip(rows, document["containers"], strict=True):
            row.append(each["volume"])
    totals = ["total", *_cells(document["totals"], apart), *("" for _ in last)] if len(rows) > 1 else []
    return table([*columns, *apart.values(), *last], rows, totals)


def _cells(figures: dict[str, Any], apart: Iterable[str]) -> list[str]:
    shown = ("disk_bytes", "live_bytes", "dead_bytes", "dead_tail_bytes", "unused_bytes")
    live = figures["live_bytes"]
    return [
        f"{figures['resource_claims']:,}",
        *(size(figures[name]) for name in shown),
        f"{figures['disk_bytes'] / live:.2f}" if live else "-",
        *(size(figures[name]) for name in apart),
    ]


def _plan_or_run(where: ChosenRepository, is_plan: bool, as_json: bool, asked: dict[str, Any], **of_run: Any) -> None:
    """Show the plan for what is asked, or carry it out; `of_run` is what only a run has."""
    with where.opened() as repository:
        if is_plan:
            with interrupts.allowed():
                made = repository.reclamation.plan(**asked)
            _print_plan(made, as_json)
            return
        with interrupts.deferred():  # of a run that was stopped people see what it did
            run = run_to_the_end(repository, **asked, **of_run)
            report, followed = run.report, run.plan
            assert report is not None
            assert followed is not None
            if as_json:
                print_json(msgspec.to_builtins(report) | {"reason": followed.reason, "notes": followed.notes})
            else:
                _tell_report(report)
                _tell_why(followed)
            _end_if_refused(report)


def _print_plan(made: Plan, as_json: bool) -> None:
    if as_json:
        print_json(msgspec.to_builtins(made))
        return
    shown = made.steps[:LISTED_STEPS]
    if shown:
        columns = ("action", ">resource claim", "container", ">copies", ">holes", ">frees")
        rows = [
            (
                step.action,
                step.resource,
                step.container,
                size(step.copies_bytes) if step.copies_bytes else "-",
                step.holes or "-",
                size(step.frees_bytes),
            )
            for step in shown
        ]
        print_table(columns, rows)
    if made.step_count > len(shown):
        tell(f"and {made.step_count - len(shown):,} more")
    tell(
        f"{many(made.step_count, 'step')}: {size(made.frees_bytes)} to give back for {size(made.copies_bytes)} copied; "
        "nothing was changed"
    )
    _tell_why(made)


def _tell_report(report: RunReport) -> None:
    for action, cost in COSTS.items():
        if count := report.done.get(action, 0):
            tell(f"{many(count, 'resource claim')} {cost}")
    tell(
        f"{size(max(0, report.freed_bytes))} given back, {size(report.copied_bytes)} copied, {report.seconds:.1f} s"
        + (" (stopped before the end)" if report.is_stopped else "")
    )
    if report.held_bytes:
        tell(f"{size(report.held_bytes)} more come back when readers close what they have open")
    if report.emergency:
        tell(f"{many(report.emergency, 'step')} ran without permission: a container is nearly full")
    for left in sorted(report.left, key=lambda left: -left.steps):
        tell(f"{many(left.steps, 'resource claim')} left: {left.reason}")
    if report.skipped:
        tell(f"{report.skipped:,} were overtaken by events and left alone")
    for share in report.kept:
        tell(f"{size(share.bytes)} dead in {many(share.files, 'file')} of {share.container} left: {why_of(share)}")
    for problem in report.problems:
        tell(f"problem: {problem}")


def _print_explanation(explanation: SpaceExplanation) -> None:
    rows = [
        (share.container or "-", share.use, f"{share.files:,}", f"{share.bytes:,}", why_of(share))
        for share in explanation.shares
    ]
    print_table(("container", "use", ">files", ">bytes", "why, and until when"), rows)
    tell(f"{explanation.allocated_bytes:,} bytes allocated in all")


def why_of(share: SpaceShare) -> str:
    """What people read of a share: what it is there for, why, and until when."""
    why = f"{MEANINGS[share.use]} ({share.reason})" if share.reason else MEANINGS[share.use]
    if share.until_millis is not None:
        until = moment_of(share.until_millis).astimezone()
        why += f", until {until:%Y-%m-%d %H:%M}"
    if share.use == SpaceUse.ARCHIVE:
        why += "; `ullage reclaim --archive` gives it back now"
    return why


def _tell_why(made: Plan) -> None:
    for line in (*made.notes, made.reason):
        if line:
            tell(line)


def _end_if_refused(report: RunReport) -> None:
    """Say why nothing was permitted, and end with the code for it; nothing if something was done."""
    if report.refused and not any(report.done.values()):
        reasons = "; ".join(left.reason for left in report.left)
        say(f"ullage: closed: {reasons}; `ullage windows` shows the windows, --override passes over them")
        raise click.exceptions.Exit(ExitCode.CLOSED)


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
        raise click.UsageError(
            f"--until: {text!r} is no time: write 30m, 06:00 or 2026-01-31T06:00:00+01:00"
        ) from error
    return max(0.0, (end - now).total_seconds())
