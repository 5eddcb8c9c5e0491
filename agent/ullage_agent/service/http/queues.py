"""Queues: put, look, define, drop, and the short way to poll. `/v1/queues`."""

from functools import partial
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, Router, delete, get, post, put
from litestar.params import FromPath, FromQuery, JSONBody
from msgspec import Meta

from ullage_agent.contract import QueuePriority
from ullage_agent.engine.flowfile.queues import FlowFileQueue
from ullage_agent.engine.model import FlowFile, QueueDefinition
from ullage_agent.engine.repository import Repository
from ullage_agent.service.access import Verb
from ullage_agent.service.http.answers import json, repeated
from ullage_agent.service.http.bodies import attributes_of, checked_attributes, store
from ullage_agent.service.http.docs import WRITES, TakesContent, problems
from ullage_agent.service.http.forms import Count, Item, Limit, Record, Stored, StoredBatch, record_of
from ullage_agent.service.http.served import asked, encoded, key_of, needs, principal_of, served_by
from ullage_agent.service.http.sessions import Held, Poll, poll_into
from ullage_agent.service.limits import STEP_BYTES
from ullage_agent.service.uploads import COMPONENT, QueuePut


class Definition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A queue's settings. 0: no limit, and for expiration: never."""

    priority: QueuePriority = QueuePriority.FIRST_IN_FIRST_OUT
    priority_attribute: Annotated[str, Meta(min_length=1, max_length=255)] = "priority"
    count_max: Count = 10_000
    bytes_max: Count = 1 << 30
    expiration_millis: Count = 0


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue's settings and what is in it; held and swapped FlowFiles count."""

    name: str
    priority: str
    priority_attribute: str
    count_max: int
    bytes_max: int
    expiration_millis: int
    flow_files: int
    size_bytes: int
    held: int
    swapped: int
    penalized: int
    is_full: bool


class Batch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Contents that become FlowFiles of one queue in one transaction."""

    items: Annotated[list[Item], Meta(min_length=1, max_length=10_000)]


class Dropped(msgspec.Struct, frozen=True, kw_only=True):
    """How many FlowFiles ceased to exist."""

    dropped: int


@get("/", opt=needs(Verb.GET), responses=problems())
async def list_queues(request: Request[Any, Any, Any]) -> list[Queue]:
    """All queues by name."""
    served = served_by(request)
    return await served.call(lambda: [_shown(queue) for queue in served.repository.queues.all()])


@get("/{queue:str}", opt=needs(Verb.GET), responses=problems(404))
async def show(request: Request[Any, Any, Any], queue: FromPath[str]) -> Queue:
    """One queue."""
    served = served_by(request)
    return await served.call(lambda: _shown(served.repository.queues.find(queue)))


@put("/{queue:str}", opt=needs(Verb.CREATE), responses=problems(*WRITES))
async def define(request: Request[Any, Any, Any], queue: FromPath[str], data: JSONBody[Definition]) -> Response[bytes]:
    """Make a queue, or give it new settings. Said twice it is the same; with a key, a late repeat changes nothing that
    was said since.
    """
    served = served_by(request)
    once = await asked(request)

    def change() -> bytes:
        served.repository.queues.define(
            queue,
            priority=data.priority,
            priority_attribute=data.priority_attribute,
            count_max=data.count_max,
            bytes_max=data.bytes_max,
            expiration_millis=data.expiration_millis,
            also=once.remember(b"{}"),  # the answer shows what is in the queue, which a repeat wants to know as it is
        )
        return shown()

    def shown() -> bytes:
        return encoded(_shown(served.repository.queues.find(queue)))

    try:
        if once.first is not None:
            return repeated(await served.call(shown))
        return json(await served.create(change))
    finally:
        once.close()


@get("/{queue:str}/flowfiles", opt=needs(Verb.GET), responses=problems(404))
async def list_flow_files(request: Request[Any, Any, Any], queue: FromPath[str], limit: Limit = 100) -> list[Record]:
    """FlowFiles of a queue that are in memory, in the queue's order as far as it is known; they stay where they are."""
    served = served_by(request)
    return await served.call(lambda: [record_of(r) for r in _listed(served.repository, queue, limit)])


