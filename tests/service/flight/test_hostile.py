"""What comes over Flight from somebody who means harm, as bytes: refused with gRPC's own status, and nothing stored."""

import json
import random
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest

from tests.service.flight import raw
from tests.service.flight.peer import MB, Peer
from tests.support import Workshop
from ullage.wire.tickets import ACTIONS
from ullage_agent.service.limits import Limits
from ullage_agent.service.tokens import TokenFile, line_of, new_token

ONE = raw.contents_of([b"content"])
INVALID = grpc.StatusCode.INVALID_ARGUMENT
METHODS = ("DoPut", "DoGet", "DoAction", "ListActions", "ListFlights", "GetFlightInfo", "GetSchema")


@pytest.fixture
def peer(workshop: Workshop) -> Iterator[Peer]:
    with Peer.serving(
        workshop.make(), limits=Limits(batch_attributes=1_000, flight_message_bytes=8 * MB, put_batch_bytes=MB)
    ) as made:
        yield made


@pytest.fixture
def sent(peer: Peer) -> Iterator[raw.Raw]:
    with raw.raw(peer.server.url) as made:
        yield made


@pytest.fixture
def guarded(workshop: Workshop, tmp_path: Path) -> Iterator[tuple[Peer, str]]:
    """A server that knows tokens, and one of them."""
    token, digest = new_token()
    (tmp_path / "tokens").write_text(line_of("all", ("*",), None, digest))
    made = Peer(workshop.make(), authenticator=TokenFile(str(tmp_path / "tokens"), workshop.clock))
    yield made, token
    made.close()


def stored(peer: Peer) -> int:
    return sum(1 for _ in peer.repository.ledger.flow_files())


def test_what_is_sound_is_stored(peer: Peer, sent: raw.Raw) -> None:
    """The other tests change this one thing by thing."""
    batch = raw.with_attributes([b"one", b"two"], [[("a", "1"), ("b", "")], []])

    answer = sent.put(raw.schema_message(batch.schema), raw.batch_message(batch))

    assert (answer.status, len(answer.messages)) == (grpc.StatusCode.OK, 1)
    uuids = answer.messages[0][-32:]
    assert list(peer.get([uuids[:16].hex(), uuids[16:].hex()]).values()) == [b"one", b"two"]


@pytest.mark.parametrize("method", METHODS)
def test_no_message_is_taken_before_the_token_is_known(guarded: tuple[Peer, str], method: str) -> None:
    """Somebody without one hears so while the message is still on its way, however long it says that it is."""
    peer, token = guarded
    waiting = threading.Event()

    def endless() -> Iterator[bytes]:
        waiting.wait(60)  # a server that reads first would wait for this one
        yield b""

    for given in ("", "nonsense"):
        with raw.raw(peer.server.url, given) as somebody:
            channel: Any = somebody._channel
            call = channel.stream_stream(raw.SERVICE + method)(endless(), metadata=somebody._metadata, timeout=60)
            with pytest.raises(grpc.RpcError):
                next(call)
            assert call.code() == grpc.StatusCode.UNAUTHENTICATED
            assert token not in call.details()
    waiting.set()


@pytest.mark.parametrize("method", METHODS)
def test_a_message_beyond_the_bound_is_refused_by_its_length(peer: Peer, sent: raw.Raw, method: str) -> None:
    """GRPC says no when it has read the length."""
    answer = sent.call(method, raw.ticket(bytes(9 * MB)))

    expected = {"ListActions": grpc.StatusCode.OK, "ListFlights": grpc.StatusCode.OK}  # they need none, and read none
    assert answer.status == expected.get(method, grpc.StatusCode.RESOURCE_EXHAUSTED)
    assert stored(peer) == 0


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_compression_of_grpc_is_refused(peer: Peer, sent: raw.Raw, compression: grpc.Compression) -> None:
    """A kilobyte of it may be a megabyte."""
    messages = raw.schema_message(ONE.schema), raw.batch_message(ONE)

    assert sent.put(*messages, compression=compression).status == grpc.StatusCode.UNIMPLEMENTED
    request = raw.ticket(b'{"kind":"table","name":"queues"}')
    assert sent.call("DoGet", request, compression=compression).status == grpc.StatusCode.UNIMPLEMENTED
    assert stored(peer) == 0


