"""Valid bytes of Flight, the socket and HTTP, and what a hostile client makes of them."""

import random
import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import pyarrow as pa

from ullage.wire import frames
from ullage.wire.frames import FrameKind
from ullage.wire.operations import OPERATIONS
from ullage.wire.schemas import ATTRIBUTES, PUT_ATTRIBUTES, PUT_CONTENT, PUT_CONTINUES
from ullage.wire.tickets import ACTIONS

EXTREMES: Final = (
    *(0, 1, -1, 7, 8, 64, 255, 4_095, 65_536, 200_000, 60_000_000),
    *((1 << 31) - 1, -(1 << 31), 1 << 31, (1 << 32) - 1, 1 << 33, (1 << 63) - 1, -(1 << 63)),
)

FLIGHT: Final = "/arrow.flight.protocol.FlightService/"


OTHERS: Final = ("ListFlights", "GetFlightInfo", "GetSchema", "Handshake", "DoExchange", "ListActions", "Nothing")
"""Methods that are there for other clients, or not at all."""


class Message(NamedTuple):
    """One IPC message: its flatbuffer, and its body."""

    header: bytes
    body: bytes


BODIES: Final = (
    *(b"{}", b'{"a": [1, null]}', b'{"flow_files": [], "uuids": ["x"]}', b"content", b"[]", b"null", b"1e999"),
    *(b'{"visibility_seconds": 5}', b'{"duration_millis": 1000}', b'{"ids": ["x"], "accept_loss": true}'),
    *(b'{"count": 5}', b'{"queue": "q", "count_max": 1}', b'{"policy": "CompactAll", "resources": [[1, 2]]}'),
)


class Call(NamedTuple):
    """One call over gRPC: the method, and the messages of the client's stream."""

    method: str
    requests: list[bytes]


def field(number: int, value: bytes) -> bytes:
    """A field of a protobuf message that holds bytes."""
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*found, value))


def flight_data(message: Message, command: bytes = b"", own: bytes = b"") -> bytes:
    """FlightData, with the descriptor of a command before the first, and with a command of its own."""
    descriptor = field(1, b"\x08\x02" + field(2, command)) if command else b""
    return descriptor + field(2, message.header) + (field(3, own) if own else b"") + field(1000, message.body)


def ipc_messages(batches: list[pa.RecordBatch], **options: object) -> list[Message]:
    """As a client sends them: the schema, dictionaries, the batches."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for batch in batches:
            writer.write_batch(batch)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    found: list[Message] = []
    while True:
        try:
            message = reader.read_next_message()
        except StopIteration:
            return found
        body = message.body
        found.append(Message(message.metadata.to_pybytes(), b"" if body is None else body.to_pybytes()))


def streams(chance: random.Random) -> list[list[Message]]:
    """What may come over DoPut, and some of what may not: every layout has buffers of another kind."""
    contents = [chance.randbytes(chance.randrange(1, 200)) for _ in range(4)]
    attributes = pa.array([[("filename", f"f{number}"), ("k", "v")] for number in range(4)], ATTRIBUTES)
    columns: list[dict[str, pa.Array]] = [
        {PUT_CONTENT: pa.array(contents, pa.binary())},
        {PUT_CONTENT: pa.array(contents, pa.large_binary())},
        {PUT_CONTENT: pa.array(contents, pa.binary()), PUT_ATTRIBUTES: attributes},
        {PUT_CONTENT: pa.array([contents[0], None, contents[1], b""], pa.binary()), PUT_ATTRIBUTES: attributes},
        {
            PUT_CONTENT: pa.array(contents, pa.binary()),
            PUT_ATTRIBUTES: attributes,
            PUT_CONTINUES: pa.array([False, True, True, False]),
        },
        {PUT_CONTENT: pa.array(contents, pa.binary()).dictionary_encode()},
        {PUT_CONTENT: pa.array(contents, pa.binary_view())},
        {PUT_CONTENT: pa.array([1, 2, 3, 4], pa.int64())},
    ]
    batches = [pa.RecordBatch.from_pydict(each) for each in columns]
    plain = [ipc_messages([batch, batch.slice(1)]) for batch in batches]
    packed = [ipc_messages([batch], compression=name) for batch in batches[:3] for name in ("zstd", "lz4")]
    return [*plain, *packed]


def calls(chance: random.Random) -> Iterator[Call]:
    """Hostile calls without end."""
    known = streams(chance)
    while True:
        kind = chance.randrange(10)
        if kind < 7:
            yield Call("DoPut", put(chance, known))
        elif kind == 7:
            ticket = b'{"handles": ["%s"]}' % chance.randbytes(16).hex().encode()
            table = b'{"name": "flowfiles", "columns": ["uuid"], "part": [0, 1]}'
            yield Call("DoGet", [field(1, changed(chance, chance.choice((ticket, table))))])
        elif kind == 8:
            name = chance.choice([each.name for each in ACTIONS]).encode()
            yield Call("DoAction", [field(1, changed(chance, name, 0.2)) + field(2, changed(chance, b'{"id": "x"}'))])
        else:
            method = chance.choice(
                ("ListFlights", "GetFlightInfo", "Handshake", "DoExchange", "ListActions", "Nothing")
            )
            yield Call(method, [changed(chance, field(1, b"\x08\x02" + field(2, b"{}")))])


def put(chance: random.Random, known: list[list[Message]]) -> list[bytes]:
    """A stream of DoPut of which something is wrong."""
    messages = list(chance.choice(known))
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(messages))
        header, body = messages[at]
        match chance.randrange(9):
            case 0 | 1 | 2:
                messages[at] = Message(header, numbers_changed(chance, body))
            case 3 | 4:
                messages[at] = Message(numbers_changed(chance, header), body)
            case 5:
                messages[at] = Message(header, changed(chance, body))
            case 6:
                messages[at] = Message(chance.choice(chance.choice(known)).header, body)
            case 7:
                messages.insert(at, chance.choice(chance.choice(known)))
            case _:
                messages.pop(at)
        if not messages:
            messages = [Message(b"", b"")]
    command = changed(chance, b'{"ttl_millis": 0, "lifetime": 2}', 0.1)
    own = changed(chance, b'{"ttl_millis": 1, "key": "k"}', 0.5) if chance.random() < 0.5 else b""
    sent = [flight_data(each, command if at == 0 else b"", own) for at, each in enumerate(messages)]
    return [changed(chance, each) if chance.random() < 0.05 else each for each in sent]


def numbers_changed(chance: random.Random, data: bytes) -> bytes:
    """Offsets, lengths and counts, which lie at multiples of their size, replaced by numbers that lead elsewhere."""
    size, code = chance.choice(((2, "<H"), (4, "<I"), (8, "<Q")))
    if len(data) < size:
        return data
    at = chance.randrange(len(data) // size) * size
    old = int.from_bytes(data[at : at + size], "little")
    new = chance.choice((*EXTREMES, old + 1, old - 1, old * 2, len(data), len(data) + 1))
    return data[:at] + struct.pack(code, new % (1 << size * 8)) + data[at + size :]


def changed(chance: random.Random, data: bytes, likely: float = 0.9) -> bytes:
    """Perhaps: a flipped bit, a cut, a run that comes again or is gone, bytes of nobody's."""
    if not data or chance.random() > likely:
        return data
    at, end = sorted((chance.randrange(len(data)), chance.randrange(len(data) + 1)))
    flipped = bytes((data[at] ^ 1 << chance.randrange(8),)) if at < len(data) else b""
    choices = (
        data[:at] + flipped + data[at + 1 :],
        data[:at],
        data[:end] + data[at:],
        data[:at] + data[end:],
        data[:at] + chance.randbytes(chance.randrange(1, 64)) + data[at:],
        numbers_changed(chance, data),
    )
    return chance.choice(choices)


