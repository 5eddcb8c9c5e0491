"""The table `flowfiles`, column by column: nothing is worked out that was not asked for, and no row is ever a tuple.

It is the table with most rows: a scan of it is the time of an agent that serves others meanwhile.
"""

from array import array
from binascii import hexlify
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from typing import Any, Final

import pyarrow as pa

from ullage_agent.engine.model import UUID_BYTES, ContentClaim, FlowFile, unpack_attributes
from ullage_agent.service.flight.columns import KeptColumns
from ullage_agent.service.flight.schemas import SCHEMAS
from ullage_agent.service.flight.shares import ROWS, Piece

SCHEMA: Final = SCHEMAS["flowfiles"]
UUID_DIGITS: Final = 2 * UUID_BYTES
UUID_LENGTH: Final = UUID_DIGITS + 4
UUID_PLACES: Final = [digit + sum(digit >= behind for behind in (8, 12, 16, 20)) for digit in range(UUID_DIGITS)]
"""Where each digit stands in the usual notation."""


def batches_of(
    pieces: Iterable[Piece], columns: Sequence[str], queues: Mapping[int, str], kept: KeptColumns
) -> Iterator[pa.RecordBatch]:
    """These columns of the table, a batch a piece; `queues` are names by number. What is kept is not made again."""
    for piece in pieces:
        found = {name: kept.find(piece.place, name) for name in columns}
        if missing := [name for name, column in found.items() if column is None]:
            for name, column in columns_of(piece.read(), missing, queues, swapped=piece.is_swapped).items():
                kept.keep(piece.place, name, column)
                found[name] = column
        schema = pa.schema([SCHEMA.field(name) for name in columns])
        batch = pa.record_batch([found[name] for name in columns], schema=schema)
        if batch.num_rows:
            yield batch


def columns_of(
    records: Sequence[FlowFile], names: Iterable[str], queues: Mapping[int, str], *, swapped: bool
) -> dict[str, pa.Array]:
    """These columns for these FlowFiles."""
    claims = [record.claim for record in records] if OF_CLAIMS.keys() & set(names) else []
    found = {}
    for name in names:
        if name == "queue":
            values: Any = _queues(records, queues)
        elif name == "swapped":
            values = pa.repeat(swapped, len(records))
        elif name in OF_CLAIMS:
            values = OF_CLAIMS[name](claims)
        else:
            values = OF_RECORDS[name](records)
        found[name] = values if isinstance(values, pa.Array) else pa.array(values, SCHEMA.field(name).type)
    return found


def _queues(records: Sequence[FlowFile], queues: Mapping[int, str]) -> Any:
    """Names. Of a swap file all stand in one queue."""
    numbers = [record.queue for record in records]
    if len(distinct := set(numbers)) == 1:
        return pa.repeat(pa.scalar(queues.get(distinct.pop()), pa.string()), len(records))
    return list(map(queues.get, numbers))


def _uuids(joined: bytes) -> pa.Array:
    """In their usual notation: each digit is put into its place in all of them at once."""
    count = len(joined) // UUID_BYTES
    digits = hexlify(joined)
    text = bytearray(b"-") * (UUID_LENGTH * count)
    for digit, place in enumerate(UUID_PLACES):
        text[place::UUID_LENGTH] = digits[digit::UUID_DIGITS]
    offsets = UUID_OFFSETS if count <= ROWS else _uuid_offsets(count)
    return pa.StringArray.from_buffers(count, offsets, pa.py_buffer(text))


def _uuid_offsets(count: int) -> pa.Buffer:
    return pa.py_buffer(array("i", range(0, UUID_LENGTH * count + 1, UUID_LENGTH)))


UUID_OFFSETS: Final = _uuid_offsets(ROWS)
"""Where each uuid begins: the same for all batches."""


def _parents(records: Sequence[FlowFile]) -> pa.Array:
    joined = [record.parents for record in records]
    offsets = array("i", accumulate([len(each) // UUID_BYTES for each in joined], initial=0))
    return pa.ListArray.from_arrays(_int32s(offsets), _uuids(b"".join(joined)))


def _attributes(records: Sequence[FlowFile]) -> pa.Array:
    """Maps. Of what came together all have often the same: each different one is unpacked once."""
    packed = [record.attributes for record in records]
    numbers = {each: number for number, each in enumerate(dict.fromkeys(packed))}
    if len(numbers) == len(packed):
        return _maps(packed)
    return _maps(list(numbers)).take(pa.array([numbers[each] for each in packed], pa.int32()))


def _maps(packed: Sequence[bytes]) -> pa.Array:
    maps = list(map(unpack_attributes, packed))
    offsets = array("i", accumulate(map(len, maps), initial=0))
    names = pa.array(list(chain.from_iterable(maps)), pa.string())
    values = pa.array([value for each in maps for value in each.values()], pa.string())
    return pa.MapArray.from_arrays(_int32s(offsets), names, values)


def _int32s(numbers: "array[int]") -> pa.Array:
    return pa.Array.from_buffers(pa.int32(), len(numbers), [None, pa.py_buffer(numbers)])


OF_CLAIMS: Final[dict[str, Callable[[Sequence[ContentClaim | None]], Any]]] = {
    "resource_claim": lambda claims: [None if claim is None else claim.resource for claim in claims],
    "claim_offset": lambda claims: [None if claim is None else claim.offset for claim in claims],
    "claim_length": lambda claims: [None if claim is None else claim.length for claim in claims],
    "claim_crc32c": lambda claims: [None if claim is None else claim.crc for claim in claims],
}
"""Columns that the FlowFiles' claims tell."""

OF_RECORDS: Final[dict[str, Callable[[Sequence[FlowFile]], Any]]] = {
    "uuid": lambda records: _uuids(b"".join([record.uuid for record in records])),
    "size": lambda records: [record.size for record in records],
    "start": lambda records: [record.start for record in records],
    "entry_millis": lambda records: [record.entry_millis for record in records],
    "lineage_millis": lambda records: [record.lineage_millis for record in records],
    "expires_millis": lambda records: [record.expires_millis for record in records],
    "deleted_millis": lambda records: [record.deleted_millis for record in records],
    "parents": _parents,
    "attributes": _attributes,
}
"""All others but those that records do not tell."""
