"""What only a remote repository has to promise: networks that lose answers, leases, other nodes."""

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import ullage
from tests.conformance.proxy import Proxy
from tests.service.running import LOCAL, Running, document_at, until
from ullage import EventQuery, FlowFile, Node, Repository, Retries
from ullage.errors import (
    BackPressure,
    Elsewhere,
    Forbidden,
    HandleDeleted,
    NotReachable,
    ServiceBusy,
    SessionGone,
    UllageError,
)

LEASE_SECONDS = 1.0
"""Longer than a busy machine keeps a sign of life from being given, which comes in a part of it."""

IMPATIENT = Retries(attempts=4, sleep=lambda _: None)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    with Running(document_at(tmp_path / "r", **LOCAL)) as running:
        yield running


def held(repository: Repository, queue: str) -> int:
    return repository.queues.find(queue).held


def test_a_lost_answer_is_asked_for_again_and_nothing_happens_twice(running: Running) -> None:
    """Each verb, and the commit, with the connection cut right after the service has done it."""
    with Proxy(running.url) as proxy, ullage.connect(proxy.url, retries=IMPATIENT) as repository:
        repository.queues.put_many("in", [b"one", b"two", b"three"])
        handle = repository.handles.put(b"handle")
        proxy.lose = 1

        with repository.session("lossy") as session:
            verbs: list[Callable[[], FlowFile | None]] = [
                lambda: session.get("in"),
                lambda: session.create(attributes={"n": "1"}),
                lambda: session.write(taken[0], b"written"),
                lambda: session.append(taken[0], b", appended"),
                lambda: session.clone(taken[0], 0, 7),
                lambda: session.split(taken[0], [3, 4])[0],
                lambda: session.merge(taken[:2]),
                lambda: session.import_handle(handle),
            ]
            taken: list[FlowFile] = []
            for verb in verbs:
                proxy.lose = 2
                made = verb()
                assert made is not None
                taken.append(made)
                assert proxy.lose == 0
            assert session.read(taken[0]).read() == b"written, appended"
            session.provenance.send(taken[0], "to:somewhere")
            session.adjust_counter("sent", 1)
            proxy.lose = 1
            ids = session.ingest("out", [b"x", b"y"])
            session.transfer(taken, "out")
            with pytest.raises(ullage.errors.SessionMisuse):
                session.commit()  # the second half of the split
            session.rollback()
            session.ingest("out", [b"x", b"y"])
            session.transfer(session.create(), "out")
            session.provenance.send(session.ingest("out", [b"z"]), "to:somewhere")
            session.adjust_counter("sent", 1)
            proxy.lose = 2
            session.commit()

        assert (len(ids), proxy.lose) == (2, 0)
        assert proxy.lost >= 19
        assert (repository.queues.find("in").flow_files, repository.queues.find("out").flow_files) == (3, 4)
        assert repository.state().counters == {"sent": 1}
        assert len(repository.provenance.search(EventQuery(types=["SEND"])).events) == 1
        assert {event.component for event in repository.provenance.search(EventQuery(after=5)).events} == {"lossy"}
        for write in (
            lambda: repository.handles.put(b"kept"),
            lambda: repository.handles.put_many([b"kept"] * 3),
            lambda: repository.queues.put("out", b"kept"),
            lambda: repository.leases.acquire(60_000),
            lambda: repository.handles.delete(handle),
        ):
            proxy.lose = 2
            write()
        assert len(list(repository.handles.all())) == 5
        assert repository.queues.find("out").flow_files == 5
        assert len(repository.leases.all()) == 1


def test_a_commit_that_nobody_answered_can_be_sent_again(running: Running) -> None:
    """After the last attempt its outcome is not known; the session still knows what it wanted, and it happens once."""
    with Proxy(running.url) as proxy, ullage.connect(proxy.url, retries=IMPATIENT) as repository:
        with repository.session() as session:
            session.transfer(session.create(), "in")
            proxy.lose = 4
            with pytest.raises(NotReachable):
                session.commit()
            session.commit()

        assert repository.queues.find("in").flow_files == 1


