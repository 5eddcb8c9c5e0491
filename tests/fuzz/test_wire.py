"""Hostile bytes over every transport: the agent lives, a good client goes on, and nobody else's bytes come back.

`make fuzz-full MINUTES=10 SEED=` goes on for so long; a failing seed replays.
"""

import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.fuzz.corpus import SEED
from tests.fuzz.hostile import Agent, attacked
from tests.fuzz.wirebytes import calls, http_bytes, socket_bytes

MINUTES: Final = float(os.environ.get("ULLAGE_FUZZ_MINUTES", "0"))
CASES: Final = 150
"""Of a sample, for each transport: some seconds."""

EACH_GOOD: Final = 50
"""So many hostile cases lie between two looks at the good client."""

Attack = Callable[[Agent], None]


def over_flight(chance: random.Random) -> Iterator[Attack]:
    for call in calls(chance):
        yield lambda agent, call=call: agent.call(call)  # type: ignore[misc]


def over_http(chance: random.Random) -> Iterator[Attack]:
    while True:
        yield lambda agent: agent.say(http_bytes(chance, agent.token))


def over_the_socket(chance: random.Random) -> Iterator[Attack]:
    while True:
        yield lambda agent: agent.frame(socket_bytes(chance, agent.token))


@pytest.mark.parametrize("attacks", [over_flight, over_http, over_the_socket])
def test_hostile_bytes_get_nothing(attacks: Callable[[random.Random], Iterator[Attack]], tmp_path: Path) -> None:
    """Valid bytes with other offsets, lengths, types and counts end in refusals, and nothing is stored of them."""
    ends = time.monotonic() + MINUTES * 60 / 3
    seed, total = SEED, 0
    while True:
        print(f"seed {seed}")
        (tmp_path / str(seed)).mkdir()
        total += attacked_once(attacks, seed, tmp_path / str(seed))
        print(f"{attacks.__name__}: {total} cases, {max(0.0, ends - time.monotonic()):.0f} s left")
        if time.monotonic() >= ends:
            share = "a sample, which is one seed" if not MINUTES else f"{MINUTES / 3:.1f} minutes, a third of them"
            print(f"{attacks.__name__}: {share}; seeds {SEED} to {seed}")
            return
        seed += 1


def attacked_once(attacks: Callable[[random.Random], Iterator[Attack]], seed: int, directory: Path) -> int:
    """One agent's life: so many cases of a seed."""
    chance = random.Random(seed)
    with attacked(directory, chance) as agent:
        for number, attack in zip(range(CASES), attacks(chance), strict=False):
            try:
                attack(agent)
                if number % EACH_GOOD == 0:
                    agent.ask_well()
            except BaseException as error:
                error.add_note(f"seed {seed}, case {number}: ULLAGE_FUZZ_SEED={seed} replays it")
                raise
        agent.ask_well()
        agent.require_clean()
    return CASES