@post("/{queue:str}/flowfiles", opt=needs(Verb.CREATE), operation_class=TakesContent, responses=problems(*WRITES))
async def put_one(
    request: Request[Any, Any, Any], queue: FromPath[str], force: FromQuery[bool] = False
) -> Response[bytes]:
    """Store the body as a FlowFile of this queue. 429 while the queue is full, unless forced."""
    served = served_by(request)
    attributes = attributes_of(request)
    once = await asked(request)

    def commit(content: QueuePut) -> bytes:
        answer = encoded(Stored(id=content.id, size=content.length))
        content.commit(once.remember(answer))
        return answer

    try:
        if once.first is not None:
            return repeated(once.first, 201)
        begin = partial(QueuePut, served.repository, queue, attributes, forced=force)
        return json(await store(request, begin, commit), 201)
    finally:
        once.close()


@post("/{queue:str}/batch", opt=needs(Verb.CREATE), responses=problems(*WRITES))
async def put_batch(
    request: Request[Any, Any, Any], queue: FromPath[str], data: JSONBody[Batch], force: FromQuery[bool] = False
) -> Response[bytes]:
    """Store many small contents as FlowFiles in one transaction: all of them or none."""
    served = served_by(request)
    attributes = [checked_attributes(item.attributes, STEP_BYTES) for item in data.items]
    once = await asked(request)
    try:
        if once.first is not None:
            return repeated(once.first, 201)

        def commit() -> bytes:
            with served.repository.session(COMPONENT) as session:
                if not force:
                    session.require_room(queue)
                records = session.ingest(queue, [item.content for item in data.items], attributes)
                answer = encoded(StoredBatch(ids=[record.id for record in records], node=served.node))
                session.commit(once.remember(answer))
            return answer

        return json(await served.create(commit), 201)
    finally:
        once.close()


@post("/{queue:str}/poll", opt=needs(Verb.DELETE), responses=problems(404, 503))
async def poll(request: Request[Any, Any, Any], queue: FromPath[str], data: JSONBody[Poll]) -> Held:
    """Take FlowFiles for as long as the visibility time lasts: a session that holds them. See `/v1/sessions`."""
    served, key = served_by(request), key_of(request)

    def begin() -> Held:
        served.repository.queues.find(queue)
        lent = served.sessions.begin(principal_of(request).name, data.visibility_seconds, key)
        return poll_into(served, lent, queue, data.count, key)

    return await served.call(begin)


@delete("/{queue:str}/flowfiles", opt=needs(Verb.DELETE), status_code=200, responses=problems(404))
async def drop(request: Request[Any, Any, Any], queue: FromPath[str]) -> Response[bytes]:
    """Drop all FlowFiles of a queue that no session holds. A repeat with the key drops nothing that came since."""
    served = served_by(request)
    once = await asked(request)

    def change() -> bytes:
        # A large queue takes several transactions: of a drop that a crash cut short, the repeat does the rest.
        count = served.repository.queues.drop(served.repository.queues.find(queue))
        answer = encoded(Dropped(dropped=count))
        if operations := once.remember(answer):
            served.repository.commit(operations, creates=False)
        return answer

    try:
        if once.first is not None:
            return repeated(once.first)
        return json(await served.call(change))
    finally:
        once.close()


def _shown(queue: FlowFileQueue) -> Queue:
    figures, definition = queue.figures(), queue.definition
    return Queue(
        **_settings(definition),
        flow_files=figures.flow_files,
        size_bytes=figures.size_bytes,
        held=figures.held,
        swapped=figures.swapped,
        penalized=figures.penalized,
        is_full=queue.is_full,
    )


def _settings(definition: QueueDefinition) -> dict[str, Any]:
    names = ("name", "priority", "priority_attribute", "count_max", "bytes_max", "expiration_millis")
    return {name: getattr(definition, name) for name in names}


def _listed(repository: Repository, name: str, limit: int) -> list[FlowFile]:
    return repository.queues.find(name).listed(limit)


router = Router(
    "/v1/queues",
    route_handlers=[list_queues, show, define, list_flow_files, put_one, put_batch, poll, drop],
    tags=["queues"],
)
