"""The tables and their columns as Spark sees them: those of `ullage.wire.schemas`, and the node that each row is of."""

from typing import Final

from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import BooleanType, DataType, LongType, StringType, StructField, StructType

from ullage.wire.schemas import SCHEMAS
from ullage_spark.errors import SparkSourceError
from ullage_spark.settings import SourceOptions

NODE: Final = "node"

PARTED: Final = frozenset({"claims", "resource_claims", "flowfiles", "content"})
"""Tables of which a node gives a share, so that several tasks read one node."""

COMPLETENESS: Final = "completeness"
"""The table that no node has: a row for each node, whether it is read, or why not and what that leaves out."""

COLUMNS: Final[dict[str, dict[str, DataType]]] = {
    **{
        table: {NODE: StringType(), **{field.name: from_arrow_type(field.type) for field in schema}}
        for table, schema in SCHEMAS.items()
    },
    COMPLETENESS: {
        NODE: StringType(),
        "is_read": BooleanType(),
        "reason": StringType(),
        "missing_bytes": LongType(),
    },
}


def columns_of(table: str) -> list[str]:
    """All columns of a table, the node first."""
    if table not in COLUMNS:
        raise SparkSourceError(f"there is no table {table}: {', '.join(COLUMNS)}")
    return [*COLUMNS[table]]


def schema_of(settings: SourceOptions) -> StructType:
    """The schema of the columns that are asked for. `content` moves every byte, so it has to be asked for by name."""
    known = columns_of(settings.table)
    chosen = list(settings.columns) or known
    if unknown := [column for column in chosen if column not in known]:
        raise SparkSourceError(f"table {settings.table} has no column {', '.join(unknown)}: {', '.join(known)}")
    if settings.table == "content" and not settings.payload:
        raise SparkSourceError(
            "table content moves every byte to Spark: option payload=true says that it is meant; with_content opens "
            "content where it is needed"
        )
    return StructType([StructField(name, COLUMNS[settings.table][name]) for name in chosen])
