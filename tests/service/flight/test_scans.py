"""Scans: each share is read by one slot, near it where that can be, and the same slot reads the same again."""

import random
import threading
from collections import Counter

import pytest

from ullage.wire.tickets import ScanHome, SlotShare, SlotState
from ullage_agent.service.snapshots import Scan


def scan_of(patience_seconds: float = 3.0, **shares: int) -> Scan:
    return Scan({name: ScanHome(shares=count, where=f"at {name}") for name, count in shares.items()}, patience_seconds)


def test_a_slot_gets_a_share_of_its_own_home() -> None:
    """And the same one again, also for a copy of it that runs elsewhere."""
    scan = scan_of(a=2, b=2)

    first = scan.bind(7, ["b"], 0.0)
    other = scan.bind(3, ["a"], 0.0)

    assert first == SlotShare(state=SlotState.READ, home="b", share=0, shares=2, where="at b")
    assert other.home == "a"
    assert scan.bind(7, ["a"], 99.0) == first
    assert scan.bind(1, ["b"], 0.0) == SlotShare(state=SlotState.READ, home="b", share=1, shares=2, where="at b")


def test_who_has_none_left_waits_for_a_home_whose_readers_are_at_work() -> None:
    """Until these have stayed away for as long as the scan is patient; then their shares are everybody's."""
    scan = scan_of(3.0, a=1, b=3)
    assert scan.bind(0, ["a"], 10.0).home == "a"
    assert scan.bind(1, ["b"], 10.5).home == "b"

    assert scan.bind(2, ["a"], 13.4).state == SlotState.WAIT
    assert scan.bind(2, ["a"], 13.5).home == "b"
    assert scan.bind(3, ["b"], 14.0).home == "b"
    assert scan.bind(4, ["a"], 14.1).state == SlotState.NONE


def test_nobody_waits_for_a_home_without_readers_longer_than_once() -> None:
    """It counts from the first question, however long the executors took to start."""
    scan = scan_of(3.0, a=1, b=3)
    scan.bind(0, ["a"], 100.0)

    assert scan.bind(1, ["a"], 102.9).state == SlotState.WAIT
    assert [scan.bind(slot, ["a"], 103.0).home for slot in (1, 2, 3)] == ["b"] * 3


@pytest.mark.parametrize("near", [[], ["elsewhere"]])
def test_a_reader_that_is_near_nothing_waits_for_nobody(near: list[str]) -> None:
    """It takes from whoever has most left."""
    scan = scan_of(a=1, b=3)

    assert [scan.bind(slot, near, 0.0).home for slot in range(4)] == ["b", "b", "b", "a"]
    assert scan.bind(4, near, 0.0).state == SlotState.NONE


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_each_share_is_read_by_one_slot_whoever_asks_when(seed: int) -> None:
    """Many readers at once, some of them twice, with a few more slots than shares: none is lost, none is double."""
    print("seed", seed)
    shares = {"a": 5, "b": 1, "c": 9}
    scan = scan_of(0.0, **shares)
    slots = [*range(18), *range(18)]
    random.Random(seed).shuffle(slots)
    found: dict[int, set[SlotShare]] = {slot: set() for slot in slots}
    barrier = threading.Barrier(4)

    def run(mine: list[int]) -> None:
        drawn = random.Random(seed * 100 + len(mine))
        barrier.wait()
        for slot in mine:
            found[slot].add(scan.bind(slot, drawn.choice([["a"], ["b"], ["c"], []]), 1.0))

    threads = [threading.Thread(target=run, args=(slots[at::4],)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    read = Counter((b.home, b.share) for bounds in found.values() for b in bounds if b.state == SlotState.READ)
    assert read == Counter({(name, share): 1 for name, count in shares.items() for share in range(count)})
    assert all(len({b for b in bounds if b.state == SlotState.READ}) <= 1 for bounds in found.values())
