"""`ullage provenance`: search events, show one, trace a FlowFile, replay."""

import enum
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from ullage_agent.cli import picture
from ullage_agent.cli.choice import Config, Json, Root, opened
from ullage_agent.cli.events import document, lineage_document, print_event, print_events
from ullage_agent.cli.interrupts import interrupts
from ullage_agent.cli.output import print_json, say, size, tell
from ullage_agent.cli.served_past import Found, Refusal, served_event, served_lineage, served_search
from ullage_agent.cli.service import Ca, TokenFile, Url, chosen_service, connected
from ullage_agent.engine.clock import SystemClock
from ullage_agent.engine.model import EventType
from ullage_agent.engine.provenance.events import EventId, ProvenanceEvent
from ullage_agent.engine.provenance.history import History
from ullage_agent.engine.provenance.lineage import Way
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
    url: Url = None,
    token_file: TokenFile = None,
    ca: Ca = None,
    as_json: Json = False,
) -> None:
    """Search events, in order. What is not said is not asked."""
    now = SystemClock().now_millis()
    wanted = Query(
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
    service = chosen_service(ctx, root, config, url, token_file, ca)
    if service is not None:
        with connected(service) as client:
            found = served_search(client, wanted)
    else:
        with opened(ctx, root, config) as repository, interrupts.allowed():
            page = repository.history.query(wanted)
        lost = [(each.first_sequence, each.events) for each in page.lost]
        found = Found([document(event) for event in page.events], page.next, page.removed_through, lost)
    if as_json:
        print_json(found._asdict())
        return
    print_events(found.events)
    if found.next is not None:
        say(f"more: --{'before' if newest else 'after'} {found.next}")
    if found.removed_through > after:
        say(f"events up to {found.removed_through:,} were removed: their retention is over")
    for first, count in found.lost:
        say(f"{count:,} events from {first:,} on were lost: they found no room")


@app.command()
def show(
    ctx: typer.Context,
    event: Event,
    content: Annotated[bool, typer.Option("--content", help="Write its content to stdout instead.")] = False,
    before: Annotated[bool, typer.Option("--before", help="With --content: what it was before.")] = False,
    root: Root = None,
    config: Config = None,
    url: Url = None,
    token_file: TokenFile = None,
    ca: Ca = None,
    as_json: Json = False,
) -> None:
    """Show everything an event says, and whether it can be replayed."""
    named = _named(event)
    service = chosen_service(ctx, root, config, url, token_file, ca)
    if service is not None:
        with connected(service) as client:
            if content:
                _write(client.provenance.content(str(named), previous=before))
                return
            shown, refused = served_event(client, str(named))
    else:
        with opened(ctx, root, config) as repository, interrupts.allowed():
            found = _found(repository.history, named)
            if content:
                with repository.history.content(found, before=before) as stream:
                    _write(stream)
                return
            refusal = repository.history.refusal(found)
        shown = document(found)
        refused = None if refusal is None else Refusal(str(refusal.reason), refusal.message)
    if as_json:
        print_json({**shown, "replay": None if refused is None else refused.reason})
    else:
        print_event(shown, "" if refused is None else refused.message)


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
    url: Url = None,
    token_file: TokenFile = None,
    ca: Ca = None,
    as_json: Json = False,
) -> None:
    """Trace what a FlowFile was made from and what became of it."""
    service = chosen_service(ctx, root, config, url, token_file, ca)
    if service is not None:
        with connected(service) as client:
            found = served_lineage(client, flow_file, way, depth, limit)
    else:
        with opened(ctx, root, config) as repository, interrupts.allowed():
            try:
                found = lineage_document(repository.history.lineage(flow_file, way=way, depth=depth, events_max=limit))
            except ValueError as error:
                raise typer.BadParameter(str(error)) from error
    if as_json:
        print_json(found)
    elif form == Picture.TABLE:
        print_events(found["events"])
    else:
        text = picture.mermaid(found) if form == Picture.MERMAID else picture.svg(found)
        if output is None:
            typer.echo(text, nl=False)
        else:
            output.write_text(text, encoding="utf-8")
    if found["is_cut"]:
        say(f"more than {limit:,} events: --limit shows more, --depth fewer generations")


@app.command()
def replay(
    ctx: typer.Context,
    event: Event,
    queue: Annotated[str, typer.Option("--queue", "-q", help="Where to, if not where it came from.")] = "",
    root: Root = None,
    config: Config = None,
    url: Url = None,
    token_file: TokenFile = None,
    ca: Ca = None,
    as_json: Json = False,
) -> None:
    """Put a FlowFile back into its queue, as it was before an event."""
    named = _named(event)
    service = chosen_service(ctx, root, config, url, token_file, ca)
    if service is not None:
        with connected(service) as client:
            done = client.provenance.replay(str(named), queue)
        id, flow_file, name, size_bytes = done.event, done.id, done.queue, done.size
    else:
        with opened(ctx, root, config) as repository:
            found = _found(repository.history, named)
            record = repository.history.replay(found, queue)
        id, flow_file, name, size_bytes = str(found.id), record.id, queue or found.queue, record.size
    if as_json:
        print_json({"event": id, "flow_file": flow_file, "queue": name, "size": size_bytes})
    else:
        tell(f"replayed event {id} as FlowFile {flow_file} ({size(size_bytes)}) in queue {name}")


def _named(text: str) -> EventId | int:
    """The event that the user names."""
    if match := re.fullmatch(r"(\d{1,18})\.(\d{1,9})", text, re.ASCII):
        return EventId(int(match[1]), int(match[2]))
    if re.fullmatch(r"\d{1,18}", text, re.ASCII) is None:
        raise typer.BadParameter(f"{text!r} is neither a sequence number nor an id like 17.0")
    return int(text)


def _found(history: History, event: EventId | int) -> ProvenanceEvent:
    return history.event(event) if isinstance(event, int) else history.find(event)


def _write(pieces: Iterable[bytes]) -> None:
    out = typer.get_binary_stream("stdout")
    for piece in pieces:
        out.write(piece)


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
