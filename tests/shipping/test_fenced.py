"""A node whose share somebody else writes, and which serves by no lease: it changes nothing any more, and is read."""

import threading
import typing
from collections.abc import Callable, Iterator
from typing import Final

import pytest

import ullage
from tests.shipping.explored import Program, Replayed, explore, is_epoch
from tests.shipping.held import HeldShare, gone
from tests.shipping.test_fence import SERDE, SHARE
from tests.shipping.test_publishing import FIRST, at_first
from tests.shipping.test_restoration_resumes import SHIPPED
from tests.support import Workshop
from ullage.embedded.replication import Replication, fence_as_noted, take_share
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
from ullage.engine.servingright import CHANGES, ServingRight
from ullage.engine.shipping import ownwriters
from ullage.engine.shipping.adopting import adopt_share, owner_of
from ullage.engine.shipping.logwriter import LogWriter
from ullage.engine.shipping.ownwriters import forget_writers, noted, noted_fence
from ullage.engine.shipping.shareplace import EPOCH, Taken
from ullage.engine.wal.serde import SerDe
from ullage.errors import BucketRefused, BucketUnavailable, NodeFenced

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
    repository.handles.put(b"of this node alone", ttl_millis=60_000)
    repository.queues.define("short", expiration_millis=60_000)
    repository.queues.put("short", b"of this node alone, too")
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
    assert "purge" in maintenance.run_due(is_heavy=False)
    assert maintenance.failures == []
    cleaned = repository.reclamation.clean()
    assert (cleaned.purged_handles, cleaned.expired_flow_files) == (0, 0)
    assert repository.queues.find("short").flow_files == 1
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


def begun_again(made: Shipping) -> Replication:
    """Of the same root, as after a kill."""
    fence_as_noted(made.engine)
    return Replication(made.engine, made.place, "s3://held", "node-1", made.engine.spec.replication, made.tell)


@pytest.mark.parametrize("is_seen", [True, False])
def test_a_start_does_not_take_back_a_share_that_a_copy_has_taken(shipping: Shipping, is_seen: bool) -> None:
    """Whether it was seen before or not; where it was, nothing is changed before the bucket has answered either. Only
    if somebody says so it is taken.
    """
    shipping.replication.step()
    shipping.repository.handles.put(b"kept")
    shipping.replication.step()
    shipping.copied()
    epoch = shipping.place.objects[EPOCH]
    if is_seen:
        shipping.replication.step()

    for _ in range(2):
        shipping.engine.committer.right = shipping.repository.acting.right = ServingRight()
        shipping.place.fault = gone
        again = begun_again(shipping)
        assert not again.step()
        assert shipping.engine.committer.right.is_given is not is_seen
        shipping.place.fault = lambda _kind, _key: None
        assert not again.step()
        assert again.status().state == "fenced"
        assert "node-2 has taken it since" in again.status().problem
        assert not shipping.engine.committer.right.is_given
        assert shipping.place.objects[EPOCH] == epoch
        is_seen = True

    forget_writers(shipping.engine.files, shipping.engine.root)
    shipping.engine.committer.right = ServingRight()
    again = begun_again(shipping)
    assert again.step()
    assert shipping.engine.committer.right.is_given
    assert owner_of(shipping.place, shipping.share).owner == "node-1"


@pytest.mark.parametrize("at", ["put", "was put", "list"])
def test_a_start_takes_the_share_from_itself_whatever_became_of_the_last_try(shipping: Shipping, at: str) -> None:
    """A put that was lost, one that nobody heard of, one that is only known to be there: over and over, in this process
    and the next.
    """

    def cut(kind: str, key: str) -> None:
        if kind == at and key in (EPOCH, "log"):
            shipping.place.fault = gone  # from here on: whether it is there nobody can see
            raise BucketUnavailable(key)

    for _ in range(3):
        again = begun_again(shipping)
        for _ in range(2):
            shipping.place.fault = cut
            assert not again.step()
        shipping.place.fault = lambda _kind, _key: None
        assert again.step()
    note = noted(shipping.engine.files, shipping.engine.root, shipping.place.name)
    assert note is not None
    assert len(note.nonces) < 5


def test_a_try_that_comes_late_is_the_roots_own(shipping: Shipping) -> None:
    """It lies in the way of the next one, which is begun once more."""
    shipping.replication.step()
    late: list[tuple[str, bytes]] = []

    def hold_back(place: HeldShare, key: str, data: bytes, tag: str) -> None:
        late.append((key, data))
        raise BucketUnavailable(key)

    put_over = HeldShare.put_over
    again = begun_again(shipping)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HeldShare, "put_over", hold_back)
        assert not again.step()

    def comes(place: HeldShare, key: str, data: bytes, tag: str) -> None:
        if late:
            place.objects.update([late.pop()])
        put_over(place, key, data, tag)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HeldShare, "put_over", comes)
        assert not again.step()
        assert again.status().state == "failing"
        assert again.step()


