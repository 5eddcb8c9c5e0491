"""`ullage nifi watch`: a survey every so often, beside a NiFi that runs, as metrics for Prometheus."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import click
from prometheus_client import start_http_server

from ullage.clock import Clock
from ullage.errors import UllageError
from ullage.nifi.surveying import survey_nifi
from ullage_agent.cli.nifi_metrics import NiFiMetrics
from ullage_agent.cli.output import say, tell, visible

if TYPE_CHECKING:
    from ullage.nifi.home import NiFiHome


class NiFiWatch:
    """Surveys one after the other until it is told to stop; none that fails ends it."""

    def __init__(self, find: Callable[[], NiFiHome], queues: int, every_seconds: float) -> None:
        """`find`: where NiFi's repositories are, asked each time: a NiFi may be moved, or not be there yet."""
        self.metrics = NiFiMetrics(queues, time.monotonic)
        self._find = find
        self._every = every_seconds
        self._trouble = ""

    def run(self) -> NoReturn:
        """For ever. A survey that takes longer than the interval is followed by the next one at once."""
        while True:
            seconds = self.survey()
            time.sleep(max(0.0, self._every - seconds))

    def survey(self) -> float:
        """One; what becomes of it is in the metrics. How long it took."""
        trouble, found, home = "", None, None
        self.metrics.begin()
        try:
            home = self._find()
            self.metrics.find(home.containers)
            found = survey_nifi(home, Clock(), 0)
        except Exception as error:  # noqa: BLE001 - whatever a disk does to it: it is told, and the next may succeed
            trouble = str(error) if isinstance(error, UllageError | OSError) else repr(error)
            if home is None:
                self.metrics.find(None)
        self._tell(trouble)
        return self.metrics.end(found)

    def _tell(self, trouble: str) -> None:
        """Once when it begins, and once when it is over: a line a minute would bury everything else."""
        if trouble and trouble != self._trouble:
            say(visible(f"the survey failed: {trouble}"))
        elif self._trouble and not trouble:
            say("the survey works again")
        self._trouble = trouble


class AddressOption(click.ParamType[tuple[str, int]]):
    """Where to listen, such as 127.0.0.1:9464 or [::]:9464."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        host, _, port = str(value).rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not host or not port.isdecimal() or int(port) > 65_535:
            self.fail(
                f"{value!r} is no address: say 127.0.0.1:9464, or 0.0.0.0:9464 for all of this machine", param, ctx
            )
        return host, int(port)


def watch(find: Callable[[], NiFiHome], listen: tuple[str, int], queues: int, every_seconds: float) -> None:
    """Serve the metrics until SIGTERM or Ctrl-C."""
    watching = NiFiWatch(find, queues, every_seconds)
    address, port = listen
    try:
        server, _ = start_http_server(port, address, watching.metrics.registry)
    except OSError as error:
        raise click.UsageError(f"can't listen on {address}:{port}: {error.strerror or error}") from error
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    shown = f"[{address}]" if ":" in address else address
    tell(f"metrics on http://{shown}:{server.server_port}/metrics, a survey every {every_seconds:g} s")
    try:
        watching.run()
    finally:
        server.shutdown()
        server.server_close()


def _end(*_: object) -> None:
    """At once: whatever is under way only reads."""
    raise SystemExit(0)
