"""A node whose share somebody else writes, and which serves by no lease: it changes nothing any more, and is read."""

import threading
import typing
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from tests.shipping.held import HeldShare
from tests.shipping.test_restoration_resumes import SHIPPED
from tests.support import Workshop
from ullage.embedded.replication import Replication
from ullage.embedded.repository import EmbeddedRepository
from ullage.engine.maintenance import MaintenanceRunner
from ullage.engine.model import (
    Answer,
    ClaimBlocks,
    HandlePack,
    IndexCeiling,
    LeaseEnd,
    LeaseRecord,
    Operation,
    Relocation,
    ResourceClaim,
    ResourceClaimGone,
    RestingShares,
    RunFile,
    SetAside,
    SwapIn,
    SwapOut,
    Undrained,
)
from ullage.engine.servingright import CHANGES
from ullage.engine.shipping.adopting import adopt_share
from ullage.engine.shipping.logwriter import LogWriter
from ullage.engine.shipping.shareplace import EPOCH
from ullage.engine.wal.serde import SerDe
from ullage.errors import BucketUnavailable, NodeFenced

OWN: Final = {
    Answer,
    ClaimBlocks,
    HandlePack,
    IndexCeiling,
    LeaseEnd,
    LeaseRecord,
    Relocation,
    ResourceClaim,
    ResourceClaimGone,
    RestingShares,
    RunFile,
    SetAside,
    SwapIn,
    SwapOut,
    Undrained,
}
"""Where bytes and records lie, who reads them, and what was answered."""


class Shipping:
    """A repository that ships, whose thread is the test's."""

    def __init__(self, workshop: Workshop) -> None:
        self.clock = workshop.clock
        self.place = HeldShare()
        self.told: list[str] = []
        engine = self.engine = workshop.make(**SHIPPED)
        self.share = engine.identity.repository
        settings = engine.spec.replication
        self.replication = Replication(engine, self.place, "s3://held", "node-1", settings, self.tell)
        self.repository = EmbeddedRepository(engine, replication=self.replication)

    def tell(self, task: str, error: Exception) -> None:
        self.told.append(f"{task}: {error}")

    def adopted(self) -> None:
        adopt_share(self.place, self.share, "node-2", SerDe())

    def copied(self) -> None:
        """A copy of the root goes on by itself, which nobody has adopted."""
        LogWriter.begin(self.place, self.share, "node-2", SerDe())


@pytest.fixture
def shipping(workshop: Workshop) -> Iterator[Shipping]:
    made = Shipping(workshop)
    yield made
    made.engine.committer.right.end()


def test_every_operation_is_a_change_or_the_nodes_own_affair() -> None:
    """A new kind takes its place here first."""
    assert CHANGES.isdisjoint(OWN)
    assert set(typing.get_args(Operation)) == CHANGES | OWN


@pytest.mark.parametrize("taken", [Shipping.adopted, Shipping.copied])
def test_an_idle_node_that_was_followed_changes_nothing_more_and_is_read(
    shipping: Shipping, taken: Callable[[Shipping], None]
) -> None:
    """With its next look, and with nothing to ship. Whoever would change something is told who writes now, and what to
    do; nothing of that is written. What only it has is read, under leases too, and its own work goes on.
    """
    repository = shipping.repository
    assert shipping.replication.step()
    handle = repository.handles.put(b"handle")
    listed = repository.queues.put("q", b"listed")
    assert shipping.replication.step()
    session = repository.session()
    flow_file = session.get("q")
    assert flow_file is not None
    repository.handles.put(b"of this node alone")
    taken(shipping)
    assert not shipping.replication.step()
    last, [told] = shipping.engine.log.last_id, shipping.told

    def put_in_session() -> None:
        with repository.session() as another:
            another.transfer(another.create(), "other")
            another.commit()

    def take() -> None:
        session.remove(flow_file)
        session.commit()

    changes: list[Callable[[], object]] = [
        lambda: repository.handles.put(b"more"),
        lambda: repository.handles.delete(handle),
        lambda: repository.queues.put("q", b"more"),
        lambda: repository.queues.drop("q"),
        lambda: repository.session().get("q"),
        put_in_session,
        take,
    ]
    for change in changes:
        with pytest.raises(NodeFenced, match=r"node node-2 writes the share s3://held .*ullage rejoin ROOT s3://held"):
            change()
    assert shipping.engine.log.last_id == last
    assert shipping.replication.status().state == "fenced"
    assert not repository.state().is_ready

    session.close()
    assert repository.handles.get(handle) == b"handle"
    assert repository.content(listed).read() == b"listed"
    assert repository.leases.acquire(600_000).id
    maintenance = MaintenanceRunner(shipping.engine)
    shipping.clock.advance(86_400)
    assert "expire" in maintenance.run_due(is_heavy=False)
    assert maintenance.failures == []
    assert shipping.told == [told]


def test_nothing_else_tells_an_idle_node_of_its_successor(shipping: Shipping, monkeypatch: pytest.MonkeyPatch) -> None:
    """One request a step; without it a change is acknowledged long after the fence."""
    shipping.replication.step()
    shipping.place.requests.clear()
    assert shipping.replication.step()
    assert shipping.place.requests == [("get", EPOCH)]
    monkeypatch.setattr(LogWriter, "require_epoch", lambda _: None)
    shipping.adopted()
    assert shipping.replication.step()
    assert shipping.repository.handles.put(b"acknowledged, and lost with the node")


def test_whose_the_share_is_need_not_be_known_to_refuse(shipping: Shipping) -> None:
    """A bucket that says no more than that it is another's."""
    shipping.replication.step()
    shipping.repository.handles.put(b"of this node alone")
    shipping.copied()
    looks: list[str] = []

    def gone_behind_the_fence(kind: str, key: str) -> None:
        if (kind, key) == ("get", EPOCH):
            with pytest.raises(NodeFenced):  # by now, while it is asked whose it is
                shipping.repository.handles.put(b"more")
            looks.append(key)
            raise BucketUnavailable(key)

    shipping.place.fault = gone_behind_the_fence
    shipping.replication.step()
    assert looks
    with pytest.raises(NodeFenced, match="another node writes"):
        shipping.repository.handles.put(b"more")


def test_a_commit_on_its_way_when_the_fence_is_seen_is_of_what_only_this_node_has(
    shipping: Shipping, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Async promised that it is on the node's disk, and it is: it is answered, and can be read and brought over."""
    shipping.replication.step()
    shipping.repository.handles.put(b"so that indexes are reserved")
    wait, is_written, is_fenced = shipping.engine.log.wait_durable, threading.Event(), threading.Event()
    answers: list[str] = []

    def slow_disk(id: int) -> None:
        is_written.set()
        assert is_fenced.wait(30)
        wait(id)

    monkeypatch.setattr(shipping.engine.log, "wait_durable", slow_disk)
    thread = threading.Thread(target=lambda: answers.append(shipping.repository.handles.put(b"on its way")))
    thread.start()
    assert is_written.wait(30)
    monkeypatch.setattr(shipping.engine.log, "wait_durable", wait)
    shipping.adopted()
    shipping.replication.step()
    is_fenced.set()
    thread.join(30)

    (handle,) = answers
    assert shipping.repository.handles.get(handle) == b"on its way"
