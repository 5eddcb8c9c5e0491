"""Many FlowFiles that come at once: their attributes as they are stored, and their records."""

from collections.abc import Collection, Iterable, Sequence
from itertools import repeat

import msgspec

from ullage.engine.model import ContentClaim, FlowFileRecord, new_uuids, pack_attributes
from ullage.engine.updates import require_packed
from ullage.engine.wal.format import UNDECODABLE
from ullage.errors import InvalidArgument

Attributes = dict[str, str] | Sequence[dict[str, str]] | None
"""Of a batch: one mapping for all, or one each."""


_ARRAY_32 = b"\xdd"
"""First byte of a msgpack array whose count follows in four bytes, the highest first."""

_unpack_all = msgspec.msgpack.Decoder(list[dict[str, str]]).decode


def packed_attributes(attributes: Attributes, count: int) -> Iterable[bytes]:
    """Those of so many FlowFiles; InvalidArgument if they are fewer or more."""
    if attributes is None or isinstance(attributes, dict):
        return repeat(_packed(attributes or {}), count)
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
