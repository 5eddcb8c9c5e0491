"""kopf's side: the process, the finalizer, health. Everything else is reconcile.py's, which knows no kopf."""

import asyncio
import contextlib
from typing import Any, Final

import kopf
import prometheus_client
import structlog

from ullage_operator.cluster.api import ApiClient, connection_of_this_process
from ullage_operator.errors import OperatorError
from ullage_operator.metrics import REGISTRY
from ullage_operator.objects import RepositoryObject
from ullage_operator.repository.reconcile import Reconciler
from ullage_operator.repository.removal import removed
from ullage_operator.settings import OperatorSettings

PREFIX: Final = "operator.ullage.dev"
RETRY_SECONDS: Final = 5.0


@kopf.on.startup()
async def start(memo: kopf.Memo, settings: kopf.OperatorSettings, **_: Any) -> None:
    """Begin."""
    _configure(settings)
    own: OperatorSettings = memo.settings
    memo.ending = ending = contextlib.AsyncExitStack()
    memo.api = ApiClient(await connection_of_this_process(), own)
    ending.push_async_callback(memo.api.aclose)
    memo.reconciler = Reconciler(memo.api, own)
    ending.push_async_callback(memo.reconciler.stop)
    if own.metrics_port:
        server, _thread = prometheus_client.start_http_server(own.metrics_port, registry=REGISTRY)
        ending.callback(server.server_close)
        ending.push_async_callback(asyncio.to_thread, server.shutdown)
    await memo.reconciler.start()


@kopf.on.cleanup()
async def stop(memo: kopf.Memo, **_: Any) -> None:
    """End what has begun, in reverse: kopf comes here too when `start` failed halfway."""
    if "ending" in memo:
        await memo.ending.aclose()


@kopf.on.probe(id="workers")
async def health(memo: kopf.Memo, **_: Any) -> str:
    """An exception here makes the liveness probe fail."""
    if problem := memo.reconciler.problem:
        raise OperatorError(problem)
    return "alive"


@kopf.on.delete("ullage.dev", "v1alpha1", "contentrepositories")
async def remove(memo: kopf.Memo, body: kopf.Body, **_: Any) -> None:
    """Holds the finalizer until nothing is left that the cluster would not clean up itself."""
    plain = {key: dict(value) if hasattr(value, "items") else value for key, value in dict(body).items()}
    repository = RepositoryObject.of(plain)
    try:
        waits = await removed(memo.api, memo.reconciler.cache, repository, memo.settings)
    except OperatorError as error:
        await _told(memo, repository, error=str(error))
        raise kopf.TemporaryError(str(error), delay=RETRY_SECONDS) from error
    if waits:
        await _told(memo, repository, waits=waits)
        raise kopf.TemporaryError(f"waits for {waits}", delay=RETRY_SECONDS)
    structlog.get_logger("removal").info("removed", repository=repository.name, namespace=repository.namespace)


async def _told(memo: kopf.Memo, repository: RepositoryObject, **said: str) -> None:
    """In its status, as long as there is one."""
    try:
        await memo.reconciler.tell_removal(repository, **said)
    except OperatorError as error:
        structlog.get_logger("removal").warning("not told", repository=repository.name, problem=str(error))


def _configure(settings: kopf.OperatorSettings) -> None:
    """Kopf's defaults collide with those of other operators, and would wait too long."""
    settings.persistence.finalizer = f"{PREFIX}/finalizer"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=PREFIX)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=PREFIX)
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 330
    settings.posting.enabled = False  # apply.py tells events, and does not repeat itself
    settings.peering.standalone = True  # one replica, and Recreate
    # `start` has listed our kinds before kopf looks for them: it need not read definitions, which would take a right.
    settings.scanning.disabled = True
