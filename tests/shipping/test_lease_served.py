"""A node serves by its lease: behind it nothing is acknowledged, handed out or read, until it is renewed."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
import pytest

import ullage
from tests.places import Gateway, Place
from tests.remote.flaky import flaky_running
from tests.service.running import Running, document_at, process, until
from tests.shipping.held import HeldShare, gone
from tests.shipping.test_restoration_resumes import SHIPPED
from tests.shipping.test_served import has_shipped, replicating, replication
from tests.support import ManualClock, Workshop
from ullage.contract import Duration
from ullage.embedded import adopting
from ullage.embedded.leasekeeping import LeaseKeeper
from ullage.embedded.replication import Replication
from ullage.embedded.repository import EmbeddedRepository
from ullage.embedded.session import EmbeddedSession
from ullage.embedded.shares import FoundShare
from ullage.engine.engine import Engine
from ullage.engine.shipping import shipper
from ullage.engine.shipping.adopting import adopt_share
from ullage.engine.shipping.lease import OwnedLease, margin_of
from ullage.engine.shipping.shareplace import LOG
from ullage.engine.wal.serde import SerDe
from ullage.errors import BucketUnavailable, CommitOutcomeUnknown, InvalidArgument, LeaseLapsed

TERM: Final = 60.0


class Leased:
    """A repository that serves by a lease, whose threads are the test's."""

    def __init__(self, workshop: Workshop) -> None:
        self.clock = workshop.clock
        self.place = HeldShare()
        self.told: list[str] = []
        engine = self.engine = workshop.make(**SHIPPED)
        self.share = engine.identity.repository
        self.keeper = LeaseKeeper(
            OwnedLease(engine.clock.boottime, TERM),
            engine.committer.right,
            self.place,
            self.share,
            self.tell,
            lambda: None,
        )
        settings = engine.spec.replication
        self.replication = Replication(
            engine, self.place, "s3://held", "node-1", settings, self.tell, keeper=self.keeper
        )
        self.repository = EmbeddedRepository(engine, replication=self.replication)

    def tell(self, task: str, error: Exception) -> None:
        self.told.append(f"{task}: {error}")

    def adopted(self) -> None:
        """By somebody, at once."""
        adopt_share(self.place, self.share, "node-2", SerDe())


@pytest.fixture
def leased(workshop: Workshop) -> Iterator[Leased]:
    made = Leased(workshop)
    yield made
    made.engine.committer.right.end()


def served(repository: EmbeddedRepository, session: EmbeddedSession) -> list[Callable[[], object]]:
    """All kinds of what a program may ask for."""
    assert repository.queues.put("q", b"content")
    handle = repository.handles.put(b"handle")
    (held,) = session.get_many("q", 1)
    (listed,) = [repository.queues.put("q", b"second")]
    lent = repository.lend("program", 10)
    lent.acting = repository.acting

    def commit() -> None:
        with repository.session() as another:
            another.transfer(another.create(), "q")
            another.commit()

    return [
        lambda: repository.handles.put(b"more"),
        lambda: repository.handles.get(handle),
        lambda: repository.handles.delete(handle),
        repository.handles.page,
        lambda: repository.content(listed).close(),
        lambda: repository.queues.put("q", b"more"),
        lambda: repository.queues.flow_files("q"),
        lambda: session.get_many("q", 1),
        lambda: session.read(held).close(),
        lambda: lent.handles([]),
        lambda: lent.claims([]),
        lambda: repository.leases.acquire(600_000),
        commit,
    ]


