"""Remote sessions: FlowFiles held, changed and settled in one transaction. `/v1/sessions`."""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from ullage.embedded.content import ReadableContent
from ullage.embedded.session import EmbeddedSession, FlowFileContent
from ullage.enums import EventType
from ullage.errors import InvalidArgument
from ullage.streams import ContentStream
from ullage.wire import operations
from ullage.wire.documents import ActionResult, LifetimeName
from ullage.wire.queues import FlowFile
from ullage.wire.sessions import ChangesRequest, FlowFileChange, SessionStatus
from ullage_agent.service.http.bodies import attributes_of, checked_attributes, contents_of, store
from ullage_agent.service.http.resources import Asked, Made, gives, lifetime_of, serves
from ullage_agent.service.http.rows import RowsAnswer, as_they_are, the_only_one
from ullage_agent.service.http.served import finished
from ullage_agent.service.limits import STEP_BYTES
from ullage_agent.service.sessions import Lent


def _done(asked: Asked, work: Callable[[EmbeddedSession], object]) -> Made:
    """Do something in the session. A repeat with the key does nothing, and gets the first answer."""
    lent = _lent(asked)
    with lent.using() as held:
        asked.served.sessions.extend(lent)
        return lent.once(asked.key, lambda: Made.of(work(held)))


def _made(asked: Asked, make: Callable[[EmbeddedSession], FlowFile]) -> RowsAnswer:
    """Make something of one FlowFile. A repeat with the key makes nothing, and gets the same one."""
    return _taken(asked, lambda held: [make(held).id], the_only_one)


def _taken(
    asked: Asked, take: Callable[[EmbeddedSession], list[str]], wrap: Callable[[list[Any]], object] = as_they_are
) -> RowsAnswer:
    """Have FlowFiles come to the session. Which ones is remembered, and not what they are: the session has that."""
    lent = _lent(asked)
    with lent.using() as held:
        asked.served.sessions.extend(lent)
        ids = lent.once(asked.key, lambda: Made(b"", take(held))).ids
        asked.note_ids(ids)
        return RowsAnswer(held.rows(ids), wrap)


async def _written(asked: Asked, begin: Callable[[EmbeddedSession], FlowFileContent]) -> RowsAnswer:
    """Take the body as content. A repeat with the key gets the first answer; its body is not read."""
    lent, key = _lent(asked), asked.key
    with lent.using() as held:
        asked.served.sessions.extend(lent)
        made: Made | None = lent.answers.get(key)
        if made is None:

            def finish(content: FlowFileContent) -> Made:
                return lent.once(key, lambda: Made(b"", [content.commit().id]))

            made = await store(asked.request, lambda: begin(held), finish)
        return RowsAnswer(held.rows(made.ids), the_only_one)


@serves(operations.BEGIN_SESSION)
def begin(asked: Asked) -> RowsAnswer:
    return shown(asked.served.sessions.begin(asked.principal, asked.repository, asked.data, asked.key))


@serves(operations.GET_SESSION)
def get(asked: Asked) -> RowsAnswer:
    return shown(_lent(asked))


@serves(operations.EXTEND_SESSION)
def extend(asked: Asked) -> ActionResult:
    asked.served.sessions.extend(_lent(asked), asked.data.visibility_seconds)
    return ActionResult(id=asked["session"], state="open")


@serves(operations.POLL_SESSION)
def poll(asked: Asked) -> RowsAnswer:
    data = asked.data
    return _taken(asked, lambda held: held.polled(data.queue, data.count, data.attributes))


@gives(operations.GET_FLOW_FILE)
def read(asked: Asked) -> ReadableContent:
    lent = _lent(asked)
    found = lent.session.readable(asked["id"])

    def opened(start: int, size: int, blocks: int) -> ContentStream:
        with lent.using():
            return found.open(start, size, blocks)

    return found._replace(open=opened)


@serves(operations.STORE_FLOW_FILE)
async def store_new(asked: Asked, parent: list[str] | None = None, lifetime: LifetimeName = "default") -> RowsAnswer:
    attributes = attributes_of(asked.request)
    return await _written(asked, lambda held: held.begin(held.create(parent or (), attributes), lifetime_of(lifetime)))


@serves(operations.WRITE_FLOW_FILE)
async def write(asked: Asked, lifetime: LifetimeName = "default") -> RowsAnswer:
    return await _written(asked, lambda held: held.begin(asked["id"], lifetime_of(lifetime)))


@serves(operations.APPEND_FLOW_FILE)
async def append(asked: Asked) -> RowsAnswer:
    return await _written(asked, lambda held: held.begin(asked["id"], appends=True))


@serves(operations.INGEST_FLOW_FILES)
def ingest(asked: Asked, queue: str, lifetime: LifetimeName = "default") -> Made:
    contents, attributes = contents_of(asked.data.items)
    return _done(asked, lambda held: asked.stored(held.ingest(queue, contents, attributes, lifetime_of(lifetime))))


