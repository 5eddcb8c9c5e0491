"""The table `flowfiles`, column by column: nothing is worked out that was not asked for, and no row is ever a tuple.

It is the table with most rows: a scan of it is the time of an agent that serves others meanwhile.
"""

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from ullage_agent.engine.model import STAGED_QUEUE, UUID_BYTES, ContentClaim, FlowFile, unpack_attributes
from ullage_agent.service.flight.schemas import SCHEMAS

SCHEMA: Final = SCHEMAS["flowfiles"]
UUID_DIGITS: Final = 2 * UUID_BYTES
UUID_LENGTH: Final = UUID_DIGITS + 4

Column = Callable[[Sequence[FlowFile]], Any]


def share_of(records: Sequence[FlowFile], part: int, parts: int) -> Sequence[FlowFile]:
    """Those of a part: of a resource claim all are in one, those without content by their uuid."""
    if parts == 1:
        return records
    return [
        record
        for record in records
        if (_uuid_number(record) if (claim := record.claim) is None else claim.resource) % parts == part
    ]


def seen(records: Sequence[FlowFile]) -> list[FlowFile]:
    """Without those that are staged."""
    return [record for record in records if record.queue != STAGED_QUEUE]


def batch_of(
    records: Sequence[FlowFile], columns: Sequence[str], queues: Mapping[int, str], *, swapped: bool
) -> pa.RecordBatch:
    """These columns of the table for these FlowFiles; `queues` are names by number."""
    arrays = []
    for name in columns:
        if name == "queue":
            values: Any = [queues.get(record.queue) for record in records]
        elif name == "swapped":
            values = [swapped] * len(records)
        else:
            values = COLUMNS[name](records)
        field = SCHEMA.field(name)
        arrays.append(values if isinstance(values, pa.Array) else pa.array(values, field.type))
    return pa.record_batch(arrays, schema=pa.schema([SCHEMA.field(name) for name in columns]))


def _of_claim(value: Callable[[ContentClaim], int]) -> Column:
    return lambda records: [None if (claim := record.claim) is None else value(claim) for record in records]


def _uuids(records: Sequence[FlowFile]) -> pa.Array:
    """In their usual notation: each digit is put into its place in all of them at once."""
    digits = b"".join([record.uuid for record in records]).hex().encode()
    text = bytearray(b"-") * (UUID_LENGTH * len(records))
    for place in range(UUID_DIGITS):
        dashes = sum(place >= behind for behind in (8, 12, 16, 20))
        text[place + dashes :: UUID_LENGTH] = digits[place::UUID_DIGITS]
    offsets = array("i", range(0, len(text) + 1, UUID_LENGTH))
    return pa.StringArray.from_buffers(len(records), pa.py_buffer(offsets), pa.py_buffer(text))


def _uuid_number(record: FlowFile) -> int:
    return int.from_bytes(record.uuid[:8], "big")


COLUMNS: Final[dict[str, Column]] = {
    "uuid": _uuids,
    "size": lambda records: [record.size for record in records],
    "resource_claim": _of_claim(lambda claim: claim.resource),
    "claim_offset": _of_claim(lambda claim: claim.offset),
    "claim_length": _of_claim(lambda claim: claim.length),
    "claim_crc32c": _of_claim(lambda claim: claim.crc),
    "start": lambda records: [record.start for record in records],
    "entry_millis": lambda records: [record.entry_millis for record in records],
    "lineage_millis": lambda records: [record.lineage_millis for record in records],
    "expires_millis": lambda records: [record.expires_millis for record in records],
    "deleted_millis": lambda records: [record.deleted_millis for record in records],
    "parents": lambda records: [record.parent_ids for record in records],
    "attributes": lambda records: [list(unpack_attributes(record.attributes).items()) for record in records],
}
"""All but those that a record alone does not tell."""
