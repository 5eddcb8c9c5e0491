"""One process that serves one repository: host, HTTP, signals, reload, and an end in which nothing accepted is lost.

start    open the repository, listen, say where
SIGHUP   read the configuration again; it is also looked at every few seconds
SIGTERM  refuse what is new, finish what is under way, checkpoint, release the lock; a second one does not wait
SIGKILL  safe as ever: acknowledged means durable
"""

import asyncio
import os
import resource
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final

import msgspec
import uvicorn
import uvloop

from ullage.contract import ContentRepository, ContractError
from ullage.embedded.repository import EmbeddedRepository
from ullage.errors import Forbidden, Unauthenticated
from ullage_agent.service.access import Actors, Authenticator
from ullage_agent.service.audit import Audit, AuditLog, Unaudited, audit_log_of
from ullage_agent.service.budget import ByteBudget
from ullage_agent.service.errors import CannotListen, ReloadRefused
from ullage_agent.service.fairness import FairTurns
from ullage_agent.service.flight.listener import FlightListener
from ullage_agent.service.host import Host, PermissionOf, windows_alone
from ullage_agent.service.http.accepting import serve
from ullage_agent.service.http.app import make_app
from ullage_agent.service.http.health import Health
from ullage_agent.service.http.protocol import configured
from ullage_agent.service.http.scrape import Scrape
from ullage_agent.service.http.served import Served
from ullage_agent.service.limits import DEFAULTS, Limits
from ullage_agent.service.listening import Certificate, Listening, Terms, authenticator_of, listening_of
from ullage_agent.service.log import Sparing, logger
from ullage_agent.service.metering import Meter, TimedFiles
from ullage_agent.service.metrics import Metrics
from ullage_agent.service.process import keep_freed_memory, share_interpreter
from ullage_agent.service.quota import streams_of
from ullage_agent.service.snapshots import Snapshots
from ullage_agent.service.socket.server import SocketServer

LOOK_SECONDS: Final = 2.0
"""How often files that can be reloaded are looked at, and sessions whose time is over are rolled back."""

SPARE_DESCRIPTORS: Final = 512
"""What the process needs beside connections: content files, logs, sockets of its own."""

BACKLOG: Final = 1_024

Read = Callable[[], ContentRepository]


class Bulk:
    """Arrow Flight and the Unix socket of one service, started and stopped together.

    It listens from its construction on, where the contract says; CannotListen, and nothing listens, if it cannot.
    """

    def __init__(
        self,
        repository: EmbeddedRepository,
        authenticator: Authenticator,
        limits: Limits,
        listening: Listening,
        budget: ByteBudget,
        turns: FairTurns,
        actors: Actors,
        audit: Audit,
        on_skipped: Callable[[int], None],
        on_strangers: Callable[[int], None],
    ) -> None:
        self._flight: FlightListener | None = None
        self._socket: SocketServer | None = None
        self._log = logger("bulk")
        self._audit = logger("audit")
        self.addresses: dict[str, str] = {}
        """Where each is reached: a URL, and a path."""

        terms = Terms(
            repository,
            authenticator,
            limits,
            listening,
            self._failed,
            budget,
            turns,
            actors,
            Snapshots(repository, limits, actors),
            streams_of(limits),
            audit,
            on_skipped,
            on_strangers,
        )
        with ExitStack() as stack:
            if listening.flight_port is not None:
                self._flight = FlightListener(terms)
                stack.callback(self._flight.stop)
                self.addresses["flight"] = self._flight.url
            if listening.socket_path:
                self._socket = SocketServer(terms)
                stack.callback(self._socket.stop)
                self.addresses["socket"] = listening.socket_path
            self._stack = stack.pop_all()

    def renew(self, generation: int) -> None:
        """Serve with the certificate that is in the files now; CannotListen as `renew` of either says."""
        if self._socket is not None:
            self._socket.renew()
        if self._flight is not None:
            self._flight.renew(generation)

    def stop(self) -> None:
        """Refuse what is new, end what is under way, release what clients hold. Safe to call twice."""
        self._stack.close()

    def _failed(self, what: str, error: Exception) -> None:
        if isinstance(error, Unauthenticated | Forbidden):
            self._audit.warning("refused", where=what, reason=str(error))
        else:
            self._log.error(what, exc_info=error)


