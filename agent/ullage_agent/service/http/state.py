"""How the service and its repository are: for people, for whoever watches, and for the operator."""

from typing import Any

import msgspec
from litestar import Request, Response, get

from ullage_agent import __version__
from ullage_agent.service.access import Verb
from ullage_agent.service.http.docs import problems
from ullage_agent.service.http.reclamation import ContainerShown, RunShown, run_of, totals_of
from ullage_agent.service.http.served import OPEN, Served, needs, served_by
from ullage_agent.windows import Verdict


class LogState(msgspec.Struct, frozen=True, kw_only=True):
    """The write-ahead log."""

    last_transaction: int
    durable_transaction: int
    snapshot_transaction: int
    bytes: int
    syncs: int


class State(msgspec.Struct, frozen=True, kw_only=True):
    """A repository at a glance. `poisoned` containers take no more writes until a restart."""

    version: str
    node: str
    name: str
    repository: str
    is_ready: bool
    is_stopping: bool
    now_millis: int
    log: LogState
    containers: list[ContainerShown]
    poisoned: list[str]
    flow_files: int
    queues: int
    full_queues: list[str]
    swap_files: int
    sessions: int
    leases: int
    remembered_answers: int
    provenance_waiting: int
    counters: dict[str, int]
    windows: list[Verdict]
    last_run: RunShown | None
    last_override: RunShown | None
    failures: list[str]


@get("/healthz", opt=OPEN, include_in_schema=True, media_type="text/plain")
async def healthz() -> str:
    """The process answers."""
    return "ok\n"


@get("/readyz", opt=OPEN, include_in_schema=True, media_type="text/plain", responses=problems())
async def readyz(request: Request[Any, Any, Any]) -> Response[str]:
    """Commits can succeed; 503 while the service is stopping, or after a failure that only a restart mends."""
    served = served_by(request)
    is_ready = served.host.is_ready and not served.is_stopping
    text, status = ("ok\n", 200) if is_ready else ("not ready\n", 503)
    return Response(text, status_code=status, media_type="text/plain")


@get("/v1/state", opt=needs(Verb.GET), responses=problems(), tags=["state"])
async def state(request: Request[Any, Any, Any]) -> State:
    """The repository at a glance."""
    served = served_by(request)
    return await served.call(_state, served)


def _state(served: Served) -> State:
    repository = served.repository
    figures = {queue.name: queue.figures() for queue in repository.queues.all()}
    runs = served.runs.all()
    overrides = [run for run in runs if run.wish.overrides_windows]
    return State(
        version=__version__,
        node=served.node,
        name=f"{served.host.document.metadata.namespace}/{served.host.document.metadata.name}",
        repository=repository.identity.repository,
        is_ready=served.host.is_ready,
        is_stopping=served.is_stopping,
        now_millis=repository.clock.now_millis(),
        log=LogState(
            last_transaction=repository.log.last_id,
            durable_transaction=repository.log.durable,
            snapshot_transaction=repository.log.snapshot_id,
            bytes=repository.log.log_bytes,
            syncs=repository.log.sync_count,
        ),
        containers=totals_of(repository).containers,
        poisoned=[name for name, each in repository.content.containers.items() if each.failure is not None],
        flow_files=sum(each.flow_files for each in figures.values()),
        queues=len(figures),
        full_queues=[queue.name for queue in repository.queues.all() if queue.is_full],
        swap_files=sum(each.swap_files for each in figures.values()),
        sessions=len(served.sessions),
        leases=len(repository.leases.all()),
        remembered_answers=len(repository.ledger.answers),
        provenance_waiting=repository.provenance.tail.events,
        counters=repository.counters(),
        windows=served.runs.verdicts(),
        last_run=run_of(runs[-1]) if runs else None,
        last_override=run_of(overrides[-1]) if overrides else None,
        failures=[f"{task}: {error}" for task, error in served.host.failures],
    )
