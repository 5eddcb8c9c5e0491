"""A seeded sample of all crash states: `make crash-full` explores every one."""

import os

import pytest

from tests.crash.explore import SEED, Recording, Tally, explore
from tests.crash.workloads import INIT, WORKLOADS
from tests.proof.figures import note

SAMPLE = float(os.environ.get("ULLAGE_CRASH_SAMPLE", "0.05"))
NESTED = float(os.environ.get("ULLAGE_CRASH_NESTED", "0.01"))
KILLS = float(os.environ.get("ULLAGE_CRASH_KILLS", "0.02"))

INIT_TIMES = 5
"""The init is short: its shares are larger by this factor."""

STATES_MIN = 110
"""For each workload; nineteen of them make the 2,000 that each run must explore."""


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", WORKLOADS)
def test_what_was_acknowledged_survives_a_crash_at_any_call(name: str) -> None:
    """Whatever a crash leaves, recovery gives the last acknowledged state or the next one whole; check is clean."""
    tally = Tally()
    recording = Recording(WORKLOADS[name])
    more = INIT_TIMES if name == INIT else 1

    explore(recording, SEED, tally, sample=SAMPLE * more, nested=NESTED * more, kills=KILLS * more)

    print(f"workload {name}, seed {SEED}: {len(recording.moments)} crash points, {tally}")
    note(workloads=1, once=tally.once, twice=tally.twice, killed=tally.killed)
    assert tally.states >= STATES_MIN


def test_there_are_enough_workloads() -> None:
    """Together the workloads explore at least 2,000 distinct crash states in each run."""
    assert len(WORKLOADS) * STATES_MIN >= 2000