def socket_bytes(chance: random.Random, token: str) -> bytes:
    """A connection's bytes: mostly a greeting that is right, then frames that are not."""
    hello = frames.HELLO.pack(frames.MAGIC, 1, 1, len(token)) + token.encode()
    sent = frame(FrameKind.HELLO, 1, changed(chance, hello, 0.2))
    bodies: dict[FrameKind, Callable[[], bytes]] = {
        FrameKind.RESOLVE_HANDLES: lambda: chance.randbytes(16 * chance.randrange(1, 9)),
        FrameKind.RESOLVE_CLAIMS: lambda: frames.CLAIM.pack(1, 0, 100, 7, 0) * chance.randrange(1, 9),
        FrameKind.GIVE_BACK: lambda: struct.pack("<Q", 1) * chance.randrange(1, 9),
        FrameKind.PUT: lambda: frames.PUT.pack(0, 1, 2, 0, 2, 0) + b"{}" + struct.pack("<I", 50) + chance.randbytes(50),
        FrameKind.PUT_STREAM: lambda: frames.PUT.pack(0, 1, 2, 0, 2, 0) + b"{}",
        FrameKind.DATA: lambda: chance.randbytes(50),
        FrameKind.END: lambda: b"",
        FrameKind.TABLE: lambda: b'{"kind":"table","name":"flowfiles","where":"size > 1","part":[0,2],"runs":true}',
    }
    for number in range(2, 2 + chance.randrange(1, 6)):
        kind = chance.choice(list(bodies))
        made = frame(kind, number, changed(chance, bodies[kind](), 0.7))
        sent += numbers_changed(chance, made[:8]) + made[8:] if chance.random() < 0.2 else made
    return sent


def frame(kind: int, request: int, body: bytes) -> bytes:
    return frames.HEADER.pack(len(body), kind, 0, request) + body


def http_bytes(chance: random.Random, token: str) -> bytes:
    """A request for some operation, of which something is wrong."""
    each = chance.choice(OPERATIONS)
    path = each.path
    while "{" in path:
        before, _, rest = path.partition("{")
        path = before + changed(chance, b"7f3c2a9e-0000-4000-8000-000000000001", 0.3).hex() + rest.partition("}")[2]
    body = changed(
        chance, chance.choice((b"{}", b'{"a": [1, null]}', b'{"flow_files": [], "uuids": ["x"]}', b"content"))
    )
    if each.path == "/v1/backup":
        body = b'{"destination": "/nowhere"}'
    length = len(body) if chance.random() < 0.9 else chance.choice((0, 1, len(body) + 5, 1 << 40))
    query = changed(chance, b"?limit=1&attribute=a=b&ttl=1h", 0.5) if chance.random() < 0.3 else b""
    head = (
        f"{each.method} {path}".encode() + query.replace(b" ", b"+") + b" HTTP/1.1\r\nHost: localhost\r\n"
        b"Authorization: Bearer " + token.encode() + b"\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\nConnection: close\r\n" % length
    )
    if chance.random() < 0.3:
        head += changed(chance, b"Range: bytes=0-10\r\nIdempotency-Key: k\r\nTransfer-Encoding: chunked\r\n")
    return changed(chance, head, 0.2) + b"\r\n" + body
