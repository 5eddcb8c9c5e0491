"""`ullage backup` and `ullage restore`: copies of a repository, in directories and buckets."""

import functools
import math
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
import msgspec

import ullage
from ullage.interface.buckets import Bucket
from ullage.wire.upkeep import KEPT_MAX, BackupVerification, Keep, RestorationReport
from ullage_agent.cli.choice import ChosenRepository
from ullage_agent.cli.exits import ExitCode
from ullage_agent.cli.options import (
    BUCKET_NAMES,
    FILE,
    Function,
    Group,
    command,
    container_paths,
    json_output,
    on_bucket,
    on_repository,
    on_service,
    option,
    with_options,
)
from ullage_agent.cli.output import (
    bar,
    many,
    moment,
    print_json,
    print_rows,
    print_table,
    say,
    size,
    tell_or_print,
)
from ullage_agent.cli.restoreoptions import left_out, restored_ids, restored_moment, restored_queues
from ullage_agent.cli.upkeep import interruptible, named

WRITE = "write"
SOURCE = "A backup: its directory, or s3://BUCKET/PREFIX."
BACKUP_OR_SHARE = "A backup, or what a service has shipped: its directory, or s3://BUCKET/PREFIX."
PERIODS = {"hourly": "hours", "daily": "days", "weekly": "weeks", "monthly": "months", "yearly": "years"}
KEPT = ("last", *PERIODS)


class ShareOption(click.ParamType[float]):
    """A part of the whole, such as 5% or 0.05."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number, percent, rest = str(value).partition("%")
        try:
            share = float(number) / (100 if percent else 1)
        except ValueError:
            share = math.nan
        if rest or not 0 <= share <= 1:
            self.fail(f"{value!r} is no share: say 5% or 0.05", param, ctx)
        return share


class BackupGroup(Group):
    """What is no command of its own is where a backup goes."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in {*self.commands, *ctx.help_option_names}:
            args = [WRITE, *args]
        return super().parse_args(ctx, args)


def _keeping(function: Function) -> Function:
    """A command that gets `keep`: the rule that --keep-* say, None if none of them is said."""

    @functools.wraps(function)
    def wrapped(**given: Any) -> Any:
        said = {name: given.pop(f"keep_{name}") for name in KEPT}
        kept = {name: count for name, count in said.items() if count is not None}
        return function(keep=Keep(**kept) if kept else None, **given)

    return with_options(wrapped, [_kept(name) for name in KEPT])


def _kept(name: str) -> Callable[[Function], Function]:
    what = "generations, whenever they were written" if name == "last" else f"{PERIODS[name]}, one generation of each"
    return option(
        f"--keep-{name}",
        type=click.IntRange(0, KEPT_MAX),
        metavar="N",
        section="Generations",
        help=f"Keep N {what}.",
    )


@click.group(cls=BackupGroup)
def backup() -> None:
    """Bring a backup up to date, or begin one: `ullage backup DEST`, which is `ullage backup write DEST`."""


@backup.command(WRITE)
@click.argument(
    "destination", metavar="DEST", help="A directory of its own, best on another disk; or s3://BUCKET/PREFIX."
)
@_keeping
@on_bucket
@on_repository
def write(where: ChosenRepository, destination: str | Bucket, keep: Keep | None, as_json: bool) -> None:
    """Bring a backup up to date, or begin one: `ullage backup DEST`. What DEST has already is not copied again.

    Each run is a generation. Say once which stay: --keep-daily 7 --keep-weekly 4, as with restic or borg; what none of
    them needs is removed. If that was never said, the newest stays alone.

    Interrupted at any point, DEST holds the last whole backup, and the next run goes on where this one was. A service
    writes it where it runs, to the directories and buckets that its configuration allows.

    Content that can't be read is named, and kept as the last backup has it; if that does not have it either, the exit
    code is 11.
    """
    with where.opened() as repository, bar("Copying", None) as progress:
        report = repository.backup(_told(where, destination), keep=keep, on_progress=interruptible(progress))
    for each in report.lost:
        say(f"not in the backup: {named(each)}")
    for each in report.saved:
        say(f"kept from the last backup: {named(each)}")
    tell_or_print(
        msgspec.to_builtins(report),
        f"copied {many(report.copied_files, 'file')}, {size(report.copied_bytes)}; had {report.kept_files:,} already, "
        f"{size(report.kept_bytes)}; up to transaction {report.last_id:,}; generation {report.generation:,}, "
        f"{many(report.generations, 'generation')} in all",
        as_json,
    )
    if report.lost:
        raise click.exceptions.Exit(ExitCode.INCOMPLETE)


