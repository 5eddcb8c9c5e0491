"""Snapshots of tables: what of them counts, and what one that could not be taken leaves."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.service.flight.peer import Peer
from tests.support import Workshop
from ullage.embedded.tables import Moment
from ullage.errors import ServiceBusy
from ullage.wire.tickets import SnapshotRequest
from ullage_agent.service.access import ANONYMOUS
from ullage_agent.service.flight import snapshots
from ullage_agent.service.flight.snapshots import Snapshots
from ullage_agent.service.limits import Limits


@pytest.fixture
def peer(workshop: Workshop) -> Iterator[Peer]:
    made = Peer(workshop.make(), limits=Limits(snapshots=1))
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