class Server:
    """Serves until it is told to stop. `read` gives the document, at the start and whenever it is to be read again."""

    def __init__(
        self,
        read: Read,
        *,
        node: str = "",
        limits: Limits = DEFAULTS,
        makes: bool = False,
        on_ready: Callable[[dict[str, str]], None] = lambda _: None,
        on_stop: Callable[[], None] = lambda: None,
        permission: PermissionOf = windows_alone,
    ) -> None:
        """`on_ready` gets the URLs, by `http`, `metrics`, `flight` and `socket`, once they are answered."""
        self._read = read
        self._makes = makes
        self._on_ready = on_ready
        self._on_stop = on_stop
        self._log = logger("server")
        self._document = read()
        self.node = node or socket.gethostname()
        self.limits = _within_descriptors(limits)
        self.budget = ByteBudget(self.limits)
        self.metrics = Metrics()
        self.host = Host(
            self._document,
            node=self.node,
            files=TimedFiles(self.metrics),
            on_failure=self._maintenance_failed,
            permission=permission,
        )
        self.turns = FairTurns(self.limits, self.host.clock, share_interpreter)
        self._failures = Sparing(self.host.clock)
        self._meter = Meter(self.host, self.metrics, self.node)
        self.urls: dict[str, str] = {}
        self.bulk: Bulk | None = None
        self.audit: AuditLog | Unaudited = Unaudited()
        self._stop = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._last_problem = ""
        self._certificate: Certificate | None = None

    def run(self) -> None:
        """Serve. CannotListen if an address, certificate or token file is not to be had; engine errors of the open."""
        keep_freed_memory()
        uvloop.run(self._run())

    def stop(self) -> None:
        """Begin to stop; from any thread, once it is ready."""
        assert self._loop is not None, "it does not serve yet"
        self._loop.call_soon_threadsafe(self._stop.set)

    async def _run(self) -> None:
        listening = listening_of(self.host.spec)
        authenticator = authenticator_of(self.host.document, self.host.clock, self._token_problem)
        with ExitStack() as bound:
            sockets = {"http": bound.enter_context(_bound(listening.address, listening.http_port))}
            if listening.metrics_port is not None:
                sockets["metrics"] = bound.enter_context(_bound(listening.address, listening.metrics_port))
            if listening.health_port is not None:
                sockets["health"] = bound.enter_context(_bound(listening.address, listening.health_port))
            self._certificate = None if listening.tls is None else Certificate(listening.tls)
            await asyncio.to_thread(self.host.start, makes=self._makes)
            try:
                self._meter.attach()
                self.audit = await asyncio.to_thread(self._audit_log)
                try:
                    await self._serve(listening, authenticator, sockets, self.audit)
                finally:
                    await asyncio.to_thread(self.audit.close)
            finally:
                await asyncio.to_thread(self.host.stop)

    async def _serve(
        self, listening: Listening, authenticator: Authenticator, sockets: dict[str, socket.socket], audit: Audit
    ) -> None:

        served = Served(self.host, authenticator, self.limits, self.metrics, self.budget, self.turns, audit)
        terms = (served.repository, authenticator, self.limits, listening, self.budget, self.turns)
        self.bulk = await asyncio.to_thread(
            Bulk, *terms, served.actors, audit, self._nodes_skipped, self._strangers_gone
        )
        guard = make_app(served)
        self._meter.sessions = lambda: len(served.sessions)
        self._meter.requests_under_way = lambda: guard.under_way
        self._meter.requests_held = lambda: served.starts.held
        self._meter.requests_arriving_bytes = lambda: served.arrivals.bytes
        asked = authenticator if listening.asks_for_metrics else None
        apps = {"http": guard, "metrics": Scrape(self.metrics, asked, audit, is_encrypted=listening.tls is not None)}
        starts = {"http": served.starts}
        configs = {
            name: configured(app, self.limits, self.limits.stop_seconds, starts.get(name)) for name, app in apps.items()
        }
        servers = [(uvicorn.Server(config), sockets[name]) for name, config in configs.items() if name in sockets]
        reload = self._heed_signals()
        context = None if self._certificate is None else self._certificate.context
        serving = [asyncio.create_task(serve(server, sock, self.limits, context)) for server, sock in servers]
        watching = asyncio.create_task(self._watch(served, reload))
        stopped = asyncio.create_task(self._stop.wait())
        health: Health | None = None
        try:
            while not all(server.started for server, _ in servers) and not any(task.done() for task in serving):
                await asyncio.wait(serving, timeout=0.01)
            if "health" in sockets:
                health = Health(sockets["health"], self.limits, lambda: self.host.is_ready and not served.is_stopping)
            self.urls = {name: _url(listening, name, sock) for name, sock in sockets.items()} | self.bulk.addresses
            self._log.info("serving", **self.urls, node=self.node, root=self.host.spec.storage.host_path.path)
            if unfinished := self.host.repository.state().unfinished_erasure:
                self._log.warning("an erasure is not finished", problem=unfinished)
            self._on_ready(self.urls)
            await asyncio.wait([stopped, *serving], return_when=asyncio.FIRST_COMPLETED)
        finally:
            served.stop()
            watching.cancel()
            stopped.cancel()
            for server, _ in servers:
                server.should_exit = True
            await asyncio.gather(*serving)
            await asyncio.to_thread(self.bulk.stop)
            await asyncio.to_thread(self._on_stop)
            await asyncio.to_thread(served.close)
            if health is not None:
                await health.stop()
            self._log.info("stopped")

    def _audit_log(self) -> AuditLog | Unaudited:
        spec = self.host.spec
        return audit_log_of(spec.audit, spec.storage.host_path.path, self.host.clock, self.audit_failed)

    def _nodes_skipped(self, count: int) -> None:
        self.metrics.count("skipped_nodes_total", by=count)

    def _strangers_gone(self, count: int) -> None:
        self.metrics.count("flight_strangers_total", by=count)

    def audit_failed(self, lost: int, error: Exception | None) -> None:
        if error is not None:
            self.metrics.count("audit_failures_total")
            if self._failures.is_due("audit", error):
                self._log.error("the audit log cannot be written; its lines wait", exc_info=error)
        if lost:
            self.metrics.count("audit_lost_lines_total", by=lost)
            self._log.error("lines of the audit log were lost", lines=lost)

    def _heed_signals(self) -> asyncio.Event:
        """SIGTERM and SIGINT end, SIGHUP sets the event that is returned. Only the main thread gets signals."""
        reload = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._loop.add_signal_handler(number, self._asked_to_stop)
            self._loop.add_signal_handler(signal.SIGHUP, reload.set)
        return reload

    async def _watch(self, served: Served, reload: asyncio.Event) -> None:
        """What time brings: changed files, and sessions that nobody extended."""
        while True:
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    await reload.wait()
            except TimeoutError:
                pass  # nobody asked: look all the same
            reload.clear()
            await asyncio.to_thread(self._reload)
            await asyncio.to_thread(served.sessions.expire)
            self.turns.look()

    def reload_certificate(self) -> str:
        """Take over a changed certificate; what is wrong with it, told once for each change."""
        if self._certificate is None:
            return ""
        problem = self._certificate.refresh()
        if not problem and self.bulk is not None:
            try:
                self.bulk.renew(self._certificate.generation)
            except CannotListen as error:
                problem = str(error)
        if problem:
            self._log.error("certificate not reloaded", problem=problem)
        return problem

    def _reload(self) -> None:
        """Take over what changed. What is wrong with it is told, once for each change, and the old settings stay."""
        self.reload_certificate()
        try:
            document = self._read()
        except (ContractError, OSError) as error:
            self.host.settings_problem = str(error)
            self._told("configuration not reloaded", str(error))
            return
        if self._last_problem:
            self._last_problem = self.host.settings_problem = ""
        if document == self._document:
            return
        self._document = document
        try:
            changed = self.host.reload(document)
        except ReloadRefused as error:
            self.host.settings_problem = "" if error.__cause__ is None else str(error)
            self._log.error("configuration not reloaded", problem=str(error))
        else:
            self.host.settings_problem = ""
            self._log.info("configuration reloaded", changed=list(changed))

    def _told(self, event: str, problem: str) -> None:
        if self._last_problem != problem:
            self._last_problem = problem
            self._log.error(event, problem=problem)

    def _asked_to_stop(self) -> None:
        if self._stop.is_set():
            os._exit(130)  # a second time: acknowledged is durable, the rest was refused or is abandoned
        self._log.info("stopping")
        self._stop.set()

    def _maintenance_failed(self, task: str, error: Exception) -> None:
        self.metrics.count("maintenance_failures_total", task)
        if self._failures.is_due(task, error):
            self._log.error("maintenance failed", task=task, exc_info=error)

    def _token_problem(self, problem: str) -> None:
        self._log.error("tokens not reloaded", problem=problem)


def _url(listening: Listening, name: str, sock: socket.socket) -> str:
    scheme = "http" if name == "health" else listening.scheme
    return f"{scheme}://{listening.host}:{sock.getsockname()[1]}/"


def _bound(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    # Named, because asyncio turns Nagle's algorithm off only for what says that it is TCP: 40 ms an answer otherwise.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise CannotListen(f"cannot listen on {address} port {port}: {error.strerror}") from error
    sock.setblocking(False)
    return sock


def _within_descriptors(limits: Limits) -> Limits:
    """As many connections as the process may have descriptors for, after it has asked for as many as it may get; and
    what one address or principal may have of them stays a share.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    room: Any = max(64, (hard if hard > 0 else 1 << 20) - SPARE_DESCRIPTORS)
    requests = min(limits.requests, room // 2)
    return msgspec.structs.replace(
        limits,
        connections=min(limits.connections, room),
        connections_per_peer=min(limits.connections_per_peer, room // 2),
        flight_connections=min(limits.flight_connections, room // 4),
        flight_connections_each=min(limits.flight_connections_each, room // 8),
        requests=requests,
        requests_each=min(limits.requests_each, requests * 3 // 4),
        requests_per_peer=min(limits.requests_per_peer, requests // 2),
    )
