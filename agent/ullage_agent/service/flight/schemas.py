"""The tables' columns. docs/flight.md says what they mean; a test compares the two."""

from typing import Final

import pyarrow as pa

ATTRIBUTES: Final = pa.map_(pa.string(), pa.string())
UUIDS: Final = pa.list_(pa.string())
MILLIS: Final = pa.int64()


def _schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(name.rstrip("_"), kind) for name, kind in columns.items()])


SCHEMAS: Final[dict[str, pa.Schema]] = {
    "claims": _schema(
        resource_claim=pa.int64(),
        offset=pa.int64(),
        length=pa.int64(),
        crc32c=pa.int64(),
        claimants=pa.int64(),
        container=pa.string(),
        file=pa.int64(),
        file_offset=pa.int64(),
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
        claims=pa.int64(),
        claimants=pa.int64(),
        live_bytes=pa.int64(),
        live_end=pa.int64(),
        punched_bytes=pa.int64(),
        file=pa.int64(),
        last_death_millis=MILLIS,
    ),
    "flowfiles": _schema(
        uuid=pa.string(),
        queue=pa.string(),
        size=pa.int64(),
        resource_claim=pa.int64(),
        claim_offset=pa.int64(),
        claim_length=pa.int64(),
        claim_crc32c=pa.int64(),
        start=pa.int64(),
        entry_millis=MILLIS,
        lineage_millis=MILLIS,
        expires_millis=MILLIS,
        deleted_millis=MILLIS,
        swapped=pa.bool_(),
        parents=UUIDS,
        attributes=ATTRIBUTES,
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
        resource_claims=pa.list_(pa.int64()),
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
        operation=pa.string(),
        is_allowed=pa.bool_(),
        may_start=pa.bool_(),
        closes_millis=MILLIS,
        overrun=pa.string(),
        opens_millis=MILLIS,
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
    "flowfiles": "FlowFiles and handles (queue null), swapped ones included",
    "queues": "queues with their settings and what stands in them",
    "provenance": "events up to the snapshot, as far as retention goes back",
    "leases": "what readers hold",
    "runs": "runs of reclamation that this process remembers",
    "windows": "what the windows allow now, and when they open and close",
    "content": "content of FlowFiles and handles, a row for each piece of up to a MiB",
}