def test_headers_are_bounded(peer: Peer) -> None:
    """Before anybody looks at them."""
    with raw.raw(peer.server.url, "x" * 20_000) as sent:
        assert sent.call("ListActions").status == grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_compression_of_arrow_is_refused(peer: Peer, sent: raw.Raw, compression: str) -> None:
    """33 kB of it became a batch of 1 GiB: the bound on a batch was looked at once it was there."""
    bomb = raw.contents_of([bytes(16 * MB)])

    answer = sent.put(raw.schema_message(bomb.schema), raw.batch_message(bomb, compression))

    assert (answer.status, answer.slug) == (INVALID, "invalid-argument")
    assert "compress" in answer.details
    assert stored(peer) == 0


def column(kind: pa.DataType, values: list[Any], name: str = "content") -> pa.RecordBatch:
    return pa.record_batch({name: pa.array(values, kind)})


FOREIGN = {
    "text": column(pa.string(), ["x"]),
    "a view": column(pa.binary_view(), [b"x"]),
    "a dictionary": pa.record_batch({"content": pa.array([b"x"]).dictionary_encode()}),
    "of one size": column(pa.binary(1), [b"x"]),
    "no content": pa.record_batch({"attributes": pa.array([[("a", "b")]], raw.ATTRIBUTES)}),
    "twice": pa.RecordBatch.from_arrays([pa.array([b"x"])] * 2, names=["content", "content"]),
    "another": raw.contents_of([b"x"], more=[1]),
    "no text": raw.contents_of([b"x"], attributes=pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int32()))),
    "a list": raw.contents_of([b"x"], attributes=[["a"]]),
    "no bool": raw.contents_of([b"x"], continues=[1]),
    "a union": pa.record_batch({"content": pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([b"x"])])}),
    "nested": column(pa.list_(pa.list_(pa.list_(pa.binary()))), [[[[b"x"]]]]),
}


@pytest.mark.parametrize("batch", FOREIGN.values(), ids=FOREIGN)
def test_columns_of_another_kind_are_refused(peer: Peer, sent: raw.Raw, batch: pa.RecordBatch) -> None:
    """By the schema, before a batch is read."""
    answer = sent.put(raw.schema_message(batch.schema))

    assert (answer.status, answer.slug) == (INVALID, "invalid-argument")
    assert sent.put(raw.schema_message(batch.schema), raw.batch_message(ONE)).status == INVALID
    assert stored(peer) == 0


NAMES = {
    "of a column": (raw.contents_of([b"x"], another=[1]).schema, b"another"),
    "within a column": (column(pa.struct([("another", pa.binary())]), [{"another": b"x"}]).schema, b"another"),
}


@pytest.mark.parametrize(("schema", "name"), NAMES.values(), ids=NAMES)
def test_names_that_are_not_utf8_are_refused(peer: Peer, sent: raw.Raw, schema: pa.Schema, name: bytes) -> None:
    """Arrow hands them out as they are, and whoever looks at them first fails."""
    answer = sent.put(changed(raw.schema_message(schema), name, b"\xff" * len(name)))

    assert (answer.status, answer.slug) == (INVALID, "invalid-argument"), answer
    assert stored(peer) == 0


def test_a_schema_that_is_known_comes_with_nothing_else(peer: Peer, sent: raw.Raw) -> None:
    """A header that was taken is not read again: what comes beside it is looked at all the same."""
    known = raw.schema_message(ONE.schema)

    assert sent.put(known, raw.batch_message(ONE)).status == grpc.StatusCode.OK
    answer = sent.put(known + raw.field(1_000, bytes(8)), raw.batch_message(ONE))

    assert (answer.status, answer.slug) == (INVALID, "invalid-argument"), answer
    assert sent.put(known, raw.batch_message(ONE)).status == grpc.StatusCode.OK
    assert stored(peer) == 2


