"""`ullage provenance`: search events, show one, trace a FlowFile, replay."""

import enum
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from ullage_agent.cli import picture
from ullage_agent.cli.choice import Config, Json, Root, opened
from ullage_agent.cli.interrupts import interrupts
from ullage_agent.cli.output import print_json, print_table, say, size, tell
from ullage_agent.engine.model import Content, EventType
from ullage_agent.engine.provenance.events import EventId, ProvenanceEvent
from ullage_agent.engine.provenance.history import History
from ullage_agent.engine.provenance.lineage import Lineage, Way
from ullage_agent.engine.provenance.query import Query
from ullage_agent.units import Duration, Quantity

app = typer.Typer(no_args_is_help=True, help="What happened to FlowFiles: search, show, lineage, replay.")

Event = Annotated[str, typer.Argument(metavar="EVENT", help="An event's sequence number, or its id like 17.0.")]


class Picture(enum.StrEnum):
    """How a lineage is drawn."""

    TABLE = "table"
    MERMAID = "mermaid"
    SVG = "svg"


@app.command()
def query(
    ctx: typer.Context,
    types: Annotated[list[str] | None, typer.Option("--type", "-t", metavar="TYPE", help="Only these types.")] = None,
    flow_file: Annotated[str, typer.Option("--uuid", "-u", help="Events of this FlowFile.")] = "",
    related: Annotated[list[str] | None, typer.Option(help="Its events, and those that name it as kin.")] = None,
    component: Annotated[str, typer.Option(help="By this component.")] = "",
    relationship: Annotated[str, typer.Option(help="Along this relationship.")] = "",
    filename: Annotated[str, typer.Option(help="With this file name.")] = "",
    attribute: Annotated[list[str] | None, typer.Option("--attribute", "-a", metavar="NAME=VALUE")] = None,
    since: Annotated[str, typer.Option(metavar="TIME", help="ISO 8601 in UTC, or an age like 90m.")] = "",
    until: Annotated[str, typer.Option(metavar="TIME", help="The same; excluded.")] = "",
    min_size: Annotated[str, typer.Option(help="Content of so many bytes or more, like 1Mi.")] = "",
    max_size: Annotated[str, typer.Option(help="Content of so many bytes or fewer.")] = "",
    after: Annotated[int, typer.Option(help="Only later events than this sequence number.")] = 0,
    before: Annotated[int | None, typer.Option(help="Only earlier ones.")] = None,
    newest: Annotated[bool, typer.Option("--newest", help="The newest first.")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", help="At most so many.")] = 50,
    root: Root = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Search events, in order. What is not said is not asked."""
    with opened(ctx, root, config) as repository, interrupts.allowed():
        now = repository.clock.now_millis()
        page = repository.history.query(
            Query(
                types=tuple(_type(name) for name in types or ()),
                flow_file=flow_file,
                related=tuple(related or ()),
                component=component,
                relationship=relationship,
                filename=filename,
                attributes=tuple(_attribute(text) for text in attribute or ()),
                since_millis=_time(since, now),
                until_millis=_time(until, now),
                size_min=int(Quantity.parse(min_size)) if min_size else None,
                size_max=int(Quantity.parse(max_size)) if max_size else None,
                after=after,
                before=before,
                limit=limit,
                newest_first=newest,
            )
        )
    lost = [[each.first_sequence, each.events] for each in page.lost]
    if as_json:
        events = [document(event) for event in page.events]
        print_json({"events": events, "next": page.next, "removed_through": page.removed_through, "lost": lost})
        return
    _print_events(page.events)
    if page.next is not None:
        say(f"more: --{'before' if newest else 'after'} {page.next}")
    if page.removed_through > after:
        say(f"events up to {page.removed_through:,} were removed: their retention is over")
    for first, count in lost:
        say(f"{count:,} events from {first:,} on were lost: they found no room")


@app.command()
def show(
    ctx: typer.Context,
    event: Event,
    content: Annotated[bool, typer.Option("--content", help="Write its content to stdout instead.")] = False,
    before: Annotated[bool, typer.Option("--before", help="With --content: what it was before.")] = False,
    root: Root = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Show everything an event says, and whether it can be replayed."""
    with opened(ctx, root, config) as repository, interrupts.allowed():
        found = find(repository.history, event)
        if content:
            out = typer.get_binary_stream("stdout")
            with repository.history.content(found, before=before) as stream:
                for piece in stream:
                    out.write(piece)
            return
        refusal = repository.history.refusal(found)
    shown = document(found) | {"replay": None if refusal is None else str(refusal.reason)}
    if as_json:
        print_json(shown)
        return
    rows = [(name, value) for name, value in shown.items() if name not in NESTED and value not in ("", [], None)]
    print_table(("field", "value"), rows)
    print_table(
        ("attribute", "before", "now"),
        [
            (name, found.previous_attributes().get(name, ""), found.attribute_map().get(name, ""))
            for name in sorted({*found.previous_attributes(), *found.attribute_map()})
        ],
    )
    tell(f"content: {_place(found.content)}; before: {_place(found.content_before)}")
    tell("can be replayed" if refusal is None else f"cannot be replayed: {refusal.message}")


@app.command()
def lineage(
    ctx: typer.Context,
    flow_file: Annotated[str, typer.Argument(metavar="UUID", help="The FlowFile, also one that is gone.")],
    way: Annotated[Way, typer.Option(help="Whom to look for.")] = Way.BOTH,
    depth: Annotated[int, typer.Option(help="Generations.")] = 100,
    limit: Annotated[int, typer.Option("--limit", "-n", help="Events at most.")] = 1_000,
    form: Annotated[Picture, typer.Option("--format", "-f", help="Table, Mermaid or SVG.")] = Picture.TABLE,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the picture to this file.")] = None,
    root: Root = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Trace what a FlowFile was made from and what became of it."""
    with opened(ctx, root, config) as repository, interrupts.allowed():
        try:
            found = repository.history.lineage(flow_file, way=way, depth=depth, events_max=limit)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
    if as_json:
        print_json(_lineage_document(found))
    elif form == Picture.TABLE:
        _print_events(found.events)
    else:
        text = picture.mermaid(found) if form == Picture.MERMAID else picture.svg(found)
        if output is None:
            typer.echo(text, nl=False)
        else:
            output.write_text(text, encoding="utf-8")
    if found.is_cut:
        say(f"more than {limit:,} events: --limit shows more, --depth fewer generations")


@app.command()
def replay(
    ctx: typer.Context,
    event: Event,
    queue: Annotated[str, typer.Option("--queue", "-q", help="Where to, if not where it came from.")] = "",
    root: Root = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Put a FlowFile back into its queue, as it was before an event."""
    with opened(ctx, root, config) as repository:
        found = find(repository.history, event)
        record = repository.history.replay(found, queue)
        name = queue or found.queue
    if as_json:
        print_json({"event": str(found.id), "flow_file": record.id, "queue": name, "size": record.size})
    else:
        tell(f"replayed event {found.id} as FlowFile {record.id} ({size(record.size)}) in queue {name}")


NESTED = ("previous_attributes", "attributes", "content", "content_before")


def document(event: ProvenanceEvent) -> dict[str, Any]:
    """An event for programs; times in milliseconds, sizes in bytes."""
    return {
        "sequence": event.sequence,
        "id": str(event.id),
        "type": event.type.name,
        "time_millis": event.millis,
        "flow_file": event.flow_file,
        "component": event.component,
        "component_type": event.component_type,
        "relationship": event.relationship,
        "details": event.details,
        "transit_uri": event.transit_uri,
        "alternate_identifier": event.alternate_identifier,
        "duration_millis": None if event.duration_millis < 0 else event.duration_millis,
        "queue": event.queue,
        "entry_millis": event.entry_millis,
        "lineage_millis": event.lineage_millis,
        "size": event.size,
        "parents": event.parent_ids,
        "children": event.child_ids,
        "previous_attributes": event.previous_attributes(),
        "attributes": event.attribute_map(),
        "content_before": _content_document(event.content_before),
        "content": _content_document(event.content),
    }


def find(history: History, text: str) -> ProvenanceEvent:
    """The event that the user names."""
    if match := re.fullmatch(r"(\d+)\.(\d+)", text):
        return history.find(EventId(int(match[1]), int(match[2])))
    if not text.isdecimal():
        raise typer.BadParameter(f"{text!r} is neither a sequence number nor an id like 17.0")
    return history.event(int(text))


def _lineage_document(found: Lineage) -> dict[str, Any]:
    return {
        "events": [document(event) for event in found.events],
        "links": [list(link) for link in found.links],
        "unexpanded": [uuid.hex() for uuid in found.unexpanded],
        "is_cut": found.is_cut,
        "removed_through": found.removed_through,
    }


def _print_events(events: tuple[ProvenanceEvent, ...]) -> None:
    print_table(
        (">event", "time", "type", "component", "FlowFile", "file name", ">size", "details"),
        [
            (
                event.sequence,
                datetime.fromtimestamp(event.millis / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S"),
                event.type.name,
                event.component_type or event.component,
                event.flow_file,
                event.filename,
                size(event.size),
                event.relationship or event.transit_uri or event.details,
            )
            for event in events
        ],
    )


def _content_document(content: Content | None) -> dict[str, int | None] | None:
    if content is None:
        return None
    claim = content.claim
    return {
        "resource": claim.resource if claim else None,
        "offset": claim.offset if claim else None,
        "length": claim.length if claim else None,
        "start": content.start,
        "size": content.size,
    }


def _place(content: Content | None) -> str:
    if content is None or content.claim is None:
        return "none"
    claim = content.claim
    return f"{size(content.size)} of resource claim {claim.resource} at {claim.offset + content.start}"


def _type(name: str) -> EventType:
    try:
        return EventType[name.upper()]
    except KeyError as error:
        raise typer.BadParameter(f"{name!r} is no type of event: {', '.join(EventType.__members__)}") from error


def _attribute(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f"{text!r} is no NAME=VALUE")
    return name, value


def _time(text: str, now_millis: int) -> int | None:
    """A moment, or an age counted back from now."""
    if not text:
        return None
    try:
        return now_millis - int(Duration.parse(text))
    except ValueError:
        pass  # not an age, so a moment, or neither
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is neither a time like 2026-01-31T12:00 nor an age like 90m") from error
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
