"""Fleets of any size on which a decision has something to do for each node."""

from collections.abc import Callable
from typing import Final

from tests.operator.support import NOW, changed, fleet, node, report
from ullage.contract import RunSpec, RunStatus, TicketState, time_of
from ullage_operator.observation import Blockers, Observation, RunObject

EVERYWHERE: Final = {"maxConcurrentNodes": "100%"}
NIGHT: Final = {"name": "night", "schedule": "0 0 * * *", "duration": "3h"}
RUN: Final = RunObject(
    name="r", uid="uid of r", generation=1, created=time_of(NOW), spec=RunSpec(repository="flows"), status=RunStatus()
)


def waiting(count: int) -> Observation:
    """A window is open and a run goes on: there is a ticket for each node."""
    return fleet(count, {"maintenance": {**EVERYWHERE, "windows": [NIGHT]}}, runs=(RUN,))


def reported(count: int) -> Observation:
    """All have ended a run."""
    seen = fleet(count, {"maintenance": EVERYWHERE}, runs=(RUN,))
    done = report(TicketState.COMPLETED, run="r")
    return changed(seen, objects={name: node(name, report=done) for name in seen.objects})


def deferred(count: int) -> Observation:
    """Pods are in the way on all."""
    seen = fleet(count, {"maintenance": EVERYWHERE})
    return changed(seen, blockers=Blockers(by_node=dict.fromkeys(seen.objects, ("data/job",))))


SCENES: Final[dict[str, Callable[[int], Observation]]] = {
    "a ticket for each": waiting,
    "a run that all have ended": reported,
    "pods in the way on all": deferred,
}
