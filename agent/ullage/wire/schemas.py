"""Columns of what Arrow Flight sends: the tables, puts and gets. The tables of docs/flight.md and docs/spark.md, and
Spark's own types, are made from these.
"""

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

ATTRIBUTES: Final = pa.map_(pa.string(), pa.string())
UUIDS: Final = pa.list_(pa.string())

TIME: Final = b"time"
"""The key under which a column's metadata says that its milliseconds are a moment since 1970, and no span."""

MILLIS: Final = pa.field("", pa.int64(), metadata={TIME: b"milliseconds"})

MEANING: Final = b"description"
"""The key under which a column's metadata says what it means, where its name does not."""


def _means(kind: pa.DataType | pa.Field, meaning: str) -> pa.Field:
    if isinstance(kind, pa.Field):
        return kind.with_metadata({**(kind.metadata or {}), MEANING: meaning.encode()})
    return pa.field("", kind, metadata={MEANING: meaning})


def _schema(**columns: pa.DataType | pa.Field) -> pa.Schema:
    return pa.schema(
        [kind.with_name(name) if isinstance(kind, pa.Field) else pa.field(name, kind) for name, kind in columns.items()]
    )


SCHEMAS: Final[dict[str, pa.Schema]] = {
    "claims": _schema(
        resource_claim=pa.int64(),
        offset=pa.int64(),
        length=pa.int64(),
        crc32c=pa.int64(),
        claimants=pa.int64(),
        container=pa.string(),
        file=_means(pa.int64(), "the resource claim in whose file the bytes lie now"),
        file_offset=_means(pa.int64(), "where in that file"),
    ),
    "resource_claims": _schema(
        resource_claim=pa.int64(),
        container=pa.string(),
        section=pa.int32(),
        name=pa.string(),
        created_millis=MILLIS,
        lifetime=pa.int32(),
        length=pa.int64(),
        sealed=pa.bool_(),
        generation=pa.int64(),
        archived_millis=MILLIS,
        intent=pa.string(),
        claims=_means(pa.int64(), "resident ones that were written to it"),
        claimants=_means(pa.int64(), "of what was written to it"),
        live_bytes=_means(pa.int64(), "of what was written to it"),
        live_end=_means(pa.int64(), "of what was written to it"),
        punched_bytes=pa.int64(),
        file=_means(pa.int64(), "another one if a rewrite has moved it"),
        last_death_millis=MILLIS,
    ),
    "flowfiles": _schema(
        uuid=pa.string(),
        queue=_means(pa.string(), "null: a handle"),
        size=pa.int64(),
        resource_claim=pa.int64(),
        claim_offset=pa.int64(),
        claim_length=pa.int64(),
        claim_crc32c=pa.int64(),
        start=_means(pa.int64(), "in the claim"),
        entry_millis=MILLIS,
        lineage_millis=MILLIS,
        expires_millis=MILLIS,
        deleted_millis=_means(MILLIS, "when it became a tombstone"),
        swapped=pa.bool_(),
        parents=UUIDS,
        attributes=ATTRIBUTES,
        seal=_means(pa.binary(), "goes with the address when the content is read; null for who may read every queue"),
    ),
    "queues": _schema(
        queue=pa.string(),
        number=pa.int64(),
        priority=pa.string(),
        priority_attribute=pa.string(),
        count_max=pa.int64(),
        bytes_max=pa.int64(),
        expiration_millis=pa.int64(),
        flowfiles=pa.int64(),
        size=pa.int64(),
        swapped=pa.int64(),
    ),
    "provenance": _schema(
        sequence=pa.int64(),
        transaction=pa.int64(),
        ordinal=pa.int32(),
        millis=MILLIS,
        type=pa.string(),
        uuid=pa.string(),
        component=pa.string(),
        component_type=pa.string(),
        relationship=pa.string(),
        details=pa.string(),
        transit_uri=pa.string(),
        alternate_identifier=pa.string(),
        duration_millis=pa.int64(),
        queue=pa.string(),
        entry_millis=MILLIS,
        lineage_millis=MILLIS,
        size=pa.int64(),
        parents=UUIDS,
        children=UUIDS,
        attributes_before=ATTRIBUTES,
        attributes=ATTRIBUTES,
    ),
    "leases": _schema(
        lease=pa.string(),
        holder=pa.string(),
        resource_claims=_means(pa.list_(pa.int64()), "none: a snapshot"),
        transaction=pa.int64(),
        created_millis=MILLIS,
        expires_millis=MILLIS,
        holds_files=pa.bool_(),
    ),
    "runs": _schema(
        run=pa.string(),
        owner=pa.string(),
        reason=pa.string(),
        began_millis=MILLIS,
        ended_millis=MILLIS,
        steps_done=pa.int64(),
        freed_bytes=pa.int64(),
        copied_bytes=pa.int64(),
        problem=pa.string(),
    ),
    "windows": _schema(
        operation=_means(pa.string(), "Delete, Truncate, Punch or Rewrite"),
        is_allowed=pa.bool_(),
        may_start=pa.bool_(),
        closes_millis=_means(MILLIS, "null: nothing in sight closes it"),
        overrun=pa.string(),
        opens_millis=_means(MILLIS, "null: nothing in sight opens it"),
        reason=pa.string(),
    ),
    "content": _schema(
        uuid=pa.string(),
        queue=pa.string(),
        offset=pa.int64(),
        content=pa.binary(),
        problem=pa.string(),
    ),
}

