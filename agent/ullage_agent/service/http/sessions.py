"""Remote sessions: FlowFiles held, changed and settled in one transaction. `/v1/sessions`."""

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, Router, get, post, put
from litestar.enums import HttpMethod
from litestar.handlers import route
from litestar.params import FromPath, FromQuery, JSONBody
from litestar.types import ASGIApp
from msgspec import Meta

from ullage_agent.engine.content.reader import ContentStream
from ullage_agent.engine.model import FlowFile
from ullage_agent.engine.session import ProcessSession
from ullage_agent.service.access import Verb
from ullage_agent.service.errors import BadRequest
from ullage_agent.service.http.answers import json, repeated
from ullage_agent.service.http.bodies import attributes_of, checked_attributes, store
from ullage_agent.service.http.contents import content_answer, digest_of
from ullage_agent.service.http.docs import WRITES, TakesContent, problems
from ullage_agent.service.http.forms import Done, Name, Record, record_of
from ullage_agent.service.http.served import Served, asked, encoded, key_of, needs, principal_of, served_by
from ullage_agent.service.limits import STEP_BYTES
from ullage_agent.service.sessions import Lent

Seconds = Annotated[float, Meta(gt=0, le=86_400)]
Wanted = Annotated[int, Meta(ge=1, le=1_000)]


class Begin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long a session lasts without a heartbeat."""

    visibility_seconds: Seconds = 30.0


class Poll(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many FlowFiles, and for how long."""

    count: Wanted = 1
    visibility_seconds: Seconds = 30.0


