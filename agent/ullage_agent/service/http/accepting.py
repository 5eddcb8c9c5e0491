"""Accepting connections for uvicorn, so that each has a seat from its first moment: also before TLS is agreed on.

The event loop's own server tells of a connection after its handshake alone. Nobody could count those that never begin
one, and they cost a descriptor each.
"""

import asyncio
import contextlib
import socket
import ssl
import time
from collections import deque
from typing import Any, Final, NamedTuple, Self

import uvicorn

from ullage_agent.service.addresses import client_of
from ullage_agent.service.http.crowd import ENDED_MAX, Crowd
from ullage_agent.service.limits import Limits

ACCEPTED_MAX: Final = 64
"""Connections that are taken from the system at a time, which costs a twentieth of letting them in."""

AT_ONCE_MAX: Final = 32
WELCOME_SECONDS: Final = 0.0004
HANDSHAKE_SECONDS: Final = 0.001
WELCOMING_SHARE: Final = 0.25
"""Of the event loop's time, so much goes to new connections while more of them wait, by what one costs it, without TLS
and with it; and so many are let in at a time. Whoever connects again and again, as fast as they are let in, would have
all of it.
"""

REFUSED_COST: Final = 0.1
"""What one costs that is not let in, as a share of one that is."""

ROUNDS: Final = 8
ROUND_SECONDS: Final = 0.001
"""How often the loop has looked at everything before a connection loses its place to another: its request may have come
already, and if it is among many that came at once nobody has read it yet.
"""

LINES_SHARE: Final = 4
LINES_MIN: Final = 128
"""Of as many connections as there may be, a quarter may wait to be let in, half of that from one address. Each address
has a line of its own: in the system's one line everybody waits behind whoever connects a thousand times a second.
"""

REST_SECONDS: Final = 0.1
"""After an accept that failed, for which the process or the machine lacks something: descriptors, memory."""


Address = tuple[str, int]


class Seat:
    """One connection's, which another may get."""

    def __init__(self, crowd: "Crowd[Seat]", sock: socket.socket, address: Address, peer: str, entered: int) -> None:
        self.crowd = crowd
        self.address = address
        """Of its other end, known also when that is gone."""

        self.peer = peer
        self.entered = entered
        """In which of the door's rounds."""

        self.transport: asyncio.Transport | None = None
        self._sock = sock

    def fileno(self) -> int:
        """Of its socket; -1 when that is closed."""
        return self._sock.fileno()

    def cut_off(self) -> None:
        """End the connection at once."""
        if self.transport is not None:
            self.transport.abort()
            return
        with contextlib.suppress(OSError):  # it has ended already
            self._sock.shutdown(socket.SHUT_RDWR)


