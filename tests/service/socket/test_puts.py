"""Storing content through the Unix socket."""

import os
import random
import struct
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.service.running import until
from tests.service.socket.node import Node
from tests.service.socket.reader import Reader, Refusal
from ullage.client.socket import SocketClient
from ullage.errors import InvalidArgument, KeyReused, TransactionTooLarge

MB = 1 << 20
MB_OF_TEN = 1_000_000


def stored(node: Node, uuid: bytes) -> bytes:
    with node.repository.handles.get(uuid.hex()) as stream:
        return stream.read()


def test_a_batch_is_stored_in_one_transaction(node: Node) -> None:
    """Contents and attributes, for all or one each, come back as they went."""
    contents = [os.urandom(number * 100) for number in range(50)]
    before = node.repository.log.last_id

    with SocketClient(node.path) as client:
        uuids = client.put_many(contents, [{"number": str(number)} for number in range(50)], ttl_millis=3_600_000)
        transactions = node.repository.log.last_id - before
        alike = client.put_many([b"x", b"y"], {"colour": "green"})

    assert [stored(node, uuid) for uuid in uuids] == contents
    assert transactions <= 2  # a block of indexes of resource claims may be reserved beside it
    heads = [node.repository.handles.head(uuid.hex()) for uuid in [*uuids, *alike]]
    assert [head.attribute_map().get("number") for head in heads[:50]] == [str(number) for number in range(50)]
    assert heads[0].expires_millis == node.workshop.clock.now_millis() + 3_600_000
    assert [head.attribute_map()["colour"] for head in heads[50:]] == ["green", "green"]


def test_a_connection_that_waits_holds_nothing_of_what_it_sent(node: Node) -> None:
    """As many as there may be would hold a GiB."""
    content = os.urandom(3 * MB)
    with ExitStack() as stack:
        clients = [stack.enter_context(SocketClient(node.path)) for _ in range(5)]
        clients[0].put_many([content])  # what is made once
        tracemalloc.start()
        try:
            for client in clients[1:]:
                client.put_many([content])
            until(lambda: tracemalloc.get_traced_memory()[0] < 3 * MB, "the frames to be gone")
        finally:
            tracemalloc.stop()


def test_one_mapping_for_very_many_contents_is_refused_before_there_are_as_many(node: Node) -> None:
    """A frame of a MB came to 10 GB in memory before the transaction was found to be too large."""
    with SocketClient(node.path) as client:
        client.put_many([b""])  # what is made once
        tracemalloc.start()
        try:
            with pytest.raises(TransactionTooLarge, match="200 times attributes of 1000"):
                client.put_many([b""] * 200, {"text": "t" * MB_OF_TEN})
            assert tracemalloc.get_traced_memory()[1] < 20 * MB
        finally:
            tracemalloc.stop()


def test_a_repeat_with_its_key_stores_nothing_twice(node: Node) -> None:
    """The first answer comes again; the key of another request is refused."""
    with SocketClient(node.path) as client:
        first = client.put_many([b"one", b"two"], key="k1")
        single = client.put_stream([b"st", b"ream"], key="k2")

        assert client.put_many([b"one", b"two"], key="k1") == first
        assert client.put_stream([b"st", b"ream"], key="k2") == single
        with pytest.raises(KeyReused):
            client.put_many([b"another"], key="k1")
        assert client.put_many([b"one", b"two"], key="k3") != first
        assert client.read_all([*first, single]) == [b"one", b"two", b"stream"]


def test_a_content_of_any_size_streams_in(node: Node) -> None:
    """It is larger than any frame, and arrives whole."""
    content = random.Random(1).randbytes(9 * MB + 5)

    with SocketClient(node.path) as client:
        uuid = client.put_stream([content[:3], content[3 : 6 * MB], content[6 * MB :]], {"name": "big"})
        empty = client.put_stream([])

        assert b"".join(client.open(uuid)[1]) == content
        assert client.read_all([empty]) == [b""]


