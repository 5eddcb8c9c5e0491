"""Making, emptying, checking and copying a repository."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import click
import msgspec

import ullage
from ullage.wire.salvage import HELD_QUEUE, HELD_REASON
from ullage.wire.unavailable import UnavailableContent
from ullage.wire.upkeep import RepairReport
from ullage_agent.cli.choice import ChosenRepository, say_recovery
from ullage_agent.cli.exits import ExitCode
from ullage_agent.cli.interrupts import interrupts
from ullage_agent.cli.options import FILE, command, json_output, on_files, on_repository, option
from ullage_agent.cli.output import Bar, bar, console, many, print_json, say, size, tell, tell_or_print, visible


@command()
@json_output
@on_files
def init(where: ChosenRepository, as_json: bool) -> None:
    """Make an empty repository. An init that was interrupted is finished."""
    document = where.document()
    made = ullage.initialize(config=document)
    path = document.spec.storage.host_path.path
    tell_or_print({"root": path, **msgspec.to_builtins(made)}, f"made repository {made.repository} in {path}", as_json)


@command()
@click.argument("queue", required=False, help="The queue to empty.")
@option("--handle", metavar="UUID", help="Delete this handle, instead of a queue's FlowFiles.")
@option("--yes", "-y", is_flag=True, help="Go on without asking first.")
@on_repository
def drop(where: ChosenRepository, queue: str | None, handle: str | None, yes: bool, as_json: bool) -> None:
    """Remove all FlowFiles of a queue, or delete a handle (`undelete` brings that back while its retention lasts).

    Their content is dead from then on; `clean` and `truncate` give its space back.
    """
    if (queue is None) == (handle is None):
        raise click.UsageError("say either a QUEUE or --handle UUID")
    with where.opened() as repository:
        if handle is not None:
            repository.handles.delete(handle)
            tell_or_print({"handle": handle, "state": "deleted"}, f"deleted handle {handle}", as_json)
            return
        assert queue is not None
        found = repository.queues.find(queue)
        if not yes:
            with interrupts.allowed():
                _confirm(f"Drop {many(found.flow_files, 'FlowFile')} ({size(found.size_bytes)}) of queue {queue}?")
        with bar(visible(f"Dropping {queue}"), found.flow_files, is_bytes=False) as progress:
            dropped = repository.queues.drop(queue, on_progress=interruptible(progress))
    tell_or_print(
        {"queue": queue, "dropped": dropped}, f"dropped {many(dropped, 'FlowFile')} of queue {queue}", as_json
    )


@command()
@click.argument("uuid", help="The uuid of a deleted handle.")
@on_repository
def undelete(where: ChosenRepository, uuid: str, as_json: bool) -> None:
    """Bring a deleted handle back."""
    with where.opened() as repository:
        repository.handles.undelete(uuid)
    tell_or_print({"handle": uuid, "state": "live"}, f"handle {uuid} is back", as_json)


@command()
@option("--deep", is_flag=True, help="Read every live byte as well, and every file that a start reads.")
@option("--repair", is_flag=True, help="Mend what can be mended without losing anything, then check again.")
@option("--dry-run", is_flag=True, help="With --repair, show what it would do, and change nothing.")
@on_repository
def check(where: ChosenRepository, deep: bool, repair: bool, dry_run: bool, as_json: bool) -> None:
    """Verify everything against everything; exit code 1 if something contradicts.

    Opening alone already does what every start does: it finishes what a crash cut short and removes what a crash left
    of logs, snapshots and swap files. `--repair`, which wants the files and no service beside it, adopts orphans (for
    `clean` to take away), records the true length of a file whose dead tail is longer or shorter than it should be,
    forgets the record of a file that nobody uses and that is gone, and removes leftovers. Whatever else was found it
    leaves alone and lists.
    """
    if dry_run and not repair:
        raise click.UsageError("--dry-run goes with --repair: a check changes nothing")
    if repair:
        found = _repaired(where, deep=deep, dry_run=dry_run)
    else:
        with where.opened() as repository, bar("Checking", None) as progress, interrupts.allowed():
            found = RepairReport(mended=[], check=repository.check(deep=deep, on_progress=progress.reach))
    unfinished = where.unfinished_erasure()
    if as_json:
        repairs = {"repairs": msgspec.to_builtins(found.mended), "repaired": not dry_run} if repair else {}
        print_json(msgspec.to_builtins(found.check) | repairs | unfinished)
    else:
        for words in unfinished.values():
            console().print(words, soft_wrap=True)
        _print_check(found, "would " if dry_run else "did ", is_deep=deep)
    if found.check.problems:
        raise click.exceptions.Exit(ExitCode.PROBLEMS)


def _repaired(where: ChosenRepository, *, deep: bool, dry_run: bool) -> RepairReport:
    if where.is_served:
        raise click.UsageError(
            "--repair works on a repository's files: run it where they are, while nobody serves them"
        )
    with bar("Checking", None) as progress, interrupts.deferred():
        return ullage.repair(
            config=where.document(),
            deep=deep,
            dry_run=dry_run,
            on_progress=interruptible(progress),
            on_recovery=say_recovery,
        )


def _print_check(found: RepairReport, did: str, *, is_deep: bool) -> None:
    screen, report = console(), found.check
    for step in found.mended:
        length = f", {size(step.length)}" if step.length else ""
        screen.print(f"{did}{step.mend}: {step.path}{length}", soft_wrap=True)
    for problem in report.problems:
        screen.print(f"problem: {problem}", soft_wrap=True)
    for orphan in report.orphans:
        screen.print(f"orphan, which nothing refers to: {orphan}", soft_wrap=True)
    for record in report.set_aside:
        screen.print(f"set aside, because it can't be used: {record}", soft_wrap=True)
    if report.clock:
        screen.print(f"clock not believed: {report.clock}", soft_wrap=True)
    verified = f", {size(report.bytes_verified)} verified" if is_deep else ""
    tell(
        f"{report.flow_files:,} FlowFiles and handles, {many(report.resource_claims, 'resource claim')}{verified}: "
        f"{many(len(report.problems), 'problem')}, {many(len(report.orphans), 'orphan')}"
    )


@command()
@on_repository
def checkpoint(where: ChosenRepository, as_json: bool) -> None:
    """Write a snapshot, so that the next start is quick, and drop the logs it covers."""
    started = time.monotonic()
    with where.opened() as repository, bar("Writing the snapshot", None, is_bytes=False) as progress:
        report = repository.checkpoint(on_progress=progress.reach)
    tell_or_print(
        msgspec.to_builtins(report),
        f"snapshot of {size(report.snapshot_bytes)} up to transaction {report.last_transaction:,}, "
        f"{time.monotonic() - started:.1f} s",
        as_json,
    )


@command()
@click.argument("source", metavar="SOURCE", type=FILE, help="The damaged repository's directory; it is only read.")
@click.argument("root", metavar="TARGET", type=FILE, required=False, help="Empty, or not there: the new repository's.")
@option(
    "--config",
    "-c",
    type=FILE,
    metavar="FILE",
    help="Instead of ROOT, the new repository as a ContentRepository in YAML.",
)
@json_output
def salvage(source: Path, root: Path | None, config: Path | None, as_json: bool) -> None:
    """Make a repository of what a damaged one still proves.

    For when no start succeeds and there is no backup, or only an old one. FlowFiles and handles of which a lost record
    may say more wait in queue `salvaged`, and their attributes say why. Exit code 11 if something could not be had.
    """
    if (root is None) == (config is None):
        raise click.UsageError("say either TARGET or --config FILE")
    with bar("Salvaging", None) as progress:
        made = ullage.salvage(source, root, config=config, on_progress=progress.reach)
    for damaged in made.damaged:
        length = f", {size(damaged.length)}" if damaged.length else ""
        say(f"damaged: {damaged.path} at offset {damaged.offset}{length}: {damaged.reason}")
    for first, last in made.lost_transactions:
        say(f"lost: transactions {first} to {last}")
    for doubt in made.doubts:
        say(f"newer transactions may be lost: {doubt}")
    for record in made.set_aside:
        say(f"can't be used: {record}")
    for each in made.lost:
        say(f"not salvaged: {named(each)}")
    if made.held:
        say(
            f"held: {made.held:,} FlowFiles and handles wait in queue {HELD_QUEUE}, because something that is lost may "
            f"have changed or deleted them; their attribute {HELD_REASON} says what. Drop those that were processed "
            "already; `ullage held release` puts the others back into their queues."
        )
    kept = ", ".join(f"{count:,} in {queue}" for queue, count in made.queues.items())
    tell_or_print(
        {**msgspec.to_builtins(made), "whole": made.is_whole},
        f"salvaged {many(sum(made.queues.values()), 'FlowFile')}{f' ({kept})' if kept else ''} and "
        f"{many(made.handles, 'handle')}; {made.held:,} held in queue {HELD_QUEUE}, {made.lost_count:,} without "
        f"content; {many(made.events, 'provenance event')}, {made.lost_events:,} lost",
        as_json,
    )
    if not made.is_whole:
        raise click.exceptions.Exit(ExitCode.INCOMPLETE)


def named(found: UnavailableContent) -> str:
    """In words."""
    if not found.id:
        return f"queue {found.queue}, {size(found.size)} in {found.path}: {found.reason}"
    whose = f"FlowFile {found.id} ({found.filename!r}) of queue {found.queue}" if found.queue else f"handle {found.id}"
    return f"{whose}, {size(found.size)} in {found.path}: {found.reason}"


def interruptible(progress: Bar) -> Callable[..., None]:
    """Shows how far something is that loses nothing when it ends there: each step is a safe point."""

    def on_progress(done: int, total: int | None = None) -> None:
        progress.reach(done, total)
        interrupts.check()

    return on_progress


def _confirm(question: str) -> None:
    """Ask; whoever cannot be asked must say --yes."""
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} There is no terminal to ask on: say --yes.")
    if not click.confirm(visible(question)):
        raise click.exceptions.Exit(ExitCode.OK)
