"""Handles: content by id. `/v1/handles`."""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, Router, delete, get, post
from litestar.enums import HttpMethod
from litestar.handlers import route
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter
from litestar.types import ASGIApp
from msgspec import Meta

from ullage_agent.engine.errors import HandleDeleted, HandleNotFound
from ullage_agent.engine.flowfile.view import SHARDS
from ullage_agent.engine.handles import HandlePut, parse_handle
from ullage_agent.engine.model import HANDLE_QUEUE, FlowFile, Operation, format_uuid
from ullage_agent.engine.repository import Repository
from ullage_agent.service.access import Verb
from ullage_agent.service.errors import TooMuch
from ullage_agent.service.http.answers import json, repeated
from ullage_agent.service.http.bodies import attributes_of, checked_attributes, store
from ullage_agent.service.http.contents import content_answer, digest_of
from ullage_agent.service.http.docs import WRITES, TakesContent, problems
from ullage_agent.service.http.forms import Done, Item, Limit, Stored, StoredBatch
from ullage_agent.service.http.served import (
    AnyRequest,
    Served,
    asked,
    encoded,
    millis_of,
    needs,
    own_handle,
    served_by,
)
from ullage_agent.service.limits import STEP_BYTES

Ttl = Annotated[str, QueryParameter(description="How long it lives, such as 12h; 0s: until it is deleted.")]