DESCRIPTIONS: Final = {
    "claims": "base claims in use, with how often and where they lie now",
    "resource_claims": "files of content, with what lives in them",
    "flowfiles": "FlowFiles and handles, swapped ones included",
    "queues": "queues with their settings and what stands in them",
    "provenance": "events up to the snapshot, as far as retention goes back",
    "leases": "what readers hold",
    "runs": "runs of reclamation that this process remembers; those of no owner nobody asked for",
    "windows": "what the windows allow now for each operation, and when they open and close",
    "content": "content of FlowFiles and handles but no tombstones, a row for each piece of up to a MiB",
}


ALIKE: Final = frozenset(
    (
        *("queue", "resource_claim", "start", "swapped"),
        *("entry_millis", "lineage_millis", "expires_millis", "deleted_millis"),
    )
)
"""Columns of `flowfiles` that are mostly alike row after row: of what came together, and of one swap file."""

BATCH_ROWS_MAX: Final = 100_000
"""Of a batch with runs; a node sends some ten thousand. A run of any length takes a few bytes, and each row of it some
once it is made rows again.
"""


def schema_sent(table: str, columns: Sequence[str], *, runs: bool) -> pa.Schema:
    """As these columns of a table go over the wire: with `runs` those in `ALIKE` are run-end encoded."""
    fields = [SCHEMAS[table].field(name) for name in columns]
    if runs and table == "flowfiles":
        fields = [
            field.with_type(pa.run_end_encoded(pa.int32(), field.type)) if field.name in ALIKE else field
            for field in fields
        ]
    return pa.schema(fields)


def is_time(field: pa.Field) -> bool:
    """Whether a column is a moment."""
    return TIME in (field.metadata or {})


def name_for_sql(field: pa.Field) -> str:
    """The column's name where times are SQL's timestamps: `entry_millis` is `entry_time`."""
    return field.name.removesuffix("millis") + "time" if is_time(field) else str(field.name)


PUT_CONTENT: Final = "content"
PUT_ATTRIBUTES: Final = "attributes"
PUT_CONTINUES: Final = "continues"
PUT_SCHEMA: Final = pa.schema(
    [
        pa.field(PUT_CONTENT, pa.binary(), nullable=False),
        pa.field(PUT_ATTRIBUTES, ATTRIBUTES),
        pa.field(PUT_CONTINUES, pa.bool_()),
    ]
)
"""Of a put; the last two columns may be missing. `continues`: the next row goes on with the same content."""

GET_SCHEMA: Final = pa.schema(
    [
        pa.field("item", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("content", pa.binary()),
        pa.field("problem", pa.string()),
    ]
)
"""Of a get: the item's number in the ticket, where in it this piece begins, the piece, or the slug of the problem. A
content of up to a MiB is one row; a larger one is several, in order.
"""
