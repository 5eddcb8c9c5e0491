"""`/healthz` and `/readyz` on a port and in a thread of their own: probes are answered whatever the others do.

Were they answered where content is, who opens enough slow connections would have the kubelet restart a healthy agent.
"""

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import uvicorn
from litestar.types import Receive, Scope, Send

from ullage_agent.service.http.accepting import Threshold, serve
from ullage_agent.service.http.answers import answer
from ullage_agent.service.http.protocol import configured
from ullage_agent.service.limits import Limits

CONNECTIONS: Final = 64
"""Few, so that a full listener costs little. A probe gets in all the same, in the place of who has waited longest."""

WAITING_MAX: Final = 512
"""So many wait to be let in, half of them of one address: beside hundreds that a stranger with the prober's own address
opens again and again, a probe waits for its turn, and is not turned away.
"""

ENDED_MAX: Final = 10_000
"""For as many new connections of an address another one of it has to go in a second: all of them, since a request here
costs little more than its refusal, and the door lets in as many as a share of the time allows.
"""

PROBE_SECONDS: Final = 5.0
"""What a probe may take for its headers: as long as the kubelet waits."""

STOP_SECONDS: Final = 1.0
"""What a stop waits for probes that are under way."""

BEAT_SECONDS: Final = 1.0

STUCK_SECONDS: Final = 60.0
"""So long the service's event loop may be busy with something else before the process counts as stuck: no call keeps it
for a second, and a machine that is short of processor time is no reason for a restart.
"""


class Health:
    """Answers probes until it is stopped. It is made in the event loop of which `/healthz` says that it goes on."""

    def __init__(self, sock: socket.socket, limits: Limits, is_ready: Callable[[], bool]) -> None:
        self._is_ready = is_ready
        self._beaten = time.monotonic()
        self._beating = asyncio.create_task(self._beat())
        self._limits = limits.of_probes(CONNECTIONS, PROBE_SECONDS)
        self._server = uvicorn.Server(configured(self._answer, self._limits, STOP_SECONDS))
        self._thread = threading.Thread(target=self._run, args=(sock,), name="health", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Answer nobody any more; waits."""
        self._beating.cancel()
        self._server.should_exit = True
        await asyncio.to_thread(self._thread.join)

    async def _beat(self) -> None:
        while True:
            self._beaten = time.monotonic()
            await asyncio.sleep(BEAT_SECONDS)

    def _run(self, sock: socket.socket) -> None:
        asyncio.run(serve(self._server, sock, self._limits, threshold=Threshold(WAITING_MAX, ENDED_MAX)))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        request: Any = scope
        status, text = 404, "only GET /healthz and GET /readyz are answered here\n"
        if request["method"] in ("GET", "HEAD"):
            if request["path"] == "/healthz":
                is_stuck = time.monotonic() - self._beaten > STUCK_SECONDS
                status, text = (503, "stuck\n") if is_stuck else (200, "ok\n")
            elif request["path"] == "/readyz":
                status, text = (200, "ok\n") if self._is_ready() else (503, "not ready\n")
        await answer(send, status, b"text/plain; charset=utf-8", text.encode())
