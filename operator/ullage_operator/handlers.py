"""kopf's side: the process, its health, and what becomes of our kinds, each of which makes a repository due.

A pass is long, and about a whole repository: a thousand agents that report at once make one. So handlers note what
they were told and return, and reconcile.py, which knows no kopf, makes the passes: kopf tells nothing more of an object
while a handler of it runs, not even its deletion. What agents say in ContentRepositoryNodes is followed by informers
alone, with everything else: their heartbeats are changes of status, which kopf hands to no such handler.
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final

import aiohttp
import kopf
import structlog

from ullage_operator.cluster.api import PAGE
from ullage_operator.errors import OperatorError
from ullage_operator.objects import Object, RepositoryObject
from ullage_operator.persistence import HandledSpecs, UnfinishedProgress
from ullage_operator.repository.reconcile import Reconciler
from ullage_operator.repository.removal import RepositoryRemoval

PREFIX: Final = "operator.ullage.dev"
RETRY_SECONDS: Final = 5.0
WATCH_SECONDS: Final = 600
"""How long kopf keeps a watch. One that is silent is begun anew before; the rest is what beginning costs."""

DEAF_SECONDS: Final = 180.0
"""How long kopf may be behind: its handlers wait for the API server, which may be slow or away for a while."""

BACKOFF_SECONDS: Final = (1.0, 1.0, 2.0, 3.0, 5.0)
"""How long kopf waits before it tries a request again; the last one again and again."""

REPOSITORIES: Final = ("ullage.dev", "v1alpha1", "contentrepositories")
RUNS: Final = ("ullage.dev", "v1alpha1", "reclamationruns")
BACKUPS: Final = ("ullage.dev", "v1alpha1", "contentbackups")
RESTORES: Final = ("ullage.dev", "v1alpha1", "contentrestores")


class Backoffs:
    """Never exhausted, and begun anew by each request."""

    def __iter__(self) -> Iterator[float]:
        return itertools.chain(BACKOFF_SECONDS, itertools.repeat(BACKOFF_SECONDS[-1]))


class Hearing:
    """Whether kopf still hears of repositories: what our informer has of one must come to kopf as well. A stream of
    kopf's that ends takes nothing with it, and nothing but `Unprocessed streams left` is logged: the process lives,
    renews its lease and makes its passes, while nothing that is new gets a finalizer and nothing that was deleted goes.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told: dict[str, int] = {}
        self._since: dict[str, float] = {}

    def told(self, metadata: Mapping[str, Any]) -> None:
        """Kopf has heard of an object, in this version."""
        self._told[metadata["uid"]] = int(metadata["resourceVersion"])

    def forget(self, uid: str) -> None:
        """It is gone."""
        self._told.pop(uid, None)

    def problem(self, repositories: Iterable[Object]) -> str:
        """Which repository kopf has not heard of for too long, as the informer has it; empty if there is none."""
        now, before, self._since = self._clock(), self._since, {}
        for found in repositories:
            metadata = found["metadata"]
            uid = metadata["uid"]
            if self._told.get(uid, -1) < int(metadata["resourceVersion"]):
                self._since[uid] = since = before.get(uid, now)
                if now - since > DEAF_SECONDS:
                    return f"kopf has not heard of {metadata['namespace']}/{metadata['name']} for {now - since:.0f} s"
        return ""


@kopf.on.login()
async def login(memo: kopf.Memo, **given: Any) -> kopf.AiohttpSession | None:
    """As kopf does by itself, but over a session that writes nothing while another process may be at work, tries again
    what conflicts, and ends watches that are silent.
    """
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

    async def again(_session: object, _context: object, answered: aiohttp.TraceRequestEndParams) -> None:
        connection = answered.response.connection
        if "watch" in answered.url.query and connection is not None and connection.protocol is not None:
            connection.protocol.read_timeout = memo.settings.silence_seconds
            connection.protocol.start_timeout()
        # Kopf drops what it was about to do when a patch conflicts, and comes back to it when the object changes. Its
        # patches name no version: a conflict is the API server's own, which lost a race for the object too often.
        if answered.response.status == HTTPStatus.CONFLICT:
            answered.response.close()
            raise aiohttp.ClientConnectionError(f"{answered.method} {answered.url.path}: 409 Conflict")

    tracing = aiohttp.TraceConfig()
    tracing.on_request_start.append(fence)
    tracing.on_request_end.append(again)
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
    memo.handled, memo.hearing = HandledSpecs(), Hearing()
    configure(settings, memo.handled)
    memo.reconciler = Reconciler(memo.api, memo.settings)
    await memo.reconciler.start()


@kopf.on.cleanup()
async def stop(memo: kopf.Memo, **_: Any) -> None:
    """End what has begun: kopf comes here too when `start` failed halfway."""
    if "reconciler" in memo:
        await memo.reconciler.stop()


@kopf.on.probe(id="workers")
async def health(memo: kopf.Memo, **_: Any) -> str:
    """An exception here makes the liveness probe fail."""
    deaf = memo.hearing.problem(memo.reconciler.cache.repositories.objects.values())
    if problem := memo.reconciler.problem or deaf:
        raise OperatorError(problem)
    return "alive"