class PollMore(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """More FlowFiles for a session that is open."""

    queue: Name
    count: Wanted = 1


class Change(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What becomes of one FlowFile: it goes to a queue, or is removed if none is named."""

    id: str
    to: str | None = None
    relationship: str = ""
    set_attributes: dict[str, str] = {}
    remove_attributes: list[str] = []
    penalty_millis: Annotated[int, Meta(ge=0, le=86_400_000)] = 0


class Commit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What becomes of all FlowFiles: `changes` says it of some; the rest go to `rest_to`, or are removed without it."""

    changes: Annotated[list[Change], Meta(max_length=10_000)] = []
    rest_to: str | None = None


class Rollback(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether FlowFiles stay out of polls for a while after they went back."""

    penalize: bool = False


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """A session and the FlowFiles that it holds."""

    session: str
    visibility_seconds: float
    flow_files: list[Record]


@post("/", opt=needs(Verb.DELETE), responses=problems(503))
async def begin(request: Request[Any, Any, Any], data: JSONBody[Begin]) -> Held:
    """Open a session that holds nothing yet."""
    served = served_by(request)
    name = principal_of(request).name
    lent = await served.call(served.sessions.begin, name, data.visibility_seconds, key_of(request))
    return _held(lent)


@get("/{session:str}", opt=needs(Verb.GET), responses=problems(410))
async def show(request: Request[Any, Any, Any], session: FromPath[str]) -> Held:
    """What a session holds."""
    return _held(_lent(request, session))


@post("/{session:str}/extend", opt=needs(Verb.DELETE), status_code=200, responses=problems(410))
async def extend(request: Request[Any, Any, Any], session: FromPath[str], data: JSONBody[Begin]) -> Held:
    """A heartbeat: the visibility time begins anew."""
    lent = _lent(request, session)
    served_by(request).sessions.extend(lent, data.visibility_seconds)
    return _held(lent)


@post("/{session:str}/poll", opt=needs(Verb.DELETE), responses=problems(404, 409, 410))
async def poll_more(request: Request[Any, Any, Any], session: FromPath[str], data: JSONBody[PollMore]) -> Held:
    """Take more FlowFiles into the session."""
    served, lent, key = served_by(request), _lent(request, session), key_of(request)

    def poll() -> Held:
        served.repository.queues.find(data.queue)
        return poll_into(served, lent, data.queue, data.count, key)

    return await served.call(poll)


@route(
    "/{session:str}/flowfiles/{id:str}",
    http_method=[HttpMethod.GET, HttpMethod.HEAD],
    opt=needs(Verb.GET),
    responses=problems(404, 409, 410, 416),
)
async def read(request: Request[Any, Any, Any], session: FromPath[str], id: FromPath[str]) -> ASGIApp:
    """The content of a FlowFile that the session holds, or a range of it."""
    lent = _lent(request, session)
    flow_file = lent.find(id)

    def opened(start: int, size: int, _blocks: int) -> ContentStream:
        with lent.using() as held:
            return held.read(flow_file, start, size)

    tag = f"{id}-{0 if flow_file.claim is None else flow_file.claim.crc:08x}-{flow_file.start}-{flow_file.size}"
    digest = digest_of(flow_file.claim, flow_file.start, flow_file.size)
    return content_answer(request, opened, flow_file.size, tag, {}, digest)


@post(
    "/{session:str}/flowfiles", opt=needs(Verb.CREATE), operation_class=TakesContent, responses=problems(404, *WRITES)
)
async def create(
    request: Request[Any, Any, Any], session: FromPath[str], parent: FromQuery[list[str] | None] = None
) -> Record:
    """Make a FlowFile in the session, with the body as its content; its parents are FlowFiles of the session."""
    lent = _lent(request, session)
    attributes = attributes_of(request)
    parents = [lent.find(uuid) for uuid in parent or ()]
    key = key_of(request)
    if key is not None and isinstance(first := lent.answers.get(key), Record):
        return first
    made = await _write(request, lent, lambda held: held.create(parents, attributes))
    if key is not None:
        lent.answers[key] = made
    return made


@put(
    "/{session:str}/flowfiles/{id:str}",
    opt=needs(Verb.CREATE),
    operation_class=TakesContent,
    responses=problems(404, *WRITES),
)
async def write(request: Request[Any, Any, Any], session: FromPath[str], id: FromPath[str]) -> Record:
    """Replace the content of a FlowFile that the session holds by the body."""
    lent = _lent(request, session)
    flow_file = lent.find(id)
    return await _write(request, lent, lambda _: flow_file)


@post("/{session:str}/commit", opt=needs(Verb.DELETE), status_code=200, responses=problems(404, 410, *WRITES))
async def commit(request: Request[Any, Any, Any], session: FromPath[str], data: JSONBody[Commit]) -> Response[bytes]:
    """Settle everything in one transaction and end the session. The session is its own idempotency key: a commit whose
    answer was lost can be sent again.
    """
    served = served_by(request)
    for change in data.changes:
        checked_attributes(change.set_attributes, STEP_BYTES)
    once = await asked(request, key=f"commit {session}")
    try:
        if once.first is not None:
            return repeated(once.first)
        answer = encoded(Done(id=session, state="committed"))
        await served.create(_settle, served, _lent(request, session), data, once.remember(answer))
        return json(answer)
    finally:
        once.close()


@post("/{session:str}/rollback", opt=needs(Verb.DELETE), status_code=200, responses=problems(409, 410))
async def rollback(request: Request[Any, Any, Any], session: FromPath[str], data: JSONBody[Rollback]) -> Done:
    """Put everything back as it was and end the session."""
    served, lent = served_by(request), _lent(request, session)

    def roll_back() -> None:
        with lent.using() as held:
            lent.end()
            served.sessions.drop(lent)
            held.rollback(penalize=data.penalize)

    await served.call(roll_back)
    return Done(id=session, state="rolled back")


def poll_into(served: Served, lent: Lent, queue: str, count: int, key: str | None) -> Held:
    """Take FlowFiles into a session; blocks. A repeat with the key takes no more."""
    with lent.using() as held:
        for flow_file in held.get_many(queue, count) if key is None or key not in lent.answers else ():
            lent.held[flow_file.id] = flow_file
        if key is not None and lent.held:  # who got nothing may ask again
            lent.answers[key] = None
        served.sessions.extend(lent)
    return _held(lent)


class _Replacing:
    """New content of one FlowFile in a session that is in use meanwhile."""

    def __init__(self, held: ProcessSession, flow_file: FlowFile) -> None:
        self.flow_file = flow_file
        self._held = held
        self._writing = held.writing(flow_file)
        self._stream = self._writing.__enter__()

    def write(self, data: JSONBody[bytes]) -> None:
        self._stream.write(data)

    def abandon(self) -> None:
        self._stream.abandon()

    def close(self) -> None:
        self._writing.__exit__(None, None, None)


async def _write(request: Request[Any, Any, Any], lent: Lent, choose: Callable[[ProcessSession], FlowFile]) -> Record:
    with lent.using() as held:
        served_by(request).sessions.extend(lent)

        def finish(content: _Replacing) -> Record:
            content.close()
            flow_file = held.put_attributes(content.flow_file, {})  # the record as it is now
            lent.held[flow_file.id] = flow_file
            return record_of(flow_file)

        return await store(request, lambda: _Replacing(held, choose(held)), finish)


def _settle(served: Served, lent: Lent, data: Commit, also: Any) -> None:
    """What can be refused comes first and changes nothing that a second commit could not say again; removals last."""
    with lent.using() as held:
        changes = {change.id: change for change in data.changes}
        if len(changes) < len(data.changes):
            raise BadRequest("a FlowFile is named twice")
        kept = [(lent.find(change.id), change) for change in data.changes if change.to is not None]
        removed = [lent.find(change.id) for change in data.changes if change.to is None]
        rest = [flow_file for uuid, flow_file in lent.held.items() if uuid not in changes]
        for flow_file, change in kept:
            _change(held, flow_file, change)
        if data.rest_to is not None:
            held.transfer_many(rest, data.rest_to)
        else:
            removed += rest
        held.remove_many(removed)
        try:
            held.commit(also)
        finally:
            # A commit that failed has put everything back: whoever wants it polls again.
            lent.end()
            served.sessions.drop(lent)


def _change(held: ProcessSession, flow_file: FlowFile, change: Change) -> None:
    if change.set_attributes:
        held.put_attributes(flow_file, change.set_attributes)
    if change.remove_attributes:
        held.remove_attributes(flow_file, change.remove_attributes)
    held.transfer(flow_file, change.to or "", change.relationship)
    if change.penalty_millis:
        held.penalize(flow_file, change.penalty_millis)


def _lent(request: Request[Any, Any, Any], session: str) -> Lent:
    return served_by(request).sessions.find(session, principal_of(request).name)


def _held(lent: Lent) -> Held:
    return Held(
        session=lent.id,
        visibility_seconds=lent.seconds,
        flow_files=[record_of(flow_file) for flow_file in lent.held.values()],
    )


router = Router(
    "/v1/sessions",
    route_handlers=[begin, show, extend, poll_more, read, create, write, commit, rollback],
    tags=["sessions"],
)
