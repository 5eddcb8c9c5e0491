"""uvicorn's HTTP/1.1 with what it lacks: bounds of how large headers may be, and how long they may take, and an order
in which requests are begun.

Without bounds a connection that never says anything, or never stops saying headers, costs a descriptor or all memory.
"""

import asyncio
import select
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ullage_agent.service.http.accepting import Seat
from ullage_agent.service.http.starts import GONE, HeldRequest, Starts
from ullage_agent.service.limits import Limits

HEADER_COST_BYTES: Final = 64
"""What a header counts beside its bytes: thousands of empty ones cost a hundred times what their bytes do."""

LINGER_BYTES: Final = 1 << 20
LINGER_SECONDS: Final = 2.0
"""What is taken in, and for how long, after a request that is none was refused."""

PIPELINED_MAX: Final = 16
"""Requests that a connection may send before the first one is answered: thousands fit into what is read at once."""

READ_BYTES: Final = 256 << 10
"""What asyncio reads at once: so much of a body may come along with a head."""


ALWAYS_ANSWERED: Final = ("/healthz", "/readyz")
"""Whoever watches must get an answer when everybody else gets none."""


class RefusedBytes(ValueError):
    """Raised inside the parser, which turns it into a 400 and closes."""


class Line:
    """The connection that an answer goes to."""

    def __init__(self, protocol: HttpToolsProtocol, seat: Seat, cycle: Any) -> None:
        self._protocol = protocol
        self._seat = seat
        self._cycle = cycle

    def is_gone(self) -> bool:
        """Whether nothing that is sent gets there any more."""
        return self._cycle.disconnected or self._protocol.transport.is_closing()

    def has_left(self) -> bool:
        """The same, also where nobody reads the connection, and would hear of its end."""
        place = self._seat.fileno()
        if self.is_gone() or place < 0:
            return self.is_gone()
        looking = select.poll()
        looking.register(place, select.POLLRDHUP)
        return any(seen & GONE for _, seen in looking.poll(0))

    def cut_off(self) -> None:
        """End it at once, with what it has not taken."""
        self._cycle.disconnected = True  # or the server would log that the answer has no end
        self._cycle.message_event.set()
        self._seat.cut_off()


def guarded(limits: Limits, starts: Starts | None) -> type[asyncio.Protocol]:
    """The protocol of one server."""
    return type("GuardedProtocol", (_GuardedProtocol,), {"limits": limits, "starts": starts})


class _GuardedProtocol(HttpToolsProtocol):
    limits: ClassVar[Limits]
    starts: ClassVar[Starts | None]
    seat: Seat

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.seat.transport = transport
        self.client = self.seat.address
        self._head_bytes = self._raw_bytes = 0
        self._is_in_head = True
        self._is_refused = False
        self._timer: asyncio.TimerHandle | None = None
        self._held: HeldRequest | None = None
        self._held_cycle: Any = None
        self._begun: Any = None
        """The request that was begun last, with its answer."""

        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self.seat.crowd.leave(self.seat)
        self._drop_held()
        self._disarm()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer, and let what is still coming run dry for a moment: a reset could overtake the answer."""
        self._drop_held()
        self.pipeline.clear()
        transport = self.transport
        if not transport.can_write_eof():
            super().send_400_response(msg)
            return
        self._is_refused = True
        if self._begun is not None:
            self._begun.disconnected = True  # what it answers must not come behind the end
            self._begun.message_event.set()
        body = msg.encode()
        transport.write(
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n"
            b"content-length: %d\r\n\r\n%s" % (len(body), body)
        )
        transport.write_eof()
        self._disarm()
        self._timer = self.loop.call_later(LINGER_SECONDS, self._give_up)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            self._raw_bytes += len(data)
            if self._raw_bytes > LINGER_BYTES:
                self._give_up()
            return
        if self._is_in_head:
            self._raw_bytes += len(data)
            if self._raw_bytes > self.limits.header_bytes + READ_BYTES:
                self.send_400_response("The headers are too large.")
                return
        super().data_received(data)
        # Empty lines between requests end the idle timer and begin nothing.
        cycle: Any = self.cycle
        if (cycle is None or cycle.response_complete) and self.timeout_keep_alive_task is None:
            self._arm()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes = self._raw_bytes = 0
        self._is_in_head = True
        self._arm()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + HEADER_COST_BYTES)
        if self._is_in_head:  # else it stands behind the body, where a proxy that looks at headers does not see it
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._disarm()
        if len(self.pipeline) >= PIPELINED_MAX:
            raise RefusedBytes(f"more than {PIPELINED_MAX} requests were sent before the first one was answered")
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        held, cycle = self._held, self._held_cycle
        if held is None or self.cycle is not cycle or self.starts is None or self.starts.grow(held, len(body)):
            return
        cycle.body.clear()
        cycle.scope["state"]["is_too_much"] = True
        self.flow.pause_reading()  # the rest would come for nothing

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        start = partial(self._begin, cycle, app)
        scope = cycle.scope
        scope["state"]["line"] = Line(self, self.seat, cycle)
        scope["state"]["peer"], scope["state"]["token"] = self.seat.peer, token_of(scope["headers"])
        if self.starts is None or scope["path"] in ALWAYS_ANSWERED:
            start()
        else:
            self._held_cycle = cycle
            self._held = self.starts.begin(scope["state"]["token"], self.seat, start)

    def _begin(self, cycle: Any, app: Any) -> None:
        self._held = self._held_cycle = None
        self._begun = cycle
        self.seat.crowd.work(self.seat)
        super()._start_asgi_task(cycle, app)

    def _drop_held(self) -> None:
        held, self._held = self._held, None
        if held is not None and self.starts is not None:
            self.starts.drop(held)

    def on_response_complete(self) -> None:
        self.seat.crowd.wait(self.seat)
        super().on_response_complete()

    def _count(self, count: int) -> None:
        self._head_bytes += count
        if self._head_bytes > self.limits.header_bytes:
            raise RefusedBytes(f"headers above {self.limits.header_bytes} bytes")

    def _arm(self) -> None:
        """From the connection, or the first byte of a request, until its headers are complete."""
        if self._timer is None:
            self._timer = self.loop.call_later(self.limits.header_seconds, self._give_up)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._timer = None
        if not self.transport.is_closing():
            self.transport.close()


def token_of(headers: Sequence[tuple[bytes, bytes]]) -> int:
    """A hash of the token that a request comes with: however it spells the rest of that header, it is the same one."""
    given = next((value for name, value in headers if name == b"authorization"), b"")
    return hash(tuple(given.split()[1:]))


def configured(app: Any, limits: Limits, stop_seconds: float, starts: Starts | None = None) -> uvicorn.Config:
    """What every listener is run with: no signals, no logs and no headers of uvicorn's own."""
    return uvicorn.Config(
        app,
        interface="asgi3",
        http=guarded(limits, starts),
        ws="none",
        lifespan="off",
        loop="none",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # or whoever is on this machine says from where it asks
        server_header=False,
        timeout_keep_alive=int(limits.idle_seconds),
        timeout_graceful_shutdown=int(stop_seconds),
    )
