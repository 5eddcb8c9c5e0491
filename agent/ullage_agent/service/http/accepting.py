"""Accepting connections for uvicorn, so that each has a seat from its first moment: also before TLS is agreed on.

The event loop's own server tells of a connection after its handshake alone. Nobody could count those that never begin
one, and they cost a descriptor each.
"""

import asyncio
import contextlib
import socket
import ssl
from typing import Any, Final

import uvicorn

from ullage_agent.service.http.crowd import Crowd
from ullage_agent.service.limits import Limits

REST_SECONDS: Final = 0.1
"""After an accept that failed, for which the process or the machine lacks something: descriptors, memory."""


class Seat:
    """One connection's, which another may get."""

    def __init__(self, crowd: Crowd, sock: socket.socket) -> None:
        self.crowd = crowd
        self.transport: asyncio.Transport | None = None
        self._sock = sock

    def cut_off(self) -> None:
        """End the connection at once."""
        if self.transport is not None:
            self.transport.abort()
            return
        with contextlib.suppress(OSError):  # it has ended already
            self._sock.shutdown(socket.SHUT_RDWR)


async def serve(
    server: uvicorn.Server, sock: socket.socket, limits: Limits, context: ssl.SSLContext | None = None
) -> None:
    """Run a server whose protocol is `guarded` on a listening socket until it is told to exit; no signal is its own."""
    running = asyncio.create_task(server._serve([]))  # noqa: SLF001 - `serve` would take the signals
    accepting = asyncio.create_task(_accept(server, sock, limits, context))
    try:
        await asyncio.wait([running, accepting], return_when=asyncio.FIRST_COMPLETED)
        await running
    finally:
        accepting.cancel()
        sock.close()


async def _accept(server: uvicorn.Server, sock: socket.socket, limits: Limits, context: ssl.SSLContext | None) -> None:
    loop = asyncio.get_running_loop()
    crowd = Crowd(limits.connections, limits.connections_per_peer)
    welcoming: set[asyncio.Task[None]] = set()
    try:
        while not server.should_exit:
            try:
                found, address = await loop.sock_accept(sock)
            except OSError:
                crowd.make_room()  # its descriptor may be what is missing
                await asyncio.sleep(REST_SECONDS)
                continue
            seat = Seat(crowd, found)
            if not crowd.enter(seat, address[0]):
                found.close()
                continue
            task = loop.create_task(_welcome(server, seat, found, limits, context))
            welcoming.add(task)
            task.add_done_callback(welcoming.discard)
    finally:
        for task in welcoming:
            task.cancel()


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
