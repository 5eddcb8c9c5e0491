"""The process of an operator: it waits for definitions that fit, stands by until its turn, works as long as it is, and
makes room at its end.
"""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable

import kopf
import prometheus_client
from aiohttp import web

from ullage_operator import handlers, metrics
from ullage_operator.cluster.api import ApiClient, connection_of_this_process
from ullage_operator.definitions import Definitions
from ullage_operator.election import Election
from ullage_operator.objects import MANAGER
from ullage_operator.repository.reconcile import now_millis
from ullage_operator.settings import OperatorSettings


async def operate(settings: OperatorSettings) -> str:
    """Stand by until this process holds the lease, then work; why it works no longer, empty if it was told to end."""
    ends = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):  # until kopf does: the first process of a container is deaf to them
        asyncio.get_running_loop().add_signal_handler(number, ends.set)
    async with contextlib.AsyncExitStack() as ending:
        api = ApiClient(await connection_of_this_process(), settings)
        ending.push_async_callback(api.aclose)
        election = Election(api, settings.namespace, settings.lease, settings.identity)
        definitions = Definitions(api, settings, now_millis)
        metrics.WORKING.set_function(lambda: float(election.holds))
        if settings.metrics_port:
            server, _thread = prometheus_client.start_http_server(settings.metrics_port, registry=metrics.REGISTRY)
            ending.callback(server.server_close)
            ending.push_async_callback(asyncio.to_thread, server.shutdown)
        async with _healthy(settings.health_port, lambda: definitions.problem or election.problem):
            await _either(definitions.fitting(), ends)
            api.may_write = election.require
            await _either(election.won(), ends)
        ending.push_async_callback(election.release)
        return "" if ends.is_set() else await _work(settings, api, (_overtaken(election), definitions.misfit()), ends)


async def _work(
    settings: OperatorSettings, api: ApiClient, until: Iterable[Coroutine[None, None, str]], ends: asyncio.Event
) -> str:
    """Until one of these says why not to, or this process is told to end."""
    handlers.look_again_every(settings.resync_seconds)  # importing the module has registered the others
    watching = [asyncio.create_task(each) for each in until]
    for task in watching:
        task.add_done_callback(lambda _: ends.set())
    try:
        await kopf.operator(
            memo=kopf.Memo(settings=settings, api=api),
            # Else kopf asks for the user's name, and a container's user has none. Its type is not exported.
            identity=MANAGER,  # type: ignore[arg-type]
            clusterwide=not settings.namespaces,
            namespaces=settings.namespaces,
            liveness_endpoint=f"http://0.0.0.0:{settings.health_port}/healthz" if settings.health_port else None,
            stop_flag=ends,
        )
        return next((task.result() for task in watching if task.done()), "")
    finally:
        for task in watching:
            task.cancel()


async def _overtaken(election: Election) -> str:
    return f"{await election.lost()} holds the lease now"


async def _either(work: Coroutine[None, None, None], ends: asyncio.Event) -> None:
    """Returns when the work is done, or the process is to end: then the work is given up."""
    tasks = [asyncio.create_task(work), asyncio.create_task(ends.wait())]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result


@contextlib.asynccontextmanager
async def _healthy(port: int, problem: Callable[[], str]) -> AsyncIterator[None]:
    """Answers the kubelet until kopf does: well, as long as this process could take over."""

    async def answer(_: web.Request) -> web.Response:
        found = problem()
        return web.json_response({"election": found or "standing by"}, status=503 if found else 200)

    application = web.Application()
    application.router.add_get("/healthz", answer)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    if port:
        await web.TCPSite(runner, port=port).start()
    try:
        yield
    finally:
        await runner.cleanup()
