"""How operations of the table become resources: what each takes comes from the table, what it does is one function.

A function gets the request as `Asked`, and what it asks of the query by name. It runs in a thread, unless it is a
coroutine, and returns the document that is the answer. With `once` a request that brings an idempotency key is carried
out once, and a repeat gets the first answer; operations of sessions remember their answers themselves.
"""

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import ExitStack
from functools import cached_property, partial
from typing import Annotated, Any, Concatenate, Final, NamedTuple, TypeVar, get_origin

import msgspec
from litestar import Response
from litestar.enums import HttpMethod
from litestar.handlers import HTTPRouteHandler, route
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter
from litestar.types import ASGIApp

from ullage.contract import Duration, Right
from ullage.embedded.content import ReadableContent
from ullage.embedded.once import IdempotentRequest, Operations, nothing_else
from ullage.embedded.repository import EmbeddedRepository
from ullage.enums import Lifetime
from ullage.errors import BackPressure, InvalidArgument
from ullage.interface.checks import checked_key
from ullage.sessionroom import NOTE_BYTES
from ullage.wire.content import StoredBatch
from ullage.wire.documents import ActionResult, LifetimeName
from ullage.wire.operation import ATTRIBUTES_HEADER, KEY_HEADER, REPEATED_HEADER, OctetStream, Operation, PlainText
from ullage_agent.service.access import ANONYMOUS, Principal
from ullage_agent.service.budget import Grant
from ullage_agent.service.http.answers import in_pieces, json
from ullage_agent.service.http.contents import content_answer
from ullage_agent.service.http.rows import Pieces, RowsAnswer
from ullage_agent.service.http.served import OPEN, AnyRequest, More, served_by
from ullage_agent.service.limits import DECODED_TIMES, SMALL_BYTES

A = TypeVar("A")

Limit = Annotated[int, QueryParameter(ge=1, le=1_000)]
Page = Annotated[int, QueryParameter(ge=1, le=10_000)]
Position = Annotated[int, QueryParameter(ge=0, le=1 << 62)]

FROM_BODY: Final[Any] = JSONBody
NONE: Final = inspect.Parameter.empty
PATH_NAME: Final = re.compile(r"\{(\w+)\}")
SMALL_REQUEST_BYTES: Final = DECODED_TIMES * SMALL_BYTES
"""Room of a request beside which that of its answer is what counts."""

REPEATED: Final = {REPEATED_HEADER: "true"}
"""On the first answer, given again."""


class Asked:
    """One request; `asked["queue"]` is what its path names, `data` the document that it brings."""

    def __init__(self, request: AnyRequest, given: dict[str, Any]) -> None:
        self.request = request
        self.served = served_by(request)
        self.principal: Principal = request.scope["state"].get("principal", ANONYMOUS)
        self.owner = self.principal.name
        self.data: Any = given.get("data")
        self.once = IdempotentRequest(None, nothing_else)
        self._given = given

    def __getitem__(self, name: str) -> str:
        return str(self._given[name])

    @property
    def key(self) -> str | None:
        """The idempotency key that the client sent."""
        return checked_key(self.request.headers.get(KEY_HEADER) or None)

    @cached_property
    def repository(self) -> EmbeddedRepository:
        """The repository, for whoever asks: their idempotency keys, leases and runs."""
        return self.served.acting_for(self.principal)

    def remember(self, document: object) -> Operations:
        """What remembers a document as the answer, for the transaction of the change."""
        return self.once.remember(msgspec.json.encode(document))

    def note_ids(self, ids: Sequence[str]) -> None:
        """What the audit log names; what was noted first stays."""
        self.request.scope["state"].setdefault("ids", ids)

    def stored(self, ids: list[str]) -> StoredBatch:
        """The answer to a batch."""
        return StoredBatch(ids=ids, node=self.repository.node)

    async def take_room(self, size: int) -> None:
        """Room for an answer of so many bytes until it has been sent. QuotaReached, ServiceBusy: at once, where the
        request itself takes much. Its objects live until it is answered, and nobody waits for room who has some.
        """
        state, budget = self.request.scope["state"], self.served.budget
        self._change_room(None)
        if "room" in state and state["room"].size > SMALL_REQUEST_BYTES:
            self._change_room(budget.take_beside(self.principal, size))
            return
        if (own := state.pop("room", None)) is not None:
            own.release()
        self._change_room(await budget.take_soon(self.principal, size))

    def resize_room(self, size: int) -> None:
        """The answer has so many bytes."""
        self.request.scope["state"]["answer_room"].resize(size)

    async def shown(self, answer: RowsAnswer) -> "Made":
        """Make an answer when there is room for it. Of what has been done the answer may be refused, too: whoever
        repeats the request with its key gets it.
        """
        ids: list[str] = []
        return Made(in_pieces(await self.gathered(answer.parts(ids), answer.room_bytes)), ids)

    async def gathered(self, parts: Generator[bytes, None, None], room_bytes: int) -> Pieces:
        """An answer that takes so much, made in steps when there is room for it."""
        await self.take_room(room_bytes)
        pieces = Pieces()
        try:
            await self.served.call_in_steps(pieces.gather(parts))
        except BaseException:
            await asyncio.shield(self.served.call(parts.close))
            raise
        self.resize_room(pieces.size)
        return pieces

    def has_room(self, size: int, *, reads: bool) -> bool:
        """Take room for an answer that is made, if there is any now. It may be made again if it only `reads`; of what
        has been done the answer stays, whatever it takes.
        """
        budget = self.served.budget
        self._change_room(None)
        room = budget.take_now(self.principal, size) if reads else budget.count(self.principal, size)
        self._change_room(room)
        return room is not None

    def _change_room(self, room: Grant | None) -> None:
        state = self.request.scope["state"]  # the Guard gives it back when the answer is out
        if (before := state.pop("answer_room", None)) is not None:
            before.release()
        if room is not None:
            state["answer_room"] = room

    async def begin(self, key: str | None, stack: ExitStack) -> None:
        """Look for the first answer, and keep the key until the stack is closed. KeyInUse, KeyReused."""
        scope, headers = self.request.scope, self.request.headers
        said = (scope["query_string"].decode("latin-1"), headers.get("content-length"), headers.get(ATTRIBUTES_HEADER))
        entered = self.repository.keys.once(key, self.request.method, scope["path"], *said)
        enter = stack.enter_context
        self.once = enter(entered) if key is None else await self.served.call(enter, entered)


