"""What a content repository promises, whoever made it: all that entry points name are tried."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support import TWO, ManualClock, RoomyFiles, containers, spec_at
from ullage.engine.byteranges import ByteRange, pack_ranges
from ullage.engine.content.protocol import IntentOutcome
from ullage.engine.content.writer import ContentWriter, WriterAdmission
from ullage.engine.model import Action, Lifetime, ResourceClaim
from ullage.engine.parts import RepositoryParts
from ullage.engine.repositories import CONTENT_REPOSITORIES, ContentStore
from ullage.engine.wal.serde import SerDe
from ullage.errors import BackPressure, ContentMissing, DiskFull

BLOCK = 4_096


class Stored:
    """One content repository beside a ledger that the test plays: what transactions recorded of resource claims."""

    def __init__(self, name: str, path: Path) -> None:
        path.mkdir()
        self._name = name
        self._path = path
        self.recorded: dict[int, ResourceClaim] = {}
        self.ceiling = 0
        self.store = self.opened()
        self.store.prepare({})

    def opened(self, **sections: Any) -> ContentStore:
        """Another one at the same place, behind all indexes that were reserved."""
        parts = RepositoryParts(RoomyFiles(), ManualClock(), spec_at(self._path, **sections), SerDe(), "r")
        store = CONTENT_REPOSITORIES.load(self._name)(parts, self._reserve)
        store.start_after(self.ceiling)
        return store

    def renew(self, **sections: Any) -> None:
        """Another process, with other settings, and new containers if it says so."""
        self.store.close()
        self.store = self.opened(**sections)
        self.store.prepare({"c1": "c1"})
        assert not self.store.away

    def writer(self) -> ContentWriter:
        return WriterAdmission(self.store, ManualClock(), bool).new_writer()

    def commit(self, *contents: bytes) -> ResourceClaim:
        """One transaction of a writer, which fits into one resource claim."""
        writer = self.writer()
        claims = [writer.put(content).claim for content in contents]
        self.record(*writer.sync())
        writer.release(committed=True)
        self.record(*self.store.take_seals())
        (index,) = {claim.resource for claim in claims if claim is not None}
        return self.recorded[index]

    def sealed(self, *contents: bytes) -> ResourceClaim:
        """The same, and nothing is appended to it any more."""
        index = self.commit(*contents).index
        self.store.retire_idle()
        self.record(*self.store.take_seals())
        assert self.recorded[index].sealed
        return self.recorded[index]

    def record(self, *operations: object) -> None:
        """A transaction's resource claims."""
        self.recorded |= {each.index: each for each in operations if isinstance(each, ResourceClaim)}

    def read(self, claim: ResourceClaim) -> bytes:
        with self.store.reading(claim) as file:
            return file.read(1 << 20, 0)

    def _reserve(self, ceiling: int) -> None:
        assert ceiling > self.ceiling
        self.ceiling = ceiling


@pytest.fixture(params=CONTENT_REPOSITORIES.names(), ids=lambda name: name or "files")
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Iterable[Stored]:
    """One of each kind that there is."""
    made = Stored(request.param, tmp_path / "r")
    yield made
    made.store.close()


def test_what_was_written_reads_back_where_it_was_written(stored: Stored) -> None:
    """Small contents side by side, a large one on a block of its own, and the same through a descriptor."""
    claim = stored.commit(b"one", b"two", b"L" * (1 << 20))

    data = b"onetwo".ljust(BLOCK, b"\0") + b"L" * (1 << 20)
    with stored.store.reading(claim) as file:
        assert file.read(len(data) + 9, 0) == data
        halves = bytearray(3), bytearray(2)
        assert file.read_into([memoryview(half) for half in halves], 1) == 5
        assert b"".join(halves) == b"netwo"
    descriptor = stored.store.open_descriptor(claim)
    try:
        assert os.pread(descriptor, 6, 0) == b"onetwo"
    finally:
        os.close(descriptor)
    assert stored.store.length_of(claim) == stored.store.container_of(claim).bytes_used == len(data)


