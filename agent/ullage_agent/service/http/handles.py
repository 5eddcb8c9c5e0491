"""Handles: content by id. `/v1/handles`."""

from typing import Annotated, Any

from litestar import Response
from litestar.connection import ASGIConnection
from litestar.params import QueryParameter

from ullage.contract import Right
from ullage.embedded.content import HandlePut, ReadableContent
from ullage.errors import HandleDeleted, HandleNotFound, RequestTooLarge
from ullage.uuids import format_uuids
from ullage.wire import operations
from ullage.wire.content import HandleHead, HandlePage, StoredBatch, StoredHandle
from ullage.wire.documents import LifetimeName
from ullage.wire.problems import problem_of
from ullage_agent.service.http.answers import in_pieces
from ullage_agent.service.http.bodies import attributes_of, contents_of, store
from ullage_agent.service.http.reads import Found, answer_bytes, read_parts
from ullage_agent.service.http.resources import Asked, Limit, acts, answers, gives, lifetime_of, millis_of, serves
from ullage_agent.service.http.rows import RowsAnswer
from ullage_agent.service.limits import SMALL_BYTES

Ttl = Annotated[
    str, QueryParameter(description="How long the handle lives, such as 12h. With 0s it lives until it is deleted.")
]
Deleted = Annotated[
    bool, QueryParameter(description="Also if the handle was deleted or has expired, while its bytes are there.")
]


@serves(operations.PUT_HANDLE, once=True)
async def put(asked: Asked, ttl: Ttl = "0s", lifetime: LifetimeName = "default") -> StoredHandle:
    attributes, ttl_millis = attributes_of(asked.request), millis_of(ttl, "ttl")

    def commit(content: HandlePut) -> StoredHandle:
        size = content.length

        def stored(id: str) -> StoredHandle:
            return StoredHandle(id=id, size=size, handle=f"{id}@{asked.repository.node}")

        return stored(content.commit(attributes, ttl_millis, lambda made: asked.remember(stored(made))))

    return await store(asked.request, lambda: asked.repository.handles.begin(lifetime_of(lifetime)), commit)


@serves(operations.PUT_HANDLES, once=True)
def put_batch(asked: Asked) -> StoredBatch:
    contents, attributes = contents_of(asked.data.items)

    def stored(uuids: list[bytes]) -> StoredBatch:
        return asked.stored(format_uuids(uuids))

    return stored(
        asked.repository.handles.store(
            contents,
            attributes,
            ttl_millis=millis_of(asked.data.ttl, "ttl"),
            lifetime=lifetime_of(asked.data.lifetime),
            also=lambda uuids: asked.remember(stored(uuids)),
        )
    )


@serves(operations.GET_HANDLES)
async def get_batch(asked: Asked) -> Response[bytes]:
    asked.note_ids(asked.data.ids)
    is_packed = "msgpack" in asked.request.headers.get("accept", "")
    media_type = "application/x-msgpack" if is_packed else "application/json"
    found = await asked.served.call(_found_or_read, asked, is_packed)
    if isinstance(found, bytes):
        return Response(found, media_type=media_type)
    return in_pieces(await asked.gathered(read_parts(found, is_packed=is_packed), answer_bytes(found)), media_type)


@serves(operations.LIST_HANDLES)
def list_handles(asked: Asked, after: str = "", limit: Limit = 100) -> RowsAnswer:
    rows, following = asked.repository.handles.rows(after, limit)
    return RowsAnswer(rows, lambda encoded: HandlePage(handles=encoded, next=following))


def _of_deleted(connection: ASGIConnection[Any, Any, Any, Any]) -> tuple[Right, ...]:
    # Every word but one counts, however often it is said: what is decided here must not be read otherwise later.
    return (Right.UNDELETE,) if set(connection.query_params.getall("deleted", [])) - {"false"} else ()


@gives(operations.GET_HANDLE, more=_of_deleted)
def read(asked: Asked, deleted: Deleted = False) -> ReadableContent:
    return asked.repository.handles.readable(asked["id"], include_deleted=deleted)


@serves(operations.SET_HANDLE_TTL, once=True)
def set_ttl(asked: Asked, ttl: Ttl) -> HandleHead:
    # A repeat is answered with what the handle was before: its end is what it asks for, and not when that is.
    handles, id = asked.repository.handles, asked["id"]
    return handles.set_ttl(id, millis_of(ttl, "ttl"), also=asked.remember(handles.head(id)))


def _found_or_read(asked: Asked, is_packed: bool) -> Found | bytes:
    """What there is to be read; the answer itself if it is so small that it needs no room."""
    found: Found = []
    left = limit = asked.served.limits.batch_read_bytes
    for name in asked.data.ids:
        id = name.partition("@")[0]
        try:
            content = asked.repository.handles.readable(name)
        except (HandleNotFound, HandleDeleted) as error:
            found.append((id, problem_of(error).slug))
            continue
        left -= content.size
        if left < 0:
            raise RequestTooLarge(f"more than {limit} bytes: read fewer handles at a time")
        found.append((id, content))
    return found if answer_bytes(found) >= SMALL_BYTES else b"".join(read_parts(found, is_packed=is_packed))


describe = answers(operations.DESCRIBE_HANDLE, lambda asked: asked.repository.handles.head(asked["id"]))
delete = acts(operations.DELETE_HANDLE, "deleted", lambda asked: asked.repository.handles.delete)
undelete = acts(operations.UNDELETE_HANDLE, "live", lambda asked: asked.repository.handles.undelete)
