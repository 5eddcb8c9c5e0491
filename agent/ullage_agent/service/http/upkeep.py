"""The repository as a whole: how it is, its upkeep, leases, and content by whatever id."""

import os

import msgspec
from litestar import Response

from ullage.embedded.content import ReadableContent
from ullage.errors import InvalidArgument
from ullage.wire import operations
from ullage.wire.documents import ActionResult
from ullage.wire.leases import LeaseStatus
from ullage.wire.service import ServiceStatus
from ullage.wire.upkeep import BackupReport, CheckReport
from ullage_agent.service.http.resources import Asked, acts, answers, gives, serves


@serves(operations.GET_HEALTH)
async def healthz(_: Asked) -> Response[str]:
    return Response("ok\n", media_type="text/plain")


@serves(operations.GET_READINESS)
async def readyz(asked: Asked) -> Response[str]:
    is_ready = asked.served.host.is_ready and not asked.served.is_stopping
    text, status = ("ok\n", 200) if is_ready else ("not ready\n", 503)
    return Response(text, status_code=status, media_type="text/plain")


@serves(operations.GET_STATE)
def state(asked: Asked) -> ServiceStatus:
    served = asked.served
    return msgspec.structs.replace(
        served.repository.state(),
        is_stopping=served.is_stopping,
        sessions=len(served.sessions),
    )


def _acquired_before(asked: Asked) -> LeaseStatus:
    """Which transaction it was, the lease knew only once it stood."""
    first = msgspec.json.decode(asked.once.first or b"", type=LeaseStatus)
    return msgspec.structs.replace(first, transaction=asked.once.transaction)


@serves(operations.ACQUIRE_LEASE, once=True, again=_acquired_before)
def acquire(asked: Asked) -> LeaseStatus:
    leases, wanted = asked.repository.leases, asked.data
    return leases.acquire(wanted.duration_millis, wanted.resources, purpose=wanted.purpose, also=asked.remember)


@serves(operations.RENEW_LEASE, once=True)
def renew(asked: Asked) -> LeaseStatus:
    return asked.repository.leases.renew(asked["lease"], asked.data.duration_millis, also=asked.remember)


@serves(operations.REVOKE_LEASE, once=True)
def revoke(asked: Asked) -> ActionResult:
    answer = ActionResult(id=asked["lease"], state="revoked")
    asked.repository.leases.revoke(asked["lease"], also=asked.remember(answer))
    asked.served.audit.warning("lease revoked", owner=asked.owner, lease=asked["lease"])
    return answer


@gives(operations.GET_CONTENT, blocks=True)
def content(asked: Asked) -> ReadableContent:
    return asked.repository.readable(asked["id"])


@serves(operations.CHECK)
def check(asked: Asked, deep: bool = False) -> CheckReport:
    return asked.repository.check(deep=deep)


@serves(operations.BACK_UP)
def backup(asked: Asked) -> BackupReport:
    destination = asked.data.destination
    if not os.path.isabs(destination):
        raise InvalidArgument(f"{destination}: say the path of the directory from its root on")
    asked.served.audit.warning("backup", owner=asked.owner, destination=destination)
    return asked.repository.backup(destination)


list_leases = answers(operations.LIST_LEASES, lambda asked: asked.repository.leases.all())
lease = answers(operations.GET_LEASE, lambda asked: asked.repository.leases.find(asked["lease"]))
release = acts(operations.RELEASE_LEASE, "released", lambda asked: asked.repository.leases.release)
checkpoint = answers(operations.CHECKPOINT, lambda asked: asked.repository.checkpoint())