def test_a_resource_claim_has_one_writer_at_a_time_and_ends_at_its_limits(stored: Stored) -> None:
    """One that is given back is taken again until it is full; those in hand are nobody else's."""
    first = stored.commit(b"a")
    taken, other = stored.writer(), stored.writer()
    one, two = taken.put(b"b").claim, other.put(b"c").claim

    assert one is not None
    assert two is not None
    assert one.resource == first.index != two.resource
    assert sorted(claim.index for claim in stored.store.open_claims()) == sorted([one.resource, two.resource])
    for writer in (taken, other):
        stored.record(*writer.sync())
        writer.release(committed=True)
    full = stored.commit(b"x" * 60_000)
    assert full.sealed
    assert stored.commit(b"d").index != full.index


def test_what_no_transaction_names_is_taken_back(stored: Stored) -> None:
    """A new resource claim goes; one that was recorded is cut back to what was, and sealed by the next transaction."""
    kept = stored.commit(b"kept")
    writer = stored.writer()
    writer.put(b"x" * 60_000)
    claim = writer.put(b"y", Lifetime.SHORT).claim
    assert claim is not None
    writer.flush()
    writer.release(committed=False)

    (seal,) = stored.store.take_seals()
    assert (seal.index, seal.sealed, seal.length) == (kept.index, True, 4)
    assert stored.read(seal) == b"kept"
    assert stored.store.container_of(seal).bytes_used == 4 + stored.store.open_lengths().get(claim.resource, 0)
    stored.store.return_seals([seal])
    assert stored.store.take_seals() == [seal]


def test_containers_take_turns_within_their_quotas(stored: Stored) -> None:
    """The next one that has room, DiskFull where none ever has, and writers wait where all are nearly full."""
    stored.renew(storage=TWO)
    writers = [stored.writer() for _ in range(4)]
    claims = [writer.put(b"x").claim for writer in writers]
    named = {claim.index: claim.container for claim in stored.store.open_claims()}
    assert sorted(named[claim.resource] for claim in claims if claim is not None) == ["c1", "c1", "c2", "c2"]
    for writer in writers:
        writer.release(committed=False)
    stored.renew(storage=containers(c1=1_000, c2=2_000), archive={"backpressure_percentage": 55})
    with pytest.raises(DiskFull, match="2001"):
        stored.writer().put(b"x" * 2_001)
    assert stored.commit(b"x" * 1_500).container == "c2"
    assert stored.commit(b"x" * 600).container == "c1"
    assert not stored.store.has_room()
    with pytest.raises(BackPressure, match=r"c1 60\.0%, c2 75\.0%"):
        stored.writer().put(b"x")


def _with(claim: ResourceClaim, action: Action, **fields: Any) -> ResourceClaim:
    return msgspec.structs.replace(claim, intent=action, **fields)


