"""Queues: put, look, define, remove, drop, and the short way to poll. `/v1/queues`."""

import msgspec

from ullage.embedded.content import QueuePut
from ullage.wire import operations
from ullage.wire.content import StoredBatch, StoredFlowFile
from ullage.wire.queues import DropResult, QueueStatus
from ullage.wire.sessions import SessionRequest
from ullage_agent.service.http.bodies import attributes_of, contents_of, store
from ullage_agent.service.http.resources import Asked, Limit, Made, Position, acts, answers, serves
from ullage_agent.service.http.rows import RowsAnswer, as_they_are
from ullage_agent.service.http.sessions import shown


# What is in the queue, whoever asks again wants to know as it is.
@serves(operations.DEFINE_QUEUE, once=True, again=lambda asked: asked.repository.queues.find(asked["queue"]))
def define(asked: Asked) -> QueueStatus:
    settings = msgspec.structs.asdict(asked.data)
    return asked.repository.queues.define(asked["queue"], **settings, also=asked.remember(None))


@serves(operations.LIST_FLOW_FILES)
def list_flow_files(asked: Asked, limit: Limit = 100, skip: Position = 0) -> RowsAnswer:
    return RowsAnswer(asked.repository.queues.rows(asked["queue"], limit, skip), as_they_are)


@serves(operations.PUT_FLOW_FILE, once=True)
async def put(asked: Asked, force: bool = False) -> StoredFlowFile:
    attributes = attributes_of(asked.request)

    def commit(content: QueuePut) -> StoredFlowFile:
        answer = StoredFlowFile(id=content.id, size=content.length)
        content.commit(asked.remember(answer))
        return answer

    queues = asked.repository.queues
    return await store(asked.request, lambda: queues.begin(asked["queue"], attributes, force=force), commit)


@serves(operations.PUT_FLOW_FILES, once=True)
def put_batch(asked: Asked, force: bool = False) -> StoredBatch:
    contents, attributes = contents_of(asked.data.items)
    return asked.stored(
        asked.repository.queues.store(
            asked["queue"], contents, attributes, force=force, also=lambda ids: asked.remember(asked.stored(ids))
        )
    )


@serves(operations.POLL_QUEUE)
def poll(asked: Asked) -> RowsAnswer:
    asked.repository.queues.find(asked["queue"])
    sessions, key = asked.served.sessions, asked.key
    wish = SessionRequest(visibility_seconds=asked.data.visibility_seconds)
    with sessions.beginning(asked.principal, asked.repository, wish, key) as (lent, held):
        if not lent.once(key, lambda: Made(b"", held.polled(asked["queue"], asked.data.count))).ids:
            lent.forget_answers()  # who got nothing may ask again
        sessions.extend(lent)
    return shown(lent)


@serves(operations.DROP_FLOW_FILES, once=True)
def drop(asked: Asked) -> DropResult:
    queues = asked.repository.queues
    count = queues.drop(asked["queue"], also=lambda count: asked.remember(DropResult(dropped=count)))
    return DropResult(dropped=count)


list_queues = answers(operations.LIST_QUEUES, lambda asked: asked.repository.queues.all())
get = answers(operations.GET_QUEUE, lambda asked: asked.repository.queues.find(asked["queue"]))
remove = acts(operations.REMOVE_QUEUE, "removed", lambda asked: asked.repository.queues.remove)
