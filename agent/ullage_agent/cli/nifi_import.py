"""What of a NiFi is brought into a repository, as it is told."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from ullage_agent.cli.choice import say_recovery
from ullage_agent.cli.exits import ExitCode
from ullage_agent.cli.interrupts import interrupts
from ullage_agent.cli.nifi_damages import say_damages, say_hidden
from ullage_agent.cli.output import Bar, bar, many, print_json, print_rows, print_table, say, size, tell

if TYPE_CHECKING:
    from pathlib import Path

    from ullage.embedded.nifiimport import ImportReport, NiFiSource, Progress
    from ullage.nifi.importplan import LeftOut

TOLD_EACH = 10
"""FlowFiles that are left out which are named in the text; `--json` names all."""


def bring(source: NiFiSource, target: Path) -> ImportReport:
    """Into the repository in this directory, which is made where there is none."""
    from ullage.embedded.nifiimport import NiFiImporter
    from ullage.embedded.repository import open_embedded

    plan = source.plan
    opened = open_embedded(target, None, create=True, maintain=False, on_recovery=say_recovery)
    with interrupts.deferred(), opened as repository:
        importer = NiFiImporter(repository, source)
        if not importer.rows_left:
            return importer.run(_interruptible(Bar(None, is_bytes=False)))
        say(
            f"To come: {importer.rows_left:,} of {many(len(plan.rows), 'FlowFile')}, with {size(plan.stored)} of "
            f"content in all, each content once; that takes {size(importer.needed())} of the disk at the most"
        )
        importer.require_room()
        with bar("Importing", len(plan.rows), is_bytes=False) as progress:
            return importer.run(_interruptible(progress))


def print_preview(source: NiFiSource, *, as_json: bool) -> None:
    """What would be brought over, and what not."""
    plan = source.plan
    if as_json:
        print_json(
            {
                "id": plan.id.hex(),
                "transaction": plan.transaction,
                "flow_files": len(plan.rows) + len(plan.left_out),
                "size": plan.size,
                "stored": plan.stored,
                "queues": [
                    {"identifier": each.identifier, "original": each.original, "name": each.name}
                    | {"flow_files": each.end - each.first}
                    for each in plan.queues
                ],
                "left_out": msgspec.to_builtins(plan.left_out),
                "notes": plan.notes,
                "damages": msgspec.to_builtins(plan.damages),
            }
        )
    else:
        tell(
            f"{many(len(plan.rows), 'FlowFile')} of transaction {plan.transaction} would come, with {size(plan.size)} "
            f"of content, stored as {size(plan.stored)}: what FlowFiles share is stored once"
        )
        tell("")
        print_rows(
            ("queue", "in NiFi", ">FlowFiles"),
            [(each.name, each.identifier, f"{each.end - each.first:,}") for each in plan.queues],
        )
        _print_left_out(plan.left_out)
        _print_notes(plan.notes)
    say_damages(plan.damages)
    say_hidden(plan.damages)
    _end(is_complete=not plan.left_out and not any(damage.is_serious for damage in plan.damages))


def print_report(report: ImportReport, target: Path, *, as_json: bool) -> None:
    """What came of it; ends with INCOMPLETE if something of NiFi's is not here."""
    if as_json:
        print_json(msgspec.to_builtins(report) | {"is_complete": report.is_complete})
    else:
        here = report.imported + report.before
        before = f", {report.before:,} of them since an earlier call" if report.before else ""
        tell(
            f"{here:,} of {many(report.flow_files, 'FlowFile')} of transaction {report.transaction} are in {target}"
            f"{before}"
        )
        tell(f"{size(report.size)} of content, stored as {size(report.stored)}: what FlowFiles share is stored once")
        tell("")
        print_rows(
            ("queue", "in NiFi", ">FlowFiles", ">bytes", "first comes", "full at", "expires after"),
            [
                (
                    *(each.name, each.identifier, f"{each.flow_files:,}", size(each.size)),
                    *(each.priority, _limits(each.count_max, each.bytes_max), _duration(each.expiration_millis)),
                )
                for each in report.queues
            ],
        )
        _print_left_out(report.left_out)
        _print_notes([*report.notes, *(f"not brought over: {each}" for each in report.not_brought)])
    say_damages(report.damages)
    say_hidden(report.damages)
    _end(is_complete=report.is_complete)


def _print_left_out(found: list[LeftOut]) -> None:
    if not found:
        return
    tell("")
    tell(f"Left out: {many(len(found), 'FlowFile')}")
    reasons = Counter(each.why for each in found)
    print_table((">FlowFiles", "why"), [(f"{count:,}", why) for why, count in reasons.most_common(TOLD_EACH)])
    print_rows(
        ("uuid", "filename", "queue", "why"),
        [(each.uuid, each.filename, each.queue, each.why) for each in found[:TOLD_EACH]],
    )
    if len(found) > TOLD_EACH:
        tell(f"and {len(found) - TOLD_EACH:,} more: --json names all")


def _print_notes(notes: list[str]) -> None:
    if notes:
        tell("")
        for note in notes:
            tell(note[:1].upper() + note[1:])


def _limits(count: int, size_bytes: int) -> str:
    limits = [*([f"{count:,}"] if count else []), *([size(size_bytes)] if size_bytes else [])]
    return " or ".join(limits) or "never"


def _duration(millis: int) -> str:
    if not millis:
        return "never"
    for unit, length in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if millis % length == 0:
            return f"{millis // length:,} {unit}"
    return f"{millis:,} ms"


def _interruptible(progress: Bar) -> Progress:
    def on_progress(done: int, total: int) -> None:
        progress.reach(done, total)
        interrupts.check()

    return on_progress


def _end(*, is_complete: bool) -> None:
    if not is_complete:
        say("Not all that NiFi has is in the repository: what is missing is named above.")
        sys.exit(ExitCode.INCOMPLETE)
