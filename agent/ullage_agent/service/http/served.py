"""What the resources share: the host, who may do what, the bounds, and threads for calls that block.

The event loop never waits for the engine: each call goes to a thread. Calls that may wait for room on the disk have
threads of their own, so that removing and reading go on while writers wait.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, Final, ParamSpec, TypeVar
from urllib.parse import unquote

from litestar import Request
from litestar.connection import ASGIConnection
from litestar.exceptions import MethodNotAllowedException
from litestar.handlers import BaseRouteHandler

from ullage.contract import Right
from ullage.embedded.backupruns import BackupRun
from ullage.embedded.repository import EmbeddedRepository
from ullage.embedded.runs import RequestedRun
from ullage.errors import Forbidden, RequestIncomplete, ServiceStopping, Unauthenticated
from ullage.wire.operation import OctetStream
from ullage.wire.problems import UNEXPECTED
from ullage_agent.service.access import ANONYMOUS, Actors, Authenticator, Principal, authorize_all, bearer
from ullage_agent.service.audit import Audit
from ullage_agent.service.budget import ByteBudget
from ullage_agent.service.fairness import FairTurns
from ullage_agent.service.host import Host
from ullage_agent.service.http.arrivals import Arrivals
from ullage_agent.service.http.protocol import Line
from ullage_agent.service.http.starts import Starts
from ullage_agent.service.limits import Limits
from ullage_agent.service.log import RefusedLog, logger
from ullage_agent.service.metrics import Metrics
from ullage_agent.service.quota import Quota
from ullage_agent.service.sessions import Sessions
from ullage_agent.service.uploads import Uploads

P = ParamSpec("P")
T = TypeVar("T")

AnyRequest = Request[Any, Any, Any]

More = Callable[[ASGIConnection[Any, Any, Any, Any]], Sequence[Right]]
"""Which rights a request needs beside those of its operation, by what it asks for."""

ASKING: ContextVar[Principal] = ContextVar("asking", default=ANONYMOUS)
"""Whose request a task of the event loop is about, once that is known."""

LINE: ContextVar[Line | None] = ContextVar("line", default=None)
"""The connection that its answer goes to."""

OPEN: Final = {"is_open": True}
"""For resources that ask for no token."""


STEP_SECONDS: Final = 0.02
"""Of a request that takes long so much is done in one turn: some times what the interpreter leaves to one thread, and
little beside the pauses between the turns of who has much to do.
"""


def _some_of(steps: Iterator[object]) -> bool:
    """Take steps for STEP_SECONDS; whether that was all."""
    end = time.monotonic() + STEP_SECONDS
    return all(time.monotonic() < end for _ in steps)


async def finished(work: Coroutine[Any, Any, T]) -> T:
    """What it comes to; who gives up waits for its end all the same, since a thread is at it that cannot be stopped."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


