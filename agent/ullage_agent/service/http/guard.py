"""The outermost layer: how many requests are under way, how long one may stall, what every answer carries."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, Scope, Send

from ullage.contract import Right, is_loopback
from ullage.errors import Forbidden, RequestIncomplete, ServiceBusy, ServiceStopping, TransferStalled
from ullage.wire.needs import REFUSALS, is_audited
from ullage.wire.operation import Operation
from ullage.wire.problems import PROBLEM_TYPE, problem_of
from ullage_agent.service.access import Anonymous
from ullage_agent.service.http.answers import headers_of
from ullage_agent.service.http.protocol import ALWAYS_ANSWERED, Line
from ullage_agent.service.http.served import Served, Stranger
from ullage_agent.service.limits import PIECE_BYTES

METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"})

REFUSED: Final = frozenset(problem_of(refusal("")).slug for refusal in REFUSALS)

READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})

LINGER_BYTES: Final = 64 << 20
LINGER_SECONDS: Final = 2.0
"""How much of an unwanted body is taken in, and for how long, before its connection is closed."""

LINGERING_MAX: Final = 128
"""Requests for which that is done at a time. Beyond, a client may miss why it was refused."""

HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)
"""On every answer that does not say otherwise."""


SLOW: Final = (
    "nothing was done: others wait for the room of this body (arriving_bytes), which came more slowly than all others: "
    "send it again, in smaller ones or faster"
)

ROOMS: Final = ("arrival", "room", "answer_room")
"""Under which names a request keeps the room that it has."""


class Guard:
    """Wraps the application."""

    def __init__(self, app: ASGIApp, served: Served) -> None:
        self._app = app
        self._served = served
        self.under_way = 0
        self._of_peer: Counter[str] = Counter()
        self._lingering = asyncio.Semaphore(LINGERING_MAX)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        # As it was sent: what a name holds (a slash, dots) is no part of the path. `admit` decodes the names.
        scope["path"] = scope["raw_path"].decode("ascii")
        exchange = _Exchange(scope, receive, send, self._served.limits.stall_seconds, self._lingering)
        state: Any = scope["state"]
        state["exchange"] = exchange
        try:
            await self._answer(scope, exchange)
        except Exception as error:
            if not exchange.was_given_up(error):
                raise
        finally:
            if "principal" in state and state["principal"].holder:
                self._served.starts.know(state["token"], state["principal"].name)
            if state.get("is_counted"):
                self._served.quota.give_back(state["principal"])
            try:
                self._measure(scope, exchange)
                self._note(scope, exchange)
            finally:
                rooms = [state[name] for name in ROOMS if name in state]
                # A connection keeps its scope until its next request, with the body in it, all that the body became if
                # a framework decoded it, and ids of 10,000 contents: 24 that did nothing any more had 9 GB.
                state.clear()
                for room in rooms:
                    room.release()

    async def _answer(self, scope: Any, exchange: "_Exchange") -> None:
        peer = scope["state"]["peer"]
        if scope["path"] not in ALWAYS_ANSWERED and (refusal := self._refusal(scope, peer)) is not None:
            await exchange.refuse(refusal)
            return
        self.under_way += 1
        stranger = scope["state"]["stranger"] = Stranger(self._of_peer, peer)
        has_place = True

        def give_up() -> None:
            nonlocal has_place
            self.under_way -= has_place
            has_place = False
            stranger.is_known()

        exchange.before_lingering = give_up
        try:
            await self._app(scope, exchange.receive, exchange.send)
        finally:
            give_up()

    def _refusal(self, scope: Any, peer: str) -> Exception | None:
        """Why the application is not even asked, if so."""
        is_open = isinstance(self._served.authenticator, Anonymous)
        if reason := foreign(scope["method"], dict(scope["headers"]), is_open=is_open):
            self._served.refused.tell(method=scope["method"], path=scope["path"], reason=reason)
            return Forbidden(reason)
        if self._served.is_stopping:
            return ServiceStopping("the service is stopping: ask again when it is back")
        if "is_too_much" in scope["state"]:
            return ServiceBusy("too much waits already of what was sent")
        return self._too_many(peer, is_open=is_open)

    def _too_many(self, peer: str, *, is_open: bool) -> ServiceBusy | None:
        limits, strangers = self._served.limits, self._of_peer
        if self.under_way >= limits.requests:
            return ServiceBusy(f"{self.under_way} requests are under way already")
        if strangers[peer] >= limits.requests_per_peer:
            return ServiceBusy(f"{strangers[peer]} requests of {peer} are under way of which nobody is known")
        if not is_open and strangers.total() >= limits.requests // 2:
            return ServiceBusy(f"{strangers.total()} requests are under way of which nobody is known")
        return None

    def _measure(self, scope: Any, exchange: "_Exchange") -> None:
        """By the route's template, which has few values, and not by the path, which anybody makes up."""
        metrics, method = self._served.metrics, scope["method"]
        method = method if method in METHODS else "OTHER"
        route = scope.get("path_template") or "none"
        metrics.count("requests_total", method, route, str(exchange.status))
        metrics.time("request_seconds", time.monotonic() - exchange.began, method, route)
        slug = exchange.slug or scope["state"].get("slug")
        if slug:
            metrics.count("errors_total", slug)

    def _note(self, scope: Any, exchange: "_Exchange") -> None:
        """A line of the audit log, of what is to leave one."""
        state = scope["state"]
        operation: Operation[Any] | None = state.get("operation")
        slug = exchange.slug or state.get("slug")
        rights = () if operation is None else operation.rights or ()
        if not (slug in REFUSED or is_audited(rights)):
            return
        allowed, principal = 0 < exchange.status < 400, state.get("principal")
        moved = exchange.sent_bytes if Right.READ in rights else exchange.received_bytes
        query = scope["query_string"].decode("latin-1")
        self._served.trail.note(
            who="" if principal is None else principal.name,
            via="HTTP",
            peer="" if scope.get("client") is None else scope["client"][0],
            operation="a request" if operation is None else f"{operation.method} {operation.path}",
            about=f"{scope['path']}?{query}" if query else scope["path"],
            ids=state.get("ids", ()),
            bytes=moved if allowed else 0,
            allowed=allowed,
            why="" if allowed else f"{slug or exchange.status}: {exchange.detail or state.get('detail', '')}",
        )


