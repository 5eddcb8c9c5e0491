"""The tables and their columns as Spark sees them: those of `ullage.wire.schemas`, and the node that each row is of.

A table that `CREATE TABLE ... USING ullage` makes keeps its options with its first column, as metadata: Spark asks for
the schema with the options, keeps it in its catalog, and hands readers and writers the schema without the options.
"""

from array import array
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ullage.wire.matching import times
from ullage.wire.schemas import MEANING, PUT_ATTRIBUTES, PUT_CONTENT, SCHEMAS, is_time, name_for_sql
from ullage_spark.errors import SparkSourceError
from ullage_spark.settings import SourceOptions, TableOptions, of_any_use, of_use
from ullage_spark.versions import IN_UTC

NODE: Final = "node"

PARTED: Final = frozenset({"claims", "resource_claims", "flowfiles", "content"})
"""Tables of which a node gives a share, so that several tasks read one node."""

COMPLETENESS: Final = "completeness"
"""The table that no node has: a row for each node, whether it is read, or why not and what that leaves out."""

PUT: Final = "put"
"""The table that is only written: what goes into it becomes FlowFiles or handles."""

COMMENT: Final = "comment"
"""Of a column, as Spark's DESCRIBE shows it."""

OPTIONS: Final = "ullage.options"
"""In the metadata of a catalog's table, at its first column: the options with which it was made, as JSON."""

FLEET: Final = frozenset({"endpoint", "nodes"})
"""Options that say which fleet."""

OPTION: Final = "option."
"""Before each of them when CREATE TABLE asks for the schema, beside table properties of anybody's."""

CREATES: Final = "provider"
"""What Spark adds then, and never when it reads or writes."""

OPENLY_KEPT: Final = (
    "option token: a catalog keeps the options of its tables, and is no place for a token; option tokenFile names the "
    "file that has it"
)


def _kind_of(field: pa.Field) -> DataType:
    return TimestampType() if is_time(field) else from_arrow_type(field.type)


def _says_more(field: pa.Field) -> bool:
    return MEANING in (field.metadata or {})


COLUMNS: Final[dict[str, dict[str, DataType]]] = {
    **{
        table: {NODE: StringType(), **{name_for_sql(field): _kind_of(field) for field in schema}}
        for table, schema in SCHEMAS.items()
    },
    COMPLETENESS: {
        NODE: StringType(),
        "is_read": BooleanType(),
        "reason": StringType(),
        "missing_bytes": LongType(),
    },
    PUT: {PUT_CONTENT: BinaryType(), PUT_ATTRIBUTES: MapType(StringType(), StringType())},
}

MEANINGS: Final[dict[str, dict[str, str]]] = {
    **{
        table: {
            NODE: "the node that the row is of",
            **{name_for_sql(field): field.metadata[MEANING].decode() for field in schema if _says_more(field)},
        }
        for table, schema in SCHEMAS.items()
    },
    COMPLETENESS: {
        NODE: "each node of the fleet",
        "reason": "why it is not read",
        "missing_bytes": "content that the result goes without; null: nobody knows",
    },
    PUT: {PUT_CONTENT: "not null; an empty one has no bytes", PUT_ATTRIBUTES: "of the new FlowFile or handle"},
}


ALIKE_ROWS: Final = 30_000
"""Rows of one value that are kept for the next batch: as many as a node sends at a time of its largest table."""

ON_THE_WIRE: Final = {table: {name_for_sql(field): field for field in schema} for table, schema in SCHEMAS.items()}
"""Fields of what nodes send, by what Spark calls them."""

TIMES: Final = {table: {name for name, field in sent.items() if is_time(field)} for table, sent in ON_THE_WIRE.items()}
"""Which of them are moments, by the same names."""


def in_spark(batch: pa.RecordBatch, table: str, node: str, target: pa.Schema) -> pa.RecordBatch:
    """A node's rows as Spark expects these columns: under its names, without runs, with the node; milliseconds are
    timestamps, and 0, which says that there is no such time, is null.
    """
    columns = []
    for field in target:
        if field.name == NODE:
            column = _alike(_text(node), batch.num_rows)
        else:
            column = _plain(batch.column(ON_THE_WIRE[table][field.name].name), is_millis=field.name in TIMES[table])
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=target)


@lru_cache(maxsize=2)
def _text(text: str) -> pa.Scalar:
    """Pyarrow imports pandas to look at a Python value, a quarter of a second in each worker."""
    encoded = text.encode()
    return pa.StringArray.from_buffers(1, pa.py_buffer(array("i", [0, len(encoded)])), pa.py_buffer(encoded))[0]


def _plain(column: pa.Array, *, is_millis: bool) -> pa.Array:
    if not pa.types.is_run_end_encoded(column.type):
        return times(column) if is_millis else column
    # Runs may begin before the column, and go on beyond it.
    if column.find_physical_length() == 1:
        return _alike(column.values[column.find_physical_offset()], len(column), is_millis=is_millis)
    if is_millis:  # once a run
        runs = pa.RunEndEncodedArray.from_arrays(column.run_ends, times(column.values))
        column = runs.slice(column.offset, len(column))
    return pc.run_end_decode(column)


