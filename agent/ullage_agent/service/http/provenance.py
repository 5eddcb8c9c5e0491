"""The past: search, one event with its content, lineage, replay. `/v1/provenance`."""

import re
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, Router, get, post
from litestar.enums import HttpMethod
from litestar.handlers import route
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter
from litestar.types import ASGIApp

from ullage_agent.engine.content.reader import ContentStream
from ullage_agent.engine.model import Content, EventType, FlowFile
from ullage_agent.engine.provenance.events import EventId, ProvenanceEvent
from ullage_agent.engine.provenance.history import History
from ullage_agent.engine.provenance.lineage import Way
from ullage_agent.engine.provenance.query import Query
from ullage_agent.service.access import Verb
from ullage_agent.service.errors import BadRequest, NotFound
from ullage_agent.service.http.answers import json, repeated
from ullage_agent.service.http.contents import content_answer, digest_of
from ullage_agent.service.http.docs import problems
from ullage_agent.service.http.forms import Limit
from ullage_agent.service.http.served import AnyRequest, asked, encoded, needs, served_by

SEQUENCE_MAX = 1 << 62
Sequence = Annotated[int, QueryParameter(ge=0, le=SEQUENCE_MAX)]
MaybeSequence = Annotated[int | None, QueryParameter(ge=0, le=SEQUENCE_MAX)]
Depth = Annotated[int, QueryParameter(ge=0, le=1_000)]
EventLimit = Annotated[int, QueryParameter(ge=1, le=10_000)]


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where an event's content lies: a slice of a claim. All None and 0 for empty content."""

    resource: int | None
    offset: int | None
    length: int | None
    start: int
    size: int


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to one FlowFile. `previous_...` are as before it, the others as of its commit."""

    sequence: int
    id: str
    type: str
    time_millis: int
    flow_file: str
    component: str
    component_type: str
    relationship: str
    details: str
    transit_uri: str
    alternate_identifier: str
    duration_millis: int | None
    queue: str
    entry_millis: int
    lineage_millis: int
    size: int
    parents: list[str]
    children: list[str]
    previous_attributes: dict[str, str]
    attributes: dict[str, str]
    previous_content: Place | None
    content: Place | None


class Events(msgspec.Struct, frozen=True, kw_only=True):
    """A page. `next` is to be asked `after` (newest first: `before`); `lost` are runs of events that found no room."""

    events: list[Event]
    next: int | None
    removed_through: int
    lost: list[tuple[int, int]]


class Graph(msgspec.Struct, frozen=True, kw_only=True):
    """A lineage. `links` are pairs of sequences: what led to what. `unexpanded` FlowFiles have more to tell."""

    events: list[Event]
    links: list[tuple[int, int]]
    unexpanded: list[str]
    is_cut: bool
    removed_through: int


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether an event can be replayed now; if not, why."""

    is_possible: bool
    reason: str = ""
    message: str = ""


