"""Packs of handles: how one is made, changed, taken apart, and read back all at once.

In memory and in a snapshot it is the same:

    uuids   16 bytes each, in no order | where the rows end, u16 each, or u32 where there were 64 KiB of them | rows

A row is what follows uuid and queue in a `FlowFileRecord`, as a msgpack array of its own. So the rows of a pack are
decoded in one call of the decoder, and the record of one by a look at two ends. A pack is never changed: a change makes
another one.
"""

from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate, compress, islice
from operator import attrgetter
from typing import Final, NamedTuple

import msgspec

from ullage.engine.model import (
    HANDLE_QUEUE,
    NO_ATTRIBUTES,
    UUID_BYTES,
    ContentClaim,
    FlowFileRecord,
    HandlePack,
    split_uuids,
)

PREFIX_BITS: Final = 56
"""Of a uuid, behind the byte that names its shard: those that may divide it."""

NO_HANDLES: Final = HandlePack()

ClaimRow = tuple[int, int, int, int]
"""The fields of a `ContentClaim`."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(FlowFileRecord).decode
_decode_raw = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode

ANY_HANDLE: Final = FlowFileRecord(bytes(UUID_BYTES), HANDLE_QUEUE, None, 0, 0, 0, 0, 0, NO_ATTRIBUTES)
BEFORE_UUID: Final = _encode(ANY_HANDLE)[: _encode(ANY_HANDLE).index(ANY_HANDLE.uuid)]
"""What stands before the uuid of every record."""

BEFORE_ROW: Final = _encode(HANDLE_QUEUE)
"""And between the uuid and the row."""

_AT: Final = len(BEFORE_UUID) + UUID_BYTES + len(BEFORE_ROW)

_CLAIM_TYPES = tuple(field.type for field in msgspec.structs.fields(ContentClaim))
_ROW_TYPES = (
    tuple[_CLAIM_TYPES] | None,  # type: ignore[valid-type]
    *(field.type for field in msgspec.structs.fields(FlowFileRecord)[3:]),
)
_decode_rows = msgspec.msgpack.Decoder(list[tuple[_ROW_TYPES]]).decode  # type: ignore[valid-type]

_HEAD: Final = bytes([0x90 | len(_ROW_TYPES)])
"""Of a row: a short msgpack array."""

_ARRAY_32: Final = b"\xdd"
_NARROW: Final = "H"
_WIDE: Final = "I"
_NARROW_MAX: Final = (1 << 16) - 1

_uuid_of = attrgetter("uuid")


class PackRows(NamedTuple):
    """What all rows of a pack say, field by field."""

    uuids: list[bytes]
    claims: tuple[ClaimRow | None, ...]
    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    entry_millis: tuple[int, ...]
    lineage_millis: tuple[int, ...]
    queued: tuple[int, ...]
    attributes: tuple[bytes, ...]
    parents: tuple[bytes, ...]
    expires_millis: tuple[int, ...]
    deleted_millis: tuple[int, ...]


def rows_of(pack: HandlePack) -> PackRows:
    """All of it, looked at by the types of a record. ValueError, or what a decoder raises: it is none."""
    uuids = list(split_uuids(pack.uuids))
    if len(pack.uuids) != UUID_BYTES * len(uuids):
        raise ValueError(f"a pack of {len(uuids)} handles, and a part of one")
    return read_rows(uuids, list(ends_of(pack)), pack.rows)


def read_rows(uuids: list[bytes], ends: list[int], packed: bytes) -> PackRows:
    """The same of rows that lie elsewhere."""
    rows = b"".join((_ARRAY_32, len(uuids).to_bytes(4, "big"), packed))
    if list(accumulate(map(len, _decode_raw(rows)))) != ends:
        raise ValueError(f"the rows of {len(uuids)} handles do not end where it is said")
    return PackRows(uuids, *zip(*_decode_rows(rows), strict=True))


def record_of(uuid: bytes, row: bytes) -> FlowFileRecord:
    """The handle of one row."""
    return _decode(encoded_row(uuid, row))


def encoded_row(uuid: bytes, row: bytes) -> bytes:
    """A handle as a record would be encoded."""
    return b"".join((BEFORE_UUID, uuid, BEFORE_ROW, row.removeprefix(_HEAD)))


def row_at(pack: HandlePack, index: int) -> bytes:
    """One row of a pack."""
    ends = ends_of(pack)
    return pack.rows[ends[index - 1] if index else 0 : ends[index]]


def packed_rows(pack: HandlePack) -> Iterator[tuple[bytes, bytes]]:
    """Uuids and rows."""
    return zip(split_uuids(pack.uuids), _split(pack), strict=True)


def only(pack: HandlePack, kept: Sequence[bool]) -> HandlePack:
    """Some of its rows."""
    rows = [*compress(packed_rows(pack), kept)]
    return _joined(pack.bits, [uuid for uuid, _ in rows], [row for _, row in rows])


def ends_of(pack: HandlePack) -> memoryview:
    """Where its rows end."""
    return memoryview(pack.ends).cast(_NARROW if 8 * len(pack.ends) == len(pack.uuids) else _WIDE)


def place_of(pack: HandlePack, uuid: bytes) -> int:
    """The number of a handle's row; -1: there is none."""
    at = pack.uuids.find(uuid)
    while at > 0 and at % UUID_BYTES:  # the end of one and the beginning of another look like it
        at = pack.uuids.find(uuid, at + 1)
    return at // UUID_BYTES


