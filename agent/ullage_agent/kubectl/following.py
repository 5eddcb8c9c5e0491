"""What was asked of the operator, followed to its end."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ullage.contract import RunPhase
from ullage_agent.cli.exits import ExitCode
from ullage_agent.cli.output import bar, say
from ullage_agent.kubectl.cluster import RUNS, Cluster, Object
from ullage_agent.kubectl.fleet import condition
from ullage_agent.kubectl.trouble import Trouble

LOOK_SECONDS: Final = 1.0
"""Between two looks: each is one small request."""

ENDED: Final = (RunPhase.COMPLETED, RunPhase.FAILED)


def followed(cluster: Cluster, plural: str, name: str, timeout: float) -> Object:
    """The object when it has ended. Trouble when that takes longer than one would wait, or needs a person first."""
    deadline, shown = time.monotonic() + timeout, f"{plural.removesuffix('s')}/{name}"
    with bar("nodes done", None, is_bytes=False) as drawn:
        while True:
            found = cluster.find(plural, cluster.namespace, name)
            status = found.get("status") or {}
            drawn.reach(status.get("nodesDone", 0), status.get("nodes") or None)
            if status.get("phase") in ENDED:
                return found
            why = status.get("message") or "the operator has not begun it: is it running?"
            if plural != RUNS and condition(status, "Stalled") == "True":
                raise Trouble(f"{shown} cannot begin: {why}", ExitCode.CLOSED)
            if time.monotonic() > deadline:
                raise Trouble(f"{shown} has not ended in {timeout:g} s: {why}", ExitCode.UNREACHABLE)
            time.sleep(LOOK_SECONDS)


@contextmanager
def going_on(cluster: Cluster, plural: str, name: str, what: str) -> Iterator[None]:
    """Whoever waits no longer is told how to stop it."""
    try:
        yield
    except (KeyboardInterrupt, Trouble):
        stop = f"kubectl delete {plural.removesuffix('s')} {name} -n {cluster.namespace}"
        say(f"{what} that has not ended goes on; `{stop}` stops it")
        raise