@backup.command("list")
@click.argument("source", metavar="SRC", help=SOURCE)
@on_bucket
@on_service
def list_generations(where: ChosenRepository, source: str | Bucket, as_json: bool) -> None:
    """Show the generations of a backup, oldest first. `ullage restore --generation N` takes one of them.

    With --url the service looks, in the directories and buckets that its configuration allows.
    """
    if where.is_served:
        with where.opened() as repository:
            found = repository.generations(_told(where, source))
    else:
        found = ullage.generations(source)
    if as_json:
        print_json({"generations": msgspec.to_builtins(found)})
        return
    print_table(
        (">generation", "written (UTC)", ">up to transaction", ">files", ">size"),
        [
            (each.sequence, moment(each.created_millis), f"{each.last_id:,}", f"{each.files:,}", size(each.bytes))
            for each in found
        ],
    )


@backup.command()
@click.argument("source", metavar="SRC", help="A share: s3://BUCKET/PREFIX, as `ullage status` tells it, or above it.")
@option("--last", type=click.IntRange(1), default=20, metavar="N", help="Show only the newest N points.")
@on_bucket
@json_output
def points(source: str | Bucket, last: int, as_json: bool) -> None:
    """Show the points that what a service ships (`ullage serve --replicate-to`) can be restored to, newest last.

    `ullage restore --generation N` takes one of them. All of the log is read for it.
    """
    found = ullage.restore_points(source)[-last:]
    if as_json:
        print_json({"points": msgspec.to_builtins(found)})
        return
    print_table(
        (">point", "committed (UTC)", ">up to transaction"),
        [(each.number, moment(each.millis), f"{each.last_id:,}") for each in found],
    )


@backup.command()
@click.argument("source", metavar="SRC", help=SOURCE)
@option("--generation", type=int, metavar="N", help="Verify this generation alone. The default is all.")
@option(
    "--sample",
    type=ShareOption(),
    default="100%",
    metavar="SHARE",
    help="Read only this share of the files, such as 5%; look for all of them.",
)
@option("--seed", type=int, metavar="N", help="Draw the sample by this number. Without it each run draws another.")
@on_bucket
@on_service
def verify(where: ChosenRepository, source: str | Bucket, as_json: bool, **asked: Any) -> None:
    """Read a backup and compare its checksums, all of it or a sample; nothing is written.

    What is damaged is named, with the generations that need it, and the exit code is 1. Move such a file away, and back
    up again: what the repository still has is copied anew, and the newest generation is whole.

    With --url the service reads, in the directories and buckets that its configuration allows.
    """
    with ExitStack() as stack:
        progress = stack.enter_context(bar("Verifying", None))
        verified: Callable[..., BackupVerification] = ullage.verify_backup
        if where.is_served:
            verified = stack.enter_context(where.opened()).verify_backup
        found = verified(_told(where, source), **asked, on_progress=interruptible(progress))
    for each in found.damaged:
        say(f"damaged: {each.path}, of generation {', '.join(map(str, each.generations))}: {each.reason}")
    tell_or_print(
        msgspec.to_builtins(found),
        f"looked for {many(found.files, 'file')}, {size(found.bytes)}, of {many(found.generations, 'generation')}; "
        f"read {found.read_files:,}, {size(found.read_bytes)} (seed {found.seed}): {found.damaged_files:,} damaged",
        as_json,
    )
    if found.damaged_files:
        raise click.exceptions.Exit(ExitCode.PROBLEMS)


@backup.command("runs")
@on_service
def list_runs(where: ChosenRepository, as_json: bool) -> None:
    """Show what a service writes or verifies now, how far it is and who asked for it; and how the last ones ended."""
    if not where.is_served:
        raise click.UsageError("of which service? Say --url, or set ULLAGE_URL")
    with where.opened() as repository:
        found = repository.backup_runs()
    if as_json:
        print_json({"runs": msgspec.to_builtins(found)})
        return
    print_rows(
        ("begun (UTC)", "what", "where", "who", ">files", ">size", "state"),
        [
            (
                moment(each.began_millis),
                each.action,
                each.place,
                each.owner,
                f"{each.files_done:,} of {each.files:,}",
                f"{size(each.bytes_done)} of {size(each.bytes)}",
                each.problem or ("goes on" if each.ended_millis is None else f"done {moment(each.ended_millis)}"),
            )
            for each in found
        ],
    )