def is_whole(pack: HandlePack) -> bool:
    """Whether every uuid has a row."""
    if len(pack.uuids) % UUID_BYTES or len(pack.ends) not in (2 * pack.size, 4 * pack.size):
        return False
    ends = list(ends_of(pack))
    return ends == sorted(ends) and (ends or [0])[-1] == len(pack.rows)


def records_of(pack: HandlePack) -> list[FlowFileRecord]:
    """All of them."""
    return list(map(_decode, encoded(pack)))


def encoded(pack: HandlePack) -> Iterator[bytes]:
    """Each as a record would be encoded; one whose row is damaged can't be decoded. Of a pack that `is_whole`."""
    start = 0
    for uuid, end in zip(split_uuids(pack.uuids), ends_of(pack), strict=True):
        row = pack.rows[start:end]
        yield encoded_row(uuid, row)
        start = end


def with_more(pack: HandlePack, records: Sequence[FlowFileRecord]) -> HandlePack:
    """The same and these, none of which it has."""
    more = [_HEAD + _encode(record)[_AT:] for record in records]
    rows = b"".join([pack.rows, *more])
    before = ends_of(pack)
    ends = array(_width(len(rows)))
    if before.format == ends.typecode:
        ends.frombytes(pack.ends)
    else:
        ends.extend(before)
    ends.extend(islice(accumulate(map(len, more), initial=len(pack.rows)), 1, None))
    return HandlePack(b"".join([pack.uuids, *map(_uuid_of, records)]), ends.tobytes(), rows, pack.bits)


def without(pack: HandlePack, index: int) -> HandlePack:
    """The same but for one row."""
    width = len(pack.ends) // pack.size
    ends, at = ends_of(pack), UUID_BYTES * index
    start, end = ends[index - 1] if index else 0, ends[index]
    before, behind = pack.ends[: width * index], pack.ends[width * (index + 1) :]
    # One number, in which each end is lowered at once: none of them is less than the row is long.
    ones = int.from_bytes((1).to_bytes(width, "little") * (len(behind) // width), "little")
    lowered = (int.from_bytes(behind, "little") - (end - start) * ones).to_bytes(len(behind), "little")
    return HandlePack(
        pack.uuids[:at] + pack.uuids[at + UUID_BYTES :],
        before + lowered,
        pack.rows[:start] + pack.rows[end:],
        pack.bits,
    )


def divided(pack: HandlePack, more_bits: int) -> list[HandlePack]:
    """Its rows in packs, by so many bits behind those that all its uuids share."""
    sides: list[tuple[list[bytes], list[bytes]]] = [([], []) for _ in range(1 << more_bits)]
    bits = pack.bits + more_bits
    shift = PREFIX_BITS - bits
    for uuid, row in zip(split_uuids(pack.uuids), _split(pack), strict=True):
        uuids, rows = sides[prefix_of(uuid) >> shift & (1 << more_bits) - 1]
        uuids.append(uuid)
        rows.append(row)
    return [_joined(bits, uuids, rows) for uuids, rows in sides]


def joined(packs: Sequence[HandlePack]) -> HandlePack:
    """The rows of all packs that were made of one by `divided`."""
    rows = [row for pack in packs for row in _split(pack)]
    return _joined(packs[0].bits + 1 - len(packs).bit_length(), [pack.uuids for pack in packs], rows)


def prefix_of(uuid: bytes) -> int:
    """What of a uuid may divide a shard."""
    return int.from_bytes(uuid[1:8], "big")


def _joined(bits: int, uuids: Sequence[bytes], rows: Sequence[bytes]) -> HandlePack:
    joined = b"".join(rows)
    ends = array(_width(len(joined)), accumulate(map(len, rows)))
    return HandlePack(b"".join(uuids), ends.tobytes(), joined, bits)


def _width(total: int) -> str:
    return _NARROW if total <= _NARROW_MAX else _WIDE


def _split(pack: HandlePack) -> Iterator[bytes]:
    rows, start = pack.rows, 0
    for end in ends_of(pack):
        yield rows[start:end]
        start = end