def _alike(value: pa.Scalar, count: int, *, is_millis: bool = False) -> pa.Array:
    """Rows of one value."""
    if count > ALIKE_ROWS:
        return _made_alike(value, count, is_millis)
    return _kept_alike(value, is_millis)[:count]


@lru_cache(maxsize=16)
def _kept_alike(value: pa.Scalar, is_millis: bool) -> pa.Array:
    """Batch after batch of a queue has the same in most of its columns of runs: to make them anew was a fifth of a
    task's work, and whoever copies them finds them in the processor's cache.
    """
    return _made_alike(value, ALIKE_ROWS, is_millis)


def _made_alike(value: pa.Scalar, count: int, is_millis: bool) -> pa.Array:
    rows = pa.repeat(value, count)
    return times(rows) if is_millis else rows


def arrow_schema(schema: StructType) -> pa.Schema:
    """As Spark expects it of a source."""
    return to_arrow_schema(schema, **IN_UTC)


def columns_of(table: str) -> list[str]:
    """All columns of a table, the node first."""
    if table not in COLUMNS:
        raise SparkSourceError(f"there is no table {table}: {', '.join(COLUMNS)}")
    return [*COLUMNS[table]]


def schema_of(settings: TableOptions) -> StructType:
    """The schema of the columns that are asked for. `content` moves every byte, so it has to be asked for by name."""
    known = columns_of(settings.table)
    chosen = list(settings.columns) or known
    if unknown := [column for column in chosen if column not in known]:
        raise SparkSourceError(f"table {settings.table} has no column {', '.join(unknown)}: {', '.join(known)}")
    if len(set(chosen)) < len(chosen):
        raise SparkSourceError(f"option columns: {', '.join(chosen)}: each column is named once")
    if settings.table == "content" and not settings.payload:
        raise SparkSourceError(
            "table content moves every byte to Spark: option payload=true says that it is meant; with_content opens "
            "content where it is needed"
        )
    meanings = MEANINGS[settings.table]
    return StructType(
        [
            StructField(
                name, COLUMNS[settings.table][name], metadata={COMMENT: meanings[name]} if name in meanings else {}
            )
            for name in chosen
        ]
    )


def schema_asked(schema: StructType, table: str) -> StructType:
    """What Spark asks to be read, which its user or its catalog may have said; without comments and options.

    SparkSourceError for columns that the table has not, or of another type: nothing is cast here.
    """
    if table == PUT:
        raise SparkSourceError(f"table {PUT} is only written, by INSERT INTO: flowfiles and content show what there is")
    known = columns_of(table)
    if unknown := [field.name for field in schema if field.name not in known]:
        raise SparkSourceError(f"table {table} has no column {', '.join(unknown)}: {', '.join(known)}")
    for field in schema:
        is_of, wanted = COLUMNS[table][field.name].simpleString(), field.dataType.simpleString()
        if is_of != wanted:
            raise SparkSourceError(
                f"column {field.name} of table {table} is {is_of}, not {wanted}: name no columns, or CAST in a view"
            )
    return StructType([StructField(field.name, field.dataType, field.nullable) for field in schema])


def declared(options: Mapping[str, str]) -> StructType:
    """The schema that Spark asks for before it says what for; with the options in it if a catalog will keep it."""
    if CREATES not in {name.lower() for name in options}:
        return schema_of(of_any_use(options))
    given = {name.lower().removeprefix(OPTION): v for name, v in options.items() if name.lower().startswith(OPTION)}
    found = schema_of(of_any_use(given))
    if "token" in given:
        raise SparkSourceError(OPENLY_KEPT)
    first, *others = found.fields
    kept = {**first.metadata, OPTIONS: msgspec.json.encode(given, order="deterministic").decode()}
    # Spark hands a writer the query's columns, and makes them the table's, with the options, only where their names or
    # types differ. So the name of this one differs from what anybody writes; Spark itself sees no capital letters.
    name = first.name.capitalize() if given.get("table") == PUT else first.name
    return StructType([StructField(name, first.dataType, metadata=kept), *others])


def options_of(options: Mapping[str, str], schema: StructType, kind: type[SourceOptions]) -> dict[str, Any]:
    """Those of a read or a write, and those that its table was made with, as far as they are of this use.

    Columns take metadata along, into files too: what names a fleet itself gets none of another table's options.
    """
    kept = next((field.metadata[OPTIONS] for field in schema if OPTIONS in (field.metadata or {})), None)
    if kept is None or FLEET & {name.lower() for name in options}:
        return dict(options)
    try:
        made_with = msgspec.json.decode(kept, type=dict[str, str])
    except msgspec.DecodeError as error:
        raise SparkSourceError(f"the options in the table's schema are none: {error}") from error
    return {**of_use(made_with, kind), **{name.lower(): value for name, value in options.items()}}
