"""A node that is stopped, or never comes to an answer, on a connection that stands: every call to it ends by itself."""

import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest

from tests.service.flight import raw
from tests.service.running import process
from tests.service.test_kill import free_port
from ullage.client import flight as client_of_flight
from ullage.client.flight import FlightClient
from ullage.errors import NotReachable
from ullage.wire.schemas import GET_SCHEMA
from ullage.wire.tickets import ABOUT, Nothing, TableTicket

pytestmark = pytest.mark.timeout(120)
"""Far beyond the deadlines here, and below what calls would take without them."""

SOON = [
    ("grpc.keepalive_time_ms", 5_500),  # a node takes more than one ping in 5 s for an attack, and a busy test is slow
    ("grpc.keepalive_timeout_ms", 1_000),
    ("grpc.http2.ping_timeout_ms", 1_000),
    ("grpc.http2.max_pings_without_data", 0),
]


def test_a_stopped_node_is_given_up_and_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Actions, streams that are read, streams that are written; the keepalive's times are shortened, not its kind."""
    assert [name for name, _ in SOON] == [name for name, _ in client_of_flight.KEEPALIVE]
    monkeypatch.setattr(client_of_flight, "KEEPALIVE", SOON)
    port = free_port()
    with process(tmp_path, service={"flight_port": port}) as node:
        node.start()
        # A connection each: the first call that gives up a connection ends all that are on it.
        with ThreadPoolExecutor(3) as pool:
            acting, reading, writing = [FlightClient(f"grpc://127.0.0.1:{port}") for _ in range(3)]
            list(writing.put_many([[b"content"] * 100]))
            acting.act(ABOUT, Nothing())
            go = threading.Event()

            def batches() -> Iterator[list[bytes]]:
                yield [b"content"]
                go.wait()
                for _ in range(10):
                    yield [b"content"]

            def written() -> int:
                return sum(len(uuids) for uuids in writing.put_many(batches()))

            rows = reading.table(TableTicket(name="flowfiles"))
            putting = pool.submit(written)
            node.signal(signal.SIGSTOP)
            go.set()
            calls: list[Any] = [
                putting,
                pool.submit(acting.act, ABOUT, Nothing()),
                pool.submit(lambda: _reread(reading, rows)),
            ]
            for call in calls:
                with pytest.raises(NotReachable):
                    call.result()

            node.signal(signal.SIGCONT)
            assert acting.act(ABOUT, Nothing()).node == "here"
            for client in (acting, reading, writing):
                client.close()


def _reread(client: FlightClient, rows: Any) -> None:
    rows.read_all()  # what had come before it stopped may be all of it
    client.table(TableTicket(name="flowfiles"))


class _Begins(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Sends what it is told to, and then nothing."""

    def __init__(self, messages: Sequence[bytes]) -> None:
        self._messages = messages
        self.over = threading.Event()

    def service(self, handler_call_details: Any) -> Any:
        def answer(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
            next(requests)
            yield from self._messages
            self.over.wait()

        return grpc.stream_stream_rpc_method_handler(answer)


@contextmanager
def node_that_begins(*messages: bytes, answer_seconds: float = 0.5) -> Iterator[FlightClient]:
    """A client of a node that answers everything with these messages, and never ends: it is up, and gives signs of
    life.
    """
    with ThreadPoolExecutor(4) as pool:
        handler = _Begins(messages)
        server = grpc.server(pool, handlers=[handler])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            with FlightClient(f"grpc://127.0.0.1:{port}", answer_seconds=answer_seconds) as client:
                yield client
        finally:
            handler.over.set()
            server.stop(None).wait()


def test_an_answer_that_never_comes_is_not_waited_for() -> None:
    """Whatever the node's threads are stuck in."""
    with node_that_begins() as client:
        with pytest.raises(NotReachable):
            client.act(ABOUT, Nothing())
        with pytest.raises(NotReachable):
            client.act(ABOUT, Nothing(), timeout_seconds=0.1)


def test_a_stream_that_stands_still_is_given_up() -> None:
    """Its deadline moves on with what comes; how long its reader takes between two batches does not count."""
    batch = raw.batch_message(raw_rows())
    # What comes must come in time on a busy machine, too.
    with node_that_begins(raw.schema_message(GET_SCHEMA), batch, batch, answer_seconds=2.0) as client:
        rows = client.get_batches(["a"])
        assert next(rows).num_rows == 1
        assert next(rows).num_rows == 1
        with pytest.raises(NotReachable):
            next(rows)


def raw_rows() -> Any:
    columns = [
        pa.array(column, field.type) for column, field in zip([[0], [0], [b"x"], [None]], GET_SCHEMA, strict=True)
    ]
    return pa.record_batch(columns, GET_SCHEMA)