@kopf.on.resume(*REPOSITORIES)
@kopf.on.create(*REPOSITORIES)
@kopf.on.update(*REPOSITORIES)
async def repository(memo: kopf.Memo, body: kopf.Body, **_: Any) -> None:
    """It is there, or its spec, its labels or its annotations changed. Not its status: that is our own doing."""
    memo.reconciler.repository_changed(dict(body))


@kopf.on.resume(*RUNS)
@kopf.on.create(*RUNS)
@kopf.on.update(*RUNS)
async def run(memo: kopf.Memo, body: kopf.Body, **_: Any) -> None:
    """Somebody wants a reclamation now, or wants it otherwise. It needs no finalizer: whoever deletes it need not wait
    for us.
    """
    memo.reconciler.run_changed(dict(body))


@kopf.on.resume(*BACKUPS)
@kopf.on.create(*BACKUPS)
@kopf.on.update(*BACKUPS)
async def backup(memo: kopf.Memo, body: kopf.Body, **_: Any) -> None:
    """Somebody wants backups, or wants them otherwise. It needs no finalizer: what lies in the bucket stays."""
    memo.reconciler.backup_changed(dict(body))


@kopf.on.resume(*RESTORES)
@kopf.on.create(*RESTORES)
@kopf.on.update(*RESTORES)
async def restore(memo: kopf.Memo, body: kopf.Body, **_: Any) -> None:
    """Somebody wants a node to begin with a backup. It needs no finalizer: what was brought back stays."""
    memo.reconciler.restore_changed(dict(body))


def look_again_every(seconds: float) -> None:
    """Have kopf's timer make each repository due though nothing was heard of it: what a lost event costs at most."""

    @kopf.timer(*REPOSITORIES, interval=seconds, initial_delay=seconds)
    async def again(memo: kopf.Memo, namespace: str | None, name: str, **_: Any) -> None:
        memo.reconciler.look_again((namespace, name))


@kopf.on.delete(*REPOSITORIES)
async def remove(memo: kopf.Memo, body: kopf.Body, retry: int, **_: Any) -> None:
    """Holds the finalizer until nothing is left that the cluster would not clean up itself."""
    if not retry:  # others may have what it leaves
        memo.reconciler.repository_changed(dict(body))
    repository = RepositoryObject.of(dict(body))
    try:
        step = await RepositoryRemoval(memo.api, memo.reconciler.cache, repository, memo.settings).step()
        if step.stays:
            await memo.reconciler.tell_stays(repository, step)
    except OperatorError as error:
        await _told(memo, repository, error=str(error))
        raise kopf.TemporaryError(str(error), delay=RETRY_SECONDS) from error
    if step.waits:
        await _told(memo, repository, waits=step.waits)
        raise kopf.TemporaryError(f"waits for {step.waits}", delay=RETRY_SECONDS)
    structlog.get_logger("removal").info("removed", repository=repository.name, namespace=repository.namespace)


@kopf.on.event(*REPOSITORIES)
@kopf.on.event(*RUNS)
@kopf.on.event(*BACKUPS)
@kopf.on.event(*RESTORES)
async def seen(memo: kopf.Memo, event: kopf.RawEvent, uid: str, **_: Any) -> None:
    """Of what is gone nothing is kept. Informers make its repository due, which also find out what went unheard."""
    memo.hearing.told(event["object"]["metadata"])
    if event["type"] == "DELETED":
        memo.handled.forget(uid)
        memo.hearing.forget(uid)


async def _told(memo: kopf.Memo, repository: RepositoryObject, **said: str) -> None:
    """In its status, as long as there is one."""
    try:
        await memo.reconciler.tell_removal(repository, **said)
    except OperatorError as error:
        structlog.get_logger("removal").warning("not told", repository=repository.name, problem=str(error))


def configure(settings: kopf.OperatorSettings, handled: HandledSpecs) -> None:
    """Kopf's defaults collide with those of other operators, and would wait too long."""
    settings.persistence.finalizer = f"{PREFIX}/finalizer"
    settings.persistence.progress_storage = UnfinishedProgress(prefix=PREFIX)
    settings.persistence.diffbase_storage = handled
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    # After the last one kopf would drop what it was doing: a removal would stand until its next watch, minutes later.
    settings.networking.error_backoffs = Backoffs()
    settings.watching.chunk_size = PAGE
    settings.watching.server_timeout = WATCH_SECONDS
    settings.watching.client_timeout = WATCH_SECONDS + 30
    # Never, for the client's comes first: `login` ends watches that are silent. Kopf's own way is a timer that cancels
    # its task while that is busy with an event as well, and then nobody hears anything of this kind any more: with a
    # silence of 0.3 s, and events about as often, after half a minute.
    settings.watching.inactivity_timeout = 2 * WATCH_SECONDS
    settings.posting.enabled = False  # apply.py tells events, and does not repeat itself
    settings.peering.standalone = True  # of several processes only the one that holds the lease comes here
    # `start` has listed our kinds before kopf looks for them: it need not read definitions, which would take a right.
    settings.scanning.disabled = True
