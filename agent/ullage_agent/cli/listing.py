"""`ullage ls`: queues, FlowFiles, resource claims and handles."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import click
import msgspec

from ullage_agent.cli.choice import ChosenRepository
from ullage_agent.cli.interrupts import interrupts
from ullage_agent.cli.options import OneOf, command, on_repository, option
from ullage_agent.cli.output import moment, print_json, print_table, say, size

if TYPE_CHECKING:
    from ullage import Repository

Row = dict[str, Any]


class Kind(enum.StrEnum):
    """What can be listed."""

    QUEUES = "queues"
    FLOW_FILES = "flowfiles"
    RESOURCE_CLAIMS = "resource-claims"
    HANDLES = "handles"
    UNAVAILABLE = "unavailable"
    SET_ASIDE = "set-aside"


@command()
@click.argument("kind", type=OneOf(Kind), default=Kind.QUEUES, help="What to list.")
@option("--queue", "-q", metavar="NAME", help="List only the FlowFiles of this queue.")
@option("--unavailable", is_flag=True, help="List FlowFiles and handles whose content can't be read, and why.")
@option("--set-aside", is_flag=True, help="List records that can't be used, and why.")
@option(
    "--limit", "-n", type=click.IntRange(min=0), metavar="N", default=50, help="List at most this many; 0 lists all."
)
@on_repository
def ls(
    where: ChosenRepository,
    kind: Kind,
    queue: str | None,
    unavailable: bool,
    set_aside: bool,
    limit: int,
    as_json: bool,
) -> None:
    """List queues, FlowFiles, resource claims or handles. FlowFiles that a session holds are left out."""
    if unavailable:
        kind = Kind.UNAVAILABLE
    if set_aside:
        kind = Kind.SET_ASIDE
    if queue is not None and kind == Kind.QUEUES:
        kind = Kind.FLOW_FILES
    if queue is not None and kind != Kind.FLOW_FILES:
        raise click.UsageError(f"--queue goes with flowfiles, not with {kind}")
    with where.opened() as repository, interrupts.allowed():
        rows = _rows(repository, kind, queue, is_served=where.is_served)
        shown = list(islice(rows, limit or None))
        is_cut = next(rows, None) is not None
    if as_json:
        print_json({kind.replace("-", "_"): shown, "is_cut": is_cut})
        return
    columns = COLUMNS[kind]
    print_table(columns, [[show(row) for show in columns.values()] for row in shown])
    if is_cut:
        say(f"the first {len(shown):,}; --limit 0 lists all")


def _rows(repository: Repository, kind: Kind, queue: str | None, *, is_served: bool) -> Iterator[Row]:
    """The documents, as they are asked for."""
    found: Iterable[object]
    if kind == Kind.QUEUES:
        found = repository.queues.all()
    elif kind == Kind.RESOURCE_CLAIMS:
        found = repository.reclamation.resources()
    elif kind == Kind.UNAVAILABLE:
        from ullage.wire.unavailable import LISTED_MAX

        if not is_served:  # a service has met what can't be read; a repository that was just opened has met nothing
            repository.check()
            repository.retry_unavailable()
        found = repository.unavailable(LISTED_MAX)
    elif kind == Kind.SET_ASIDE:
        from ullage.wire.unavailable import LISTED_MAX

        found = repository.set_aside(LISTED_MAX)
    elif kind == Kind.HANDLES:
        found = repository.handles.all()
    else:
        names = [each.name for each in repository.queues.all()] if queue is None else [queue]
        return (
            {"queue": name, **msgspec.to_builtins(each)}
            for name in names
            for each in repository.queues.all_flow_files(name)
        )
    return map(msgspec.to_builtins, found)


def _number(name: str) -> Callable[[Row], str]:
    return lambda row: f"{row[name]:,}"


def _text(name: str) -> Callable[[Row], str]:
    return lambda row: str(row[name])


def _attribute(name: str) -> Callable[[Row], str]:
    return lambda row: str(row["attributes"].get(name, ""))


def _size(name: str) -> Callable[[Row], str]:
    return lambda row: size(row[name])


def _moment(name: str) -> Callable[[Row], str]:
    return lambda row: moment(row[name]) if row[name] else ""


def _state_of_handle(row: Row) -> str:
    return (
        "deleted" if row["deleted_millis"] else "expired" if 0 < row["expires_millis"] <= time.time() * 1000 else "live"
    )


def _state_of_claim(row: Row) -> str:
    return "moved" if row["output"] else "archived" if row["is_archived"] else "free" if row["is_free"] else "in use"


COLUMNS: dict[Kind, dict[str, Callable[[Row], str]]] = {
    Kind.QUEUES: {
        "queue": _text("name"),
        ">FlowFiles": _number("flow_files"),
        ">content": _size("size_bytes"),
        ">swapped": _number("swapped"),
        "full": lambda row: "yes" if row["is_full"] else "",
        ">max count": lambda row: f"{row['count_max']:,}" if row["count_max"] else "none",
        ">max size": lambda row: size(row["bytes_max"]) if row["bytes_max"] else "none",
        "priority": _text("priority"),
    },
    Kind.FLOW_FILES: {
        "uuid": _text("id"),
        "queue": _text("queue"),
        ">size": _size("size"),
        "entered": _moment("entry_millis"),
        "path": _attribute("path"),
        "filename": _attribute("filename"),
    },
    Kind.RESOURCE_CLAIMS: {
        ">claim": _text("resource"),
        "container": _text("container"),
        "state": _state_of_claim,
        ">length": _size("length"),
        ">live": _size("live_bytes"),
        ">dead tail": _size("dead_tail_bytes"),
        ">claimants": _number("claimants"),
        "file": lambda row: "" if row["output"] else f"{row['created_millis']}-{row['resource']}",
    },
    Kind.UNAVAILABLE: {
        "uuid": _text("id"),
        "queue": _text("queue"),
        "filename": _text("filename"),
        ">size": _size("size"),
        "reason": _text("reason"),
    },
    Kind.SET_ASIDE: {
        "id": _text("id"),
        ">flow_files": _number("flow_file_count"),
        "place": _text("place"),
        "reason": _text("reason"),
    },
    Kind.HANDLES: {
        "uuid": _text("id"),
        ">size": _size("size"),
        "state": _state_of_handle,
        "stored": _moment("entry_millis"),
        "expires": _moment("expires_millis"),
        "deleted": _moment("deleted_millis"),
        "filename": _attribute("filename"),
    },
}
"""For each kind what people see: titles, and the cell of a row. JSON has all of the documents."""
