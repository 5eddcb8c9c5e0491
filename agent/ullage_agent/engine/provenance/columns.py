"""Events as columns: the schema of an event file, and the way there and back.

pyarrow is imported when the first event file is written or read: opening a repository does not wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ullage_agent.engine.model import (
    Content,
    ContentClaim,
    EventType,
    format_uuid,
    pack_attributes,
    parse_uuid,
    split_uuids,
    unpack_attributes,
)
from ullage_agent.engine.provenance.events import ProvenanceEvent, changed_attributes

if TYPE_CHECKING:
    import pyarrow as pa

ROW_GROUP_ROWS = 10_000
"""Rows decompressed to show one event: some milliseconds. Larger groups compress a few per cent better."""

DICTIONARIES = ["type", "component", "component_type", "relationship", "queue", "details", "transit_uri"]
"""Columns whose values repeat; the others gain nothing from a dictionary."""

_CLAIM_FIELDS = ("resource", "offset", "length", "crc", "start", "size")


def schema() -> pa.Schema:
    """The schema of an event file, as docs/storage.md describes it."""
    import pyarrow as pa  # noqa: PLC0415 - see the module's text

    text, number = pa.string(), pa.int64()
    content = pa.struct([(name, number) for name in _CLAIM_FIELDS])
    return pa.schema(
        [
            ("sequence", number),
            ("transaction", number),
            ("ordinal", pa.int32()),
            ("time", pa.timestamp("ms", tz="UTC")),
            ("type", text),
            ("flow_file", text),
            ("component", text),
            ("component_type", text),
            ("relationship", text),
            ("details", text),
            ("transit_uri", text),
            ("alternate_identifier", text),
            ("duration_millis", number),
            ("queue", text),
            ("entry_time", pa.timestamp("ms", tz="UTC")),
            ("lineage_time", pa.timestamp("ms", tz="UTC")),
            ("size", number),
            ("parents", pa.list_(text)),
            ("children", pa.list_(text)),
            ("attributes_before", pa.map_(text, text)),
            ("attributes_updated", pa.map_(text, text)),
            ("content_before", content),
            ("content", content),
        ]
    )


def to_batch(events: Sequence[ProvenanceEvent]) -> pa.RecordBatch:
    """A run of events as columns."""
    import pyarrow as pa  # noqa: PLC0415 - see the module's text

    fields = schema()
    plain: dict[str, list[Any]] = {
        "sequence": [event.sequence for event in events],
        "transaction": [event.transaction for event in events],
        "ordinal": [event.ordinal for event in events],
        "time": [event.millis for event in events],
        "type": [event.type.name for event in events],
        "flow_file": [event.flow_file for event in events],
        "component": [event.component for event in events],
        "component_type": [event.component_type for event in events],
        "relationship": [event.relationship for event in events],
        "details": [event.details for event in events],
        "transit_uri": [event.transit_uri for event in events],
        "alternate_identifier": [event.alternate_identifier for event in events],
        "duration_millis": [None if event.duration_millis < 0 else event.duration_millis for event in events],
        "queue": [event.queue for event in events],
        "entry_time": [event.entry_millis for event in events],
        "lineage_time": [event.lineage_millis for event in events],
        "size": [event.size for event in events],
    }
    columns: dict[str, Any] = {name: pa.array(values, fields.field(name).type) for name, values in plain.items()}
    columns["parents"] = _lists(pa, (event.parents for event in events))
    columns["children"] = _lists(pa, (event.children for event in events))
    columns["attributes_before"] = _maps(pa, ((event.attributes_before, b"") for event in events), _all)
    columns["attributes_updated"] = _maps(
        pa, ((event.attributes_before, event.attributes) for event in events), changed_attributes
    )
    columns["content_before"] = _contents(pa, [event.content_before for event in events])
    columns["content"] = _contents(pa, [event.content for event in events])
    return pa.RecordBatch.from_arrays([columns[name] for name in fields.names], schema=fields)


def from_table(table: pa.Table) -> list[ProvenanceEvent]:
    """The events of these rows."""
    rows = table.to_pylist(maps_as_pydicts="strict")
    return [_event(row) for row in rows]


def _event(row: dict[str, Any]) -> ProvenanceEvent:
    before = row["attributes_before"]
    after = dict(before)
    for name, value in row["attributes_updated"].items():
        if value is None:
            after.pop(name, None)
        else:
            after[name] = value
    duration = row["duration_millis"]
    return ProvenanceEvent(
        sequence=row["sequence"],
        transaction=row["transaction"],
        ordinal=row["ordinal"],
        millis=_millis(row["time"]),
        type=EventType[row["type"]],
        uuid=parse_uuid(row["flow_file"]),
        component=row["component"],
        component_type=row["component_type"],
        relationship=row["relationship"],
        details=row["details"],
        transit_uri=row["transit_uri"],
        alternate_identifier=row["alternate_identifier"],
        duration_millis=-1 if duration is None else duration,
        queue=row["queue"],
        entry_millis=_millis(row["entry_time"]),
        lineage_millis=_millis(row["lineage_time"]),
        parents=b"".join(map(parse_uuid, row["parents"])),
        children=b"".join(map(parse_uuid, row["children"])),
        attributes_before=pack_attributes(before),
        attributes=pack_attributes(after),
        content_before=_content(row["content_before"]),
        content=_content(row["content"]),
    )


def _millis(time: Any) -> int:
    millis: int = round(time.timestamp() * 1000)
    return millis


def _content(fields: dict[str, Any] | None) -> Content | None:
    if fields is None:
        return None
    if fields["resource"] is None:
        return Content(None, fields["start"], fields["size"])
    claim = ContentClaim(fields["resource"], fields["offset"], fields["length"], fields["crc"])
    return Content(claim, fields["start"], fields["size"])


def _all(packed: bytes, _: bytes) -> dict[str, str | None]:
    return dict(unpack_attributes(packed))


def _lists(pa: Any, joined: Iterable[bytes]) -> Any:
    offsets: list[int] = [0]
    values: list[str] = []
    for uuids in joined:
        if uuids:
            values.extend(map(format_uuid, split_uuids(uuids)))
        offsets.append(len(values))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values, pa.string()))


def _maps(
    pa: Any, pairs: Iterable[tuple[bytes, bytes]], items_of: Callable[[bytes, bytes], dict[str, str | None]]
) -> Any:
    """A map column. FlowFiles of a batch often have the same attributes, which are then unpacked once."""
    offsets: list[int] = [0]
    keys: list[str] = []
    values: list[str | None] = []
    known: dict[tuple[bytes, bytes], dict[str, str | None]] = {}
    for pair in pairs:
        items = known.get(pair)
        if items is None:
            items = known[pair] = items_of(*pair)
        keys.extend(items)
        values.extend(items.values())
        offsets.append(len(keys))
    return pa.MapArray.from_arrays(
        pa.array(offsets, pa.int32()), pa.array(keys, pa.string()), pa.array(values, pa.string())
    )


def _contents(pa: Any, contents: Sequence[Content | None]) -> Any:
    """A column of slices. Empty content has no claim; a FlowFile that did not exist has no content at all."""
    claims = [None if content is None else content.claim for content in contents]
    arrays = [
        pa.array([None if claim is None else getattr(claim, name) for claim in claims], pa.int64())
        for name in _CLAIM_FIELDS[:4]
    ]
    arrays.append(pa.array([None if content is None else content.start for content in contents], pa.int64()))
    arrays.append(pa.array([None if content is None else content.size for content in contents], pa.int64()))
    missing = pa.array([content is None for content in contents], pa.bool_())
    return pa.StructArray.from_arrays(arrays, names=list(_CLAIM_FIELDS), mask=missing)
