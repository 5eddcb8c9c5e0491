"""The process of an operator: it stands by until its turn, works as long as it is, and makes room at its end."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Coroutine

import kopf
import prometheus_client
from aiohttp import web

from ullage_operator import handlers, metrics
from ullage_operator.cluster.api import ApiClient, connection_of_this_process
from ullage_operator.election import Election
from ullage_operator.objects import MANAGER
from ullage_operator.settings import OperatorSettings


async def operate(settings: OperatorSettings) -> str:
    """Stand by until this process holds the lease, then work; who took it, empty if it was told to end."""
    ends = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):  # until kopf does: the first process of a container is deaf to them
        asyncio.get_running_loop().add_signal_handler(number, ends.set)
    async with contextlib.AsyncExitStack() as ending:
        api = ApiClient(await connection_of_this_process(), settings)
        ending.push_async_callback(api.aclose)
        election = Election(api, settings.namespace, settings.lease, settings.identity)
        api.may_write = election.require
        metrics.WORKING.set_function(lambda: float(election.holds))
        if settings.metrics_port:
            server, _thread = prometheus_client.start_http_server(settings.metrics_port, registry=metrics.REGISTRY)
            ending.callback(server.server_close)
            ending.push_async_callback(asyncio.to_thread, server.shutdown)
        async with _healthy(settings.health_port, election):
            await _either(election.won(), ends)
        ending.push_async_callback(election.release)
        return "" if ends.is_set() else await _work(settings, api, election, ends)


async def _work(settings: OperatorSettings, api: ApiClient, election: Election, ends: asyncio.Event) -> str:
    handlers.look_again_every(settings.resync_seconds)  # importing the module has registered the others
    renewing = asyncio.create_task(election.lost())
    renewing.add_done_callback(lambda _: ends.set())
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
        return renewing.result() if renewing.done() else ""
    finally:
        renewing.cancel()


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
async def _healthy(port: int, election: Election) -> AsyncIterator[None]:
    """Answers the kubelet until kopf does: well, as long as this process could take over."""

    async def answer(_: web.Request) -> web.Response:
        said = {"election": election.problem or "standing by"}
        return web.json_response(said, status=503 if election.problem else 200)

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