@serves(operations.CREATE_FLOW_FILE)
def create(asked: Asked) -> RowsAnswer:
    parents, attributes = asked.data.parents, asked.data.attributes
    return _made(asked, lambda held: held.create(parents, checked_attributes(attributes, STEP_BYTES)))


@serves(operations.CLONE_FLOW_FILE)
def clone(asked: Asked) -> RowsAnswer:
    return _made(asked, lambda held: held.clone(asked["id"], asked.data.start, asked.data.size))


@serves(operations.SPLIT_FLOW_FILE)
def split(asked: Asked) -> RowsAnswer:
    return _taken(asked, lambda held: held.fragments(asked["id"], asked.data.sizes))


@serves(operations.IMPORT_HANDLE)
def import_handle(asked: Asked) -> RowsAnswer:
    return _made(asked, lambda held: held.import_handle(asked.data.handle, asked.data.attributes))


@serves(operations.MERGE_FLOW_FILES)
def merge(asked: Asked) -> RowsAnswer:
    data = asked.data
    given = {"header": data.header, "demarcator": data.demarcator, "footer": data.footer}
    return _made(asked, lambda held: held.merge(data.ids, **given))


@serves(operations.CHANGE_FLOW_FILES)
async def change(asked: Asked) -> ActionResult:
    """All of it or nothing: whoever is refused, or left amid its steps, may send the same again."""
    lent, key = _lent(asked), asked.key
    with lent.using() as held:
        asked.served.sessions.extend(lent)
        if key is None or key not in lent.answers:
            with held.as_a_whole():
                await asked.served.call_in_steps(_apply(held, asked.data))
            lent.once(key, lambda: Made(b"", ()))
    return ActionResult(id=asked["session"], state="open")


# The session is its own idempotency key.
@serves(operations.COMMIT_SESSION, once=True, key_of=lambda asked: asked.key or f"commit {asked['session']}")
async def commit(asked: Asked) -> ActionResult:
    """A commit that is refused has changed nothing: a second one says all of it again."""
    lent = _lent(asked)
    with lent.using() as held, held.as_a_whole():
        await asked.served.call_in_steps(_apply(held, asked.data))
        return await finished(asked.served.create(_commit, asked, lent, held))


def _commit(asked: Asked, lent: Lent, held: EmbeddedSession) -> ActionResult:
    data = asked.data
    answer = ActionResult(id=lent.id, state="committed")
    rest = held.unsettled() if data.rest_to is not None or data.removes_rest else []
    asked.note_ids([*(id for change in data.changes for id in change.ids), *rest])
    if data.rest_to is not None:
        held.transfer(rest, data.rest_to)
    else:
        held.remove(rest)
    try:
        held.commit(asked.remember(answer))
    finally:
        if held.is_empty:
            asked.served.sessions.end(lent)
    return answer


@serves(operations.ROLLBACK_SESSION)
def rollback(asked: Asked) -> ActionResult:
    lent = _lent(asked)
    with lent.using() as held:
        asked.served.sessions.end(lent)
        held.rollback(penalize=asked.data.penalize)
    return ActionResult(id=lent.id, state="rolled back")


def _apply(held: EmbeddedSession, data: ChangesRequest) -> Iterator[None]:
    """Make the changes, one step after the other: each of ten thousand FlowFiles may have as many attributes."""
    for each in data.changes:
        yield from _change(held, each)
    for name, delta in data.counters.items():
        held.adjust_counter(name, delta)
        yield


def _change(held: EmbeddedSession, change: FlowFileChange) -> Iterator[None]:
    if change.set_attributes or change.remove_attributes:
        attributes = checked_attributes(change.set_attributes, STEP_BYTES)
        yield from held.change_attributes(change.ids, attributes, change.remove_attributes)
    if (report := change.report) is not None:
        said = msgspec.structs.asdict(report)
        held.provenance.report(_type_of(said.pop("type")), change.ids, **said)
        yield
    if change.to is not None:
        held.transfer(change.ids, change.to, change.relationship)
        yield
    if change.penalty_millis is not None:
        held.penalize(change.ids, change.penalty_millis)
        yield
    if change.removed:
        held.remove(change.ids)
        yield


def _type_of(name: str) -> EventType:
    try:
        return EventType[name.upper()]
    except KeyError as error:
        raise InvalidArgument(f"{name} is none of the types of events: {', '.join(EventType.__members__)}") from error


def _lent(asked: Asked) -> Lent:
    return asked.served.sessions.find(asked["session"], asked.owner)


def shown(lent: Lent) -> RowsAnswer:
    """A session as a document."""

    def status(flow_files: list[Any]) -> SessionStatus:
        return SessionStatus(session=lent.id, visibility_seconds=lent.seconds, flow_files=flow_files)

    return RowsAnswer(lent.session.rows(), status)
