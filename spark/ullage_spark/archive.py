"""Contents out to Parquet, on any filesystem that Hadoop knows, and back: for keeping, moving and trying out."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, functions as F

from ullage.contentfile import ContentFile
from ullage_spark.content import opened
from ullage_spark.errors import ContentUnreadable
from ullage_spark.opener import ContentUse, pickled
from ullage_spark.tables import NODE

COLUMNS: Final = (NODE, "uuid", "queue", "entry_time", "lineage_time", "size", "attributes")
SCHEMA: Final = (
    "node string, uuid string, queue string, entry_time timestamp, lineage_time timestamp, size bigint, "
    "attributes map<string,string>, part int, parts int, content binary, problem string"
)
RESTORED_FROM: Final = "ullage.restored.from"
"""The attribute in which a restored FlowFile says which one it was: uuids are never used twice."""

PART_BYTES: Final = 16 << 20
"""Of a content in one cell: a larger one has several rows, for a cell holds 2 GB at most, and a task several cells."""

Cell = tuple[int, bytes | None, str | None]
"""The number of the part, its bytes, and the problem if there are none."""


def exported(flowfiles: DataFrame, **options: Any) -> DataFrame:
    """The FlowFiles with their contents, verified as they are read: for `write.parquet`. Tombstones are left out.

    `flowfiles` at a snapshot. A content of any size, in `parts` rows, of which `part` counts from 0. One that cannot be
    read has a `problem` instead, and spoils nothing for the others: `failures` lists them.
    """
    how = ContentUse(pickled(_in_parts), as_files=True, tells_problems=True)
    return opened(flowfiles.filter("deleted_time is null"), how, SCHEMA, options)


def failures(exported: DataFrame) -> DataFrame:
    """Which contents are not in what `exported` gave, and why: the slug of a problem (docs/errors.md)."""
    return exported.filter("problem IS NOT NULL").select(NODE, "uuid", "queue", "size", "problem")


def restorable(exported: DataFrame) -> DataFrame:
    """What `exported` wrote, for `write.format("ullage")`: under new uuids, with the old ones in an attribute. What is
    not there whole is left out.
    """
    origin = F.concat_ws("@", "uuid", NODE)
    attributes = F.map_from_entries(
        F.concat(
            F.filter(F.map_entries("attributes"), lambda entry: entry["key"] != RESTORED_FROM),
            F.array(F.struct(F.lit(RESTORED_FROM).alias("key"), origin.alias("value"))),
        )
    )
    key = [NODE, "uuid"]
    large = exported.filter("parts > 1").join(failures(exported).select(key), key, "left_anti")
    # Parts of a content go to one task, in their order; the others stay where they are.
    ordered = large.repartition(*key).sortWithinPartitions(*key, "part")
    whole = exported.filter("parts = 1 AND problem IS NULL").unionByName(ordered)
    return whole.select("content", attributes.alias("attributes"), F.expr("part + 1 < parts").alias("continues"))


def _in_parts(rows: pa.RecordBatch, contents: Sequence[ContentFile | str]) -> Iterator[pa.RecordBatch]:
    """A batch of all rows, or if there is one, which may be large, one of each part."""
    if len(contents) > 1:
        yield _batch(rows, [next(_cells(each)) for each in contents], 1)
        return
    parts = max(1, -(-rows.column("size")[0].as_py() // PART_BYTES))
    for cell in _cells(contents[0]):
        yield _batch(rows, [cell], parts)


def _cells(content: ContentFile | str) -> Iterator[Cell]:
    if isinstance(content, str):
        yield 0, None, content
        return
    number = 0
    while not number or content.tell() < content.size:
        try:
            yield number, content.read(PART_BYTES), None
        except ContentUnreadable as error:
            yield number, None, error.problem
            return
        number += 1


def _batch(rows: pa.RecordBatch, cells: Sequence[Cell], parts: int) -> pa.RecordBatch:
    numbers, contents, problems = zip(*cells, strict=True)
    made = {
        **{name: rows.column(name) for name in COLUMNS},
        "part": pa.array(numbers, pa.int32()),
        "parts": pa.repeat(pa.scalar(parts, pa.int32()), len(cells)),
        "content": pa.array(contents, pa.binary()),
        "problem": pa.array(problems, pa.string()),
    }
    return pa.RecordBatch.from_pydict(made)
