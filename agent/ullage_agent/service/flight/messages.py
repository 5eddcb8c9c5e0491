"""Flight's protobuf messages as gRPC carries them, before and after Arrow: bytes that came from anybody.

pyarrow reads and writes the small ones (tickets, descriptors, actions). Those of a stream are read and written here,
because protobuf's own runtime would copy each batch once more in either direction, and what pyarrow has no writer for:

    FlightData { 1: FlightDescriptor, 2: header of the IPC message, 3: app_metadata, 1000: body of the IPC message }
    PutResult  { 1: app_metadata }
    ActionType { 1: type, 2: description }
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from ullage.errors import InvalidArgument

DESCRIPTOR: Final = 1
HEADER: Final = 2
METADATA: Final = 3
BODY: Final = 1_000

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES: Final = {_FIXED64: 8, _FIXED32: 4}

VARINT_BYTES_MAX: Final = 10
"""A number of 64 bits; protobuf allows no longer one."""

FIELDS_MAX: Final = 64
"""FlightData has four fields. More than this many are somebody's attempt to keep a thread busy."""


class FlightData(NamedTuple):
    """One message of a stream, as views of the bytes that came. An absent field is empty."""

    descriptor: memoryview
    header: memoryview
    metadata: memoryview
    body: memoryview


def parse_flight_data(raw: bytes) -> FlightData:
    """InvalidArgument if these are no such message. Of a field that comes several times the last one counts."""
    view = memoryview(raw)
    found: dict[int, memoryview] = {}
    at, count = 0, 0
    while at < len(view):
        count += 1
        if count > FIELDS_MAX:
            raise InvalidArgument(f"a Flight message has more than {FIELDS_MAX} fields")
        key, at = _varint(view, at)
        kind = key & 7
        if kind == _LENGTH:
            size, at = _varint(view, at)
        elif kind == _VARINT:
            _, at = _varint(view, at)
            continue
        elif kind in _FIXED_BYTES:
            size = _FIXED_BYTES[kind]
        else:
            raise InvalidArgument(f"a Flight message has a field of the wire type {kind}, which there is not")
        if size > len(view) - at:
            raise InvalidArgument(f"a field of a Flight message has {size} bytes, of which {len(view) - at} came")
        if kind == _LENGTH:
            found[key >> 3] = view[at : at + size]
        at += size
    empty = view[:0]
    return FlightData(*(found.get(field, empty) for field in (DESCRIPTOR, HEADER, METADATA, BODY)))


def pack_flight_data(header: memoryview, body: Sequence[Any] = ()) -> bytes:
    """A message of a stream; the parts of the body, of one byte an item, are copied once."""
    size = sum(map(len, body))
    packed: list[Any] = [*_field(HEADER, header)]
    if size:
        packed += (_key(BODY), _packed(size), *body)
    return b"".join(packed)


def pack_put_result(metadata: bytes) -> bytes:
    """What follows a batch of a DoPut."""
    return b"".join(_field(1, metadata))


def pack_action_type(name: str, description: str) -> bytes:
    """What ListActions tells of an action."""
    return b"".join((*_field(1, name.encode()), *_field(2, description.encode())))


def _field(number: int, content: bytes | memoryview) -> Iterable[bytes | memoryview]:
    return _key(number), _packed(memoryview(content).nbytes), content


def _key(number: int) -> bytes:
    return _packed(number << 3 | _LENGTH)


def _packed(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    """A number, and where it ends."""
    if at < len(view) and (first := view[at]) < 0x80:  # nearly all of them
        return first, at + 1
    number = 0
    for place, byte in enumerate(view[at : at + VARINT_BYTES_MAX]):
        number |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return number, at + place + 1
    raise InvalidArgument("a Flight message ends, or has no end, within a number")