class Made(NamedTuple):
    """An answer as it is sent: encoded, or as the resource has made it; and the uuids that it is about."""

    answer: Response[Any] | bytes
    ids: Sequence[str]

    @classmethod
    def of(cls, found: object) -> "Made":
        if isinstance(found, Made):
            return found
        if isinstance(found, Response):
            return cls(found, _ids_of(found))
        if isinstance(found, RowsAnswer):
            ids: list[str] = []
            return cls(b"".join(found.parts(ids)), ids)
        return cls(msgspec.json.encode(found), _ids_of(found))

    @property
    def size(self) -> int:
        """0 for what has taken its own room."""
        return len(self.answer) if isinstance(self.answer, bytes) else 0

    @property
    def kept_bytes(self) -> int:
        """What remembering it takes."""
        return NOTE_BYTES + self.size + NOTE_BYTES * len(self.ids)


Work = Callable[
    Concatenate[Asked, ...],
    A | Made | RowsAnswer | Response[Any] | Coroutine[Any, Any, A | Made | RowsAnswer | Response[Any]],
]


def serves(
    operation: Operation[A],
    *,
    once: bool = False,
    key_of: Callable[[Asked], str | None] = lambda asked: asked.key,
    again: Callable[[Asked], A] | None = None,
    query: Sequence[inspect.Parameter] = (),
) -> Callable[[Work[A]], HTTPRouteHandler]:
    """Make a function the resource of an operation. `again` gives the answer to a repeat, instead of the first one;
    `query` stands for what the function takes as keywords.
    """
    reads = operation.method == "GET"
    waits = BackPressure in operation.refusals and Right.RECLAIM not in (operation.rights or ())

    def made(work: Work[A]) -> HTTPRouteHandler:
        parameters = [*_query(work), *query]
        names = [each.name for each in parameters]
        is_coroutine = inspect.iscoroutinefunction(work)

        async def handler(request: AnyRequest, **given: Any) -> Response[bytes]:
            asked = Asked(request, given)
            call = asked.served.create if waits else asked.served.call
            with ExitStack() as stack:
                if once:
                    await asked.begin(key_of(asked), stack)
                if (first := asked.once.first) is not None:
                    body = first if again is None else msgspec.json.encode(await asked.served.call(again, asked))
                    return json(body, operation.status, REPEATED)
                arguments = {name: given[name] for name in names}
                if is_coroutine:
                    under_way: Any = work(asked, **arguments)
                    found = _made(await under_way)
                else:
                    # Encoded in the thread that made it: what is large would keep all others waiting.
                    found = await _in_room(asked, partial(call, lambda: _made(work(asked, **arguments))), reads=reads)
                made = await asked.shown(found) if isinstance(found, RowsAnswer) else found
            asked.note_ids(made.ids)
            return json(made.answer, operation.status) if isinstance(made.answer, bytes) else made.answer

        return _routed(operation, handler, parameters, Response[bytes])

    return made


def _made(found: object) -> Made | RowsAnswer:
    """An answer; one that takes room is left to be made when there is some."""
    return found if isinstance(found, RowsAnswer) and found.room_bytes >= SMALL_BYTES else Made.of(found)


