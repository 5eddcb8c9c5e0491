"""Leases: promises that what is read is not reclaimed meanwhile. `/v1/leases`."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, Router, delete, get, post
from litestar.params import FromPath, JSONBody
from msgspec import Meta

from ullage_agent.engine import model
from ullage_agent.engine.errors import LeaseLost
from ullage_agent.service.access import Verb
from ullage_agent.service.http.answers import json, repeated
from ullage_agent.service.http.docs import problems
from ullage_agent.service.http.forms import Done
from ullage_agent.service.http.served import AnyRequest, Asked, asked, encoded, needs, principal_of, served_by

Millis = Annotated[int, Meta(ge=1, le=1 << 53)]
Index = Annotated[int, Meta(ge=1, le=1 << 62)]


class Acquire(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long, and on which resource claims; on everything that lives now if there are none."""

    duration_millis: Millis
    resources: Annotated[list[Index], Meta(max_length=10_000)] = []
    purpose: Annotated[str, Meta(max_length=255)] = ""


class Renew(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long from now on."""

    duration_millis: Millis


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """A lease that stands."""

    id: str
    holder: str
    resources: list[int]
    transaction: int
    created_millis: int
    expires_millis: int
    holds_files: bool


@get("/", opt=needs(Verb.GET), responses=problems())
async def list_leases(request: Request[Any, Any, Any]) -> list[Lease]:
    """Every lease that stands, by its beginning."""
    served = served_by(request)
    return [_shown(lease) for lease in await served.call(served.repository.leases.all)]


@post("/", opt=needs(Verb.GET), responses=problems(409, 410, 422, 429))
async def acquire(request: Request[Any, Any, Any], data: JSONBody[Acquire]) -> Response[bytes]:
    """Take a lease. Its time is bounded by spec.leases.maxDuration; it need not be given back to end."""
    served = served_by(request)
    holder = " ".join(filter(None, (principal_of(request).name, data.purpose)))
    once = await asked(request)

    def change() -> bytes:
        lease = served.repository.leases.acquire(
            holder, data.duration_millis, data.resources, also=lambda made: once.remember(encoded(_shown(made)))
        )
        return encoded(_shown(lease))

    try:
        if once.first is not None:
            # Which transaction it was, the lease knew only once it stood.
            first = msgspec.json.decode(once.first, type=Lease)
            return repeated(encoded(msgspec.structs.replace(first, transaction=once.transaction)), 201)
        return json(await served.call(change), 201)
    finally:
        once.close()


@get("/{lease:str}", opt=needs(Verb.GET), responses=problems(410))
async def show(request: Request[Any, Any, Any], lease: FromPath[str]) -> Lease:
    """One lease."""
    return _shown(served_by(request).repository.leases.require(_id(lease)))


@post("/{lease:str}/renew", opt=needs(Verb.GET), status_code=200, responses=problems(409, 410, 422, 429))
async def renew(request: Request[Any, Any, Any], lease: FromPath[str], data: JSONBody[Renew]) -> Response[bytes]:
    """A heartbeat."""
    leases = served_by(request).repository.leases

    def change(once: Asked) -> bytes:
        def also(renewed: model.Lease) -> Sequence[model.Operation]:
            return once.remember(encoded(_shown(renewed)))

        return encoded(_shown(leases.renew(_id(lease), data.duration_millis, also)))

    return await _once(request, change)


@delete("/{lease:str}", opt=needs(Verb.GET), status_code=200, responses=problems(409, 410, 422))
async def release(request: Request[Any, Any, Any], lease: FromPath[str]) -> Response[bytes]:
    """The holder is done."""
    leases = served_by(request).repository.leases
    answer = encoded(Done(id=lease, state="released"))

    def change(once: Asked) -> bytes:
        leases.release(_id(lease), once.remember(answer))
        return answer

    return await _once(request, change)


@post("/{lease:str}/revoke", opt=needs(Verb.RECLAIM), status_code=200, responses=problems(409, 410, 422))
async def revoke(request: Request[Any, Any, Any], lease: FromPath[str]) -> Response[bytes]:
    """End somebody's lease against their will: their reads fail from now on."""
    served = served_by(request)
    answer = encoded(Done(id=lease, state="revoked"))

    def change(once: Asked) -> bytes:
        served.repository.leases.revoke(_id(lease), once.remember(answer))
        served.audit.warning("lease revoked", owner=principal_of(request).name, lease=lease)
        return answer

    return await _once(request, change)


async def _once(request: AnyRequest, change: Callable[[Asked], bytes]) -> Response[bytes]:
    """Carry a change out once for its key."""
    once = await asked(request)
    try:
        if once.first is not None:
            return repeated(once.first)
        return json(await served_by(request).call(change, once))
    finally:
        once.close()


def _shown(lease: model.Lease) -> Lease:
    return Lease(
        id=model.format_uuid(lease.id),
        holder=lease.holder,
        resources=list(lease.resources[:1_000]),
        transaction=lease.transaction,
        created_millis=lease.created_millis,
        expires_millis=lease.expires_millis,
        holds_files=lease.holds_files,
    )


def _id(text: str) -> bytes:
    try:
        return model.parse_uuid(text)
    except ValueError as error:
        raise LeaseLost(f"there is no lease {text!r}: {error}") from error


router = Router("/v1/leases", route_handlers=[list_leases, acquire, show, renew, release, revoke], tags=["leases"])