def test_a_start_that_is_tried_again_is_no_stranger_to_itself(leased: Leased, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the share under another name; the renewals of the first one found that, and the node fenced itself."""
    with monkeypatch.context() as patched:
        patched.setattr(shipper, "take_manifest", lambda *_: gone("get", "manifest"))
        assert not leased.replication.step()

    def renewing(kind: str, key: str) -> None:
        if (kind, key.partition("/")[0]) == ("put", LOG):
            leased.place.fault = lambda _kind, _key: None
            leased.keeper.step()

    leased.place.fault = renewing
    assert leased.replication.step()
    leased.keeper.step()

    assert leased.place.fault is not renewing
    leased.repository.handles.put(b"goes on")
    assert leased.repository.state().is_ready


def test_nothing_is_served_before_the_share_is_taken_nor_behind_the_lease(leased: Leased) -> None:
    """And everything once the bucket has answered, however often that happens."""
    repository = leased.repository
    leased.place.fault = gone
    with pytest.raises(LeaseLapsed, match="since the start"):
        repository.handles.put(b"too early")
    assert not leased.replication.step()
    assert leased.replication.status().has_lapsed
    assert not repository.state().is_ready
    leased.place.fault = lambda _kind, _key: None
    assert leased.replication.step()
    session = repository.session()
    asked = served(repository, session)

    for _ in range(2):
        last = leased.engine.log.last_id
        leased.clock.advance(TERM - 0.001)
        assert repository.state().is_ready
        leased.clock.advance(0.001)
        for ask in asked:
            with pytest.raises(LeaseLapsed):
                ask()
        assert leased.engine.log.last_id == last
        leased.keeper.step()
        assert repository.state().is_ready
    for ask in asked:
        with suppress(ullage.errors.HandleDeleted):  # by one before it
            ask()
    session.close()


def test_a_renewal_that_fails_is_told_once_and_does_not_count(leased: Leased) -> None:
    """Also one whose answer is lost, which the next look finds."""
    leased.replication.step()
    leased.place.fault = gone
    leased.clock.advance(TERM / 2)
    for _ in range(2):
        leased.keeper.step()
    assert [each.partition(":")[0] for each in leased.told] == ["lease"]
    leased.clock.advance(TERM / 2)
    assert leased.replication.status().has_lapsed

    def unanswered(kind: str, key: str) -> None:
        if kind == "was put":
            raise BucketUnavailable(key)

    leased.place.fault = unanswered
    leased.keeper.step()
    assert not leased.replication.status().has_lapsed


@pytest.mark.parametrize("ending", ["renewed", "adopted", "closed"])
def test_what_became_durable_behind_the_lease_is_answered_only_once_it_is_renewed(
    leased: Leased, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nobody knows: an adopter may go on without it."""
    leased.replication.step()
    leased.repository.handles.put(b"so that indexes are reserved")
    wait, is_durable = leased.engine.log.wait_durable, threading.Event()
    answers: list[object] = []

    def slow_disk(id: int) -> None:
        wait(id)
        if not is_durable.is_set():
            leased.clock.advance(TERM)
        is_durable.set()

    def put() -> None:
        try:
            answers.append(leased.repository.handles.put(b"x"))
        except CommitOutcomeUnknown as error:
            answers.append(error)

    monkeypatch.setattr(leased.engine.log, "wait_durable", slow_disk)
    thread = threading.Thread(target=put)
    thread.start()
    assert is_durable.wait(30)
    assert answers == []
    if ending == "adopted":
        leased.adopted()
    if ending == "closed":
        leased.engine.committer.right.end()
    else:
        leased.keeper.step()
    thread.join(30)

    (answer,) = answers
    assert isinstance(answer, str if ending == "renewed" else CommitOutcomeUnknown)


def test_whose_share_was_adopted_serves_nothing_ever_again(leased: Leased) -> None:
    """It finds out by its next renewal, with nothing to ship."""
    leased.replication.step()
    handle = leased.repository.handles.put(b"kept")
    leased.adopted()
    leased.keeper.step()

    with pytest.raises(LeaseLapsed, match="another node has"):
        leased.repository.handles.get(handle)
    assert not leased.replication.step()
    assert leased.replication.status().state == "fenced"
    leased.keeper.step()
    assert not leased.repository.state().is_ready


class Passing(ManualClock):
    """An adopter's: what happens while it waits is called, with how long it has waited in all."""

    def __init__(self, meanwhile: Callable[[float], None] = lambda _: None) -> None:
        super().__init__()
        self.waited = 0.0
        self.meanwhile = meanwhile

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.waited += seconds
        self.meanwhile(self.waited)


def test_a_share_is_adopted_once_its_lease_can_hold_no_more(
    leased: Leased, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without anybody's word; not while it is renewed; and by no word where its owner asks for no lease."""
    leased.replication.step()
    handle = leased.repository.handles.put(b"kept")
    leased.replication.step()
    monkeypatch.setattr(adopting, "share_in", lambda _: FoundShare(leased.place, leased.share))

    def adopt(clock: ManualClock) -> None:
        adopting.adopt_from("s3://held", tmp_path / "new", {}, "node-2", None, node_is_off=False, clock=clock)

    alive = Passing(lambda waited: leased.keeper.step() if waited > TERM / 2 else None)
    with pytest.raises(InvalidArgument, match="renews its lease"):
        adopt(alive)
    assert TERM / 2 < alive.waited < TERM / 2 + 2
    assert leased.replication.step()

    dead = Passing()
    adopt(dead)
    assert dead.waited == pytest.approx(TERM + margin_of(TERM), abs=0.1)
    leased.keeper.step()
    assert leased.keeper.held.lease.is_lost
    with Engine.open(msgspec.structs.replace(leased.engine.spec, storage=spec_storage(tmp_path / "new"))) as again:
        assert b"".join(again.handles.get(handle.partition("@")[0])) == b"kept"
    with pytest.raises(InvalidArgument, match="node-is-off"):
        adopting.adopt_from("s3://held", tmp_path / "more", {}, "node-3", None, node_is_off=False, clock=dead)


def spec_storage(path: Path) -> object:
    return ullage.contract.ContentRepositorySpec.embedded(str(path)).storage


def is_refused(repository: ullage.Repository) -> bool:
    try:
        repository.handles.put(b"x")
    except LeaseLapsed:
        return True
    return False


def test_a_frozen_node_is_followed_and_one_that_is_cut_off_serves_nothing_meanwhile(
    bucket: Place, gateway: Gateway, tmp_path: Path
) -> None:
    """With a real server: neither acknowledges anything that an adopter lacks, and who can reach the bucket again, and
    was not followed, serves on.
    """
    leased = {"adopt_after": Duration(10_000)}
    (tmp_path / "cut").mkdir()
    with flaky_running(gateway) as (flaky, url), process(tmp_path, **replicating(bucket, **leased)) as frozen:
        cut = document_at(tmp_path / "cut" / "repository", **replicating(bucket, **leased, endpoint=url))
        with Running(cut) as off, ullage.connect(off.url) as alone, ullage.connect(frozen.start()) as repository:
            for each in (alone, repository):
                until(lambda each=each: not is_refused(each), "the lease is there")  # type: ignore[misc]
            handle = repository.handles.put(b"kept")
            until(lambda: has_shipped(repository), "all is shipped")
            share = replication(repository).url
            flaky.fault = lambda _method, _path, _number: "lost"
            frozen.signal(signal.SIGSTOP)
            assert bucket.bucket is not None
            source = ullage.Bucket(url=share, endpoint=bucket.bucket.endpoint)
            made = ullage.adopt(source, tmp_path / "new", node="node-2")
            until(lambda: is_refused(alone), "it serves no more")
            frozen.signal(signal.SIGCONT)
            with pytest.raises(LeaseLapsed):
                repository.handles.put(b"of a node that has slept")
            with pytest.raises(LeaseLapsed):
                repository.handles.get(handle)
            flaky.fault = lambda _method, _path, _number: ""
            until(lambda: not is_refused(alone), "it serves on")
        with ullage.open(tmp_path / "new") as again:
            assert again.handles.get(handle) == b"kept"
        assert made.check is None
