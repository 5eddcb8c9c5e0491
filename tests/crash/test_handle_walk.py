"""A long random walk over handles alone, with many starts: what the state machine draws too seldom.

Handles that rest lie in runs on disk, whose blocks are kept in memory by the run's number: after a start numbers of
runs that were gone came anew, and one walk of ten found a handle that lived in a block of another run, where it is not.
"""

import os
import random
from typing import Any

import pytest

from tests.crash.explore import SEED
from tests.crash.steps import LARGE
from tests.crash.test_state_machine import RepositoryMachine

WALKS = int(os.environ.get("ULLAGE_WALKS", "40"))
STEPS = 60
SIZES = (0, 1, 40, 300, 1_500, LARGE)


def deed(machine: RepositoryMachine, chance: random.Random) -> str:
    """Something happens, with handles mostly; its name."""
    also = {"choice": chance}
    deeds = {
        "put_handle": 6,
        "rest": 4,
        "pack": 3,
        "delete_handle": 2,
        "undelete_handle": 2,
        "checkpoint": 2,
        "wait": 2,
        **dict.fromkeys(("kill", "reopen", "lose_power", "purge"), 1),
        **dict.fromkeys(("ingest", "drop", "compact", "clean", "truncate"), 1),
    }
    if not machine.live:
        del deeds["delete_handle"]
    if not machine.deleted:
        del deeds["undelete_handle"]
    (name,) = chance.choices(list(deeds), list(deeds.values()))
    given: dict[str, dict[str, Any]] = {
        "put_handle": {"size": chance.choice(SIZES), **also},
        "delete_handle": also,
        "undelete_handle": also,
        "lose_power": also,
        "wait": {"seconds": chance.choice([1, 30, 70])},
        "ingest": {"queue": "a", "wanted": chance.choices(SIZES, k=3), **also},
        "drop": {"queue": "a"},
        "compact": {"policy": chance.choice(["StatsBased", "CompactAll"])},
    }
    getattr(machine, name)(**given.get(name, {}))
    return name


@pytest.mark.timeout(1_200)
def test_each_handle_is_read_after_each_step() -> None:
    """By its id, whatever came before; at the end all of it is sound."""
    for number in range(WALKS):
        chance = random.Random(f"{SEED} {number}")
        machine = RepositoryMachine()
        machine.make()
        walked: list[str] = []
        for _ in range(STEPS):
            walked.append(deed(machine, chance))
            for id, data in machine.live.items():
                try:
                    with machine.open.handles.get(id) as stream:
                        assert stream.read() == data
                except Exception as error:
                    raise AssertionError(f"seed {SEED}, walk {number}, handle {id}, after {walked}") from error
        machine.require_sound()
        machine.teardown()
