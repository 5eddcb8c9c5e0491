"""The client against a running server, over each path."""

import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.service.running import LOCAL, Running, document_at
from ullage_agent.client import Client, Misuse, Node, NotReachable, Refused, Retries
from ullage_agent.client.http import HttpClient

MB = 1 << 20
IMPATIENT = Retries(sleep=lambda _seconds: None)


@pytest.fixture
def running(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    path = tmp_path_factory.getbasetemp().parent / f"{os.getpid()}.sock"
    service = {"flight_port": 0, "socket_path": str(path) if len(str(path)) < 100 else f"/tmp/{os.getpid()}.sock"}
    with Running(document_at(tmp_path / "r", service=service, **LOCAL)) as server:
        yield server


def node_of(running: Running, path: str) -> Node:
    bulk = running.server.bulk
    assert bulk is not None
    assert bulk.flight is not None
    assert bulk.socket is not None
    flight = bulk.flight.url if path == "flight" else None
    return Node(url=running.url, flight=flight, socket=bulk.socket.path if path == "socket" else None)


@pytest.mark.parametrize("path", ["http", "flight", "socket"])
def test_every_path_stores_and_reads_the_same(running: Running, path: str) -> None:
    """One, many, large, empty, ranges, attributes: whichever way they go."""
    chooser = random.Random(1)
    small = [chooser.randbytes(chooser.randint(0, 2_000)) for _ in range(200)]
    big = chooser.randbytes(9 * MB + 3)

    with Client(node_of(running, path), retries=IMPATIENT, name="here") as client:
        one = client.put(b"one", {"colour": "gr\u00fcn \U0001f37a"}, ttl_millis=3_600_000)
        many = client.put_many(small, [{"n": str(number)} for number in range(200)])
        large = client.put(big)
        streamed = client.put(big[at : at + MB] for at in range(0, len(big), MB))

        assert client.get(one) == b"one"
        assert client.get_many(many) == small
        assert client.get(large) == client.get(streamed) == big
        assert b"".join(client.stream(large, 5 * MB - 1, MB)) == big[5 * MB - 1 : 6 * MB - 1]
        assert client.get_many([large, one, *many[:20]]) == [big, b"one", *small[:20]]
        head = client.head(one)
        assert (head.attributes["colour"], head.handle) == ("gr\u00fcn \U0001f37a", one)
        assert head.expires_millis > 0
        assert client.head(many[7]).attributes["n"] == "7"


def test_a_handle_is_deleted_and_brought_back(running: Running) -> None:
    """And refused in between, with the slug to branch on."""
    with Client(running.url, retries=IMPATIENT) as client:
        handle = client.put(b"x")
        client.delete(handle)
        with pytest.raises(Refused) as refused:
            client.get(handle)
        assert refused.value.slug == "handle-deleted"
        client.undelete(handle)
        assert client.get(handle) == b"x"
        assert [head.handle for head in client.handles().handles] == [handle]
        with pytest.raises(Refused, match="no-such-handle"):
            client.get("nonsense")


def test_the_space_is_surveyed_planned_and_given_back(running: Running) -> None:
    """Over HTTP; the run is waited for."""
    with Client(running.url, retries=IMPATIENT) as client:
        client.put_many([bytes(1_000)] * 10)

        (container,) = client.survey().containers
        assert container.live_bytes == 10_000
        assert client.plan().step_count == 0
        run = client.reclaim(override=True)
        assert run.report is not None
        assert run.problem is None


def test_tables_come_over_flight(running: Running) -> None:
    """Those of one snapshot agree; without Flight the client says what it lacks."""
    with Client(node_of(running, "flight"), name="here") as client:
        handles = client.put_many([b"a", b"b", b"c"])
        snapshot = client.tables.snapshot()
        client.put(b"later")

        found = client.tables.table("flowfiles", snapshot.id, ["uuid"]).read_all()

        assert sorted(f"{row['uuid']}@here" for row in found.to_pylist()) == sorted(handles)
        client.tables.release(snapshot.id)
    with Client(running.url) as client, pytest.raises(Misuse, match="Flight"):
        _ = client.tables


def test_handles_of_other_nodes_are_fetched_there(running: Running, tmp_path: Path) -> None:
    """By the resolver, a mapping or a function; a node that nobody knows is not reachable."""
    with Running(document_at(tmp_path / "other", **LOCAL), node="there") as there:
        nodes = {"here": Node(url=running.url), "there": Node(url=there.url)}
        with Client(nodes["here"], resolver=nodes, name="here") as client, Client(there.url) as far:
            handles = [client.put(b"one"), far.put(b"two"), client.put(b"three")]

            assert [handle.partition("@")[2] for handle in handles] == ["here", "there", "here"]
            assert client.get_many(handles) == [b"one", b"two", b"three"]
            assert client.get(handles[1]) == b"two"
            client.delete(handles[1])
            with pytest.raises(Refused, match="handle-deleted"):
                client.get(handles[1])
            with pytest.raises(NotReachable, match="nowhere"):
                client.get(f"{handles[0].partition('@')[0]}@nowhere")
        with Client(running.url, resolver=nodes.__getitem__) as client:
            assert client.get(handles[2]) == b"three"
        with Client(running.url) as client, pytest.raises(Refused, match="elsewhere"):
            client.get_many([handles[1]])


def test_a_lost_answer_is_asked_for_again_and_nothing_is_stored_twice(running: Running) -> None:
    """The connection breaks after the commit: the repeat with the key gets the first answer."""
    lost = 0

    class Flaky(HttpClient):
        def put_many(self, *arguments: Any, **more: Any) -> Any:
            nonlocal lost
            answer = super().put_many(*arguments, **more)
            if lost < 2:
                lost += 1
                raise NotReachable("the answer was lost on its way")
            return answer

    with Client(running.url, retries=IMPATIENT) as client:
        steady, client._http = client._http, Flaky(running.url)
        handles = client.put_many([b"a", b"b"])
        client._http.close()
        client._http = steady

        assert lost == 2
        assert len(client.handles().handles) == len(handles) == 2


def test_transient_refusals_are_waited_out_and_others_are_not() -> None:
    """The wait is at least what the node asked for; attempts are bounded."""
    waits: list[float] = []
    retries = Retries(attempts=3, sleep=waits.append)
    answers = iter([Refused(503, "busy", "", 2.0), NotReachable("gone"), None])

    def work() -> str:
        error = next(answers)
        if error is not None:
            raise error
        return "done"

    assert retries.run(work) == "done"
    assert waits[0] >= 2.0
    assert len(waits) == 2
    with pytest.raises(Refused, match="forbidden"):
        retries.run(lambda: _raise(Refused(403, "forbidden", "")))
    assert len(waits) == 2
    with pytest.raises(Refused, match="busy"):
        retries.run(lambda: _raise(Refused(503, "busy", "", 1.0)))
    assert len(waits) == 4


def test_waiting_leaves_a_programs_own_dice_alone() -> None:
    """Whoever seeds `random` gets the same numbers, whether a node was busy or not."""
    before = random.getstate()
    with pytest.raises(NotReachable, match="gone"):
        IMPATIENT.run(lambda: _raise(NotReachable("gone")))

    assert random.getstate() == before


def test_threads_share_one_client(running: Running) -> None:
    """Each gets its own content."""
    failures: list[object] = []
    with Client(node_of(running, "socket"), name="here") as client:
        handles = client.put_many([bytes([number]) * 5_000 for number in range(100)])

        def read(offset: int) -> None:
            chosen = range(offset, 100, 4)
            failures.extend(number for number in chosen if client.get(handles[number]) != bytes([number]) * 5_000)

        threads = [threading.Thread(target=read, args=(offset,)) for offset in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert failures == []


def _raise(error: Exception) -> str:
    raise error
