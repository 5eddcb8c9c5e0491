"""kopf's side: the process, the finalizer, health. Everything else is reconcile.py's, which knows no kopf."""

import asyncio
from typing import Any, Final

import aiohttp
import kopf
import structlog

from ullage_operator.errors import OperatorError
from ullage_operator.objects import RepositoryObject
from ullage_operator.repository.reconcile import Reconciler
from ullage_operator.repository.removal import removed
from ullage_operator.settings import OperatorSettings

PREFIX: Final = "operator.ullage.dev"
RETRY_SECONDS: Final = 5.0


@kopf.on.login()
async def login(memo: kopf.Memo, **given: Any) -> kopf.AiohttpSession | None:
    """As kopf does by itself, but over a session that writes nothing while another process may be at work."""
    info = await asyncio.to_thread(kopf.login_via_client, **given)
    known: tuple[kopf.ConnectionInfo | None, kopf.AiohttpSession | None] = memo.get("login", (None, None))
    if info is None or info == known[0]:
        return known[1]  # kopf knows it again, and does not try for ever what was refused

    async def fence(_session: object, _context: object, asked: aiohttp.TraceRequestStartParams) -> None:
        try:
            if asked.method != "GET":
                memo.api.may_write()
        except OperatorError as error:
            raise aiohttp.ClientConnectionError(str(error)) from error  # of those that kopf tries again

    tracing = aiohttp.TraceConfig()
    tracing.on_request_start.append(fence)
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context()),
        headers=info.as_http_headers(),
        trust_env=info.trust_env,
        trace_configs=[tracing],
    )
    made = kopf.AiohttpSession(server=info.server, aiohttp_session=session, default_namespace=info.default_namespace)
    memo.login = info, made
    return made


@kopf.on.startup()
async def start(memo: kopf.Memo, settings: kopf.OperatorSettings, **_: Any) -> None:
    """Begin."""
    _configure(settings)
    own: OperatorSettings = memo.settings
    memo.reconciler = Reconciler(memo.api, own)
    await memo.reconciler.start()


@kopf.on.cleanup()
async def stop(memo: kopf.Memo, **_: Any) -> None:
    """End what has begun: kopf comes here too when `start` failed halfway."""
    if "reconciler" in memo:
        await memo.reconciler.stop()


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
    settings.peering.standalone = True  # of several processes only the one that holds the lease comes here
    # `start` has listed our kinds before kopf looks for them: it need not read definitions, which would take a right.
    settings.scanning.disabled = True
