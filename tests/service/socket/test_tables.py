"""Tables over the Unix socket: what Flight gives, in frames."""

import json
import secrets
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.service.flight.test_flow_files_table import filled
from tests.service.socket.false import FalseSocket
from tests.service.socket.node import MB, Node
from tests.service.socket.reader import Reader, Refusal
from tests.support import Workshop, committing
from ullage.client.localtables import local_table
from ullage.client.socket import SocketClient
from ullage.embedded.pace import ALONE
from ullage.errors import InvalidArgument, NotFound, NotReachable, ServiceBusy
from ullage.wire.frames import FRAME_BYTES_MAX, FrameKind
from ullage.wire.schemas import SCHEMAS
from ullage.wire.tickets import SnapshotRequest, TableTicket
from ullage_agent.service.access import ANONYMOUS
from ullage_agent.service.limits import Limits

LARGE = FRAME_BYTES_MAX - 100
"""Of a value of an attribute, nearly as large as there may be: with the rest of its row it is more than a frame."""


def read(node: Node, **wanted: Any) -> pa.Table:
    return local_table(SocketClient(node.path), TableTicket(**wanted)).read_all()


def kept_by(node: Node, **wanted: Any) -> pa.Table:
    """The same as the agent makes it, with nothing between."""
    (schema, batches) = node.terms.snapshots.table(ANONYMOUS, TableTicket(**wanted), ALONE)
    return pa.Table.from_batches([each.batch for each in batches], schema)


@pytest.fixture
def full(workshop: Workshop, short_path: Path) -> Iterator[Node]:
    """With FlowFiles in memory and in swap files."""
    made = Node(workshop, short_path, repository=filled(workshop))
    yield made
    made.server.stop()


def test_it_is_what_flight_would_send(full: Node) -> None:
    """Every table but the content, at one snapshot, with columns, shares, runs and rows that are chosen."""
    id = full.terms.snapshots.take(ANONYMOUS, SnapshotRequest()).id
    for name in SCHEMAS:
        if name != "content":
            assert read(full, name=name, snapshot=id) == kept_by(full, name=name, snapshot=id)
    for more in ({"columns": ["queue", "uuid"]}, {"part": (1, 3)}, {"runs": True}, {"where": "size > 100"}):
        found = read(full, name="flowfiles", snapshot=id, **more)
        assert found == kept_by(full, name="flowfiles", snapshot=id, **more)
        assert found.num_rows
    content = read(full, name="content", snapshot=id).to_pylist()
    sizes = {row["uuid"]: row["size"] for row in read(full, name="flowfiles", snapshot=id).to_pylist()}
    assert {row["uuid"] for row in content} <= sizes.keys()
    assert all(len(row["content"]) == sizes[row["uuid"]] for row in content)
    assert any(row["content"] for row in content)


def test_a_reader_that_knows_the_document_alone_reads_it(full: Node) -> None:
    """The bodies of the ROWS, one behind the other, are an Arrow IPC stream, and the empty one is their end."""
    with closing(Reader(full.path)) as reader:
        reader.tell(11, 7, json.dumps({"kind": "table", "name": "queues"}).encode())
        bodies = []
        while (heard := reader.hear())[1]:
            assert heard[0] == 135
            bodies.append(heard[1])
        assert heard == (135, b"")
        assert pa.ipc.open_stream(b"".join(bodies)).read_all() == kept_by(full, name="queues")
        reader.tell(4, 8, b"")
        assert reader.hear() == (131, b"")


def test_a_row_that_is_larger_than_a_frame_comes_in_several(node: Node) -> None:
    """No frame is larger than is allowed, and what they hold is whole."""
    attributes = {"a": "x" * LARGE}
    with committing(node.repository) as session:
        session.ingest("in", [b"content"], attributes)

    (row,) = read(node, name="flowfiles").to_pylist()

    assert attributes.items() <= dict(row["attributes"]).items()


