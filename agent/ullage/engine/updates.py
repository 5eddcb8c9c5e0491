"""What an `Update` makes of a record: the one rule, live and at recovery."""

from functools import lru_cache

import msgspec

from ullage.engine.model import FlowFileRecord, Update, unpack_attributes
from ullage.errors import TransactionTooLarge
from ullage.wire.documents import ATTRIBUTES_BYTES_MAX, ATTRIBUTES_MAX

APPENDED_BYTES_MAX = 64
"""An update's packed attributes are put behind the record's up to this size: merging costs three times as much, and
what is not merged yet takes memory, less than a kilobyte a record."""

_EMPTY_MAP, _SMALL_MAP_MAX = 0x80, 0x8F  # first bytes of msgpack maps of 0 and 15, the largest with their count in it

_MAP_16, _MAP_32 = 0xDE, 0xDF
"""First bytes of larger ones, whose count follows in two bytes and in four."""

_pack = msgspec.msgpack.Encoder().encode


def require_attributes(record: FlowFileRecord) -> None:
    """TransactionTooLarge if a FlowFile or handle has more of them than one may have, or larger ones."""
    require_packed(record.attributes, f"FlowFile {record.id}")


def require_packed(attributes: bytes, whose: str) -> None:
    """The same of packed attributes."""
    if len(attributes) > ATTRIBUTES_BYTES_MAX:
        raise TransactionTooLarge(
            f"the attributes of {whose} have {len(attributes)} bytes, at most {ATTRIBUTES_BYTES_MAX} are allowed: keep "
            "large values as content"
        )
    if len(attributes) > ATTRIBUTES_MAX and (count := attribute_count(attributes)) > ATTRIBUTES_MAX:
        raise TransactionTooLarge(
            f"{whose} has {count} attributes, at most {ATTRIBUTES_MAX} are allowed: keep what is long as content"
        )


def attribute_count(packed: bytes) -> int:
    """How many attributes these are, by the head of the map: one that is there twice counts twice."""
    head, wide = packed[0], {_MAP_16: 2, _MAP_32: 4}
    return int.from_bytes(packed[1 : 1 + wide[head]], "big") if head in wide else head - _EMPTY_MAP


@lru_cache(maxsize=1)
def _changes(packed: bytes) -> dict[str, str]:
    """What an update sets: in a batch it is often the same for all. Not to be changed."""
    return unpack_attributes(packed)


def _changed_attributes(packed: bytes, set_attributes: bytes | None, removed: tuple[str, ...]) -> bytes:
    """Attributes after an update, packed. A small change is only put behind what is there, since the last of several
    values of a name counts: most records are updated more often than they are read.

        82 | a=1 | b=2   updated by   81 | b=3   is   83 | a=1 | b=2 | b=3
    """
    if set_attributes is not None and not removed and 0 < len(set_attributes) <= APPENDED_BYTES_MAX:
        first = packed[0] + set_attributes[0] - _EMPTY_MAP
        if _EMPTY_MAP <= packed[0] <= first <= _SMALL_MAP_MAX:
            return b"%c%b%b" % (first, packed[1:], set_attributes[1:])
    attributes = unpack_attributes(packed)
    for name in removed:
        attributes.pop(name, None)
    if set_attributes is not None:
        attributes.update(_changes(set_attributes))
    return _pack(attributes)


def updated(record: FlowFileRecord, update: Update) -> FlowFileRecord:
    """The record after the update."""
    packed = record.attributes
    if update.set_attributes is not None or update.remove_attributes:
        packed = _changed_attributes(packed, update.set_attributes, update.remove_attributes)
    content = update.content
    return FlowFileRecord(
        record.uuid,
        record.queue if update.queue is None else update.queue,
        record.claim if content is None else content.claim,
        record.start if content is None else content.start,
        record.size if content is None else content.size,
        record.entry_millis,
        record.lineage_millis,
        record.queued if update.queued is None else update.queued,
        packed,
        record.parents,
        record.expires_millis if update.expires_millis is None else update.expires_millis,
        record.deleted_millis if update.deleted_millis is None else update.deleted_millis,
    )
