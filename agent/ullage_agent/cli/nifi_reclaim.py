"""What comes back of a NiFi's disk, or has come back, as it is told."""

from __future__ import annotations

import heapq
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from ullage_agent.cli.exits import ExitCode
from ullage_agent.cli.nifi_damages import say_damages, say_hidden
from ullage_agent.cli.output import many, moment, print_json, print_rows, print_table, say, size, tell, visible

if TYPE_CHECKING:
    from ullage.nifi.home import NiFiHome
    from ullage.nifi.reclaiming import ReclaimReport
    from ullage.nifi.reclaimplan import FileStep, NiFiReclaimPlan
    from ullage.nifi.rewriteplan import RewriteFigures
    from ullage.nifi.trouble import NiFiDamage


def plan_document(plan: NiFiReclaimPlan) -> dict[str, Any]:
    """All of it, for programs."""
    document: dict[str, Any] = msgspec.to_builtins(plan)
    return document | {"freed": plan.freed}


def print_plan(plan: NiFiReclaimPlan, files: int, rewrite: RewriteFigures | None = None) -> None:
    """By container, and the files of which most comes back; then what a rewrite would bring."""
    tell(
        f"{size(plan.freed)} would come back from {many(len(plan.steps), 'file')} at transaction {plan.transaction}, "
        f"{moment(plan.millis)}; no FlowFile has to leave"
    )
    _print_shares(plan)
    most = heapq.nsmallest(files, plan.steps, key=lambda step: (-step.freed, step.file))
    if most:
        tell("")
        print_rows(
            ("file", ">bytes", "what is done", ">comes back"),
            [(step.file, size(step.size), _done_to(step), size(step.freed)) for step in most],
        )
    _print_rest(plan)
    if rewrite is not None:
        _print_rewrite(rewrite)


def print_report(report: ReclaimReport, *, as_json: bool) -> None:
    """What was done; ends with INCOMPLETE if something was left that was to be done."""
    if as_json:
        document = msgspec.to_builtins(report)
        if report.plan is not None:
            document["plan"] = plan_document(report.plan)
        print_json(document)
    else:
        _print_report(report)
    for each in report.passed_over:
        say(visible(f"{each.file}: left as it is: {each.why}"))
    if report.short:
        say(visible(f"Not all that lives was brought together: {report.short}"))
    is_whole = not report.passed_over and not report.short
    end(report.damages, report.plan.doubts if report.plan is not None else (), is_whole=is_whole)


def end(damages: Iterable[NiFiDamage], doubts: Iterable[str], *, is_whole: bool = True) -> None:
    """Say what could not be read, and why nothing is done; INCOMPLETE if that is so."""
    reasons, found = list(doubts), list(damages)
    say_damages(found)
    say_hidden(found)
    if reasons:
        say(visible(f"Nothing is touched, because it can't be known what is alive: {reasons[0]}"))
        for reason in reasons[1:]:
            say(visible(f"and: {reason}"))
    if reasons or not is_whole or any(damage.hides_contents for damage in found):
        sys.exit(ExitCode.INCOMPLETE)


def refuse_same_disk(copies: Path, home: NiFiHome) -> None:
    """What is copied to the disk that it is taken from gives nothing back."""
    if not copies.is_dir():
        raise click.UsageError(f"{copies} is no directory")
    for name, path in home.containers.items():
        if os.path.isdir(path) and os.stat(path).st_dev == copies.stat().st_dev:
            raise click.UsageError(f"{copies} lies on the disk of the container {name}: nothing would come back")


def _print_rewrite(rewrite: RewriteFigures) -> None:
    tell("")
    if rewrite.files:
        tell(
            f"--rewrite: {size(rewrite.gained)} more would come back. {size(rewrite.copied)}, all that lives in "
            f"{many(rewrite.files, 'file')}, would be brought together in {many(rewrite.new, 'new file')}."
        )
        if rewrite.ratio is not None:
            tell(f"The disk then holds {rewrite.ratio:.2f} bytes for each live one.")
        tell(
            f"Once the above has come back, it needs {size(rewrite.room)} of free room for a while to do it at once, "
            f"or {size(rewrite.least)} a part at a time."
        )
    else:
        tell("--rewrite: nothing more would come back.")
    if rewrite.pinned:
        tell(f"{many(rewrite.pinned, 'file')} can't be brought together: {rewrite.why}")


def _print_shares(plan: NiFiReclaimPlan) -> None:
    tell("")
    totals = [sum(getattr(share, what) for share in plan.containers) for what in ("punched", "cut", "deleted", "freed")]
    print_table(
        ("container", ">files", ">dead middles", ">dead tails", ">dead files", ">comes back"),
        [
            (
                *(share.name, f"{share.files:,}", size(share.punched), size(share.cut)),
                *(size(share.deleted), size(share.freed)),
            )
            for share in plan.containers
        ],
        ("", f"{len(plan.steps):,}", *map(size, totals)),
    )


def _print_rest(plan: NiFiReclaimPlan) -> None:
    if plan.left:
        tell("")
        print_table(
            ("left as it is", ">files", ">bytes", "first of them"),
            [(each.why, f"{each.files:,}", size(each.size), each.first) for each in plan.left],
        )
    if plan.named:
        tell("")
        tell(
            f"{size(plan.named)} more is dead, but provenance events name it, so it stays for replays: --replay refuse "
            "gives it back too"
        )
    if plan.set_aside:
        tell("")
        tell(
            f"Provenance events are set aside first, for NiFi would take holes for content: {', '.join(plan.set_aside)}"
        )


def _done_to(step: FileStep) -> str:
    if step.is_deleted:
        return "deleted"
    done = [many(len(step.holes), "hole")] if step.holes else []
    return " and ".join([*done, *([f"cut to {size(step.cut)}"] if step.cut is not None else [])])


def _print_report(report: ReclaimReport) -> None:
    freed, files = size(report.freed), many(report.files, "file")
    match report.outcome.value:
        case "nothing":
            tell("Nothing comes back.")
            if report.plan is not None:
                _print_rest(report.plan)
        case "undone":
            tell(f"Taken back: {files} have all bytes again that they had, {freed} on disk.")
            if report.copies:
                tell(f"The copies in {', '.join(report.copies)} are not needed any more.")
            if report.set_aside:
                tell(f"Still set aside, because something is missing: {', '.join(report.set_aside)}")
        case done:
            begun = "What was begun before is finished: " if done == "finished" else ""
            tell(f"{begun}{freed} came back from {files}. NiFi can be started.")
            if report.moved:
                tell(f"{size(report.moved)} of live content were brought together in {many(report.new, 'new file')}.")
            if report.set_aside:
                tell(f"Provenance events that NiFi does not see any more: {', '.join(report.set_aside)}")
            if report.copies:
                folders = ", ".join(report.copies)
                tell(f"Until NiFi is started, `ullage nifi undo` takes it back, from the copies in {folders}")
            if report.plan is not None:
                _print_rest(msgspec.structs.replace(report.plan, set_aside=[]))
