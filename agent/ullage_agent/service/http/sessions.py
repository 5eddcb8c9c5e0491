"""Remote sessions: FlowFiles held, changed and settled in one transaction. `/v1/sessions`."""

from collections.abc import Callable
from typing import Final

import msgspec

from ullage.embedded.content import ReadableContent
from ullage.embedded.session import EmbeddedSession, FlowFileContent
from ullage.enums import EventType
from ullage.errors import SessionMisuse
from ullage.streams import ContentStream
from ullage.wire import operations
from ullage.wire.documents import ActionResult, LifetimeName
from ullage.wire.sessions import ChangesRequest, FlowFileChange, SessionStatus
from ullage_agent.service.http.bodies import attributes_of, checked_attributes, contents_of, store
from ullage_agent.service.http.resources import Asked, Made, gives, lifetime_of, serves
from ullage_agent.service.http.rows import EncodedRows
from ullage_agent.service.limits import SMALL_BYTES, STEP_BYTES
from ullage_agent.service.sessions import Lent

STATUS_TIMES: Final = 4
"""What a session's FlowFiles take while they become an answer, as a multiple of what it holds: JSON, twice."""


def _done(asked: Asked, work: Callable[[EmbeddedSession], object]) -> Made:
    """Do something in the session. A repeat with the key does nothing, and gets the first answer."""
    lent = _lent(asked)
    with lent.using() as held:
        asked.served.sessions.extend(lent)
        return lent.once(asked.key, lambda: Made.of(work(held)))


async def _written(asked: Asked, begin: Callable[[EmbeddedSession], FlowFileContent]) -> Made:
    """Take the body as content. A repeat with the key gets the first answer; its body is not read."""
    lent, key = _lent(asked), asked.key
    await asked.take_room(SMALL_BYTES)  # whoever does not take answers gets no more
    with lent.using() as held:
        asked.served.sessions.extend(lent)
        made: Made | None = lent.answers.get(key)
        if made is None:

            def finish(content: FlowFileContent) -> Made:
                return lent.once(key, lambda: Made.of(content.commit()))

            made = await store(asked.request, lambda: begin(held), finish)
    asked.resize_room(made.size)
    return made


@serves(operations.BEGIN_SESSION)
def begin(asked: Asked) -> Made:
    return status_of(asked.served.sessions.begin(asked.principal, asked.repository, asked.data, asked.key))


@serves(operations.GET_SESSION)
async def get(asked: Asked) -> Made:
    lent = _lent(asked)
    await asked.take_room(STATUS_TIMES * lent.session.packed_bytes())
    rows, left = EncodedRows(), lent.session.flow_files()
    while await asked.served.call(rows.take, left):
        pass  # the next ones in a turn of their own: the whole of a large session takes seconds
    answer = await asked.served.call(_status, lent, rows)
    asked.resize_room(answer.size)
    return answer


@serves(operations.EXTEND_SESSION)
def extend(asked: Asked) -> ActionResult:
    asked.served.sessions.extend(_lent(asked), asked.data.visibility_seconds)
    return ActionResult(id=asked["session"], state="open")


@serves(operations.POLL_SESSION)
def poll(asked: Asked) -> Made:
    data = asked.data
    return _done(asked, lambda held: held.polled(data.queue, data.count, data.attributes))


@gives(operations.GET_FLOW_FILE)
def read(asked: Asked) -> ReadableContent:
    lent = _lent(asked)
    found = lent.session.readable(asked["id"])

    def opened(start: int, size: int, blocks: int) -> ContentStream:
        with lent.using():
            return found.open(start, size, blocks)

    return found._replace(open=opened)


@serves(operations.STORE_FLOW_FILE)
async def store_new(asked: Asked, parent: list[str] | None = None, lifetime: LifetimeName = "default") -> Made:
    attributes = attributes_of(asked.request)
    return await _written(asked, lambda held: held.begin(held.create(parent or (), attributes), lifetime_of(lifetime)))


@serves(operations.WRITE_FLOW_FILE)
async def write(asked: Asked, lifetime: LifetimeName = "default") -> Made:
    return await _written(asked, lambda held: held.begin(asked["id"], lifetime_of(lifetime)))


@serves(operations.APPEND_FLOW_FILE)
async def append(asked: Asked) -> Made:
    return await _written(asked, lambda held: held.begin(asked["id"], appends=True))


