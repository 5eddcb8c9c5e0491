"""Snapshots of tables: what of them counts, and what one that could not be taken leaves."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.service.flight.peer import Peer
from tests.support import Workshop
from ullage.embedded.tables import Moment
from ullage.errors import QuotaReached, ServiceBusy
from ullage.wire.tickets import ScanHome, ScanRequest, SlotRequest, SlotState, SnapshotRelease, SnapshotRequest
from ullage_agent.service import snapshots
from ullage_agent.service.access import ANONYMOUS, Principal
from ullage_agent.service.limits import Limits
from ullage_agent.service.snapshots import SNAPSHOT_BYTES, Snapshots


@pytest.fixture
def peer(workshop: Workshop) -> Iterator[Peer]:
    made = Peer(workshop.make(), limits=Limits(snapshot_bytes=SNAPSHOT_BYTES))
    yield made
    made.close()


def test_one_that_is_being_taken_counts(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else many that are taken at the same time would all find room."""
    kept = Snapshots(peer.terms.repository, peer.terms.limits, peer.terms.actors)
    refused: list[Exception] = []

    def taken_meanwhile(*given: Any) -> Moment:
        with pytest.raises(ServiceBusy, match="1 snapshots are kept already") as caught:
            kept.take(ANONYMOUS, SnapshotRequest())
        refused.append(caught.value)
        return Moment(*given)

    with monkeypatch.context() as patch:
        patch.setattr(snapshots, "Moment", taken_meanwhile)
        first = kept.take(ANONYMOUS, SnapshotRequest())

    assert len(refused) == 1
    kept.close()
    assert kept.take(ANONYMOUS, SnapshotRequest()).id != first.id
    kept.close()


def test_one_that_cannot_be_taken_keeps_neither_its_place_nor_its_lease(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one has both."""
    kept = Snapshots(peer.terms.repository, peer.terms.limits, peer.terms.actors)

    def fails(*_: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(snapshots, "Moment", fails)
        with pytest.raises(MemoryError):
            kept.take(ANONYMOUS, SnapshotRequest(holds=True))

    assert peer.embedded.leases.all() == []
    kept.take(ANONYMOUS, SnapshotRequest(holds=True))
    assert len(peer.embedded.leases.all()) == 1
    kept.close()


def test_scans_of_a_snapshot_and_their_slots_count_as_it_does(workshop: Workshop) -> None:
    """They are refused once they come to the quota; what is refused leaves nothing, and what there is goes on."""
    limits = Limits(snapshot_bytes=6 * SNAPSHOT_BYTES, snapshot_bytes_each=3 * SNAPSHOT_BYTES)
    peer, hostile, good = Peer(workshop.make(), limits=limits), Principal("hostile"), Principal("good")
    kept = Snapshots(peer.terms.repository, peer.terms.limits, peer.terms.actors)

    def scan(snapshot: str, name: str, text: int = 0) -> str:
        homes = {"a": ScanHome(shares=100_000, where="x" * text)}
        kept.scan(hostile, ScanRequest(snapshot=snapshot, scan=name, homes=homes))
        return name

    def bind(snapshot: str, slot: int) -> SlotState:
        return kept.bind(hostile, SlotRequest(snapshot=snapshot, scan="s", slot=slot)).state

    first = kept.take(hostile, SnapshotRequest()).id
    with pytest.raises(QuotaReached, match="snapshot_bytes_each"):
        all(scan(first, f"{number}", 4_096) for number in range(60))
    with pytest.raises(QuotaReached):
        kept.take(hostile, SnapshotRequest())
    assert kept.take(good, SnapshotRequest()).id

    kept.release(hostile, SnapshotRelease(id=first))
    second = kept.take(hostile, SnapshotRequest()).id
    scan(second, "s")
    with pytest.raises(QuotaReached, match="snapshot_bytes_each"):
        all(bind(second, slot) for slot in range(1_000))
    assert bind(second, 0) is SlotState.READ  # it has its share already
    scan(second, "s")  # it is known
    kept.close()
    peer.close()


def test_what_dies_beside_a_snapshot_counts(workshop: Workshop) -> None:
    """Small ones are as many as there is room for; of one that alone keeps what it shows there is soon enough."""
    repository = workshop.make()
    with repository.session() as session:
        records = session.ingest("in", [b""] * 2_000, {"name": "x" * 100})
        session.commit()
    few = 12 * SNAPSHOT_BYTES
    peer = Peer(repository, limits=Limits(snapshot_bytes=few))
    kept = Snapshots(peer.terms.repository, peer.terms.limits, peer.terms.actors)
    try:
        first = kept.take(ANONYMOUS, SnapshotRequest())
        sizes = [each.held_bytes for each in kept._kept.values()]
        assert sizes[0] < 2 * SNAPSHOT_BYTES
        for _ in range(8):
            kept.release(ANONYMOUS, SnapshotRelease(id=kept.take(ANONYMOUS, SnapshotRequest()).id))
            kept.take(ANONYMOUS, SnapshotRequest())
        with repository.session() as session:
            session.remove_many(session.get_many("in", len(records)))
            session.commit()
        assert next(iter(kept._kept.values())).held_bytes > sizes[0] + 2_000 * 500
        with pytest.raises(ServiceBusy, match="9 snapshots are kept already, in"):
            kept.take(ANONYMOUS, SnapshotRequest())
        for each in list(kept._kept):
            kept.release(ANONYMOUS, SnapshotRelease(id=each))
        assert kept.take(ANONYMOUS, SnapshotRequest()).id != first.id
    finally:
        kept.close()
        peer.close()
