"""Index documents, made from the columns of event files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ullage_agent.contract import IndexedField, Provenance as ProvenanceSettings
from ullage_agent.engine.provenance.filters import attribute_values, list_values

if TYPE_CHECKING:
    import pyarrow as pa

INDEXED_COLUMNS = [
    *("sequence", "time", "size", "type", "flow_file", "component", "relationship", "transit_uri"),
    *("alternate_identifier", "parents", "children", "attributes_before", "attributes_updated"),
]
"""The columns that anything can be indexed from."""

TEXTS = {
    IndexedField.FLOW_FILE_UUID: "flow_file",
    IndexedField.FILENAME: "filename",
    IndexedField.COMPONENT_ID: "component",
    IndexedField.RELATIONSHIP: "relationship",
    IndexedField.TRANSIT_URI: "transit_uri",
    IndexedField.ALTERNATE_IDENTIFIER: "alternate_identifier",
}
"""Indexed fields that are one text of the event each."""


def schema() -> Any:
    """The fields of a shard: numbers to order and bound by, texts that match as a whole, nothing stored."""
    import tantivy  # noqa: PLC0415 - opening a repository does not wait for it

    builder = tantivy.SchemaBuilder()
    for name in ("sequence", "time", "size"):
        builder.add_unsigned_field(name, stored=False, indexed=True, fast=True)
    for name in ("type", "related", "attribute", *TEXTS.values()):
        builder.add_text_field(name, stored=False, tokenizer_name="raw", index_option="basic")
    return builder.build()


def documents(table: pa.Table, settings: ProvenanceSettings) -> Iterator[Any]:
    """A document for each row: making whole events of them first would take several times as long."""
    import tantivy  # noqa: PLC0415 - opening a repository does not wait for it

    columns = _columns(table, settings)
    for row in range(table.num_rows):
        document = tantivy.Document()
        for name, numbers in columns.numbers:
            document.add_unsigned(name, numbers[row])
        for name, texts in columns.texts:
            if value := texts[row]:
                document.add_text(name, value)
        for uuid in columns.kin.get(row, ()):
            document.add_text("related", uuid)
        for name, known in columns.attributes:
            if row in known:
                document.add_text("attribute", f"{name}={known[row]}")
        yield document


class _Columns(NamedTuple):
    """What is indexed of a row group, by field."""

    numbers: list[tuple[str, Sequence[int]]]
    texts: list[tuple[str, Sequence[str | None]]]
    kin: dict[int, set[str]]
    attributes: list[tuple[str, dict[int, str]]]


def _columns(table: pa.Table, settings: ProvenanceSettings) -> _Columns:
    import pyarrow as pa  # noqa: PLC0415 - see columns.py

    fields = settings.indexed_fields
    own = table["flow_file"].to_pylist()
    texts = [
        (TEXTS[field], table[TEXTS[field]].to_pylist()) for field in fields if TEXTS.get(field) in table.column_names
    ]
    if IndexedField.EVENT_TYPE in fields:
        texts.append(("type", table["type"].to_pylist()))
    if IndexedField.FILENAME in fields:
        names = attribute_values(table, "filename")
        texts.append(("filename", [names.get(row, uuid) for row, uuid in enumerate(own)]))
    if IndexedField.FLOW_FILE_UUID in fields:
        texts.append(("related", own))
    return _Columns(
        [(name, table[name].cast(pa.int64()).to_pylist()) for name in ("sequence", "time", "size")],
        texts,
        _kin(table) if IndexedField.FLOW_FILE_UUID in fields else {},
        [(name, attribute_values(table, name)) for name in settings.indexed_attributes],
    )


def _kin(table: pa.Table) -> dict[int, set[str]]:
    """The parents and children of the rows that have any, but for the FlowFile itself."""
    found: dict[int, set[str]] = {}
    own = table["flow_file"].to_pylist()
    for column in ("parents", "children"):
        for row, uuids in list_values(table, column):
            found.setdefault(row, set()).update(uuid for uuid in uuids if uuid != own[row])
    return found
