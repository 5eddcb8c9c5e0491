"""The repository as a whole: how it is, its upkeep, leases, and content by whatever id."""

import msgspec
from litestar import Response

from ullage.contract import QueueUse
from ullage.embedded import bulk
from ullage.embedded.content import ReadableContent
from ullage.wire import operations
from ullage.wire.documents import ActionResult
from ullage.wire.leases import LeaseStatus
from ullage.wire.service import ClockStatus, ServiceStatus
from ullage.wire.setaside import RecordSetAside, SetAsideResult
from ullage.wire.unavailable import UnavailableContent, UnavailableResult
from ullage.wire.upkeep import CheckReport
from ullage.wire.volumes import Volume
from ullage_agent.service.http.resources import Asked, Page, acts, answers, gives, serves


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
    served, sees = asked.served, asked.repository.acting.queues.allows
    found = served.repository.state()
    return msgspec.structs.replace(
        found,
        full_queues=[queue for queue in found.full_queues if sees(QueueUse.READ, queue)],
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


@serves(operations.LIST_UNAVAILABLE)
def unavailable(asked: Asked, limit: Page = 1_000) -> list[UnavailableContent]:
    return asked.repository.unavailable(limit)


@serves(operations.RETRY_UNAVAILABLE)
def retry_unavailable(asked: Asked) -> UnavailableResult:
    return UnavailableResult(flow_files=asked.repository.retry_unavailable())


@serves(operations.DROP_UNAVAILABLE)
def drop_unavailable(asked: Asked) -> UnavailableResult:
    ids, accept_loss = asked.data.ids, asked.data.accept_loss
    asked.served.audit.warning("unavailable contents dropped", owner=asked.owner, ids=len(ids))
    return UnavailableResult(flow_files=asked.repository.drop_unavailable(ids, accept_loss=accept_loss))


@serves(operations.LIST_SET_ASIDE)
def set_aside(asked: Asked, limit: Page = 1_000) -> list[RecordSetAside]:
    return asked.repository.set_aside(limit)


@serves(operations.LIST_VOLUMES)
def volumes(asked: Asked) -> list[Volume]:
    return asked.repository.volumes()


@serves(operations.FORGET_VOLUME)
def forget_volume(asked: Asked) -> Volume:
    container, accept_loss = asked.data.container, asked.data.accept_loss
    asked.served.audit.warning("volume forgotten", owner=asked.owner, container=container)
    return asked.repository.forget_volume(container, accept_loss=accept_loss)


@serves(operations.ACCEPT_CLOCK)
def accept_clock(asked: Asked) -> ClockStatus:
    asked.served.audit.warning("clock accepted", owner=asked.owner)
    return asked.repository.accept_clock()


@serves(operations.DROP_SET_ASIDE)
def drop_set_aside(asked: Asked) -> SetAsideResult:
    ids, accept_loss = asked.data.ids, asked.data.accept_loss
    asked.served.audit.warning("records set aside dropped", owner=asked.owner, ids=len(ids))
    return SetAsideResult(records=asked.repository.drop_set_aside(ids, accept_loss=accept_loss))


node = answers(
    operations.GET_NODE,
    lambda asked: bulk.node_identity(asked.repository, asked.served.host.spec.service.socket_path),
)
list_holders = answers(operations.LIST_HOLDERS, lambda asked: asked.repository.holders())
list_leases = answers(operations.LIST_LEASES, lambda asked: asked.repository.leases.all())
lease = answers(operations.GET_LEASE, lambda asked: asked.repository.leases.find(asked["lease"]))
release = acts(operations.RELEASE_LEASE, "released", lambda asked: asked.repository.leases.release)
checkpoint = answers(operations.CHECKPOINT, lambda asked: asked.repository.checkpoint())
