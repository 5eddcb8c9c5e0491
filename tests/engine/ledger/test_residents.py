"""A resource claim's totals are those of its base claims, whatever came and went; its bound is never too low."""

import gc
import random
import threading
import tracemalloc
from collections import Counter

import msgspec
import pytest

from ullage.engine.ledger.ledger import Ledger
from ullage.engine.ledger.placement import end_bound, end_in_use, settle_bound
from ullage.engine.ledger.resources import Residents, ResourceEntry
from ullage.engine.ledger.state import SwapContent
from ullage.engine.model import ContentClaim, FlowFileRecord, ResourceClaim

FILE = ResourceClaim(1, "c1", 1, length=1_000, sealed=True)


class WatchedLock:
    """A lock that tells when somebody comes for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.asked = threading.Event()

    def __enter__(self) -> None:
        self.asked.set()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def claim_at(offset: int, length: int = 10) -> ContentClaim:
    return ContentClaim(1, offset, length, 0)


def ledger_with(*claims: ContentClaim) -> Ledger:
    ledger = Ledger(lambda _: SwapContent([]))
    ledger.load([FILE])
    ledger.load(
        [
            FlowFileRecord(bytes([at]) * 16, 1, claim, 0, claim.length, 1, 1, 1, b"\x80")
            for at, claim in enumerate(claims)
        ]
    )
    return ledger


def entry_in(ledger: Ledger) -> ResourceEntry:
    entry = ledger.entry(1)
    assert entry is not None
    return entry


@pytest.mark.parametrize("count", [1, 2, 7, 8, 20])
def test_totals_are_those_of_the_claimants(seed: int, count: int) -> None:
    """Whatever came and went: counts, bytes and ends are those that a recount gives."""
    chooser = random.Random(seed)
    entry = ResourceEntry(FILE)
    claims = [claim_at(offset, chooser.randint(1, 10)) for offset in range(0, 10 * count, 10)]
    counts: Counter[ContentClaim] = Counter()
    for _ in range(1_000):
        claim = chooser.choice(claims)
        if counts[claim] and chooser.random() < 0.55:
            counts[claim] -= 1
            assert entry.remove(claim) == (not counts[claim])
        else:
            counts[claim] += 1
            entry.add(claim)
        living = {each for each, count in counts.items() if count}
        end = max((each.end for each in living), default=0)
        assert set(entry.residents().claims) == living
        assert (entry.residents().bytes, entry.residents().end) == (entry.live_bytes, end)
        assert (entry.resident_claimants, entry.has_residents) == (counts.total(), bool(living))
        assert (entry.claimants_of(claim.offset), entry.is_resident(claim.offset)) == (counts[claim], claim in living)
        assert entry.resident_bound == end if entry.is_bound_exact else entry.resident_bound >= end
        if chooser.random() < 0.1:
            entry.lower_bound_to(end)
        if chooser.random() < 0.1:
            assert entry.pack()


@pytest.mark.parametrize("count", [0, 1, 2, 7, 8, 20])
def test_what_a_snapshot_names_is_counted_once(seed: int, count: int) -> None:
    """Records come in the order of their uuids, and some of them name one base claim."""
    chooser = random.Random(seed)
    # One that lies where only wide columns reach.
    claims = [claim_at(offset << chooser.choice([0, 40]), chooser.randint(1, 10)) for offset in range(10, 10 + count)]
    named = [claim for claim in claims for _ in range(chooser.choice([1, 1, 3]))]
    chooser.shuffle(named)
    loaded, counted = ResourceEntry(FILE), ResourceEntry(FILE)
    loaded.begin_loading()
    for claim in named:
        loaded.add(claim)
        counted.add(claim)

    loaded.end_loading()

    for entry in (loaded, counted):
        assert set(entry.residents().claims) == set(claims)
        assert (entry.live_bytes, entry.claimants) == (sum(claim.length for claim in claims), len(named))
        assert (entry.resident_bound, entry.is_bound_exact) == (entry.residents().end, True)
    for claim in named:
        assert loaded.claimants_of(claim.offset) == counted.claimants_of(claim.offset)
        assert loaded.remove(claim) == counted.remove(claim)
    assert (loaded.has_residents, loaded.claimants, loaded.live_bytes) == (False, 0, 0)


def test_a_snapshot_that_is_read_tells_nothing_yet() -> None:
    """Nobody takes half of what is in use for all of it."""
    entry = ResourceEntry(FILE)
    entry.begin_loading()
    entry.add(claim_at(0))

    for look in (lambda: entry.claimants, lambda: entry.is_resident(0), entry.residents):
        with pytest.raises(AssertionError, match="a snapshot is being read"):
            look()


def test_only_what_is_sealed_is_packed() -> None:
    """What is being written would be a map again with the next content."""
    entry = ResourceEntry(msgspec.structs.replace(FILE, sealed=False))
    for offset in range(0, 20_000, 10):
        entry.add(claim_at(offset))

    assert not entry.pack()
    entry.claim = FILE
    before = set(entry.residents().claims)
    tracemalloc.start()
    assert entry.pack()
    gc.collect()  # tuples that are gone are kept for the next ones
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert taken < 2_000 * 20
    assert set(entry.residents().claims) == before


@pytest.mark.parametrize("others", [[], [claim_at(0)], [claim_at(0), claim_at(20)]])
@pytest.mark.parametrize("is_packed", [False, True])
def test_a_claim_that_is_not_there_is_not_taken_away(others: list[ContentClaim], *, is_packed: bool) -> None:
    """Whatever the log says: it would be another claim that dies."""
    entry = ResourceEntry(FILE)
    others = [*others, *(claim_at(offset) for offset in range(30, 130, 10) if is_packed)]
    for claim in others:
        entry.add(claim)
    assert entry.pack()

    with pytest.raises(KeyError):
        entry.remove(claim_at(10))

    assert sorted(claim.offset for claim in entry.residents().claims) == [claim.offset for claim in others]


def test_a_bound_is_lowered_when_the_last_claim_has_died() -> None:
    """By who looks for it, and a survey hears of it."""
    ledger = ledger_with(claim_at(0), claim_at(50))
    entry = entry_in(ledger)
    entry.remove(claim_at(50))
    before = end_bound(ledger, entry)
    ledger.take_changed()

    settle_bound(ledger, entry)

    assert (before, end_bound(ledger, entry), end_in_use(ledger, entry)) == (60, 10, 10)
    assert ledger.take_changed() == {1}  # a survey that has seen the bound is out of date


def test_a_bound_is_not_lowered_by_a_look_that_was_overtaken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that came whole between the look and the end of it counts."""
    ledger = ledger_with(claim_at(0), claim_at(80))
    entry = entry_in(ledger)
    entry.remove(claim_at(80))
    read = ResourceEntry.residents

    def overtaken(looked_at: ResourceEntry) -> Residents:
        found = read(looked_at)
        ledger.apply(1, 1, [FlowFileRecord(b"9" * 16, 1, claim_at(50), 0, 10, 1, 1, 1, b"\x80")])
        return found

    monkeypatch.setattr(ResourceEntry, "residents", overtaken)
    settle_bound(ledger, entry)

    assert end_bound(ledger, entry) >= 60


def test_a_bound_is_not_lowered_below_what_a_commit_brings_meanwhile() -> None:
    """Whoever lowers it may come in the middle of a commit.

    commit: noted |                     | claim at 50 there |
    bound:          | looks at all claims |                   | is 10, from now on
    """
    ledger = ledger_with(claim_at(0), claim_at(80))
    entry = entry_in(ledger)
    entry.remove(claim_at(80))
    lock = WatchedLock()
    ledger.lock = lock  # type: ignore[assignment]  # used with `with` alone here
    looking = threading.Thread(target=settle_bound, args=(ledger, entry))
    with lock:
        lock.asked.clear()
        ledger.note_changed(entry)
        looking.start()
        assert lock.asked.wait(30)
        entry.add(claim_at(50))
    looking.join(30)

    assert end_bound(ledger, entry) >= 60
