"""`ullage provenance`: search events, show one, trace a FlowFile, replay."""

import enum
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from ullage import EventQuery
from ullage.enums import LineageDirection
from ullage_agent.cli import picture
from ullage_agent.cli.choice import ChosenRepository
from ullage_agent.cli.interrupts import interrupts
from ullage_agent.cli.options import FILE, PAIR, SIZE, Group, OneOf, on_repository, option
from ullage_agent.cli.output import moment, print_json, print_table, say, size, tell, tell_or_print
from ullage_agent.cli.times import FORMS, time_option

NESTED: Final = ("previous_attributes", "attributes", "content", "previous_content")
MOMENTS: Final = ("time_millis", "entry_millis", "lineage_millis")
EVENT: Final = click.argument("event", help="An event's sequence number, or its id like 17.0.")


class Picture(enum.StrEnum):
    """How a lineage is drawn."""

    TABLE = "table"
    MERMAID = "mermaid"
    SVG = "svg"


@click.group(cls=Group)
def provenance() -> None:
    """Tell what happened to FlowFiles: query, show, lineage, replay."""


@provenance.command()
@option("--type", "-t", "types", metavar="TYPE", multiple=True, help="Find only events of this type; may be repeated.")
@option("--uuid", "-u", "flow_file", metavar="UUID", default="", help="Find only events of this FlowFile.")
@option(
    "--related",
    metavar="UUID",
    multiple=True,
    help="Find events of this FlowFile, and those that name it as parent or child.",
)
@option("--component", metavar="NAME", default="", help="Find only events of this component.")
@option("--relationship", metavar="NAME", default="", help="Find only events along this relationship.")
@option("--filename", metavar="NAME", default="", help="Find only events of FlowFiles with this file name.")
@option(
    "--attribute",
    "-a",
    "attributes",
    type=PAIR,
    multiple=True,
    help="Find only events after which the FlowFile has this attribute; may be repeated.",
)
@option(
    "--since",
    "since_millis",
    callback=time_option,
    metavar="TIME",
    default="",
    help=f"Find only events since this time, {FORMS}.",
)
@option(
    "--until",
    "until_millis",
    callback=time_option,
    metavar="TIME",
    default="",
    help="Find only events before this time, said in the same way.",
)
@option(
    "--min-size", "size_min", type=SIZE, help="Find only events whose content has this many bytes or more, such as 1Mi."
)
@option("--max-size", "size_max", type=SIZE, help="Find only events whose content has this many bytes or fewer.")
@option("--after", metavar="N", type=int, default=0, help="Find only events with a greater sequence number.")
@option("--before", metavar="N", type=int, help="Find only events with a smaller sequence number.")
@option("--newest", "newest_first", is_flag=True, help="Show the newest events first.")
@option("--limit", "-n", type=int, metavar="N", default=50, help="Show at most this many events.")
@on_repository
def query(where: ChosenRepository, as_json: bool, attributes: tuple[tuple[str, str], ...], **conditions: Any) -> None:
    """Search events, in order. All conditions that are given must hold."""
    try:
        asked = msgspec.convert({"attributes": dict(attributes), **conditions}, EventQuery)
    except msgspec.ValidationError as error:
        raise click.UsageError(str(error)) from error
    with where.opened() as repository, interrupts.allowed():
        found = repository.provenance.search(asked)
    document = msgspec.to_builtins(found)
    if as_json:
        print_json(document)
        return
    _print_events(document["events"])
    if found.next is not None:
        say(f"more: --{'before' if asked.newest_first else 'after'} {found.next}")
    if found.removed_through > asked.after:
        say(f"events up to {found.removed_through:,} were removed: their retention is over")
    for first, count in found.lost:
        say(f"{count:,} events from {first:,} on were lost: they found no room, or were set aside")
    _say_unreadable(document["unreadable"])


@provenance.command()
@EVENT
@option("--content", is_flag=True, help="Write the event's content to stdout instead.")
@option("--before", is_flag=True, help="With --content, write what the content was before the event.")
@on_repository
def show(where: ChosenRepository, event: str, content: bool, before: bool, as_json: bool) -> None:
    """Show everything an event says, and whether it can be replayed."""
    named = _named(event)
    with where.opened() as repository, interrupts.allowed():
        if content:
            with repository.provenance.content(named, previous=before) as stream:
                for piece in stream:
                    sys.stdout.buffer.write(piece)
            return
        shown = msgspec.to_builtins(repository.provenance.event(named))
        replayable = repository.provenance.replayability(named)
    if as_json:
        print_json({**shown, "replay": replayable.reason or None})
    else:
        _print_event(shown, replayable.message)


