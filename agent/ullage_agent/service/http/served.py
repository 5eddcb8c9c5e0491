"""What the resources share: the host, who may do what, the bounds, and threads for calls that block.

The event loop never waits for the engine: each call goes to a thread. Calls that may wait for room on the disk have
threads of their own, so that removing and reading go on while writers wait.
"""

import asyncio
import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, Final, ParamSpec, TypeVar

import msgspec
from litestar import Request
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from ullage_agent.engine.answers import Once
from ullage_agent.engine.repository import Repository
from ullage_agent.metrics import Metrics
from ullage_agent.service.access import ANONYMOUS, Authenticator, Principal, Verb, bearer
from ullage_agent.service.errors import BadRequest, Elsewhere, Forbidden, Unauthenticated
from ullage_agent.service.host import Host
from ullage_agent.service.limits import Limits
from ullage_agent.service.log import logger
from ullage_agent.service.runs import Runs
from ullage_agent.service.sessions import Sessions
from ullage_agent.units import Duration

P = ParamSpec("P")
T = TypeVar("T")

AnyRequest = Request[Any, Any, Any]

KEY_HEADER: Final = "idempotency-key"
KEY_CHARACTERS_MAX: Final = 255
REPEATED: Final = {"Ullage-Repeated": "true"}
"""On the first answer, given again."""

OPEN: Final = {"is_open": True}
"""For resources that ask for no token."""


def needs(verb: Verb) -> dict[str, Any]:
    """For resources that ask for this verb."""
    return {"verb": verb}


class Served:
    """One service, as its HTTP resources see it."""

    def __init__(
        self, host: Host, authenticator: Authenticator, limits: Limits, node: str, metrics: Metrics | None = None
    ) -> None:
        self.host = host
        self.metrics = metrics or Metrics()
        self.authenticator = authenticator
        self.limits = limits
        self.node = node
        self.sessions = Sessions(lambda: host.repository, host.clock, limits)
        self.runs = Runs(host, limits, self.metrics)
        self.wide_free = limits.wide_streams
        self.is_stopping = False
        self.audit = logger("audit")
        self._creating = ThreadPoolExecutor(limits.threads, "ullage-create")
        self._calling = ThreadPoolExecutor(limits.threads, "ullage-call")

    @property
    def repository(self) -> Repository:
        return self.host.repository

    async def create(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call what may wait for room."""
        return await asyncio.get_running_loop().run_in_executor(self._creating, lambda: function(*args, **kwargs))

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call what blocks for anything else."""
        return await asyncio.get_running_loop().run_in_executor(self._calling, lambda: function(*args, **kwargs))

    def close(self) -> None:
        """Let calls under way end. Then no session and no run is left."""
        self.runs.close()
        self._creating.shutdown()
        self._calling.shutdown()
        self.sessions.close()


def served_by(connection: ASGIConnection[Any, Any, Any, Any]) -> Served:
    """The service that answers this request."""
    served: Served = connection.app.state["served"]
    return served


def principal_of(connection: ASGIConnection[Any, Any, Any, Any]) -> Principal:
    """Whoever asks, as `admit` found them."""
    found: Principal = connection.scope["state"].get("principal", ANONYMOUS)
    return found


async def admit(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Every request passes here before anything of it is read: who asks, and may they? A resource that names neither a
    verb nor that it is open is closed.
    """
    if handler.opt.get("is_open"):
        return
    served = served_by(connection)
    authenticator = served.authenticator

    def check() -> Principal:
        principal = authenticator.authenticate(bearer(connection.headers.get("authorization")))
        authenticator.authorize(principal, Verb(handler.opt["verb"]))
        return principal

    try:
        principal = await served.call(check) if authenticator.may_block else check()
    except (Unauthenticated, Forbidden) as error:
        client = connection.client.host if connection.client else ""
        served.audit.warning("refused", client=client, path=connection.url.path, reason=str(error))
        raise
    connection.scope["state"]["principal"] = principal


async def require(request: AnyRequest, verb: Verb) -> None:
    """One more verb, that only some requests of a resource need."""
    served = served_by(request)
    await served.call(served.authenticator.authorize, principal_of(request), verb)


class Asked:
    """One write, carried out at most once if it came with an idempotency key."""

    def __init__(self, once: Once, stack: ExitStack) -> None:
        self._once = once
        self._stack = stack
        self.remember = once.remember

    @property
    def transaction(self) -> int:
        """The one that the first answer stands in."""
        return self._once.transaction

    @property
    def first(self) -> bytes | None:
        """The body of the answer that this request got before."""
        return self._once.first

    def close(self) -> None:
        self._stack.close()


def key_of(request: AnyRequest) -> str | None:
    """The idempotency key that the client sent."""
    text = request.headers.get(KEY_HEADER) or None
    if text is not None and not (len(text) <= KEY_CHARACTERS_MAX and text.isascii() and text.isprintable()):
        raise BadRequest(f"{KEY_HEADER}: 1 to {KEY_CHARACTERS_MAX} printable ASCII characters")
    return text


async def asked(request: AnyRequest, *, key: str | None = None) -> Asked:
    """Begin a write; `close` it when it is over. `key` stands in for one that the client did not send."""
    served = served_by(request)
    text = key_of(request) or key
    digest = None if text is None else _digest(principal_of(request).name, text)
    about = _digest(request.method, request.scope["path"], request.scope["query_string"].decode("latin-1"))
    stack = ExitStack()
    if digest is None:
        return Asked(stack.enter_context(served.repository.answers.once(None, about)), stack)
    once = await served.call(stack.enter_context, served.repository.answers.once(digest, about))
    return Asked(once, stack)


def _digest(*parts: str) -> bytes:
    return hashlib.sha256("\0".join(parts).encode()).digest()


def encoded(document: object) -> bytes:
    """A body as it is sent, and remembered."""
    return msgspec.json.encode(document)


def millis_of(text: str, name: str) -> int:
    """A duration of the query, in milliseconds."""
    try:
        return int(Duration.parse(text))
    except ValueError as error:
        raise BadRequest(f"{name}: {error}") from error


def own_handle(served: Served, name: str) -> str:
    """The uuid of a handle, which may be followed by its node's name. Elsewhere if that is another node."""
    uuid, _, node = name.partition("@")
    if node and node != served.node:
        raise Elsewhere(f"handle {uuid} lives on node {node}; this is {served.node}")
    return uuid