@pytest.mark.parametrize(
    ("ticket", "slug"),
    [
        (b"", "invalid-argument"),
        (b"null", "invalid-argument"),
        (b"{", "invalid-argument"),
        (b'{"kind": "get", "handles": []}', "invalid-argument"),
        (b'{"kind": "table"}', "invalid-argument"),
        (b'{"kind": "table", "name": null}', "invalid-argument"),
        (b'{"kind": "table", "name": "none"}', "not-found"),
        (b'{"kind": "table", "name": "queues", "snapshot": "none"}', "not-found"),
        (b'{"kind": "table", "name": "queues", "columns": ["none"]}', "invalid-argument"),
        (b'{"kind": "table", "name": "queues", "part": [3, 2]}', "invalid-argument"),
        (b'{"kind": "table", "name": "flowfiles", "where": "("}', "invalid-argument"),
        (b'{"kind": "table", "name": "flowfiles", "more": 1}', "invalid-argument"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_and_the_connection_goes_on(node: Node, ticket: bytes, slug: str) -> None:
    """Each with the slug that says why, and nothing of it is a failure of the agent."""
    with closing(Reader(node.path)) as reader:
        reader.tell(11, 1, ticket)
        with pytest.raises(Refusal) as refused:
            reader.hear()
        assert str(refused.value) == slug
        reader.tell(11, 2, b'{"kind": "table", "name": "queues"}')
        assert reader.hear()[0] == 135
    assert node.failures == []


def test_errors_of_the_beginning_are_raised_at_once_as_they_are(node: Node) -> None:
    """Before the first batch is asked for, so that whoever asks can go another way."""
    for wanted, error in (
        (TableTicket(name="none"), NotFound),
        (TableTicket(name="queues", snapshot="none"), NotFound),
        (TableTicket(name="queues", part=(2, 1)), InvalidArgument),
    ):
        with pytest.raises(error):
            local_table(SocketClient(node.path), wanted)
    with pytest.raises(NotReachable):
        local_table(SocketClient(node.path + "-none"), TableTicket(name="queues"))


def many(node: Node, count: int = 40) -> None:
    """Rows of which each is a batch of its own, more than a socket's buffers hold."""
    for _ in range(count):
        with committing(node.repository) as session:
            session.ingest("in", [b""], {"a": secrets.token_hex(MB)})


def test_a_client_that_takes_nothing_is_given_up(workshop: Workshop, short_path: Path) -> None:
    """It may take longer than other requests may, and not for ever; nothing of the agent's memory stays taken."""
    node = Node(workshop, short_path, Limits(stall_seconds=1, stream_pause_seconds=3))
    try:
        many(node)
        with closing(Reader(node.path)) as reader:
            reader.tell(11, 1, b'{"kind": "table", "name": "flowfiles"}')
            assert node.server.wait_for(0, 60)
            assert ends(reader)
        assert node.terms.budget._total == 0
    finally:
        node.server.stop()


def ends(reader: Reader) -> bool:
    """Whether the agent has ended the connection, whatever it said before."""
    while True:
        try:
            reader.hear()
        except (EOFError, ConnectionError, struct.error):
            return True


def test_a_client_that_is_slow_gets_all_of_it(workshop: Workshop, short_path: Path) -> None:
    """It takes nothing for longer than the kernel waits for it at a time."""
    node = Node(workshop, short_path, Limits(stall_seconds=1, stream_pause_seconds=60))
    try:
        many(node)
        batches = local_table(SocketClient(node.path), TableTicket(name="flowfiles"))
        first = batches.read_next_batch()
        assert not threading.Event().wait(2.5)
        assert first.num_rows + batches.read_all().num_rows == 40
    finally:
        node.server.stop()


def test_a_reader_that_goes_away_in_the_middle_leaves_nothing(node: Node) -> None:
    """Neither a connection nor room that it took."""
    many(node)
    batches = local_table(SocketClient(node.path), TableTicket(name="flowfiles"))
    batches.read_next_batch()
    assert node.terms.budget._total > 0

    del batches

    assert node.server.wait_for(0, 60)
    assert node.terms.budget._total == 0
    assert node.failures == []


def test_a_table_counts_as_a_stream_while_it_lasts(workshop: Workshop, short_path: Path) -> None:
    """What a reader holds of an agent's memory is bounded by how many there are, whichever way they take."""
    node = Node(workshop, short_path, Limits(stall_seconds=5, flight_calls=2, flight_calls_each=2))
    try:
        many(node)
        held = [local_table(SocketClient(node.path), TableTicket(name="flowfiles")) for _ in range(2)]
        with closing(Reader(node.path)) as reader:
            with pytest.raises(ServiceBusy):
                local_table(SocketClient(node.path), TableTicket(name="queues"))
            assert held.pop().read_all().num_rows == 40
            reader.tell(11, 1, b'{"kind": "table", "name": "queues"}')
            assert reader.hear()[0] == 135
    finally:
        node.server.stop()


def test_a_service_that_stops_ends_a_table_in_the_middle(workshop: Workshop, short_path: Path) -> None:
    """It does not wait until a table has ended whose reader takes nothing."""
    node = Node(workshop, short_path, Limits(stall_seconds=5, stop_seconds=600))
    many(node)
    batches = local_table(SocketClient(node.path), TableTicket(name="flowfiles"))
    batches.read_next_batch()
    stopping = threading.Thread(target=node.server.stop)
    stopping.start()
    stopping.join(120)

    assert not stopping.is_alive()
    with pytest.raises(NotReachable):
        batches.read_all()


def told(kind: int, body: bytes) -> bytes:
    return struct.pack("<IBBH", len(body), kind, 0, 1) + body


def whole(table: pa.RecordBatch | pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write(table)
    return bytes(sink.getvalue())


def queues() -> pa.RecordBatch:
    made = [pa.array([1 if pa.types.is_integer(field.type) else "q"], field.type) for field in QUEUES]
    return pa.record_batch(made, schema=QUEUES)


QUEUES = pa.schema([field for field in SCHEMAS["queues"] if field.type in (pa.string(), pa.int64(), pa.int32())])
NAMES = QUEUES.names
WHOLE = whole(queues())
BROKEN_TEXT = WHOLE.replace(struct.pack("<ii", 0, 1), struct.pack("<ii", 0, 1 << 30))
"""The first of its texts, if Arrow believes it, goes on far beyond the batch."""


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(told(135, b""), id="nothing"),
        pytest.param(told(135, secrets.token_bytes(100)), id="noise"),
        pytest.param(told(135, b"\xff\xff\xff\xff\xff\xff\xff\x7f"), id="a header of 2 GiB"),
        pytest.param(told(135, whole(pa.record_batch({"a": [1]}))), id="another table"),
        pytest.param(told(135, WHOLE[:-30]), id="cut, and then the end of the connection"),
        pytest.param(told(135, WHOLE[:-30]) + told(135, b""), id="cut, and then the end of the table"),
        pytest.param(told(132, b"\0" * 16), id="another answer"),
        pytest.param(told(135, WHOLE)[:-3], id="half a frame"),
        pytest.param(told(135, BROKEN_TEXT), id="a text that is not there"),
    ],
)
def test_a_node_that_sends_something_else_is_not_reachable(short_path: Path, answer: bytes) -> None:
    """And nothing of it is used."""

    def serve(false: FalseSocket, client: socket.socket) -> None:
        welcome = b"ULLAGE\0\0" + struct.pack("<HHIIII", 1, 0, FRAME_BYTES_MAX, 10_000, 256, 10_000)
        false.take(client)
        client.sendall(struct.pack("<IBBH", len(welcome), FrameKind.WELCOME, 0, 0) + welcome)
        false.take(client)
        client.sendall(answer)

    with FalseSocket(short_path / "false.sock", serve) as false, pytest.raises(NotReachable):
        local_table(SocketClient(false.path), TableTicket(name="queues", columns=NAMES)).read_all()


def test_a_frame_for_another_request_is_not_reachable(short_path: Path) -> None:
    """What answers something else is not the table."""

    def serve(false: FalseSocket, client: socket.socket) -> None:
        welcome = b"ULLAGE\0\0" + struct.pack("<HHIIII", 1, 0, FRAME_BYTES_MAX, 10_000, 256, 10_000)
        false.take(client)
        client.sendall(struct.pack("<IBBH", len(welcome), FrameKind.WELCOME, 0, 0) + welcome)
        false.take(client)
        client.sendall(struct.pack("<IBBH", 0, 135, 0, 9))

    with FalseSocket(short_path / "false.sock", serve) as false, pytest.raises(NotReachable, match="ROWS"):
        local_table(SocketClient(false.path), TableTicket(name="queues"))
