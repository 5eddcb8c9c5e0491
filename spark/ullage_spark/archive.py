"""Contents out to Parquet, on any filesystem that Hadoop knows, and back: for keeping, moving and trying out."""

from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, functions as F

from ullage_spark.content import with_content
from ullage_spark.tables import NODE

COLUMNS: Final = (NODE, "uuid", "queue", "entry_time", "lineage_time", "size", "attributes")
SCHEMA: Final = (
    "node string, uuid string, queue string, entry_time timestamp, lineage_time timestamp, size bigint, "
    "attributes map<string,string>, content binary"
)
RESTORED_FROM: Final = "ullage.restored.from"
"""The attribute in which a restored FlowFile says which one it was: uuids are never used twice."""


def exported(flowfiles: DataFrame, **options: Any) -> DataFrame:
    """The FlowFiles with their contents, verified as they are read: for `write.parquet`. Tombstones are left out.

    `flowfiles` at a snapshot. A content is one cell, so it is smaller than 2 GB.
    """
    return with_content(flowfiles.filter("deleted_time is null"), _with_cells, SCHEMA, **options)


def restorable(exported: DataFrame) -> DataFrame:
    """What `exported` wrote, for `write.format("ullage")`: under new uuids, with the old ones in an attribute."""
    origin = F.concat_ws("@", "uuid", NODE)
    attributes = F.map_from_entries(
        F.concat(
            F.filter(F.map_entries("attributes"), lambda entry: entry["key"] != RESTORED_FROM),
            F.array(F.struct(F.lit(RESTORED_FROM).alias("key"), origin.alias("value"))),
        )
    )
    return exported.select("content", attributes.alias("attributes"))


def _with_cells(rows: pa.RecordBatch, contents: list[bytes | None]) -> pa.RecordBatch:
    columns = [rows.column(name) for name in COLUMNS]
    return pa.RecordBatch.from_arrays([*columns, pa.array(contents, pa.binary())], names=[*COLUMNS, "content"])