@command()
@click.argument("source", metavar="SRC", help=BACKUP_OR_SHARE)
@click.argument("root", metavar="ROOT", type=FILE, help="Empty, or not there: the repository is made in it.")
@container_paths
@option(
    "--generation",
    type=int,
    metavar="N",
    help="One that `ullage backup list` names, or a point of `ullage backup points`; else the newest.",
)
@restored_moment
@option(
    "--register",
    "registers",
    type=FILE,
    metavar="FILE",
    multiple=True,
    help="Erase whom this register of erasures names; may be repeated.",
)
@restored_queues
@restored_ids
@on_bucket
@json_output
def restore(
    source: str | Bucket,
    root: Path,
    containers: tuple[tuple[str, str], ...],
    generation: int | None,
    at_millis: int | None,
    registers: tuple[Path, ...],
    queues: tuple[str, ...],
    ids: tuple[str, ...],
    as_json: bool,
) -> None:
    """Make a repository from a backup, or from what a service has shipped to a bucket, every byte checked.

    Each file is verified while it is copied; then everything is checked as `check --deep` does. Interrupted, it goes on
    with what is in ROOT when it is said again, to the same point. With --at it is the newest generation or point that
    is not later.

    Whom the backup knows to have been erased since is erased from it before anybody can open it, and so is whom a
    --register names that `ullage erase --register` has written. See docs/erasure.md.

    With --queue or --id it is a new repository of these alone, and no other content is fetched: `ullage get ID --root
    ROOT` prints one, and `ullage ls --root ROOT` shows them.
    """
    if at_millis is not None:
        if generation is not None:
            raise click.UsageError("--at and --generation both say of when: leave one out")
        generation = ullage.generation_at(source, at_millis)
        say(f"as of generation or point {generation}, the newest that is not later")
    if queues or ids:
        if containers:
            raise click.UsageError("--container is of a whole repository: leave it out, or --queue and --id")
        _restore_some(source, root, generation, registers, queues, ids, as_json=as_json)
        return
    with bar("Restoring", None) as progress:
        made = ullage.restore(
            source,
            root,
            containers=dict(containers),
            generation=generation,
            registers=registers,
            on_progress=progress.reach,
            on_phase=say,
        )
    _tell_restored(made, as_json=as_json)


def _tell_restored(made: RestorationReport, *, as_json: bool) -> None:
    for problem in made.check.problems:
        say(f"problem: {problem}")
    for each in made.erased:
        say(f"erased, as the register says: a subject by {', '.join(each.attributes)}, {many(each.uuids, 'FlowFile')}")
        for remaining in each.remains:
            say(f"remains: {remaining}")
    tell_or_print(
        msgspec.to_builtins(made.backup)
        | {
            "problems": made.check.problems,
            "flow_files": made.check.flow_files,
            "erased": msgspec.to_builtins(made.erased),
        },
        f"restored {many(made.backup.copied_files, 'file')}, {size(made.backup.copied_bytes)}; had "
        f"{made.backup.kept_files:,} already, {size(made.backup.kept_bytes)}; "
        f"up to transaction {made.backup.last_id:,}: {made.check.flow_files:,} FlowFiles and handles, "
        f"{many(len(made.check.problems), 'problem')}",
        as_json,
    )
    if made.check.problems:
        raise click.exceptions.Exit(ExitCode.PROBLEMS)
    if not all(each.is_finished for each in made.erased):
        say("not all of that could be erased, and nobody can open the repository until it is: run the same again later")
        raise click.exceptions.Exit(ExitCode.INCOMPLETE)


def _restore_some(
    source: str | Bucket,
    root: Path,
    generation: int | None,
    registers: tuple[Path, ...],
    queues: tuple[str, ...],
    ids: tuple[str, ...],
    *,
    as_json: bool,
) -> None:
    with bar("Restoring", None) as progress:
        made = ullage.restore_some(
            source,
            root,
            queues=queues,
            ids=ids,
            generation=generation,
            registers=registers,
            on_progress=progress.reach,
        )
    for problem in made.check.problems:
        say(f"problem: {problem}")
    for each in made.lost:
        say(f"without content there: {each.id}: {each.reason}")
    if made.erased:
        say(left_out(made.erased))
    flow_files = sum(made.queues.values())
    tell_or_print(
        msgspec.to_builtins(made),
        f"restored {many(flow_files, 'FlowFile')} and {many(made.handles, 'handle')}, {size(made.bytes)}, of "
        f"generation {made.generation:,}; {many(len(made.check.problems), 'problem')}",
        as_json,
    )
    if made.check.problems:
        raise click.exceptions.Exit(ExitCode.PROBLEMS)
    if made.lost_count:
        raise click.exceptions.Exit(ExitCode.INCOMPLETE)


def _told(where: ChosenRepository, place: str | Bucket) -> str | Bucket:
    """A place as whoever is asked takes it."""
    if not (where.is_served and isinstance(place, Bucket)):
        return place
    if any(map(where.is_written, BUCKET_NAMES)):
        raise click.UsageError("how a service reaches a bucket its spec.service.backupBuckets says: leave that out")
    return Bucket(url=place.url)  # without what this shell's environment says