class _Exchange:
    """One request and its answer."""

    def __init__(
        self, scope: Any, receive: Receive, send: Send, stall_seconds: float, lingering: asyncio.Semaphore
    ) -> None:
        self._receive = receive
        self._send = send
        self._stall_seconds = stall_seconds
        self._lingering = lingering
        self.before_lingering: Callable[[], None] = lambda: None
        """Called when it only lingers: nobody waits for it any more."""

        self.began = time.monotonic()
        self.status = 0
        self.slug = self.detail = ""
        self.received_bytes = self.sent_bytes = 0
        names = {name for name, _ in scope["headers"]}
        self._line: Line = scope["state"]["line"]
        self._given_up: RequestIncomplete | None = None
        self._makes_room = False
        self._patience: asyncio.Timeout | None = None
        self._lingers = b"expect" not in names
        self._is_read = b"transfer-encoding" not in names and b"content-length" not in names

    def was_given_up(self, error: BaseException | None) -> bool:
        """Whether an error says no more than that nobody took the answer, as whoever was sending it raised it."""
        while error is not None and error is not self._given_up:
            error = error.__cause__
        return error is not None

    async def receive(self) -> Any:
        """The next piece of the body; TransferStalled if it does not come. Then the disconnect, whenever it comes."""
        if self._is_read:
            return await self._asked()
        message = await self._received()
        self.received_bytes += len(message.get("body", b""))
        return message

    def give_up(self) -> None:
        """Take no more of the body: another one has its room. Whoever waits for more of it learns that at once."""
        self._makes_room = True
        if self._patience is not None:
            self._patience.reschedule(asyncio.get_running_loop().time())

    async def _received(self) -> Any:
        try:
            async with asyncio.timeout(0 if self._makes_room else self._stall_seconds) as self._patience:
                message = await self._asked()
        except TimeoutError as error:
            if self._makes_room:
                self._makes_room = False  # what comes from now on is not kept
                raise ServiceBusy(SLOW) from error
            raise TransferStalled(f"nothing came for {self._stall_seconds:g} s: nothing was stored") from error
        finally:
            self._patience = None
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            self._is_read = True
        return message

    async def send(self, message: Any) -> None:
        """The next piece of the answer; RequestIncomplete if nobody takes it."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {**message, "headers": self._headers(list(message.get("headers", [])))}
        elif not message.get("more_body", False) and not self._is_read and self._lingers:
            await self._deliver({**message, "more_body": True})
            await self._linger()
            message = {"type": "http.response.body", "body": b"", "more_body": False}
        await self._deliver(message)

    async def _deliver(self, message: Any) -> None:
        """An answer that was made as a whole goes in pieces, each when the one before has been taken: else all of it
        would wait in the connection, where nobody counts it, for as long as its client likes.
        """
        body = message.get("body", b"")
        if message.get("more_body", False) or len(body) <= PIECE_BYTES:
            await self._deliver_piece(message, len(body))
            return
        for at in range(0, len(body), PIECE_BYTES):
            piece, following = body[at : at + PIECE_BYTES], at + PIECE_BYTES < len(body)
            await self._deliver_piece({**message, "body": piece, "more_body": following}, len(piece))

    async def _deliver_piece(self, message: Any, size: int) -> None:
        if self._line.is_gone():
            self._line.cut_off()
            return
        self.sent_bytes += size
        try:
            async with asyncio.timeout(self._stall_seconds):
                await self._send(message)
        except TimeoutError as error:
            self._line.cut_off()
            self._given_up = RequestIncomplete(f"nothing of the answer was taken for {self._stall_seconds:g} s")
            raise self._given_up from error
        except RuntimeError:
            # What uvloop raises for a connection that has ended, which whoever sends has not been told yet.
            if not self._line.is_gone():
                raise
            self._line.cut_off()

    async def _asked(self) -> Any:
        """What comes next, or the disconnect."""
        try:
            return await self._receive()
        except RuntimeError:  # as above
            if not self._line.is_gone():
                raise
            self._line.cut_off()
            return {"type": "http.disconnect"}

    async def refuse(self, error: Exception) -> None:
        """Answer without asking the application."""
        problem = problem_of(error)
        self.slug, self.detail = problem.slug, problem.detail
        body = msgspec.json.encode(problem)
        headers = {"content-type": PROBLEM_TYPE, "content-length": str(len(body)), **headers_of(problem)}
        raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await self.send({"type": "http.response.start", "status": problem.status, "headers": raw})
        await self.send({"type": "http.response.body", "body": body, "more_body": False})

    async def _linger(self) -> None:
        """Take in some of a body that nobody wants: closing on it would reset the connection, and the client might lose
        the answer that says why.
        """
        self.before_lingering()
        if self._lingering.locked():
            return
        left = LINGER_BYTES
        try:
            async with self._lingering, asyncio.timeout(LINGER_SECONDS):
                while left > 0 and not self._is_read:
                    left -= len((await self.receive()).get("body", b""))
        except (TimeoutError, TransferStalled):
            return  # it had its time

    def _headers(self, headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        names = {name for name, _ in headers}
        headers += [header for header in HEADERS if header[0] not in names]
        if not self._is_read:
            # What is left of the body would be taken for the next request, or keep us reading for nothing.
            headers.append((b"connection", b"close"))
        return headers


def foreign(method: str, headers: Mapping[bytes, bytes], *, is_open: bool) -> str:
    """Why a request is refused for the page that it comes from, or ""; `is_open`: nobody is asked for a token.

    Without authentication, being able to connect is all that protects a service on loopback, and a browser can connect
    for everybody. Two ways in, and what shuts each:

        another site's form or script posts here        browsers name the site in `Origin`: it must be this host
        another site's name is made to lead here (DNS   browsers name it in `Host`: without authentication that must
        rebinding), and its script reads answers        be a name of loopback
    """
    host = headers.get(b"host", b"").decode("latin-1").lower()
    if is_open and host and not _is_here(host):  # no browser leaves it out
        return f"without authentication only names of loopback are answered, and this asks for {host[:100]!r}"
    origin = headers.get(b"origin", b"").decode("latin-1").lower()
    if method not in READING and origin and origin.partition("://")[2] != host:
        return f"a page of {origin[:100]!r} may change nothing here"
    return ""


def _is_here(host: str) -> bool:
    try:
        return is_loopback(urlsplit(f"//{host}").hostname or "")
    except ValueError:  # brackets that hold no address
        return False