class Replay(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where to, if not where it came from."""

    queue: str = ""


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """The FlowFile that stands in the queue now."""

    event: str
    id: str
    queue: str
    size: int


@get("/events", opt=needs(Verb.GET), responses=problems())
async def search(
    request: Request[Any, Any, Any],
    type: FromQuery[list[str] | None] = None,
    flow_file: FromQuery[str] = "",
    related: FromQuery[list[str] | None] = None,
    component: FromQuery[str] = "",
    component_type: FromQuery[str] = "",
    relationship: FromQuery[str] = "",
    transit_uri: FromQuery[str] = "",
    alternate_identifier: FromQuery[str] = "",
    filename: FromQuery[str] = "",
    attribute: FromQuery[list[str] | None] = None,
    since_millis: MaybeSequence = None,
    until_millis: MaybeSequence = None,
    size_min: MaybeSequence = None,
    size_max: MaybeSequence = None,
    after: Sequence = 0,
    before: MaybeSequence = None,
    limit: Limit = 100,
    newest_first: FromQuery[bool] = False,
) -> Events:
    """Search events, in order. What is not said is not asked."""
    query = Query(
        types=tuple(_type(name) for name in type or ()),
        flow_file=flow_file,
        related=tuple(related or ()),
        component=component,
        component_type=component_type,
        relationship=relationship,
        transit_uri=transit_uri,
        alternate_identifier=alternate_identifier,
        filename=filename,
        attributes=tuple(_pair(text) for text in attribute or ()),
        since_millis=since_millis,
        until_millis=until_millis,
        size_min=size_min,
        size_max=size_max,
        after=after,
        before=before,
        limit=limit,
        newest_first=newest_first,
    )
    served = served_by(request)

    def find() -> Events:
        page = served.repository.history.query(query)
        return Events(
            events=[event_of(event) for event in page.events],
            next=page.next,
            removed_through=page.removed_through,
            lost=[(lost.first_sequence, lost.events) for lost in page.lost],
        )

    return await served.call(find)


@get("/events/{event:str}", opt=needs(Verb.GET), responses=problems(404))
async def show(request: Request[Any, Any, Any], event: FromPath[str]) -> Event:
    """Everything an event says; by its sequence number, or its id like 17.0."""
    return event_of(await _found(request, event))


@route(
    "/events/{event:str}/content",
    http_method=[HttpMethod.GET, HttpMethod.HEAD],
    opt=needs(Verb.GET),
    responses=problems(404, 410, 416),
)
async def content(request: Request[Any, Any, Any], event: FromPath[str], previous: FromQuery[bool] = False) -> ASGIApp:
    """The content at the event, or before it, as long as its bytes are there."""
    served = served_by(request)
    found = await _found(request, event)
    place = (found.content_before if previous else found.content) or Content(None, 0, 0)

    def opened(start: int, size: int, _blocks: int) -> ContentStream:
        return served.repository.history.content(found, before=previous, start=start, size=size)

    tag = f"{found.id}{'-previous' if previous else ''}"
    return content_answer(request, opened, place.size, tag, {}, digest_of(place.claim, place.start, place.size))


@get("/events/{event:str}/replay", opt=needs(Verb.GET), responses=problems(404))
async def may_replay(request: Request[Any, Any, Any], event: FromPath[str], queue: FromQuery[str] = "") -> Verdict:
    """Whether the event can be replayed now. Reads the whole content to know."""
    served = served_by(request)
    found = await _found(request, event)
    refusal = await served.call(served.repository.history.refusal, found, queue)
    if refusal is None:
        return Verdict(is_possible=True)
    return Verdict(is_possible=False, reason=str(refusal.reason), message=refusal.message)


@post("/events/{event:str}/replay", opt=needs(Verb.CREATE), responses=problems(404, 409, 422, 429, 507))
async def replay(request: Request[Any, Any, Any], event: FromPath[str], data: JSONBody[Replay]) -> Response[bytes]:
    """Put what the event was about back into the queue it came from, or into another one."""
    served = served_by(request)
    found = await _found(request, event)
    once = await asked(request)
    try:
        if once.first is not None:
            return repeated(once.first, 201)

        def carry_out() -> bytes:
            answer = b""

            def also(made: FlowFile) -> Any:
                nonlocal answer
                queue = data.queue or found.queue
                answer = encoded(Replayed(event=str(found.id), id=made.id, queue=queue, size=made.size))
                return once.remember(answer)

            served.repository.history.replay(found, data.queue, also)
            return answer

        return json(await served.create(carry_out), 201)
    finally:
        once.close()


@get("/lineage/{flow_file:str}", opt=needs(Verb.GET), responses=problems())
async def lineage(
    request: Request[Any, Any, Any],
    flow_file: FromPath[str],
    way: FromQuery[Way] = Way.BOTH,
    depth: Depth = 100,
    limit: EventLimit = 1_000,
) -> Graph:
    """What a FlowFile was made from and what became of it."""
    served = served_by(request)

    def find() -> Graph:
        try:
            found = served.repository.history.lineage(flow_file, way=way, depth=depth, events_max=limit)
        except ValueError as error:
            raise BadRequest(str(error)) from error
        return Graph(
            events=[event_of(event) for event in found.events],
            links=list(found.links),
            unexpanded=[uuid.hex() for uuid in found.unexpanded],
            is_cut=found.is_cut,
            removed_through=found.removed_through,
        )

    return await served.call(find)


def event_of(event: ProvenanceEvent) -> Event:
    """An event as a document."""
    return Event(
        sequence=event.sequence,
        id=str(event.id),
        type=event.type.name,
        time_millis=event.millis,
        flow_file=event.flow_file,
        component=event.component,
        component_type=event.component_type,
        relationship=event.relationship,
        details=event.details,
        transit_uri=event.transit_uri,
        alternate_identifier=event.alternate_identifier,
        duration_millis=None if event.duration_millis < 0 else event.duration_millis,
        queue=event.queue,
        entry_millis=event.entry_millis,
        lineage_millis=event.lineage_millis,
        size=event.size,
        parents=event.parent_ids,
        children=event.child_ids,
        previous_attributes=event.previous_attributes(),
        attributes=event.attribute_map(),
        previous_content=_place(event.content_before),
        content=_place(event.content),
    )


async def _found(request: AnyRequest, text: str) -> ProvenanceEvent:
    served = served_by(request)
    return await served.call(_find, served.repository.history, text)


def _find(history: History, text: str) -> ProvenanceEvent:
    if match := re.fullmatch(r"(\d{1,18})\.(\d{1,9})", text, re.ASCII):
        return history.find(EventId(int(match[1]), int(match[2])))
    if re.fullmatch(r"\d{1,18}", text, re.ASCII) is None:
        raise NotFound(f"{text!r} is neither a sequence number nor an id like 17.0")
    return history.event(int(text))


def _place(content: Content | None) -> Place | None:
    if content is None:
        return None
    claim = content.claim
    return Place(
        resource=claim.resource if claim else None,
        offset=claim.offset if claim else None,
        length=claim.length if claim else None,
        start=content.start,
        size=content.size,
    )


def _type(name: str) -> EventType:
    try:
        return EventType[name.upper()]
    except KeyError as error:
        raise BadRequest(f"type: {name!r} is none of {', '.join(EventType.__members__)}") from error


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise BadRequest(f"attribute: {text!r} is no NAME=VALUE")
    return name, value


router = Router(
    "/v1/provenance", route_handlers=[search, show, content, may_replay, replay, lineage], tags=["provenance"]
)