async def _in_room(asked: Asked, make: Callable[[], Awaitable[Made | RowsAnswer]], *, reads: bool) -> Made | RowsAnswer:
    """An answer with room for what it takes until it is sent. One that finds none is not kept meanwhile."""
    made = await make()
    if isinstance(made, RowsAnswer) or made.size < SMALL_BYTES or asked.has_room(made.size, reads=reads):
        return made
    size = made.size
    del made
    await asked.take_room(size)
    made = await make()
    if isinstance(made, Made):
        asked.resize_room(made.size)
    return made


def _ids_of(found: object) -> Sequence[str]:
    """The uuids of what was made, taken or read, of an answer."""
    many = found if isinstance(found, list) else getattr(found, "flow_files", None)
    if isinstance(many, list):
        return [each.id for each in many if hasattr(each, "id")]
    ids: Sequence[str] = getattr(found, "ids", ()) or [id for id in [getattr(found, "id", None)] if id]
    return ids


def answers(operation: Operation[A], work: Callable[[Asked], A]) -> HTTPRouteHandler:
    """The resource of an operation that one expression answers."""
    return serves(operation)(work)


def acts(
    operation: Operation[ActionResult], state: Any, act: Callable[[Asked], Callable[..., None]]
) -> HTTPRouteHandler:
    """The resource of an action on what the path names, which takes no document and is carried out once."""
    (name,) = PATH_NAME.findall(operation.path)

    def work(asked: Asked) -> ActionResult:
        id = asked[name].partition("@")[0] if name == "id" else asked[name]
        answer = ActionResult(id=id, state=state)
        act(asked)(asked[name], also=asked.remember(answer))
        return answer

    return serves(operation, once=True)(work)


def gives(
    operation: Operation[OctetStream], *, blocks: bool = False, more: More = lambda _: ()
) -> Callable[[Callable[Concatenate[Asked, ...], ReadableContent]], HTTPRouteHandler]:
    """Make a function that finds a content the resource of an operation, for HEAD too. `blocks`: it reads the disk.
    `more` is what a request needs beside the rights of the operation.
    """

    def made(find: Callable[Concatenate[Asked, ...], ReadableContent]) -> HTTPRouteHandler:
        parameters = _query(find)

        async def handler(request: AnyRequest, **given: Any) -> ASGIApp:
            asked = Asked(request, given)
            arguments = {each.name: given[each.name] for each in parameters}
            found = await asked.served.call(find, asked, **arguments) if blocks else find(asked, **arguments)
            return content_answer(request, found)

        return _routed(operation, handler, parameters, ASGIApp, more)

    return made


def _query(work: Callable[..., Any]) -> list[inspect.Parameter]:
    """What a function takes of the query: all but the request, and whatever it takes as keywords."""
    found = list(inspect.signature(work).parameters.values())[1:]
    return [each for each in found if each.kind is not inspect.Parameter.VAR_KEYWORD]


def _routed(
    operation: Operation[Any],
    handler: Callable[..., Any],
    query: list[inspect.Parameter],
    answer: Any,
    more: More = lambda _: (),
) -> HTTPRouteHandler:
    """The handler as Litestar wants it: with a signature that names all parameters, and says where each comes from."""
    kinds: dict[str, Any] = {"request": AnyRequest}
    kinds |= dict.fromkeys(PATH_NAME.findall(operation.path), FromPath[str])
    if operation.body not in (None, OctetStream):
        kinds["data"] = FROM_BODY[operation.body]
    for each in query:
        source = FromPath if each.name in kinds else FromQuery
        kinds[each.name] = each.annotation if get_origin(each.annotation) is Annotated else source[each.annotation]
    defaults = {each.name: each.default for each in query}
    handler.__name__ = operation.id
    handler.__annotations__ = kinds | {"return": answer}
    handler.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=defaults.get(name, NONE))
            for name, kind in kinds.items()
        ],
        return_annotation=answer,
    )
    has_content = operation.answer is OctetStream
    return route(
        PATH_NAME.sub(r"{\1:str}", operation.path),
        http_method=[HttpMethod.GET, HttpMethod.HEAD] if has_content else HttpMethod(operation.method),
        opt=OPEN if operation.rights is None else {"operation": operation, "more": more},
        status_code=None if has_content else operation.status,
        media_type="text/plain" if operation.answer is PlainText else None,
        tags=[operation.tag],
    )(handler)


def lifetime_of(name: LifetimeName) -> Lifetime:
    """A lifetime class by its name."""
    return Lifetime[name.upper()]


def millis_of(text: str, name: str) -> int:
    """A duration of the query, in milliseconds."""
    try:
        return int(Duration.parse(text))
    except ValueError as error:
        raise InvalidArgument(f"{name}: {error}") from error
