"""Many FlowFiles that come, or are shown, at once: their attributes as they are stored and as Arrow has them, and their
records.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, repeat
from typing import TypeVar

import msgspec

from ullage.engine.arrow import pa
from ullage.engine.model import UUID_BYTES, ContentClaim, FlowFileRecord, new_uuids, pack_attributes
from ullage.engine.updates import require_packed
from ullage.engine.wal.format import PAYLOAD_BYTES_MAX, UNDECODABLE
from ullage.errors import InvalidArgument, TransactionTooLarge

Attributes = dict[str, str] | Sequence[dict[str, str]] | None
"""Of a batch: one mapping for all, or one each."""


STEP_BYTES = 64 << 10
"""Packed attributes that are Python's objects at a time, unless those of one FlowFile are more: three ms, and 4 MiB at
the worst, where each name has three letters and nothing is said of it. Steps four times as large take as much of a
processor, and others wait four times as long.
"""

_Packed = TypeVar("_Packed", bytes, tuple[bytes, bytes])

_ARRAY_32 = b"\xdd"
"""First byte of a msgpack array whose count follows in four bytes, the highest first."""

_unpack_all = msgspec.msgpack.Decoder(list[dict[str, str]]).decode


def packed_attributes(attributes: Attributes, count: int) -> Iterable[bytes]:
    """Those of so many FlowFiles; InvalidArgument if they are fewer or more."""
    if attributes is None or isinstance(attributes, dict):
        packed = _packed(attributes or {})
        if count * len(packed) > PAYLOAD_BYTES_MAX:  # before there are so many: 10,000 times a MB were 10 GB in memory
            raise TransactionTooLarge(
                f"{count} times attributes of {len(packed)} bytes, at most {PAYLOAD_BYTES_MAX} are allowed in one "
                "transaction: store fewer at a time"
            )
        return repeat(packed, count)
    if len(attributes) != count:
        raise InvalidArgument(f"{count} contents came with attributes for {len(attributes)}")
    return map(_packed, attributes)


def _packed(attributes: dict[str, str]) -> bytes:
    packed = pack_attributes(attributes)
    require_packed(packed, "a FlowFile or handle")
    return packed


def new_records(
    queue: int, claims: Sequence[ContentClaim | None], packed: Iterable[bytes], now_millis: int, expires_millis: int = 0
) -> list[FlowFileRecord]:
    """FlowFiles that stand in no place of a queue, one for each content."""
    return [
        FlowFileRecord(
            uuid, queue, claim, 0, claim.length if claim else 0, now_millis, now_millis, 0, each, b"", expires_millis
        )
        for uuid, claim, each in zip(new_uuids(len(claims)), claims, packed, strict=True)
    ]


def with_readable_attributes(records: list[FlowFileRecord]) -> list[FlowFileRecord]:
    """Those whose attributes can be read: these are stored packed, and a decoder of records does not look at them."""
    try:
        unpack_all_attributes({record.attributes for record in records})  # what came together has often the same
        return records
    except UNDECODABLE:
        return [] if len(records) == 1 else [each for one in records for each in with_readable_attributes([one])]


def unpack_all_attributes(packed: Collection[bytes]) -> list[dict[str, str]]:
    """What `unpack_attributes` says of each: packed maps one behind the other are an array of maps but for its head."""
    return _unpack_all(b"".join((_ARRAY_32, len(packed).to_bytes(4, "big"), *packed)))


def require_readable(attributes: Collection[bytes], parents: Iterable[bytes]) -> None:
    """ValueError, or what a decoder raises, unless these packed fields of FlowFiles can be read."""
    if any(len(each) % UUID_BYTES for each in parents):
        raise ValueError("the parents of a FlowFile are no whole uuids")
    unpack_all_attributes(attributes)


def attribute_maps(packed: Sequence[bytes], step: Callable[[], None] = lambda: None) -> pa.MapArray:
    """What `unpack_attributes` says of each, bit by bit, with a `step` between two of them. Of what came together all
    have often the same: each different one is unpacked once.
    """
    return maps_of(packed, len, unpack_all_attributes, step)


def maps_of(
    things: Sequence[_Packed],
    size_of: Callable[[_Packed], int],
    unpack: Callable[[Sequence[_Packed]], Sequence[Mapping[str, str | None]]],
    step: Callable[[], None] = lambda: None,
) -> pa.MapArray:
    """The same of anything packed, of so many bytes, that becomes a map."""
    different = dict.fromkeys(things)
    is_each_different = len(different) == len(things)
    made: list[pa.MapArray] = []
    for few in _steps(things if is_each_different else list(different), size_of):
        if made:
            step()
        made.append(_map_array(unpack(few)))
    maps = made[0] if len(made) == 1 else pa.concat_arrays(made)
    if is_each_different:
        return maps
    numbers = {each: number for number, each in enumerate(different)}
    return maps.take(pa.array([numbers[each] for each in things], pa.int32()))


def _steps(things: Sequence[_Packed], size_of: Callable[[_Packed], int]) -> Iterator[Sequence[_Packed]]:
    """One at least, of at most so many bytes or of one thing each."""
    ends = list(accumulate(map(size_of, things), initial=0))
    at = 0
    while at < len(things) or not at:
        end = max(at + 1, bisect_right(ends, ends[at] + STEP_BYTES) - 1)
        yield things[at:end]
        at = end


def _map_array(maps: Sequence[Mapping[str, str | None]]) -> pa.MapArray:
    numbers = array("i", accumulate(map(len, maps), initial=0))
    offsets = pa.Array.from_buffers(pa.int32(), len(numbers), [None, pa.py_buffer(numbers)])
    names = pa.array(list(chain.from_iterable(maps)), pa.string())
    values = pa.array([value for each in maps for value in each.values()], pa.string())
    return pa.MapArray.from_arrays(offsets, names, values)