class Batch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Contents that become handles in one transaction."""

    items: Annotated[list[Item], Meta(min_length=1, max_length=10_000)]
    ttl: str = "0s"


class Ids(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Handles to read."""

    ids: Annotated[list[str], Meta(min_length=1, max_length=10_000)]


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """One handle of a batch: its content, or the slug of the problem."""

    id: str
    content: bytes | None = None
    problem: str | None = None


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a handle without its content. 0 for a time that is not set."""

    id: str
    handle: str
    size: int
    attributes: dict[str, str]
    entry_millis: int
    expires_millis: int
    deleted_millis: int


class Heads(msgspec.Struct, frozen=True, kw_only=True):
    """A page of handles, by id; `next` is to be asked `after`."""

    handles: list[Head]
    next: str | None


@post("/", opt=needs(Verb.CREATE), operation_class=TakesContent, responses=problems(*WRITES))
async def put(request: Request[Any, Any, Any], ttl: Ttl = "0s") -> Response[bytes]:
    """Store the body as a handle. Answers when it is durable."""
    served = served_by(request)
    attributes, ttl_millis = attributes_of(request), millis_of(ttl, "ttl")
    once = await asked(request)

    def commit(content: HandlePut) -> bytes:
        answer = b""
        size = content.length

        def also(ids: list[str]) -> Sequence[Operation]:
            nonlocal answer
            answer = encoded(_stored(served, ids[0], size))
            return once.remember(answer)

        content.commit(attributes, ttl_millis, also)
        return answer

    try:
        if once.first is not None:
            return repeated(once.first, 201)
        return json(await store(request, served.repository.handles.begin, commit), 201)
    finally:
        once.close()


@post("/batch", opt=needs(Verb.CREATE), responses=problems(*WRITES))
async def put_batch(request: Request[Any, Any, Any], data: JSONBody[Batch]) -> Response[bytes]:
    """Store many small contents in one transaction: all of them or none."""
    served = served_by(request)
    ttl_millis = millis_of(data.ttl, "ttl")
    attributes = [checked_attributes(item.attributes, STEP_BYTES) for item in data.items]
    once = await asked(request)
    try:
        if once.first is not None:
            return repeated(once.first, 201)

        def commit() -> bytes:
            answer = b""

            def also(ids: list[str]) -> Any:
                nonlocal answer
                answer = encoded(StoredBatch(ids=ids, node=served.node))
                return once.remember(answer)

            contents = [item.content for item in data.items]
            served.repository.handles.put_many(contents, attributes, ttl_millis, also=also)
            return answer

        return json(await served.create(commit), 201)
    finally:
        once.close()


@post("/batch/get", opt=needs(Verb.GET), status_code=200, responses=problems(413))
async def get_batch(request: Request[Any, Any, Any], data: JSONBody[Ids]) -> Response[bytes]:
    """Read many small contents. Ask for `application/x-msgpack` to get bytes rather than base64."""
    served = served_by(request)
    found = await served.call(_read_all, served, data.ids)
    if "msgpack" in request.headers.get("accept", ""):
        return Response(msgspec.msgpack.encode(found), media_type="application/x-msgpack")
    return json(encoded(found))


@get("/", opt=needs(Verb.GET), responses=problems())
async def list_handles(request: Request[Any, Any, Any], after: FromQuery[str] = "", limit: Limit = 100) -> Heads:
    """Handles by id, deleted ones whose retention lasts included."""
    served = served_by(request)
    return await served.call(_page, served, after, limit)


@route(
    "/{id:str}", http_method=[HttpMethod.GET, HttpMethod.HEAD], opt=needs(Verb.GET), responses=problems(404, 410, 416)
)
async def read(request: Request[Any, Any, Any], id: FromPath[str]) -> ASGIApp:
    """The content, or a range of it."""
    served = served_by(request)
    uuid = own_handle(served, id)
    record = served.repository.handles.record(parse_handle(uuid))
    digest = digest_of(record.claim, record.start, record.size)

    def opened(start: int, size: int, blocks: int) -> Any:
        return served.repository.handles.get(uuid, start, size, blocks=blocks)

    return content_answer(request, opened, record.size, record.id, {}, digest)


@get("/{id:str}/head", opt=needs(Verb.GET), responses=problems(404, 410))
async def head(request: Request[Any, Any, Any], id: FromPath[str]) -> Head:
    """Size, attributes and dates; also of a deleted handle while its tombstone stands."""
    served = served_by(request)
    found = served.repository.handles.head(own_handle(served, id))
    return Head(
        id=found.id,
        handle=f"{found.id}@{served.node}",
        size=found.size,
        attributes=found.attributes,
        entry_millis=found.entry_millis,
        expires_millis=found.expires_millis,
        deleted_millis=found.deleted_millis,
    )


@delete("/{id:str}", opt=needs(Verb.DELETE), status_code=200, responses=problems(404, 409, 410, 422))
async def remove(request: Request[Any, Any, Any], id: FromPath[str]) -> Response[bytes]:
    """Delete a handle; until its retention ends it can be undeleted."""
    return await _change(request, id, "deleted")


@post("/{id:str}/undelete", opt=needs(Verb.DELETE), status_code=200, responses=problems(404, 409, 410, 422))
async def undelete(request: Request[Any, Any, Any], id: FromPath[str]) -> Response[bytes]:
    """Bring a deleted handle back."""
    return await _change(request, id, "live")


async def _change(request: AnyRequest, id: str, state: str) -> Response[bytes]:
    served = served_by(request)
    uuid = own_handle(served, id)
    once = await asked(request)
    try:
        if once.first is not None:
            return repeated(once.first)
        answer = encoded(Done(id=uuid, state=state))
        handles = served.repository.handles
        await served.call(handles.delete if state == "deleted" else handles.undelete, uuid, once.remember(answer))
        return json(answer)
    finally:
        once.close()


def _stored(served: Served, id: str, size: int) -> Stored:
    return Stored(id=id, size=size, handle=f"{id}@{served.node}")


def _read_all(served: Served, names: list[str]) -> list[Found]:
    found, left = [], served.limits.batch_read_bytes
    for name in names:
        uuid = own_handle(served, name)
        try:
            record = served.repository.handles.record(parse_handle(uuid))
            left -= record.size
            if left < 0:
                raise TooMuch(f"more than {served.limits.batch_read_bytes} bytes: read fewer handles at a time")
            with served.repository.handles.get(uuid) as stream:
                found.append(Found(id=uuid, content=stream.read()))
        except HandleNotFound:
            found.append(Found(id=uuid, problem="no-such-handle"))
        except HandleDeleted:
            found.append(Found(id=uuid, problem="handle-deleted"))
    return found


def _page(served: Served, after: str, limit: int) -> Heads:
    listed: list[FlowFile] = []
    start = parse_handle(after) if after else b""
    for shard in range(start[0] if start else 0, SHARDS):
        listed += _handles_of(served.repository, shard, start)
        if len(listed) > limit:
            break
    page = [_head(served, record) for record in listed[:limit]]
    return Heads(handles=page, next=page[-1].id if len(listed) > limit else None)


def _handles_of(repository: Repository, shard: int, after: bytes) -> list[FlowFile]:
    with repository.ledger.lock:
        records = list(repository.ledger.shards[shard].values())
    return sorted((r for r in records if r.queue == HANDLE_QUEUE and r.uuid > after), key=lambda r: r.uuid)


def _head(served: Served, record: FlowFile) -> Head:
    id = format_uuid(record.uuid)
    return Head(
        id=id,
        handle=f"{id}@{served.node}",
        size=record.size,
        attributes=record.attribute_map(),
        entry_millis=record.entry_millis,
        expires_millis=record.expires_millis,
        deleted_millis=record.deleted_millis,
    )


router = Router(
    "/v1/handles",
    route_handlers=[put, put_batch, get_batch, list_handles, read, head, remove, undelete],
    tags=["handles"],
)
