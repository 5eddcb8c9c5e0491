"""Arrow's IPC messages inside Flight's: what comes is measured before Arrow is given it, what goes is copied once.

An IPC message is a header, a flatbuffer that says what and how long everything is, and a body. Arrow believes the
header: 33 kB of it and of compressed body became a batch of 1 GiB. So the header of a batch is read here first:

    no compression, no dictionaries          what the body holds is what came
    buffers lie in the body                  and are as many as the columns have
    rows and pairs are as few as allowed     Python objects take more than their bytes

What passes is read by Arrow, and then validated in full by whoever takes it (`puts.py`).
"""

import io
import struct
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa

from ullage.embedded.outgoing import OutgoingBatch
from ullage.errors import InvalidArgument, RequestTooLarge
from ullage.wire.tickets import COMMAND
from ullage_agent.service.flight.messages import FlightData, pack_flight_data
from ullage_agent.service.sending import ipc_stream

SCHEMA, RECORD_BATCH = 1, 3
NAMES: Final = {SCHEMA: "a schema", 2: "a dictionary", RECORD_BATCH: "a record batch", 4: "a tensor"}
VERSIONS: Final = (3, 4)
"""V4 and V5: since Arrow 0.8; they differ in unions, which no table of ours has."""

HEADER_BYTES_MAX: Final = 64 << 10
"""Three columns and their metadata take less than 1 KiB."""

COPIED_BYTES_MAX: Final = 128 << 10
"""A body that is smaller is sooner copied than read by Arrow through a file of Python's."""

ITEM_BYTES: Final = 100
"""Of an item of an array as Python has it. A map of texts has three arrays beside its own: 300 bytes a pair."""

_CONTINUATION: Final = 0xFFFF_FFFF
_PREFIX: Final = struct.Struct("<II")
_U8, _I16, _U16, _I32, _U32, _I64 = (struct.Struct(f"<{letter}") for letter in "BhHiIq")
_PAIR: Final = struct.Struct("<qq")


class Table:
    """A table of a flatbuffer that may be anything. InvalidArgument for what lies outside of it."""

    def __init__(self, view: memoryview, at: int) -> None:
        self._view = view
        self._at = at
        self._fields = at - _number(view, _I32, at)
        self._fields_end = self._fields + _number(view, _U16, self._fields)

    @classmethod
    def root(cls, view: memoryview) -> "Table":
        return cls(view, _number(view, _U32, 0))

    def number(self, field: int, kind: struct.Struct) -> int:
        """0 if it is not there."""
        place = self._place(field)
        return 0 if place is None else _number(self._view, kind, place)

    def table(self, field: int) -> "Table | None":
        place = self._target(field)
        return None if place is None else Table(self._view, place)

    def pairs(self, field: int) -> list[tuple[int, int]]:
        """A vector of structs of two numbers."""
        place = self._target(field)
        if place is None:
            return []
        count = _number(self._view, _U32, place)
        end = place + _U32.size + count * _PAIR.size
        if end > len(self._view):
            raise InvalidArgument(f"the header of a batch lists {count} items, of which not all came")
        return list(_PAIR.iter_unpack(self._view[place + _U32.size : end]))

    def has(self, field: int) -> bool:
        return self._place(field) is not None

    def _place(self, field: int) -> int | None:
        slot = self._fields + 2 * _U16.size + field * _U16.size
        if slot + _U16.size > self._fields_end:
            return None
        offset = _number(self._view, _U16, slot)
        return self._at + offset if offset else None

    def _target(self, field: int) -> int | None:
        place = self._place(field)
        return None if place is None else place + _number(self._view, _U32, place)


def _number(view: memoryview, kind: struct.Struct, at: int) -> int:
    if at < 0 or at + kind.size > len(view):
        raise InvalidArgument("the header of an Arrow message points outside of itself")
    found: int = kind.unpack_from(view, at)[0]
    return found


class Shape(NamedTuple):
    """A schema, and of how many arrays and buffers each of its batches is."""

    schema: pa.Schema
    arrays: int
    buffers: int


class SoundBatch(NamedTuple):
    """A message whose header is that of a batch of a schema, which `BatchReader.sound` has seen."""

    message: FlightData
    cost: int
    """What becomes of it at the most, in bytes: the batch as Arrow has it, its contents, and objects of Python."""


