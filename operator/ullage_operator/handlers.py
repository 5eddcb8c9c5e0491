"""kopf's side: the process, the finalizer, health. Everything else is reconcile.py's, which knows no kopf."""

import asyncio
from typing import Any, Final

import kopf
import prometheus_client
import structlog

from ullage_operator.api import Api, Connection
from ullage_operator.errors import OperatorError
from ullage_operator.metrics import REGISTRY
from ullage_operator.observe import Wish
from ullage_operator.reconcile import Reconciler
from ullage_operator.removal import removed
from ullage_operator.settings import Settings, settings_from

PREFIX: Final = "operator.ullage.dev"
RESOURCE: Final = ("ullage.dev", "v1alpha1", "contentrepositories")
RETRY_SECONDS: Final = 5.0


@kopf.on.startup()
async def start(memo: kopf.Memo, settings: kopf.OperatorSettings, **_: Any) -> None:
    """Begin."""
    _configure(settings)
    own: Settings = memo.get("settings") or settings_from()
    memo.own = own
    memo.api = Api(Connection.of_this_process(), own.writes_at_once, own.silence_seconds)
    memo.reconciler = Reconciler(memo.api, own)
    if own.metrics_port:
        memo.metrics, _thread = prometheus_client.start_http_server(own.metrics_port, registry=REGISTRY)
    await memo.reconciler.start()


@kopf.on.cleanup()
async def stop(memo: kopf.Memo, **_: Any) -> None:
    """End."""
    if "reconciler" in memo:
        await memo.reconciler.stop()
    if "api" in memo:
        await memo.api.close()
    if "metrics" in memo:
        await asyncio.to_thread(memo.metrics.shutdown)
        memo.metrics.server_close()


@kopf.on.probe(id="workers")
async def health(memo: kopf.Memo, **_: Any) -> str:
    """An exception here makes the liveness probe fail."""
    if problem := memo.reconciler.problem:
        raise OperatorError(problem)
    return "alive"


@kopf.on.delete(*RESOURCE)
async def remove(memo: kopf.Memo, body: kopf.Body, **_: Any) -> None:
    """Holds the finalizer until nothing is left that the cluster would not clean up itself."""
    try:
        waits = await removed(memo.api, memo.reconciler.seen, Wish.of(_plain(body)), memo.own.agent_image)
    except OperatorError as error:
        raise kopf.TemporaryError(str(error), delay=RETRY_SECONDS) from error
    if waits:
        raise kopf.TemporaryError(f"waits for {waits}", delay=RETRY_SECONDS)
    structlog.get_logger("removal").info("removed", repository=body.metadata.name, namespace=body.metadata.namespace)


def _plain(body: kopf.Body) -> dict[str, Any]:
    return {key: dict(value) if hasattr(value, "items") else value for key, value in dict(body).items()}


def _configure(settings: kopf.OperatorSettings) -> None:
    """Kopf's defaults collide with those of other operators, and would wait too long."""
    settings.persistence.finalizer = f"{PREFIX}/finalizer"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=PREFIX)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=PREFIX)
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 330
    settings.posting.enabled = False  # events are told by events.py, which does not repeat itself
    settings.peering.standalone = True  # one replica, and Recreate
    # `start` has listed our kinds before kopf looks for them: it need not read definitions, which would take a right.
    settings.scanning.disabled = True
