"""Terms: what the index knows of an event, and what a query asks of it.

A term is a text in a field, such as a uuid in `flow_file`. The index keeps a number for it, the CRC-32C of the text:
two texts may share one, so what it finds are candidates, which `query.matches` decides on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from crc32c import crc32c

from ullage.contract import IndexedField, ProvenanceSettings
from ullage.engine.arrow import pa, pc
from ullage.engine.provenance.filters import attribute_values, list_values
from ullage.engine.provenance.query import texts
from ullage.wire.provenance import EventQuery

INDEXED_COLUMNS = [
    *("type", "flow_file", "component", "relationship", "transit_uri", "alternate_identifier"),
    *("parents", "children", "attributes_before", "attributes_updated"),
]
"""The columns that anything can be indexed from."""

TEXTS = {
    IndexedField.EVENT_TYPE: "type",
    IndexedField.FLOW_FILE_UUID: "flow_file",
    IndexedField.FILENAME: "filename",
    IndexedField.COMPONENT_ID: "component",
    IndexedField.RELATIONSHIP: "relationship",
    IndexedField.TRANSIT_URI: "transit_uri",
    IndexedField.ALTERNATE_IDENTIFIER: "alternate_identifier",
}
"""Indexed fields that are one text of the event each."""

KIN = "kin"
"""The field of an event's parents and children, but for the FlowFile itself; indexed with `flow_file`."""

ATTRIBUTE = "attribute "
"""What the fields of indexed attributes begin with."""

ROW_BITS = 32
"""The low bits of a key are the event's row, the high ones its term's number."""


class Term(NamedTuple):
    """What is looked for: a field, and the number of a text."""

    field: str
    number: int


def number_of(text: str) -> int:
    """The number that stands for a text."""
    number: int = crc32c(text.encode())
    return number


def conditions(query: EventQuery, settings: ProvenanceSettings) -> list[list[Term]]:
    """Those of a query's conditions that the index knows: of each one of the terms has to be there."""
    known = {TEXTS[field] for field in settings.indexed_fields}
    asked = [(name, value) for name, value in texts(query) if name in known]
    if query.filename and "filename" in known:
        asked.append(("filename", query.filename))
    asked += [
        (ATTRIBUTE + name, value) for name, value in query.attributes.items() if name in settings.indexed_attributes
    ]
    found = [[Term(field, number_of(value))] for field, value in asked]
    if query.types and "type" in known:
        found.append([Term("type", number_of(name)) for name in query.types])
    if query.related and "flow_file" in known:
        found.append([Term(field, number_of(uuid)) for uuid in query.related for field in ("flow_file", KIN)])
    return found


def keys_of(table: pa.Table, settings: ProvenanceSettings, first_row: int) -> Iterator[tuple[str, pa.Array]]:
    """The keys of each field in the events of a table, the first of which has this row; uint64, in no order."""
    rows = range(first_row, first_row + table.num_rows)
    for field in settings.indexed_fields:
        if field == IndexedField.FILENAME:
            names, own = attribute_values(table, "filename"), table["flow_file"].to_pylist()
            yield TEXTS[field], _keys(rows, [names.get(at, uuid) for at, uuid in enumerate(own)])
        else:
            yield TEXTS[field], _column_keys(table[TEXTS[field]], rows)
        if field == IndexedField.FLOW_FILE_UUID:
            kin = list(_kin(table))
            yield KIN, _keys([first_row + at for at, _ in kin], [uuid for _, uuid in kin])
    for name in settings.indexed_attributes:
        values = attribute_values(table, name)
        yield ATTRIBUTE + name, _keys([first_row + at for at in values], list(values.values()))


def _column_keys(column: pa.ChunkedArray, rows: Sequence[int]) -> pa.Array:
    """The keys of a column of texts, each of which is numbered once. Where there is none it is empty."""
    encoded = column.combine_chunks().dictionary_encode()
    texts = encoded.dictionary.cast(pa.binary()).to_pylist()
    keys = _packed(_numbers(texts).take(encoded.indices), rows)
    return keys.filter(pc.not_equal(encoded.indices, texts.index(b""))) if b"" in texts else keys


def _keys(rows: Sequence[int], texts: Sequence[str]) -> pa.Array:
    return _packed(_numbers([text.encode() for text in texts]), rows)


def _numbers(texts: Sequence[bytes]) -> pa.Array:
    """`number_of` of many."""
    return pa.array(map(crc32c, texts), pa.uint64(), size=len(texts))


def _packed(numbers: pa.Array, rows: Sequence[int]) -> pa.Array:
    return pc.bit_wise_or(pc.shift_left(numbers, pa.scalar(ROW_BITS, pa.uint64())), pa.array(rows, pa.uint64()))


def _kin(table: pa.Table) -> Iterator[tuple[int, str]]:
    """The parents and children of the rows that have any."""
    found = [one for column in ("parents", "children") for one in list_values(table, column)]
    own = table["flow_file"].to_pylist() if found else []
    for at, uuids in found:
        yield from ((at, uuid) for uuid in set(uuids) if uuid != own[at])