class Served:
    """One service, as its HTTP resources see it."""

    def __init__(
        self,
        host: Host,
        authenticator: Authenticator,
        limits: Limits,
        metrics: Metrics,
        budget: ByteBudget,
        turns: FairTurns,
        audit: Audit,
    ) -> None:
        self.host = host
        self.metrics = metrics
        self.authenticator = authenticator
        self.limits = limits
        self.budget = budget
        self.turns = turns
        self.starts = Starts(turns, limits)
        self.arrivals = Arrivals(limits)
        self.audit = logger("audit")
        self.refused = RefusedLog(host.clock)
        self.trail = audit
        self._log = logger("reclamation")
        self._backups = logger("backup")
        self.repository = host.repository
        self.repository.runs.hear(self._told)
        self.repository.backups_here.hear(self._backup_ended)
        self.actors = Actors(self.repository, authenticator, limits)
        self.sessions = Sessions(host.clock, limits)
        self.uploads = Uploads(host.clock)
        for held in (self.sessions.held, self.uploads.held):
            self.repository.held.also(held)
        self.quota = Quota("requests_each", "requests under way", limits.requests_each, limits.requests)
        self.wide_free = limits.wide_streams
        self.is_stopping = False
        self._creating = ThreadPoolExecutor(limits.threads, "ullage-create")
        self._calling = ThreadPoolExecutor(limits.threads, "ullage-call")

    def acting_for(self, principal: Principal) -> EmbeddedRepository:
        """The repository for whoever asks."""
        return self.actors.of(principal)

    async def create(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call what may wait for room, in turn."""
        return await self._in_turn(self._creating, lambda: function(*args, **kwargs), creates=True)

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call what blocks for anything else, in turn."""
        return await self._in_turn(self._calling, lambda: function(*args, **kwargs), creates=False)

    async def call_in_steps(self, steps: Iterator[object]) -> None:
        """Take one step after the other, for STEP_SECONDS in each turn. Who gives up waits for the turn that is under
        way: nothing else may work with what the steps work with. RequestIncomplete, ServiceStopping between two turns
        if nobody waits for the end any more: work of minutes would go on, and keep the service from stopping.
        """
        line = LINE.get()
        while not await finished(self.call(_some_of, steps)):
            if line is not None and line.has_left():
                raise RequestIncomplete("the client went away before all was done: nothing has changed")
            if self.is_stopping:
                raise ServiceStopping("the service is stopping: ask again when it is back")

    async def _in_turn(self, threads: ThreadPoolExecutor, work: Callable[[], T], *, creates: bool) -> T:
        principal = ASKING.get()
        turn = self.turns.of(principal, creates=creates)
        with self.starts.ahead(principal.name):
            await turn.take_soon()
        try:
            return await asyncio.get_running_loop().run_in_executor(threads, work)
        finally:
            turn.rest()

    def stop(self) -> None:
        """Refuse whatever is asked from now on, and what has not been begun."""
        self.is_stopping = True
        self.starts.end()

    def close(self) -> None:
        """Let calls under way end. Then no session and no run is left."""
        self.repository.backups_here.close()
        self.repository.runs.close()
        self._creating.shutdown()
        self._calling.shutdown()
        self.sessions.close()

    def note_override(self, owner: str, run: str, operations: Sequence[str]) -> None:
        """Write down who passed over the windows, and for what."""
        self.metrics.count("window_overrides_total")
        self.audit.warning("windows overridden", owner=owner, run=run, operations=list(operations))

    def _backup_ended(self, run: BackupRun) -> None:
        found = run.progress
        about = {"run": found.id, "action": found.action, "owner": found.owner, "place": found.place}
        if run.outcome != "failed":
            self._backups.info(f"backup {run.outcome}", **about, files=found.files_done, bytes=found.bytes_done)
        elif found.slug == UNEXPECTED.slug:
            self._backups.error("backup failed", **about, exc_info=run.error)
        else:
            self._backups.error("backup failed", **about, problem=found.problem)

    def _told(self, run: RequestedRun) -> None:
        found = run.progress
        if not run.over.is_set():
            self.note_override(found.owner, found.id, found.operations)
            return
        self.metrics.count("runs_total", run.outcome)
        if run.error is not None:
            self._log.error("run failed", run=found.id, owner=found.owner, exc_info=run.error)
        else:
            freed = 0 if found.report is None else found.report.freed_bytes
            self._log.info("run ended", run=found.id, owner=found.owner, freed_bytes=freed)


class Stranger:
    """A request under way of which only the address is known. Requests of a principal are counted by its name instead:
    else whoever has the same address as a busy one, as behind a Service, would be refused for it.
    """

    def __init__(self, counts: Counter[str], peer: str) -> None:
        self._counts = counts
        self._peer: str | None = peer
        counts[peer] += 1

    def is_known(self) -> None:
        """It is counted no more. Safe to call twice."""
        if self._peer is None:
            return
        self._counts[self._peer] -= 1
        if not self._counts[self._peer]:
            del self._counts[self._peer]
        self._peer = None


def served_by(connection: ASGIConnection[Any, Any, Any, Any]) -> Served:
    """The service that answers this request."""
    served: Served = connection.app.state["served"]
    return served


async def admit(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Every request passes here before anything of it is read: who asks, and may they? A resource that is no
    operation, and does not say that it is open, is closed. The names in its path are decoded.
    """
    connection.scope["path_params"] = {name: unquote(text) for name, text in connection.path_params.items()}
    if handler.opt.get("is_open"):
        return
    served = served_by(connection)
    if "operation" not in handler.opt:
        raise MethodNotAllowedException("OPTIONS is not answered: no page of another place may ask anything here")
    authenticator, operation = served.authenticator, handler.opt["operation"]
    client = connection.client.host if connection.client else ""
    state = connection.scope["state"]
    state["operation"] = operation

    def check() -> Principal:
        principal = authenticator.authenticate(bearer(connection.headers.get("authorization")), client)
        state["principal"] = principal
        authorize_all(authenticator, principal, (*operation.rights, *handler.opt["more"](connection)))
        return principal

    try:
        principal = await served.call(check) if authenticator.may_block else check()
    except (Unauthenticated, Forbidden) as error:
        served.refused.tell(client=client, path=connection.url.path, reason=str(error))
        raise
    ASKING.set(principal)
    LINE.set(state["line"])
    served.quota.take(principal)
    state["is_counted"] = True  # the Guard gives it back when the answer is out
    if principal.holder:
        state["stranger"].is_known()
    if operation.body not in (None, OctetStream):
        size = _body_bytes(connection, served.limits)
        state["arrival"] = served.arrivals.begin(principal, size, state["exchange"])


def _body_bytes(connection: ASGIConnection[Any, Any, Any, Any], limits: Limits) -> int:
    """Of a body that is decoded as a whole: what is announced, or if nothing is what it may have."""
    length = connection.headers.get("content-length", "")
    return (
        min(int(length), limits.small_body_bytes) if length.isascii() and length.isdigit() else limits.small_body_bytes
    )