UNSTORABLE = {
    "a null content": (raw.contents_of([b"x", None]), "invalid-argument"),  # type: ignore[list-item]
    "a null value": (raw.with_attributes([b"x"], [[("a", None)]]), "invalid-argument"),
    "a key twice": (raw.with_attributes([b"x"], [[("a", "1"), ("a", "2")]]), "invalid-argument"),
    "the uuid": (raw.with_attributes([b"x"], [[("uuid", "1")]]), "invalid-argument"),
    "too many": (raw.contents_of([b""] * 10_001), "request-too-large"),
    "too much": (raw.contents_of([bytes(2 * MB)]), "request-too-large"),
    "too many attributes": (
        raw.with_attributes([b"x"], [[(str(number), "") for number in range(1_001)]]),
        "request-too-large",
    ),
    "no end": (raw.contents_of([b"x"], continues=[True]), "invalid-argument"),
}


@pytest.mark.parametrize(("batch", "slug"), UNSTORABLE.values(), ids=UNSTORABLE)
def test_values_that_cannot_be_stored_are_refused(peer: Peer, sent: raw.Raw, batch: pa.RecordBatch, slug: str) -> None:
    """Nulls, names twice, too many of anything."""
    answer = sent.put(raw.schema_message(batch.schema), raw.batch_message(batch))

    assert (answer.status, answer.slug) == (INVALID, slug), answer.details
    assert stored(peer) == 0


def changed(message: bytes, old: bytes, new: bytes) -> bytes:
    assert message.count(old) == 1, (message.count(old), old)
    return message.replace(old, new)


def quad(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}q", *numbers)


def lying() -> dict[str, tuple[bytes, bytes]]:
    """Headers and bodies of batches that are not as they say."""
    values = raw.contents_of([b"x" * 16, b"y" * 16])
    header, body = raw.batch_parts(values)
    offsets = struct.pack("<iii", 0, 16, 32)
    return {
        "an offset beyond": (header, changed(body, offsets, struct.pack("<iii", 0, 16, 200_000))),
        "an offset far beyond": (header, changed(body, offsets, struct.pack("<iii", 0, 16, 60_000_000))),
        "offsets that go back": (header, changed(body, offsets, struct.pack("<iii", 0, 48, 32))),
        "an offset below": (header, changed(body, offsets, struct.pack("<iii", -16, 16, 32))),
        "a body cut off": (header, body[:-8]),
        "a body too long": (header, body + bytes(8)),
        "no body": (header, b""),
        "no header": (b"", body),
        "rows that are not there": (changed(header, quad(2, 0), quad(2_000, 0)), body),
        "more rows than a batch has": (changed(header, quad(2, 0), quad(1 << 40, 0)), body),
        "rows below zero": (changed(header, quad(2, 0), quad(-2, 0)), body),
        "more nulls than rows": (changed(header, quad(2, 0), quad(2, 3)), body),
        "nulls that are not there": (changed(header, quad(2, 0), quad(2, 1)), body),
        "a buffer outside": (changed(header, quad(12), quad(1 << 40)), body),
        "a schema": raw.parts_of(values)[0],
        "a header that is no table": (b"\xff" * 64, body),
        "a header of nothing": (bytes(64), body),
        "a header too long": (header + bytes(70_000), body),
    }


LYING = lying()


@pytest.mark.parametrize("parts", LYING.values(), ids=LYING)
def test_batches_that_are_not_as_they_say_are_refused(peer: Peer, sent: raw.Raw, parts: tuple[bytes, bytes]) -> None:
    """What lay behind them in memory was stored as content: other clients' contents, tokens."""
    answer = sent.put(raw.schema_message(raw.contents_of([b""]).schema), raw.data(*parts))

    assert answer.status == INVALID, answer
    assert answer.slug in {"invalid-argument", "request-too-large"}
    assert stored(peer) == 0


def test_a_dictionary_is_refused(peer: Peer, sent: raw.Raw) -> None:
    """One that comes by itself, where none belongs."""
    coded = pa.record_batch({"content": pa.array([b"x"]).dictionary_encode()})

    answer = sent.put(raw.schema_message(ONE.schema), raw.data(*raw.parts_of(coded)[1]))

    assert (answer.status, answer.slug) == (INVALID, "invalid-argument")
    assert "a dictionary" in answer.details


NO_MESSAGES = {
    "nothing": b"",
    "a length beyond": b"\x0a\xff\xff\xff\xff\x0f",
    "no end of a number": b"\x0a" + b"\xff" * 12,
    "a group": b"\x0b\x0c",
    "text": b"GET / HTTP/1.1\r\n\r\n",
    "many fields": b"\x18\x01" * 1_000,
}


