"""Many FlowFiles that come at once: their attributes as they are stored, and their records."""

from collections.abc import Iterable, Sequence
from itertools import repeat

from ullage.engine.model import ContentClaim, FlowFileRecord, new_uuids, pack_attributes
from ullage.errors import InvalidArgument

Attributes = dict[str, str] | Sequence[dict[str, str]] | None
"""Of a batch: one mapping for all, or one each."""


def packed_attributes(attributes: Attributes, count: int) -> Iterable[bytes]:
    """Those of so many FlowFiles; InvalidArgument if they are fewer or more."""
    if attributes is None or isinstance(attributes, dict):
        return repeat(pack_attributes(attributes or {}), count)
    if len(attributes) != count:
        raise InvalidArgument(f"{count} contents came with attributes for {len(attributes)}")
    return map(pack_attributes, attributes)


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