class BatchReader:
    """Record batches of one schema, each from its message. `rows_max` and `pairs_max` bound a batch."""

    def __init__(self, shape: Shape, rows_max: int, pairs_max: int) -> None:
        self._schema, self._nodes, self._buffers = shape
        self._rows_max = rows_max
        self._pairs_max = pairs_max

    def read(self, sound: SoundBatch) -> pa.RecordBatch:
        """InvalidArgument if Arrow does not take it. What it holds is not validated."""
        try:
            return pa.ipc.read_record_batch(pa.ipc.read_message(_source_of(sound.message)), self._schema)
        except (pa.ArrowException, OSError) as error:
            raise InvalidArgument(f"the batch cannot be read: {error}") from error

    def sound(self, message: FlightData) -> SoundBatch:
        """InvalidArgument or RequestTooLarge if the header is not such a batch's."""
        COMMAND.require(len(message.metadata), "the command of a batch")
        batch = _content_of(message, RECORD_BATCH)
        if batch.has(3):
            raise InvalidArgument("a compressed batch is not taken: write Arrow IPC without compression")
        rows, nodes, buffers = batch.number(0, _I64), batch.pairs(1), batch.pairs(2)
        if (len(nodes), len(buffers)) != (self._nodes, self._buffers) or batch.has(4):
            raise InvalidArgument(
                f"a batch of {len(nodes)} arrays and {len(buffers)} buffers is not of this schema, which has "
                f"{self._nodes} and {self._buffers}"
            )
        if any(not 0 <= nulls <= length for length, nulls in nodes) or rows < 0:
            raise InvalidArgument("an array of a batch has less than no rows, or more nulls than rows")
        if any(offset < 0 or size < 0 or offset + size > len(message.body) for offset, size in buffers):
            raise InvalidArgument("a buffer of a batch lies outside of its body")
        if rows > self._rows_max or any(length > self._pairs_max for length, _ in nodes):
            raise RequestTooLarge(
                f"a batch of {rows} contents: at most {self._rows_max} are allowed, with {self._pairs_max} attributes"
            )
        return SoundBatch(message, 2 * len(message.body) + ITEM_BYTES * sum(length for length, _ in nodes))


def read_shape(message: FlightData) -> Shape:
    """The schema that a stream begins with; InvalidArgument if it does not."""
    schema = _content_of(message, SCHEMA)
    if schema.number(0, _I16):
        raise InvalidArgument("a stream of big-endian numbers is not taken")
    try:
        found = pa.ipc.read_schema(pa.ipc.read_message(_source_of(message)))
        return Shape(found, *_counts_of(found))
    except (pa.ArrowException, OSError) as error:  # it is none, or of types of which nothing can be made
        raise InvalidArgument(f"the schema cannot be read: {error}") from error


def _content_of(message: FlightData, kind: int) -> Table:
    """What the header of a message is about, which is to be of this kind, and its body as long as it says."""
    header, body = message.header, message.body
    if len(header) > HEADER_BYTES_MAX:
        raise InvalidArgument(f"the header of an Arrow message has {len(header)} bytes, at most {HEADER_BYTES_MAX}")
    root = Table.root(header)
    version, found, size = root.number(0, _I16), root.number(1, _U8), root.number(3, _I64)
    content = root.table(2)
    if found != kind or content is None:
        raise InvalidArgument(f"{NAMES.get(found, 'something else')} came where {NAMES[kind]} belongs")
    if version not in VERSIONS:
        raise InvalidArgument(f"Arrow's metadata version {version + 1} is not known here: V4 and V5 are")
    if size != len(body):
        raise InvalidArgument(f"a message of {len(body)} bytes says that it has {size}")
    return content


def _counts_of(schema: pa.Schema) -> tuple[int, int]:
    """How many arrays and buffers each batch of a schema has."""
    empty = pa.record_batch([pa.array([], field.type) for field in schema], schema=schema).serialize()
    message = pa.ipc.read_message(empty)
    batch = Table.root(memoryview(message.metadata)).table(2)
    assert batch is not None
    return len(batch.pairs(1)), len(batch.pairs(2))


class _Parts(io.RawIOBase):
    """A file for Arrow: pieces that are read one after the other, none of which is copied."""

    def __init__(self, *parts: memoryview | bytes) -> None:
        self._parts: list[memoryview] = [memoryview(part) for part in parts]

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> memoryview:
        while self._parts and not self._parts[0]:
            del self._parts[0]
        if not self._parts:
            return memoryview(b"")
        found, self._parts[0] = self._parts[0][:size], self._parts[0][size:]
        return found


def _source_of(message: FlightData) -> pa.NativeFile | pa.Buffer:
    """The message as Arrow has it in a file: one that is whole, since it reads pieces as they come."""
    header, body = message.header, message.body
    padding = -len(header) % 8
    start = (_PREFIX.pack(_CONTINUATION, len(header) + padding), header, bytes(padding))
    if len(body) <= COPIED_BYTES_MAX:
        return pa.py_buffer(b"".join((*start, body)))
    return pa.PythonFile(_Parts(b"".join(start), body), mode="r")


def packed_stream(schema: pa.Schema, batches: Iterable[OutgoingBatch]) -> Iterator[bytes]:
    """Messages of a stream: the schema, then a batch each, or several for one that is large."""
    messages = ipc_stream(schema, batches)
    (start,) = next(messages)
    yield pack_flight_data(memoryview(start)[_PREFIX.size :])
    yield from map(_message, messages)


def _message(parts: list[Any]) -> bytes:
    """What Arrow has written of one batch: a prefix, the header with its padding, the body."""
    start = b""
    while len(start) < _PREFIX.size:
        start += parts.pop(0)
    end = _PREFIX.size + _PREFIX.unpack_from(start)[1]
    while len(start) < end:
        start += parts.pop(0)
    assert len(start) == end, "Arrow writes the body in parts of its own"
    return pack_flight_data(memoryview(start)[_PREFIX.size :], parts)
