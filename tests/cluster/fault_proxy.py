"""Between an operator and its API server: passes everything on, and does some calls wrong.

Calls are named by what they do to what, and by how often that was done before in the same story, so that the same one
is met again: `PATCH configmaps/flows-ullage 1`. Others come in between in any order, as they are made side by side.
"""

import asyncio
import contextlib
import json
import re
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

import aiohttp
from aiohttp import web
from yarl import URL

from tests.cluster.control_plane import LOOPBACK, ControlPlane

KINDS: Final = ("lost", "answer lost", "repeated", "late", "conflicting", "last", "last, unheard")
"""What is done to a call: it never arrives; it arrives, and the answer does not; it arrives twice; its caller hears
that it was lost, and it arrives after the next of its kind; it is refused as in conflict; its caller is killed before
it arrives, or before the answer does.
"""

SECONDS: Final = 2.0
"""How long a late call waits for the next of its kind."""

HOPS: Final = ("host", "content-length", "transfer-encoding", "connection", "content-encoding", "accept-encoding")
HASHED: Final = re.compile(r"ullage-authority-[0-9a-f]+|(?<=events/).*")
"""Names that are others in each story."""


class FaultProxy:
    """Serves plain HTTP on `port` from `start` on, in a thread of its own."""

    def __init__(self, cluster: ControlPlane, kill: Callable[[], None]) -> None:
        """`kill` ends the caller at once."""
        self.port = cluster.instance.free_port()
        self._url, self._kill = cluster.url, kill
        self._trust = ssl.create_default_context(cafile=str(cluster.ca))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._late: dict[str, list[asyncio.Event]] = {}
        self.tell("", {})

    def tell(self, place: str, cases: Mapping[str, str]) -> None:
        """A new story, in a namespace, and what is done to which of its calls."""
        self.place, self._cases = place, cases
        self.calls: list[str] = []
        self._seen: Counter[str] = Counter()
        self.struck: set[str] = set()
        """Of these calls those that came."""

        self.killed = threading.Event()
        self.given: list[tuple[str, str]] = []
        """Which node was given which ticket, in order."""

        self.writes: list[str] = []
        """All that came to change something, the lease and other stories included."""

        self.most_held = 0
        """At the same moment."""

        self._held: dict[str, str] = {}
        self._silences = 0

    def silence(self) -> None:
        """Watches that are under way bring nothing any more, and do not end either, as where somebody in between has
        forgotten the connection.
        """
        self._silences += 1

    def start(self) -> None:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._serve(), self._loop).result()

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _serve(self) -> None:
        waits = aiohttp.ClientTimeout(total=None)
        connector = aiohttp.TCPConnector(ssl=self._trust, limit=0)
        self._session = aiohttp.ClientSession(connector=connector, timeout=waits, auto_decompress=False)
        application = web.Application(client_max_size=1 << 26)
        application.router.add_route("*", "/{path:.*}", self._answered)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, LOOPBACK, self.port).start()

    async def _end(self) -> None:
        await self._runner.cleanup()
        await self._session.close()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def _name(self, request: web.Request) -> str:
        """Of a call of the story; empty for all others."""
        path = request.path.replace(self.place, "*") if self.place else request.path
        ours = "ullage-authority-" in path or "*" in path
        if not ours or "watch" in request.query:
            return ""
        parts = HASHED.sub("*", path.partition("/namespaces/")[2] or path).split("/")
        what = parts[1:] if "/namespaces/" in path else parts[-2:]
        return f"{request.method} {'/'.join(what)}"

    async def _answered(self, request: web.Request) -> web.StreamResponse:
        body, name, kind = await request.read(), self._name(request), ""
        if request.method != "GET":
            self.writes.append(f"{request.method} {request.path}")
        if name:
            self._seen[name] += 1
            call = f"{name} {self._seen[name]}"
            self.calls.append(call)
            kind = self._cases.get(call, "")
            if kind:
                self.struck.add(call)
            elif request.method in ("GET", "DELETE") and self._cases.get(f"{name} {self._seen[name] - 1}") == "lost":
                kind = "lost"  # the client tries by itself again what may be done twice
        if kind == "conflicting":
            return web.json_response(_conflict(), status=409)
        if kind.startswith("last") or "lost" in kind or kind == "late":
            return await self._lost(request, body, name, kind)
        if kind == "repeated":
            await self._passed(request, body)
        answer = await self._passed(request, body, is_streamed="watch" in request.query)
        for waiting in self._late.pop(name, ()):
            waiting.set()
        return answer

    async def _lost(self, request: web.Request, body: bytes, name: str, kind: str) -> web.Response:
        if kind in ("answer lost", "last, unheard"):
            await self._passed(request, body)
        if kind.startswith("last"):
            self.killed.set()
            self._kill()
        if kind == "late":
            event = asyncio.Event()
            self._late.setdefault(name, []).append(event)
            self._delayed = asyncio.create_task(self._pass_late(event, request, body))
        if request.transport is not None:
            request.transport.abort()
        return web.Response()

    async def _pass_late(self, event: asyncio.Event, request: web.Request, body: bytes) -> None:
        with contextlib.suppress(TimeoutError):  # nothing came that it could be late for
            await asyncio.wait_for(event.wait(), SECONDS)
        await self._passed(request, body)

    async def _passed(self, request: web.Request, body: bytes, *, is_streamed: bool = False) -> web.StreamResponse:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOPS}
        url = URL(self._url + request.raw_path, encoded=True)
        async with self._session.request(request.method, url, headers=headers, data=body or None) as answer:
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in HOPS}
            if not is_streamed:
                text = await answer.read()
                self._note(request, answer.status, text)
                return web.Response(status=answer.status, headers=kept, body=text)
            streamed = web.StreamResponse(status=answer.status, headers=kept)
            await streamed.prepare(request)
            silences = self._silences
            with contextlib.suppress(ConnectionError, aiohttp.ClientError):  # either side may go
                async for chunk in answer.content.iter_any():
                    if silences == self._silences:
                        await streamed.write(chunk)
            return streamed

    def _note(self, request: web.Request, status: int, text: bytes) -> None:
        """Which tickets there are after a write to a node's object."""
        if request.method != "PATCH" or status >= 300 or "/contentrepositorynodes/" not in request.path:
            return
        found: dict[str, Any] = json.loads(text)
        if found["metadata"]["namespace"] != self.place:
            return
        name, ticket = found["spec"]["nodeName"], found["spec"].get("ticket")
        before = self._held.pop(name, "")
        if ticket is not None:
            self._held[name] = ticket["id"]
            if ticket["id"] != before:
                self.given.append((name, ticket["id"]))
        self.most_held = max(self.most_held, len(self._held))


def _conflict() -> dict[str, Any]:
    words = (
        "Operation cannot be fulfilled: the object has been modified; please apply your changes to the latest version"
    )
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": words,
        "reason": "Conflict",
        "code": 409,
    }
