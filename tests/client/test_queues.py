"""Queues through the client, against a running server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.running import LOCAL, Running, document_at
from ullage_agent.client import Client, Refused, Retries

IMPATIENT = Retries(sleep=lambda _seconds: None)
MB = 1 << 20


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    with Running(document_at(tmp_path / "r", **LOCAL)) as server:
        yield server


def test_what_is_put_into_a_queue_is_taken_out_of_it_once(running: Running) -> None:
    """Bytes, a stream and a batch; taken with a session, read, committed: then the queue is empty."""
    large = [bytes([number]) * MB for number in range(3)]
    with Client(running.url, retries=IMPATIENT) as client:
        queues = client.queues
        first = queues.put("a b", b"one", {"filename": "ä"})
        second = queues.put("a b", iter(large))
        rest = queues.put_many("a b", [b"", b"three"], [{}, {"n": "3"}])
        assert [record.id for record in queues.flow_files("a b")] == [first.id, second.id, *rest]
        assert queues.find("a b").size_bytes == 3 + 3 * MB + 5

        held = queues.poll("a b", 10)
        queues.extend(held.session)
        contents = [b"".join(queues.content(held.session, record.id)) for record in held.flow_files]
        assert contents == [b"one", b"".join(large), b"", b"three"]
        assert held.flow_files[0].attributes["filename"] == "ä"
        assert queues.poll("a b").flow_files == []
        queues.commit(held.session)

        assert [(queue.name, queue.flow_files) for queue in queues.all()] == [("a b", 0)]


def test_a_rollback_puts_back_and_a_drop_removes(running: Running) -> None:
    """What is held is not dropped; afterwards it is."""
    with Client(running.url, retries=IMPATIENT) as client:
        queues = client.queues
        queues.put_many("q", [b"a", b"b", b"c"], [{}] * 3)
        held = queues.poll("q", 2)
        assert queues.drop("q") == 1
        queues.rollback(held.session)
        assert queues.drop("q") == 2


def test_a_full_queue_refuses_unless_forced(running: Running) -> None:
    """With the slug to branch on; the settings come back as they were given."""
    with Client(running.url, retries=IMPATIENT) as client:
        queues = client.queues
        assert queues.define("small", count_max=1, expiration_millis=5_000).count_max == 1
        queues.put("small", b"1")
        with pytest.raises(Refused, match="back-pressure"):
            queues.put("small", b"2")
        queues.put("small", b"2", force=True)
        assert queues.find("small").is_full
        with pytest.raises(Refused, match="nowhere"):
            queues.find("nowhere")