def test_a_source_that_fails_leaves_nothing(node: Node) -> None:
    """The client ends the connection in the middle: no handle, and nothing alive but what was there."""

    def source() -> Iterator[bytes]:
        yield bytes(3 * MB)
        raise RuntimeError("the disk at home is broken")

    with SocketClient(node.path) as client:
        with pytest.raises(RuntimeError, match="at home"):
            client.put_stream(source())
        assert node.server.wait_for(0, 10)
        assert sum(1 for _ in node.repository.ledger.flow_files()) == 0
        assert client.read_all(client.put_many([b"next"])) == [b"next"]


def test_a_content_can_be_given_up_and_the_connection_goes_on(node: Node) -> None:
    """An END with a body: nothing is stored, the next request is answered."""
    reader = Reader(node.path)
    head = struct.pack("<QIIHBB", 0, 0, 0, 0, 0, 0)
    reader.tell(6, 1, head)
    reader.tell(7, 1, bytes(2 * MB))
    with pytest.raises(Refusal, match="request-incomplete"):
        reader.ask(8, b"!")

    body = reader.ask(5, struct.pack("<QIIHBBI", 0, 1, 0, 0, 0, 0, 4) + b"next")

    assert stored(node, body) == b"next"
    assert sum(1 for _ in node.repository.ledger.flow_files()) == 1
    reader.close()


def test_what_follows_a_refused_stream_is_skipped(node: Node) -> None:
    """A key that is none is refused at the head; the pieces that were on their way disturb nobody."""
    reader = Reader(node.path)
    reader.tell(6, 7, struct.pack("<QIIHBB", 0, 0, 0, 1, 0, 0) + b"\n")
    for _ in range(3):
        reader.tell(7, 7, bytes(1000))
    reader.tell(8, 7, b"")
    with pytest.raises(Refusal, match="invalid-argument"):
        reader.hear()

    assert len(reader.ask(5, struct.pack("<QIIHBBI", 0, 1, 0, 0, 0, 0, 1) + b"x")) == 16
    reader.close()


@pytest.mark.parametrize(
    ("attributes", "count", "slug"),
    [
        (b"{}\n{}", 3, "invalid-argument"),
        (b"{}\n" * 100_000, 2, "invalid-argument"),
        (b"{" + b",".join(b'"%d":""' % number for number in range(30_000)) + b"}", 1, "transaction-too-large"),
        (b"", 10_001, "request-too-large"),
    ],
    ids=["a-mapping-too-few", "very-many-mappings", "very-many-attributes", "too-many-contents"],
)
def test_what_is_too_much_is_refused_before_it_is_made(node: Node, attributes: bytes, count: int, slug: str) -> None:
    """By counting; and the connection goes on."""
    reader = Reader(node.path)
    head = struct.pack("<QIIHBB", 0, count, len(attributes), 0, 0, 0) + attributes + bytes(4 * count)

    with pytest.raises(Refusal, match=slug):
        reader.ask(5, head)
    assert len(reader.ask(5, struct.pack("<QIIHBBI", 0, 1, 0, 0, 0, 0, 1) + b"x")) == 16
    reader.close()


@pytest.mark.parametrize(
    ("attributes", "lifetime"), [(b"[]", 0), (b"{", 0), (b'{"a":1}', 0), (b'{"uuid":"x"}', 0), (b"{}", 9)]
)
def test_what_cannot_be_stored_is_refused(node: Node, attributes: bytes, lifetime: int) -> None:
    """Attributes that are no mapping of strings, or set the uuid; a lifetime that there is not."""
    reader = Reader(node.path)
    head = struct.pack("<QIIHBB", 0, 1, len(attributes), 0, lifetime, 0) + attributes + struct.pack("<I", 1)

    with pytest.raises(Refusal, match="invalid-argument"):
        reader.ask(5, head + b"x")
    assert sum(1 for _ in node.repository.ledger.flow_files()) == 0
    reader.close()


def test_a_put_that_is_too_large_for_a_frame_is_not_sent(node: Node) -> None:
    """The client says so before it sends anything."""
    with SocketClient(node.path) as client, pytest.raises(InvalidArgument, match="stream"):
        client.put_many([bytes(5 * MB)])