class Threshold(NamedTuple):
    """How many wait to be let in, and for how many new ones of a peer another one has to go in a second."""

    waiting_max: int
    ended_max: int = ENDED_MAX

    @classmethod
    def of(cls, limits: Limits) -> Self:
        """That of a listener whose requests take time."""
        return cls(max(LINES_MIN, limits.connections // LINES_SHARE))


async def serve(
    server: uvicorn.Server,
    sock: socket.socket,
    limits: Limits,
    context: ssl.SSLContext | None = None,
    threshold: Threshold | None = None,
) -> None:
    """Run a server whose protocol is `guarded` on a listening socket until it is told to exit; no signal is its own."""
    door = Door(server, sock, limits, context, threshold or Threshold.of(limits))
    door.open()
    try:
        await server._serve([])  # noqa: SLF001 - `serve` would take the signals
    finally:
        door.close()
        sock.close()


class Door:
    """Lets in whoever connects to one listening socket, which does not block. All calls come from its event loop."""

    def __init__(
        self,
        server: uvicorn.Server,
        sock: socket.socket,
        limits: Limits,
        context: ssl.SSLContext | None,
        threshold: Threshold,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._server = server
        self._sock = sock
        self._limits = limits
        self._context = context
        self._crowd: Crowd[Seat] = Crowd(limits.connections, limits.connections_per_peer, ended_max=threshold.ended_max)
        self._welcoming: set[asyncio.Task[None]] = set()
        self._cost = WELCOME_SECONDS if context is None else HANDSHAKE_SECONDS
        self._looked = time.monotonic()
        self._round = 0
        self._lines: dict[str, deque[tuple[socket.socket, Address]]] = {}
        """Connections that are not let in yet, of each address; the one whose turn is next first."""

        self._count, self._count_max = 0, threshold.waiting_max
        self._rest: asyncio.TimerHandle | None = None
        self._again: asyncio.TimerHandle | None = None

    def open(self) -> None:
        """Begin to let them in."""
        self._rest = None
        self._loop.add_reader(self._sock, self._come)

    def close(self) -> None:
        """Let nobody in any more, and drop who is on the threshold."""
        self._loop.remove_reader(self._sock)
        for timer in (self._rest, self._again):
            if timer is not None:
                timer.cancel()
        for found, _ in (each for line in self._lines.values() for each in line):
            found.close()
        for task in self._welcoming:
            task.cancel()

    def _come(self) -> None:
        # Many at a time: the loop calls this once each time that it has looked at everything, ten times a second under
        # load. One at a time, whoever opened a thousand connections kept all others out for a minute.
        for _ in range(ACCEPTED_MAX):
            if self._server.should_exit:
                return
            try:
                found, address = self._sock.accept()
            except BlockingIOError:
                break
            except ConnectionAbortedError:  # it is gone already
                continue
            except OSError:
                self._crowd.make_room()  # its descriptor may be what is missing
                self._loop.remove_reader(self._sock)
                self._rest = self._loop.call_later(REST_SECONDS, self.open)
                break
            self._queue(found, address)
        self._welcome_some()

    def _queue(self, found: socket.socket, address: Address) -> None:
        found.setblocking(False)
        peer = client_of(address[0])
        if self._count >= self._count_max or len(self._lines.get(peer, ())) >= self._count_max // 2:
            found.close()
            return
        self._lines.setdefault(peer, deque()).append((found, address))
        self._count += 1

    def _welcome_some(self) -> None:
        """As many as there is time for, one of each address after the other."""
        self._round += 1
        before, self._looked = self._looked, time.monotonic()
        room = max(1.0, min(AT_ONCE_MAX, (self._looked - before) * WELCOMING_SHARE / self._cost))
        due = deque(self._lines)
        while room > 0 and due:
            peer = due.popleft()
            line = self._lines.pop(peer)
            first = self._crowd.in_the_way(peer)
            if first is None or self._round - first.entered >= ROUNDS:
                found, address = line.popleft()
                self._count -= 1
                room -= 1.0 if self._let_in(found, address, peer) else REFUSED_COST
                if line:
                    due.append(peer)
            if line:
                self._lines[peer] = line
        if self._lines and self._again is None:
            self._again = self._loop.call_later(ROUND_SECONDS, self._look_again)

    def _look_again(self) -> None:
        self._again = None
        self._welcome_some()

    def _let_in(self, found: socket.socket, address: Address, peer: str) -> bool:
        seat = Seat(self._crowd, found, address, peer, self._round)
        if not self._crowd.enter(seat, peer):
            found.close()
            return False
        task = self._loop.create_task(_welcome(self._server, seat, found, self._limits, self._context))
        self._welcoming.add(task)
        task.add_done_callback(self._welcoming.discard)
        return True


async def _welcome(
    server: uvicorn.Server, seat: Seat, sock: socket.socket, limits: Limits, context: ssl.SSLContext | None
) -> None:
    loop = asyncio.get_running_loop()

    def made() -> asyncio.Protocol:
        kind: Any = server.config.http_protocol_class
        protocol: Any = kind(config=server.config, server_state=server.server_state, app_state={}, _loop=loop)
        protocol.seat = seat
        return protocol  # type: ignore[no-any-return]

    seconds = None if context is None else limits.handshake_seconds
    try:
        await loop.connect_accepted_socket(made, sock, ssl=context, ssl_handshake_timeout=seconds)
    except (OSError, ssl.SSLError):  # it speaks no TLS, does not trust us, said nothing in time, or is gone
        seat.crowd.leave(seat)
        sock.close()