def test_a_session_in_use_outlives_its_lease_and_another_does_not(running: Running) -> None:
    """Inside a `with` block signs of life keep it; without one everything goes back, and the next verb says so."""
    with ullage.connect(running.url) as repository:
        repository.queues.put_many("in", [b"one", b"two"])
        with repository.session(lease_seconds=LEASE_SECONDS) as session:
            kept = session.get("in")
            assert kept is not None
            left = repository.session(lease_seconds=LEASE_SECONDS)
            lost = left.get("in")
            assert lost is not None
            began = repository.state().now_millis
            until(lambda: repository.state().now_millis > began + 2_500 * LEASE_SECONDS, "more than two leases to pass")

            with pytest.raises(SessionGone):
                left.clone(lost)
            assert held(repository, "in") == 1
            session.remove(kept)
            session.commit()
        assert [one.id for one in repository.queues.flow_files("in")] == [lost.id]
        left.close()


def test_handles_of_other_nodes_are_fetched_there(running: Running, tmp_path: Path) -> None:
    """By the resolver, a mapping or a function; a node that nobody knows is not reachable."""
    with Running(document_at(tmp_path / "other", **LOCAL), node="there") as there:
        nodes = {"here": Node(url=running.url), "there": Node(url=there.url)}
        with ullage.connect(running.url, resolver=nodes) as near, ullage.connect(there.url) as far:
            handles = [near.handles.put(b"one"), far.handles.put(b"two"), near.handles.put(b"three")]

            assert [handle.partition("@")[2] for handle in handles] == ["here", "there", "here"]
            assert near.handles.get_many(handles) == [b"one", b"two", b"three"]
            assert near.handles.get(handles[1]) == b"two"
            near.handles.delete(handles[1])
            with pytest.raises(HandleDeleted):
                near.handles.get(handles[1])
            with pytest.raises(NotReachable, match="nowhere"):
                near.handles.get(f"{handles[0].partition('@')[0]}@nowhere")
        with ullage.connect(running.url, resolver=nodes.__getitem__) as near:
            assert near.handles.get(handles[2]) == b"three"
        with ullage.connect(running.url) as near:
            with pytest.raises(Elsewhere):
                near.handles.get_many([handles[1]])
            with pytest.raises(Elsewhere), near.session() as session:
                session.import_handle(handles[1])


def test_threads_share_one_repository(running: Running) -> None:
    """Each gets its own content."""
    failures: list[object] = []
    with ullage.connect(running.url) as repository:
        handles = repository.handles.put_many([bytes([number]) * 5_000 for number in range(100)])

        def read(offset: int) -> None:
            chosen = range(offset, 100, 4)
            failures.extend(n for n in chosen if repository.handles.get(handles[n]) != bytes([n]) * 5_000)

        threads = [threading.Thread(target=read, args=(offset,)) for offset in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert failures == []


def test_what_passes_by_itself_is_waited_for_and_nothing_else() -> None:
    """The wait is at least what the node asked for; attempts are bounded."""
    waits: list[float] = []
    retries = Retries(attempts=3, sleep=waits.append)
    answers: Iterator[UllageError | None] = iter([ServiceBusy("busy"), NotReachable("gone"), None])

    def work() -> str:
        if (error := next(answers)) is not None:
            raise error
        return "done"

    assert retries.run(work) == "done"
    assert waits[0] >= ServiceBusy.retry_after_seconds > 0
    for error, count in ((Forbidden("no"), 2), (BackPressure("full"), 2), (ServiceBusy("busy"), 4)):
        with pytest.raises(type(error)):
            retries.run(lambda error=error: _raise(error))  # type: ignore[misc]
        assert len(waits) == count


def test_retries_may_end_after_a_time() -> None:
    """No wait goes beyond it, however many attempts there are."""
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    retries = Retries(attempts=10_000, within_seconds=60.0, sleep=sleep, monotonic=lambda: now)
    with pytest.raises(NotReachable):
        retries.run(lambda: _raise(NotReachable("gone")))
    assert 60.0 - retries.longest_seconds <= now <= 60.0


def test_waiting_leaves_a_programs_own_dice_alone() -> None:
    """Whoever seeds `random` gets the same numbers, whether a node was busy or not."""
    before = random.getstate()
    with pytest.raises(NotReachable, match="gone"):
        IMPATIENT.run(lambda: _raise(NotReachable("gone")))

    assert random.getstate() == before


def _raise(error: Exception) -> str:
    raise error