def test_a_root_that_was_put_back_is_told_that_its_own_name_is_there(shipping: Shipping) -> None:
    """Who has one node only is not sent to look for another of that name."""
    shipping.replication.step()
    LogWriter.begin(shipping.place, shipping.share, "node-1", SerDe())
    shipping.replication.step()
    with pytest.raises(NodeFenced, match=r"node node-1, by its name this one .*put back\), writes"):
        shipping.repository.handles.put(b"more")


def coming_back(number: int) -> Program:
    """A start of one of two roots, each a copy of the other, of which the first writer was one."""

    def run(place: Replayed, told: list[bytes]) -> None:
        LogWriter.begin(place, SHARE, f"node-{number}", SERDE, f"{number:016x}", own={FIRST.nonce})
        told.append(b"takes it")

    return run


def one_goes_on(_: dict[str, bytes], told: list[list[bytes]]) -> None:
    """Of the two."""
    assert [] in told, told


def test_of_two_copies_one_goes_on_in_every_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """With every fault that may befall `epoch`; without a look at whose it was both do."""
    programs = [coming_back(2), coming_back(3)]
    found = explore(programs, one_goes_on, 1, begins=at_first(), is_faulty=is_epoch)
    assert found.ends > 10
    monkeypatch.setattr("ullage.engine.shipping.logwriter._require_own", lambda *_: None)
    with pytest.raises(AssertionError):
        explore(programs, one_goes_on, 0, begins=at_first())


def test_a_share_that_somebody_emptied_fences_nobody(shipping: Shipping) -> None:
    """Nobody else goes on with the repository: it is served and changed, told to fail, and shipped anew once opened."""
    shipping.replication.step()
    shipping.repository.handles.put(b"kept")
    shipping.replication.step()
    shipping.place.objects.clear()

    assert not shipping.replication.step()
    assert shipping.replication.status().state == "failing"
    assert "epoch is gone" in shipping.replication.status().problem
    shipping.repository.handles.put(b"more")

    def taken_by_nobody(kind: str, key: str) -> None:
        if (kind, key) == ("put", EPOCH):
            raise Taken

    again = begun_again(shipping)
    shipping.place.fault = taken_by_nobody  # as by a gateway whose notes outlast the files that somebody removed
    assert not again.step()
    assert again.status().state == "failing"
    shipping.place.fault = lambda _kind, _key: None
    assert again.step()
    assert owner_of(shipping.place, shipping.share).owner == "node-1"


def test_a_night_of_refused_tries_fences_nobody(shipping: Shipping, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many nonces are forgotten, that of whom the share is stays."""
    monkeypatch.setattr(ownwriters, "NONCES_MAX", 3)
    shipping.replication.step()

    def refuse(kind: str, key: str) -> None:
        if (kind, key) == ("put", EPOCH):
            raise BucketRefused("403")

    shipping.place.fault = refuse
    for _ in range(9):
        assert not begun_again(shipping).step()
    shipping.place.fault = lambda _kind, _key: None

    assert begun_again(shipping).step()


def test_a_fenced_root_is_read_only_whoever_opens_it(workshop: Workshop, shipping: Shipping) -> None:
    """Also without spec.replication, as the command line does; until somebody says that nobody else goes on."""
    shipping.replication.step()
    handle = shipping.repository.handles.put(b"kept")
    shipping.replication.step()
    shipping.copied()
    shipping.replication.step()
    shipping.engine.committer.right.end()
    workshop.shut()

    for _ in range(2):
        with ullage.open(workshop.path) as repository:
            assert repository.handles.get(handle) == b"kept"
            with pytest.raises(NodeFenced, match=r"node-2 writes the share s3://held.*--take-share"):
                repository.handles.put(b"more")
    take_share(str(workshop.path))
    with ullage.open(workshop.path) as repository:
        assert repository.handles.put(b"more")


def test_a_fence_outlasts_another_url(shipping: Shipping) -> None:
    """And the way back: the share that it had is still somebody else's, and so is the repository."""
    shipping.replication.step()
    shipping.copied()
    shipping.replication.step()
    shipping.engine.committer.right = shipping.repository.acting.right = ServingRight()
    shipping.place = HeldShare()
    shipping.place.name = "s3://other"

    assert not begun_again(shipping).step()

    with pytest.raises(NodeFenced, match="s3://held"):
        shipping.repository.handles.put(b"more")
    found = noted_fence(shipping.engine.files, shipping.engine.root)
    assert found is not None
    assert (found.place, found.fenced_by) == ("s3://held", "node node-2")
    assert shipping.place.objects == {}
