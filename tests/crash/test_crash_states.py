"""A seeded sample of all crash states: `make crash-full` explores every one."""

import os

import pytest

from tests.crash.explore import Tally, explore, record
from tests.crash.workloads import WORKLOADS

SEED = int(os.environ.get("ULLAGE_CRASH_SEED", "20261121"))
"""Printed with every failure; the environment repeats or varies a run."""

SAMPLE = float(os.environ.get("ULLAGE_CRASH_SAMPLE", "0.3"))
NESTED = float(os.environ.get("ULLAGE_CRASH_NESTED", "0.01"))


@pytest.mark.parametrize("name", WORKLOADS)
def test_what_was_acknowledged_survives_a_crash_at_any_call(name: str) -> None:
    """Whatever a crash leaves, recovery gives the last acknowledged state or the next one whole; check is clean."""
    tally = Tally()

    explore(record(WORKLOADS[name]), SEED, tally, sample=SAMPLE, nested=NESTED)

    print(f"workload {name}, seed {SEED}: {tally.states} distinct crash states recovered")
    assert tally.states > 100
