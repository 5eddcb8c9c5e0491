"""A seeded sample of all crash states: `make crash-full` explores every one."""

import os
import random
from collections.abc import Sequence

import pytest

from tests.crash.explore import SEED, Recording, Tally, explore
from tests.crash.workloads import INIT, WORKLOADS
from tests.proof.figures import note

IS_WHOLE = "ULLAGE_CRASH_SAMPLE" in os.environ
"""Whether all moments are looked at: the share of their crash states is chosen then."""

MOMENTS = 160
"""So many of a workload's are drawn otherwise: the longest has nine times as many, and would take as many minutes."""

SAMPLE = float(os.environ.get("ULLAGE_CRASH_SAMPLE", "0.05"))
NESTED = float(os.environ.get("ULLAGE_CRASH_NESTED", "0.01"))
KILLS = float(os.environ.get("ULLAGE_CRASH_KILLS", "0.02"))

INIT_TIMES = 5
"""The init is short: its shares are larger by this factor."""

STATES_MIN = 80
"""For each workload; twenty-five of them make the 2,000 that each run must explore."""


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", WORKLOADS)
def test_what_was_acknowledged_survives_a_crash_at_any_call(name: str) -> None:
    """Whatever a crash leaves, recovery gives the last acknowledged state or the next one whole; check is clean."""
    tally = Tally()
    recording = Recording(WORKLOADS[name])
    more = INIT_TIMES if name == INIT else 1

    moments: Sequence[int] = range(len(recording.moments))
    if not IS_WHOLE and len(moments) > MOMENTS:
        moments = sorted(random.Random(SEED).sample(moments, MOMENTS))

    explore(recording, SEED, tally, sample=SAMPLE * more, nested=NESTED * more, kills=KILLS * more, moments=moments)

    print(f"workload {name}, seed {SEED}: {len(moments)} of {len(recording.moments)} crash points, {tally}")
    note(workloads=1, once=tally.once, twice=tally.twice, killed=tally.killed)
    assert tally.states >= STATES_MIN


def test_there_are_enough_workloads() -> None:
    """Together the workloads explore at least 2,000 distinct crash states in each run."""
    assert len(WORKLOADS) * STATES_MIN >= 2000
