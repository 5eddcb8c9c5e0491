"""Which of the processes of one operator works: whose name stands in a Lease, as long as it renews it.

    one that holds   renews ── renews ── killed
    another          sees it renewed ─────────── LEASE_SECONDS without a change ── takes it, and works
    one that ends    stops its work, gives it back ── another takes it at once

As in client-go no clock is compared with another's: each process counts from when it saw the last change, or began to
renew. The one that holds stops writing RENEW_SECONDS_MAX after that, before any other may take it. That alone is no
fence: what was sent before may arrive late. So what gives a ticket also names the version of the node's object that it
was decided on (see apply.py), and all else that is written is the same whoever writes it, or is mended.
After an outage of the API server in which nobody took it, the one that holds goes on where it was.

The package `kubernetes` has an election too. It measures by the wall clock, which jumps, asks nobody before a write,
and gives nothing back at the end, so that each upgrade would wait until the lease has lapsed.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Final

import structlog

from ullage_operator.cluster.api import ApiClient
from ullage_operator.errors import ApiUnreachable, NotHolding, OperatorError, is_changed
from ullage_operator.objects import Object, document, path_of
from ullage_operator.settings import OperatorSettings

LEASE_SECONDS: Final = 10
"""Without a change for so long, another takes it. With POLL_SECONDS and the time to list a cluster's objects, a replica
that dies is replaced within 15 s.
"""

RENEW_SECONDS_MAX: Final = 7.0
"""How long the one that holds works on without having renewed: less than the others wait, by what two clocks may run
apart and a write may be under way.
"""

RENEW_SECONDS: Final = 1.5
"""How often it is renewed: one try may fail, and the next still comes in time."""

ANSWER_SECONDS: Final = 3.0
"""How long the answer to a try may take: as long as an API server takes that is under load, and so short that there is
time for another over another connection, where this one is dead. With a second, a slow server stopped all work.
"""

POLL_SECONDS: Final = 1.0
"""How often others look."""


def seconds_since_boot() -> float:
    """Of a clock that also runs while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


async def lease_reference(api: ApiClient, settings: OperatorSettings) -> Object:
    """Names the Lease in events about the operator itself, whether or not it is there."""
    found = await api.get("Lease", settings.namespace, settings.lease) or document("Lease", {"uid": ""})
    place = {"name": settings.lease, "namespace": settings.namespace}
    return {"apiVersion": found["apiVersion"], "kind": found["kind"], "uid": found["metadata"]["uid"], **place}


class Election:
    """One process's part. `name` and `namespace`: of the Lease; `identity`: this process among those of the operator,
    the same again only when the one before is surely gone, as the name of a pod is.
    """

    def __init__(
        self,
        api: ApiClient,
        namespace: str,
        name: str,
        identity: str,
        clock: Callable[[], float] = seconds_since_boot,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._api, self._namespace, self._name, self._identity = api, namespace, name, identity
        self._clock, self._sleep = clock, sleep
        self._found: Object | None = None
        self._has_met = False
        self._changed_at = clock()
        self._renewed_at: float | None = None
        self.problem = ""
        """Why it is not known whether another holds it; empty if it is."""

        self._log = structlog.get_logger("election").bind(lease=f"{namespace}/{name}", identity=identity)

    @property
    def holds(self) -> bool:
        """Whether this process may write now."""
        return self._renewed_at is not None and self._clock() - self._renewed_at <= RENEW_SECONDS_MAX

    def require(self) -> None:
        """NotHolding unless it may."""
        if not self.holds:
            raise NotHolding("this operator has not renewed its lease in time: another may be at work")

    async def won(self) -> None:
        """Wait until this process holds it."""
        while not self.holds:
            try:
                await self._look()
                if self._is_free():
                    await self._take()
                    self._log.info("holds the lease")
                    return
                self.problem = ""
            except OperatorError as error:
                if not is_changed(error):
                    self.problem = str(error)
                    self._log.warning("stands by", problem=self.problem)
            await self._sleep(POLL_SECONDS)

    async def lost(self) -> str:
        """Renew it until another has it; which."""
        while True:
            await self._sleep(RENEW_SECONDS)
            try:
                if holder := await self._other():
                    self._renewed_at = None
                    return holder
            except OperatorError as error:
                self._log.warning("not renewed", problem=str(error))

    async def _other(self) -> str:
        """Renew it; who has it instead, empty if it is ours. The answer to an earlier try may have been lost, or the
        object been deleted: where it is not as we left it, or we were away for long, what it says by now counts.
        """
        if self.holds:
            try:
                await self._take()
            except OperatorError as error:
                if not is_changed(error):
                    raise
            else:
                return ""
        await self._look()
        if self._holder() not in ("", self._identity):
            return self._holder()
        await self._take()
        return ""

    async def release(self) -> None:
        """Give it back, once nothing is written any more: the next need not wait."""
        if not self.holds:
            return
        self._renewed_at = None
        with contextlib.suppress(OperatorError):  # then the next waits until it has lapsed
            await self._write("")

    async def _look(self) -> None:
        async with _in_time():
            found = await self._api.get("Lease", self._namespace, self._name)
        if _version(found) != _version(self._found):
            self._changed_at = self._clock()
        self._found = found
        self._has_met |= found is not None

    def _holder(self) -> str:
        return str(_spec(self._found).get("holderIdentity") or "")

    def _is_free(self) -> bool:
        """One that was there and is gone has been deleted, and whoever held it works on until it finds out."""
        is_deleted = self._found is None and self._has_met
        if self._holder() in ("", self._identity) and not is_deleted:
            return True
        lasts = _spec(self._found).get("leaseDurationSeconds") or LEASE_SECONDS
        return self._clock() - self._changed_at > lasts

    async def _take(self) -> None:
        began = self._clock()
        await self._write(self._identity)
        self._renewed_at = began

    async def _write(self, holder: str) -> None:
        """Over what was seen last and nothing else: where two write, one is refused."""
        before, now = _spec(self._found), datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        is_new = before.get("holderIdentity") != (holder or None)
        spec = {
            "holderIdentity": holder or None,
            "leaseDurationSeconds": LEASE_SECONDS,
            "renewTime": now,
            "acquireTime": now if is_new else before.get("acquireTime"),
            "leaseTransitions": int(before.get("leaseTransitions") or 0) + (is_new and bool(holder)),
        }
        metadata = {"name": self._name, "namespace": self._namespace}
        method, path = "POST", path_of("Lease", self._namespace)
        if self._found is not None:
            metadata["resourceVersion"] = _version(self._found)
            method, path = "PUT", path_of("Lease", self._namespace, self._name)
        async with _in_time():
            self._found = await self._api.request(method, path, body=document("Lease", metadata, spec=spec))
        self._changed_at = self._clock()


@contextlib.asynccontextmanager
async def _in_time() -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            yield
    except TimeoutError as error:
        raise ApiUnreachable(f"no answer about the lease within {ANSWER_SECONDS:g} s") from error


def _spec(found: Object | None) -> dict[str, Any]:
    return {} if found is None else found.get("spec") or {}


def _version(found: Object | None) -> str:
    return "" if found is None else str(found["metadata"]["resourceVersion"])