def test_intents_are_carried_out_once_however_often_they_are_told(stored: Stored) -> None:
    """A crash may come before, amid or after: what is live stays, what was given back is gone for good."""
    cut, punched, archived, removed = [stored.sealed(bytes([65 + n]) * 3 * BLOCK) for n in range(4)]
    hole = pack_ranges([ByteRange(BLOCK, BLOCK)])
    intents = [
        _with(cut, Action.TRUNCATE, intent_length=BLOCK),
        _with(punched, Action.PUNCH, intent_holes=hole),
        _with(archived, Action.ARCHIVE),
        _with(removed, Action.DELETE),
    ]

    can_punch = stored.store.container_of(punched).can_punch()
    for _ in range(2):
        outcomes = stored.store.carry_out(intents)
        assert outcomes[1] is (IntentOutcome.DONE if can_punch else IntentOutcome.IMPOSSIBLE)
        assert [outcomes[0], *outcomes[2:]] == [IntentOutcome.DONE] * 3

    assert stored.read(cut) == b"A" * BLOCK
    middle = bytes(BLOCK) if can_punch else b"B" * BLOCK
    assert stored.read(punched) == b"B" * BLOCK + middle + b"B" * BLOCK
    assert stored.read(archived) == b"C" * 3 * BLOCK
    assert stored.store.length_of(msgspec.structs.replace(archived, archived_millis=1)) == 3 * BLOCK
    assert stored.store.length_of(removed) is None
    with pytest.raises(ContentMissing, match=f"resource claim {removed.index} is missing"):
        stored.read(removed)
    for action in (Action.TRUNCATE, Action.PUNCH, Action.ARCHIVE):
        assert stored.store.carry_out([_with(removed, action, intent_holes=hole)]) == [IntentOutcome.MISSING]
    assert stored.store.carry_out([_with(removed, Action.REWRITE)]) == [IntentOutcome.DONE]


def test_an_output_stands_beside_its_sources_and_takes_no_fresh_content(stored: Stored) -> None:
    """It ends where it is said to; without a commit it goes, and from a container that is emptied it is elsewhere."""
    source = stored.sealed(b"x" * 100)
    output, other = (stored.store.begin_output(source, 100, 7) for _ in range(2))
    assert output is not None
    assert other is not None
    assert (output.claim.container, output.claim.created_millis) == (source.container, 7)

    output.file.write(b"survivors and more", 0)
    output.end_at(9)
    stored.store.sync_output(output)
    kept, gone = output.registration(is_sealed=True), other.claim
    stored.store.close_output(output, committed=True)
    stored.store.close_output(other, committed=False)

    assert stored.read(kept) == b"survivors"
    assert stored.store.length_of(gone) is None
    assert stored.commit(b"fresh").index not in (kept.index, gone.index)
    one, two = TWO["containers"]
    stored.renew(storage={"containers": (msgspec.structs.replace(one, evacuate=True), two)})
    moved = stored.store.begin_output(source, 100, 7)
    assert moved is not None
    assert moved.container.name == "c2"
    stored.store.close_output(moved, committed=False)


def test_a_restart_finds_what_was_synced_or_nothing(stored: Stored) -> None:
    """Under indexes that are not used again. What was written is sealed where it ends, and what no record names is
    found, and made durable; a volatile one begins with nothing.
    """
    claim = stored.commit(b"kept")
    writer = stored.writer()
    stray = writer.put(b"stray", Lifetime.SHORT).claim
    writer.flush()
    assert stray is not None
    assert stored.store.orphans(stored.recorded.get) == []  # what is being written is none
    writer.abandon()
    stored.renew()

    assert stored.commit(b"fresh").index > max(claim.index, stray.resource)
    found = stored.store.orphans(stored.recorded.get)
    if stored.store.is_volatile:
        assert stored.store.length_of(claim) is None
        assert found == []
        return
    assert stored.read(claim) == b"kept"
    seal = stored.store.seal(claim)
    assert (seal.sealed, seal.length, seal.generation) == (True, 4, claim.generation + 1)
    (orphan,) = (orphan for orphan in found if orphan.length)
    assert orphan.claim is not None
    assert (orphan.claim.index, orphan.length, orphan.is_adoptable) == (stray.resource, 5, True)
    stored.store.make_durable(found)
    assert stored.read(orphan.claim) == b"stray"


def test_what_is_read_stays_open_while_it_is_removed(stored: Stored) -> None:
    """Whoever reads already reads to the end; whoever comes later is told."""
    claim = stored.sealed(b"content")

    with stored.store.reading(claim) as file:
        assert stored.store.carry_out([_with(claim, Action.DELETE)]) == [IntentOutcome.DONE]
        assert file.read(7, 0) == b"content"
    with pytest.raises(ContentMissing):
        stored.read(claim)