@serves(operations.INGEST_FLOW_FILES)
def ingest(asked: Asked, queue: str, lifetime: LifetimeName = "default") -> Made:
    contents, attributes = contents_of(asked.data.items)
    return _done(asked, lambda held: asked.stored(held.ingest(queue, contents, attributes, lifetime_of(lifetime))))


@serves(operations.CREATE_FLOW_FILE)
def create(asked: Asked) -> Made:
    parents, attributes = asked.data.parents, asked.data.attributes
    return _done(asked, lambda held: held.create(parents, checked_attributes(attributes, STEP_BYTES)))


@serves(operations.CLONE_FLOW_FILE)
def clone(asked: Asked) -> Made:
    return _done(asked, lambda held: held.clone(asked["id"], asked.data.start, asked.data.size))


@serves(operations.SPLIT_FLOW_FILE)
def split(asked: Asked) -> Made:
    return _done(asked, lambda held: held.fragments(asked["id"], asked.data.sizes))


@serves(operations.IMPORT_HANDLE)
def import_handle(asked: Asked) -> Made:
    return _done(asked, lambda held: held.import_handle(asked.data.handle, asked.data.attributes))


@serves(operations.MERGE_FLOW_FILES)
def merge(asked: Asked) -> Made:
    data = asked.data
    given = {"header": data.header, "demarcator": data.demarcator, "footer": data.footer}
    return _done(asked, lambda held: held.merge(data.ids, **given))


@serves(operations.CHANGE_FLOW_FILES)
def change(asked: Asked) -> ActionResult:
    _done(asked, lambda held: _apply(held, asked.data))
    return ActionResult(id=asked["session"], state="open")


# The session is its own idempotency key.
@serves(operations.COMMIT_SESSION, once=True, key_of=lambda asked: asked.key or f"commit {asked['session']}")
def commit(asked: Asked) -> ActionResult:
    """What can be refused comes first and changes nothing that a second commit could not say again; removals last."""
    lent, data = _lent(asked), asked.data
    answer = ActionResult(id=lent.id, state="committed")
    with lent.using() as held:
        _apply(held, data)
        rest = held.unsettled() if data.rest_to is not None or data.removes_rest else []
        asked.note_ids([*(id for change in data.changes for id in change.ids), *rest])
        if data.rest_to is not None:
            held.transfer(rest, data.rest_to)
        else:
            held.remove(rest)
        try:
            held.commit(asked.remember(answer))
        except SessionMisuse:
            raise
        except BaseException:
            asked.served.sessions.end(lent)
            raise
        asked.served.sessions.end(lent)
    return answer


@serves(operations.ROLLBACK_SESSION)
def rollback(asked: Asked) -> ActionResult:
    lent = _lent(asked)
    with lent.using() as held:
        asked.served.sessions.end(lent)
        held.rollback(penalize=asked.data.penalize)
    return ActionResult(id=lent.id, state="rolled back")


def _apply(held: EmbeddedSession, data: ChangesRequest) -> None:
    for each in data.changes:
        _change(held, each)
    for name, delta in data.counters.items():
        held.adjust_counter(name, delta)


def _change(held: EmbeddedSession, change: FlowFileChange) -> None:
    for id in change.ids:
        if change.set_attributes:
            held.put_attributes(id, checked_attributes(change.set_attributes, STEP_BYTES))
        if change.remove_attributes:
            held.remove_attributes(id, change.remove_attributes)
    if (report := change.report) is not None:
        said = msgspec.structs.asdict(report)
        held.provenance.report(EventType[said.pop("type").upper()], change.ids, **said)
    if change.to is not None:
        held.transfer(change.ids, change.to, change.relationship)
    if change.penalty_millis is not None:
        held.penalize(change.ids, change.penalty_millis)
    if change.removed:
        held.remove(change.ids)


def _lent(asked: Asked) -> Lent:
    return asked.served.sessions.find(asked["session"], asked.owner)


def status_of(lent: Lent) -> Made:
    """Return a session as a document."""
    return _status(lent, EncodedRows.of(lent.session.flow_files()))


def _status(lent: Lent, rows: EncodedRows) -> Made:
    status = SessionStatus(session=lent.id, visibility_seconds=lent.seconds, flow_files=rows.encoded)
    return Made(msgspec.json.encode(status), rows.ids)
