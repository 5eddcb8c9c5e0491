"""What a node sends as record batches is believed as little as what a client sends: each batch is validated in full,
and is of the schema that was asked for, before a byte of it is used. A node that sends anything else counts as not
reachable.
"""

from typing import Final

import pyarrow as pa

from ullage.errors import NotReachable
from ullage.wire.schemas import BATCH_ROWS_MAX, SCHEMAS, schema_sent
from ullage.wire.tickets import TableTicket

RECEIVED_BYTES_MAX: Final = 64 << 20
"""One message: a node sends 4 MiB at a time, and more only where a single row has more."""


def schema_wanted(wanted: TableTicket) -> pa.Schema:
    """Of what a node sends for this ticket; columns that no table has are left to the node to refuse."""
    known = SCHEMAS.get(wanted.name, pa.schema([])).names
    names = known if wanted.columns is None else [name for name in wanted.columns if name in known]
    return schema_sent(wanted.name, names, runs=wanted.runs)


def require_schema(where: str, found: pa.Schema, wanted: pa.Schema) -> None:
    """NotReachable if a stream that came from there is of another one."""
    if not found.equals(wanted):
        raise NotReachable(f"{where}: the node sent other columns than asked for: {found.names}")


def require_sound(where: str, batch: pa.RecordBatch) -> None:
    """NotReachable if a batch that came from there is not what it says."""
    has_runs = any(pa.types.is_run_end_encoded(field.type) for field in batch.schema)
    if has_runs and batch.num_rows > BATCH_ROWS_MAX:
        raise NotReachable(f"{where}: the node sent {batch.num_rows} rows at a time")
    try:
        batch.validate(full=True)  # Arrow takes offsets and texts from the wire as they are
    except pa.ArrowInvalid as error:
        raise NotReachable(f"{where}: the node sent a batch that is none: {error}") from error
    columns = zip(batch.schema, batch.columns, strict=True)
    if any(column.null_count and not field.nullable for field, column in columns):
        raise NotReachable(f"{where}: the node sent nulls in a column that has none")