@pytest.mark.parametrize("message", NO_MESSAGES.values(), ids=NO_MESSAGES)
@pytest.mark.parametrize("method", ["DoPut", "DoGet", "DoAction", "GetFlightInfo", "GetSchema"])
def test_messages_that_are_none_are_refused(peer: Peer, sent: raw.Raw, method: str, message: bytes) -> None:
    """A table that nobody named is not found."""
    answer = sent.call(method, message)

    assert answer.status in {INVALID, grpc.StatusCode.NOT_FOUND}, answer
    assert answer.slug in {"invalid-argument", "not-found"}
    assert sent.call(method).status == INVALID
    assert stored(peer) == 0


def test_wild_bytes_are_refused_or_are_a_batch(peer: Peer, sent: raw.Raw) -> None:
    """Every status is one that was meant, and what is stored is what a batch held."""
    seed = random.SystemRandom().randrange(1 << 32)
    print("seed", seed)
    chosen = random.Random(seed)
    header, body = raw.batch_parts(raw.with_attributes([b"x" * 40, b"y" * 40], [[("a", "b")], [("c", "d")]]))
    schema = raw.schema_message(raw.with_attributes([b""], [[]]).schema)
    for _ in range(300):
        parts = [bytearray(header), bytearray(body)]
        for _ in range(chosen.randrange(1, 5)):
            part = parts[chosen.randrange(2)]
            part[chosen.randrange(len(part))] = chosen.choice((0, 1, 127, 128, 255, chosen.randrange(256)))
        answer = sent.put(schema, raw.data(*map(bytes, parts)))
        assert answer.status in {grpc.StatusCode.OK, INVALID}, answer
    sizes = {record.size for record in peer.repository.ledger.flow_files()}
    assert max(sizes, default=0) <= len(body)


BODIES: list[tuple[str, Callable[[], Any]]] = [
    ("a null", lambda: None),
    ("a list", list),
    ("an unknown field", lambda: {"surprise": 1}),
    ("a deep one", lambda: json.loads("[" * 500 + "]" * 500)),
]


@pytest.mark.parametrize(("name", "body"), BODIES, ids=[name for name, _ in BODIES])
def test_bodies_that_are_no_documents_are_refused(
    peer: Peer, sent: raw.Raw, name: str, body: Callable[[], Any]
) -> None:
    """Of tickets, commands and each action."""
    text = json.dumps(body()).encode()

    for each in ACTIONS:
        answer = sent.call("DoAction", raw.action(each.name, text))
        assert (answer.status, answer.slug) == (INVALID, "invalid-argument"), (each.name, answer)
    assert sent.call("DoGet", raw.ticket(text)).status == INVALID
    assert sent.put(raw.schema_message(ONE.schema), raw.batch_message(ONE), command=text).status == INVALID
    assert stored(peer) == 0


def test_what_says_more_than_its_kind_needs_is_refused_unread(workshop: Workshop) -> None:
    """Tickets, bodies, names, commands and descriptors of megabytes: each would be made in one go."""
    long = b" " * (11 << 20)
    command = b" " * ((64 << 10) + 1)
    batch, schema = raw.batch_message(ONE), raw.schema_message(ONE.schema)
    with Peer.serving(workshop.make()) as peer, raw.raw(peer.server.url) as sent:
        found = {
            "a ticket": sent.call("DoGet", raw.ticket(long)),
            "a body": sent.call("DoAction", raw.action("write-commit", long)),
            "a small body": sent.call("DoAction", raw.action("snapshot", command)),
            "a name": sent.call("DoAction", raw.action("x" * len(long), b"")),
            "a path": sent.call("GetSchema", raw.field(3, b"x") * (1 << 20)),
            "a command": sent.put(schema, batch, command=command),
            "a command of a batch": sent.put(schema, batch + raw.field(3, command)),
        }
        assert stored(peer) == 0

    assert {what: (answer.status, answer.slug) for what, answer in found.items()} == dict.fromkeys(
        found, (INVALID, "request-too-large")
    )


def test_methods_that_are_not_served_are_said_to_be_so(sent: raw.Raw) -> None:
    """Without a word of what the message was."""
    for method in ("Handshake", "DoExchange", "PollFlightInfo", "Nonsense"):
        assert sent.call(method, b"").status == grpc.StatusCode.UNIMPLEMENTED