@provenance.command()
@click.argument("flow_file", metavar="UUID", help="The uuid of the FlowFile, also of one that is gone.")
@option(
    "--way",
    type=OneOf(LineageDirection),
    default=LineageDirection.BOTH,
    help="Look for what the FlowFile came from, for what became of it, or for both.",
)
@option("--depth", type=int, metavar="N", default=100, help="Follow at most this many generations.")
@option("--limit", "-n", type=int, metavar="N", default=1_000, help="Show at most this many events.")
@option(
    "--format",
    "-f",
    "form",
    type=OneOf(Picture),
    default=Picture.TABLE,
    help="The format in which the lineage is drawn.",
)
@option("--output", "-o", type=FILE, metavar="PATH", help="Write the picture to this file.")
@on_repository
def lineage(
    where: ChosenRepository,
    flow_file: str,
    way: LineageDirection,
    depth: int,
    limit: int,
    form: Picture,
    output: Path | None,
    as_json: bool,
) -> None:
    """Trace what a FlowFile was made from and what became of it."""
    with where.opened() as repository, interrupts.allowed():
        found = msgspec.to_builtins(repository.provenance.lineage(flow_file, way=way, depth=depth, limit=limit))
    if as_json:
        print_json(found)
    elif form == Picture.TABLE:
        _print_events(found["events"])
    else:
        text = picture.mermaid(found) if form == Picture.MERMAID else picture.svg(found)
        if output is None:
            click.echo(text, nl=False)
        else:
            output.write_text(text, encoding="utf-8")
    _say_unreadable(found["unreadable"])
    if found["is_cut"]:
        say(f"more than {limit:,} events: --limit shows more, --depth fewer generations")


@provenance.command()
@EVENT
@option(
    "--queue",
    "-q",
    metavar="NAME",
    default="",
    help="Put the FlowFile into this queue. The default is the queue it came from.",
)
@on_repository
def replay(where: ChosenRepository, event: str, queue: str, as_json: bool) -> None:
    """Put a FlowFile back into its queue, as it was before an event."""
    with where.opened() as repository:
        done = repository.provenance.replay(_named(event), queue)
    tell_or_print(
        {"event": done.event, "flow_file": done.id, "queue": done.queue, "size": done.size},
        f"replayed event {done.event} as FlowFile {done.id} ({size(done.size)}) in queue {done.queue}",
        as_json,
    )


def _named(text: str) -> str:
    """The event that the user names."""
    if re.fullmatch(r"\d{1,18}(\.\d{1,9})?", text, re.ASCII) is None:
        raise click.UsageError(f"{text!r} is neither a sequence number nor an id like 17.0")
    return text


def _say_unreadable(unreadable: Sequence[picture.Document]) -> None:
    for each in unreadable:
        say(f"passed over: {each['problem']}")


def _print_events(events: Sequence[picture.Document]) -> None:
    """A table, a row an event."""
    print_table(
        (">event", "time", "type", "component", "FlowFile", "file name", ">size", "details"),
        [
            (
                event["sequence"],
                moment(event["time_millis"]),
                event["type"],
                event["component_type"] or event["component"],
                event["flow_file"],
                picture.filename(event),
                size(event["size"]),
                event["relationship"] or event["transit_uri"] or event["details"],
            )
            for event in events
        ],
    )


def _print_event(event: picture.Document, refusal: str) -> None:
    """Everything that one event says, and why it cannot be replayed; empty if it can."""
    rows = [
        (name.removesuffix("_millis"), moment(value)) if name in MOMENTS else (name, value)
        for name, value in event.items()
        if name not in NESTED and value not in ("", [], None)
    ]
    print_table(("field", "value"), rows)
    before, now = event["previous_attributes"], event["attributes"]
    print_table(
        ("attribute", "before", "now"),
        [(name, before.get(name, ""), now.get(name, "")) for name in sorted({*before, *now})],
    )
    tell(f"content: {_place(event['content'])}; before: {_place(event['previous_content'])}")
    tell(refusal or "can be replayed")


def _place(content: picture.Document | None) -> str:
    if content is None or content["resource"] is None:
        return "none"
    return f"{size(content['size'])} of resource claim {content['resource']} at {content['offset'] + content['start']}"
