"""Events as columns: the schema of an event file, and the way there and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, repeat
from typing import Any

from ullage.engine.arrow import pa
from ullage.engine.batches import attribute_maps, maps_of
from ullage.engine.model import (
    Content,
    ContentClaim,
    EventType,
    FlowFileRecord,
    format_uuid,
    pack_attributes,
    parse_uuid,
    split_uuids,
)
from ullage.engine.provenance.events import ProvenanceEvent, changed_attributes
from ullage.engine.provenance.series import Series

ROW_GROUP_ROWS = 2_000
"""Rows decompressed to show one event: two milliseconds, half of them whatever the number. Groups of 10,000 take a
tenth less space, and four times as long. Of a file that is there its footer says the number.
"""

ROW_GROUP_BYTES = 8 << 20
"""Attributes and other texts of a row group, unless one event alone has more: a reader holds all of them. 2,000 events
may come to 8 GiB; those of an ordinary flow have 200 bytes each.
"""

BOUNDED = ["sequence", "time"]
"""Columns whose least and greatest value the footer has: of all of them it would be a third larger."""

DICTIONARIES = ["type", "component", "component_type", "relationship", "queue", "details", "transit_uri"]
"""Columns whose values repeat; the others gain nothing from a dictionary."""

_AS_THEY_ARE = (
    *("sequence", "transaction", "ordinal", "component", "component_type", "relationship", "details"),
    *("transit_uri", "alternate_identifier", "queue"),
)
"""Columns that hold just what an event's field of the same name does."""

_CLAIM_FIELDS = ("resource", "offset", "length", "crc", "start", "size")


def schema() -> pa.Schema:
    """The schema of an event file, as docs/storage.md describes it."""
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


def to_batch(chunk: Sequence[Series], queue_name: Callable[[int], str]) -> pa.RecordBatch:
    """A run of events as columns. What a series shares is turned into a value once, and repeated."""
    fields = schema()
    before = [record for series in chunk for record in series.before]
    after = [record for series in chunk for record in series.after]
    names = {queue: queue_name(queue) for queue in {record.queue for record in before if record is not None}}
    slices = [slice for series in chunk for slice in series.slices()]
    plain: dict[str, list[Any]] = {
        "sequence": list(range(chunk[0].sequence, chunk[0].sequence + len(after))),
        "ordinal": [series.ordinal + number for series in chunk for number in range(len(series.after))],
        "flow_file": [format_uuid(record.uuid) for record in after],
        "queue": ["" if record is None else names[record.queue] for record in before],
        "entry_time": [record.entry_millis for record in after],
        "lineage_time": [record.lineage_millis for record in after],
        "size": [slice.size for slice in slices],
    }
    shared: dict[str, list[Any]] = {
        "transaction": [series.told.transaction for series in chunk],
        "time": [series.told.millis for series in chunk],
        "type": [series.run.type.name for series in chunk],
        "component": [series.events.component for series in chunk],
        "component_type": [series.events.component_type for series in chunk],
        "relationship": [series.run.relationship for series in chunk],
        "details": [series.details for series in chunk],
        "transit_uri": [series.run.transit_uri for series in chunk],
        "alternate_identifier": [series.run.alternate_identifier for series in chunk],
        "duration_millis": [None if series.run.duration_millis < 0 else series.run.duration_millis for series in chunk],
    }
    lengths = [len(series.after) for series in chunk]
    which = pa.array(chain.from_iterable(map(repeat, range(len(chunk)), lengths)), pa.int32(), size=len(after))
    columns: dict[str, Any] = {name: pa.array(values, fields.field(name).type) for name, values in plain.items()}
    columns |= {name: pa.array(values, fields.field(name).type).take(which) for name, values in shared.items()}
    columns["parents"] = _lists([series.run.parents for series in chunk]).take(which)
    columns["children"] = _lists([series.run.children for series in chunk]).take(which)
    packed_before = list(chain.from_iterable(series.attributes_before() for series in chunk))
    packed = list(chain.from_iterable(series.attributes() for series in chunk))
    columns["attributes_before"] = attribute_maps(packed_before)
    columns["attributes_updated"] = _changes(packed_before, packed)
    columns["content_before"] = _contents(before)
    columns["content"] = columns["content_before"] if slices == before else _contents(slices)
    return pa.RecordBatch.from_arrays([columns[name] for name in fields.names], schema=fields)


def from_table(table: pa.Table) -> list[ProvenanceEvent]:
    """The events of these rows."""
    # As numbers: what was recorded while a clock was beyond the year 9999 is no time that Python knows.
    number = pa.int64()
    fields = [each.with_type(number) if pa.types.is_timestamp(each.type) else each for each in table.schema]
    rows = table.cast(pa.schema(fields)).to_pylist(maps_as_pydicts="strict")
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
        **{name: row[name] for name in _AS_THEY_ARE},
        millis=row["time"],
        type=EventType[row["type"]],
        uuid=parse_uuid(row["flow_file"]),
        duration_millis=-1 if duration is None else duration,
        entry_millis=row["entry_time"],
        lineage_millis=row["lineage_time"],
        parents=b"".join(map(parse_uuid, row["parents"])),
        children=b"".join(map(parse_uuid, row["children"])),
        attributes_before=pack_attributes(before),
        attributes=pack_attributes(after),
        content_before=_content(row["content_before"]),
        content=_content(row["content"]),
    )


def _content(fields: dict[str, Any] | None) -> Content | None:
    if fields is None:
        return None
    if fields["resource"] is None:
        return Content(None, fields["start"], fields["size"])
    claim = ContentClaim(fields["resource"], fields["offset"], fields["length"], fields["crc"])
    return Content(claim, fields["start"], fields["size"])


def _lists(joined: Iterable[bytes]) -> Any:
    # Most are empty: to ask each of them for its uuids takes four times as long.
    lists = [[format_uuid(uuid) for uuid in split_uuids(uuids)] if uuids else [] for uuids in joined]
    return pa.array(lists, pa.list_(pa.string()))


def _changes(before: Sequence[bytes], after: Sequence[bytes]) -> Any:
    """What each changed, as `changed_attributes` has it: mostly nothing, or all that a new FlowFile came with."""
    pairs = [(old, new) if old != new else (b"", b"") for old, new in zip(before, after, strict=True)]
    return maps_of(pairs, lambda pair: sum(map(len, pair)), lambda few: [changed_attributes(*pair) for pair in few])


def _contents(slices: Sequence[FlowFileRecord | Content | None]) -> Any:
    """A column of slices. Empty content has no claim; a FlowFile that did not exist has no content at all."""
    claims = [None if slice is None else slice.claim for slice in slices]
    if claims.count(None) < len(claims):
        arrays = [
            pa.array([None if claim is None else getattr(claim, name) for claim in claims], pa.int64())
            for name in _CLAIM_FIELDS[:4]
        ]
    else:
        arrays = [pa.nulls(len(claims), pa.int64())] * 4
    arrays.append(pa.array([None if slice is None else slice.start for slice in slices], pa.int64()))
    arrays.append(pa.array([None if slice is None else slice.size for slice in slices], pa.int64()))
    missing = pa.array([slice is None for slice in slices], pa.bool_())
    return pa.StructArray.from_arrays(arrays, names=list(_CLAIM_FIELDS), mask=missing)
