"""Decisions about thousands of nodes: their work grows as the fleet does."""

import json
import math
import sys
from collections.abc import Callable

import pytest

from tests.operator.scenes import RUN, SCENES
from tests.operator.support import changed, decided, fleet, node, report
from ullage.contract import TicketState, document_of
from ullage_operator.observation import Observation

EXPONENT_MAX = 1.1
RUN_BYTES_MAX = 100_000


def calls_of(seen: Observation) -> int:
    """How many functions were called, Python's own among them: a measure that no other process disturbs."""
    count = 0

    def profiler(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profiler)
    try:
        decided(seen)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES)
def test_a_decision_grows_as_the_fleet_does(scene: Callable[[int], Observation]) -> None:
    """From 500 nodes to 5,000: tickets for all, a run that all have ended, and pods in the way on all."""
    few, many = (calls_of(scene(count)) for count in (500, 5_000))

    assert math.log10(many / few) <= EXPONENT_MAX


def test_the_status_of_a_run_stays_small() -> None:
    """Of 5,000 nodes each of which failed with the longest message there is: all are counted, the worst are shown."""
    seen = fleet(5_000, runs=(RUN,))
    failed = report(TicketState.FAILED, run="r", message="\N{FIRE}" * 1024)

    status = decided(changed(seen, objects={name: node(name, report=failed) for name in seen.objects})).runs["r"]

    assert (status.nodes_done, status.nodes_failed) == (5_000, 5_000)
    assert len(status.results) > 10
    assert len(json.dumps(document_of(status))) < RUN_BYTES_MAX
