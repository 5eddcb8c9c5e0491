"""Snapshots of tables: what of them counts, and what one that could not be taken leaves."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.service.flight.peer import Peer
from tests.support import Workshop
from ullage.embedded.tables import Moment
from ullage.errors import ServiceBusy
from ullage.wire.tickets import SnapshotRelease, SnapshotRequest
from ullage_agent.service.access import ANONYMOUS
from ullage_agent.service.flight import snapshots
from ullage_agent.service.flight.snapshots import SNAPSHOT_BYTES, Snapshots
from ullage_agent.service.limits import Limits


@pytest.fixture
def peer(workshop: Workshop) -> Iterator[Peer]:
    made = Peer(workshop.make(), limits=Limits(snapshot_bytes=SNAPSHOT_BYTES))
    yield made
    made.close()


def test_one_that_is_being_taken_counts(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else many that are taken at the same time would all find room."""
    kept = Snapshots(peer.terms)
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
    kept = Snapshots(peer.terms)

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


def test_what_dies_beside_a_snapshot_counts(workshop: Workshop) -> None:
    """Small ones are as many as there is room for; of one that alone keeps what it shows there is soon enough."""
    repository = workshop.make()
    with repository.session() as session:
        records = session.ingest("in", [b""] * 2_000, {"name": "x" * 100})
        session.commit()
    few = 12 * SNAPSHOT_BYTES
    peer = Peer(repository, limits=Limits(snapshot_bytes=few))
    kept = Snapshots(peer.terms)
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
