"""A client of Flight's methods as gRPC has them: bytes in, bytes out, and the status that came, whatever they are.

pyarrow's client says little of a status, and sends nothing that is wrong.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import grpc
import msgspec
import pyarrow as pa

from ullage.wire.problems import ProblemDetails

SERVICE = "/arrow.flight.protocol.FlightService/"
CLIENT_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # else all channels to a server would share one connection
    ("grpc.http2.bdp_probe", 0),  # a window that grows with the speed takes any number of messages that nobody reads
]
ATTRIBUTES = pa.map_(pa.string(), pa.string())


class Answer(NamedTuple):
    """What a call came to."""

    status: grpc.StatusCode
    details: str
    slug: str | None
    messages: list[bytes]


class Raw:
    """One connection; `token` goes with each call."""

    def __init__(self, channel: grpc.Channel, token: str = "") -> None:
        self._channel = channel
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()

    def call(self, method: str, *messages: bytes, **options: Any) -> Answer:
        """A method, with these messages and no more."""
        stream = self._channel.stream_stream(SERVICE + method)
        call = stream(iter(messages), metadata=self._metadata, timeout=60, **options)
        found: list[bytes] = []
        with suppress(grpc.RpcError):  # the status says it
            found += call
        trailers = dict(call.trailing_metadata() or ())
        problem = trailers.get("grpc-status-details-bin")
        slug = None if problem is None else msgspec.json.decode(problem, type=ProblemDetails).slug
        return Answer(call.code(), call.details() or "", slug, found)

    def put(self, *messages: bytes, command: bytes = b"{}", **options: Any) -> Answer:
        """A DoPut; the first message gets the descriptor."""
        first, *rest = messages
        return self.call("DoPut", descriptor(command) + first, *rest, **options)


@contextmanager
def raw(url: str, token: str = "", ca: bytes | None = None) -> Iterator[Raw]:
    """A connection to where a server says it is."""
    address = url.rpartition("//")[2]
    if ca is None:
        channel = grpc.insecure_channel(address, options=CLIENT_OPTIONS)
    else:
        channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(ca), options=CLIENT_OPTIONS)
    with channel:
        yield Raw(channel, token)


def varint(number: int) -> bytes:
    found = b""
    while number > 0x7F:
        found += bytes([number & 0x7F | 0x80])
        number >>= 7
    return found + bytes([number])


def field(number: int, content: bytes) -> bytes:
    """A field of bytes, as protobuf has it."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def descriptor(command: bytes) -> bytes:
    return field(1, b"\x08\x02" + field(2, command))


def ticket(body: bytes) -> bytes:
    return field(1, body)


def action(name: str, body: bytes) -> bytes:
    return field(1, name.encode()) + field(2, body)


def schema_message(schema: pa.Schema) -> bytes:
    return data(pa.ipc.read_message(schema.serialize()).metadata.to_pybytes(), b"")


def parts_of(batch: pa.RecordBatch, compression: str | None = None) -> list[tuple[bytes, bytes]]:
    """Header and body of each message of a stream with one batch: the schema, dictionaries, the batch."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    messages = pa.ipc.MessageReader.open_stream(sink.getvalue())
    return [(each.metadata.to_pybytes(), b"" if each.body is None else each.body.to_pybytes()) for each in messages]


def batch_parts(batch: pa.RecordBatch) -> tuple[bytes, bytes]:
    """Header and body of a record batch."""
    return parts_of(batch)[-1]


def data(header: bytes, body: bytes = b"") -> bytes:
    return field(2, header) + (field(1000, body) if body else b"")


def batch_message(batch: pa.RecordBatch, compression: str | None = None) -> bytes:
    return data(*parts_of(batch, compression)[-1])


def contents_of(contents: Sequence[bytes], **more: Any) -> pa.RecordBatch:
    """A batch of a put."""
    columns: dict[str, pa.Array] = {"content": pa.array(contents, pa.binary())}
    columns |= {name: values if isinstance(values, pa.Array) else pa.array(values) for name, values in more.items()}
    return pa.record_batch(columns)


def with_attributes(contents: Sequence[bytes], attributes: Iterable[list[tuple[str, str | None]]]) -> pa.RecordBatch:
    return contents_of(contents, attributes=pa.array(list(attributes), ATTRIBUTES))
