"""The tables and their columns as Spark sees them: those of docs/flight.md, and the node that each row is of."""

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from ullage_spark.errors import SparkSourceError
from ullage_spark.settings import Settings

LONG, INT, TEXT, FLAG = LongType(), IntegerType(), StringType(), BooleanType()
ATTRIBUTES: Final = MapType(TEXT, TEXT)
UUIDS: Final = ArrayType(TEXT)
NODE: Final = "node"

PARTED: Final = frozenset({"claims", "resource_claims", "flowfiles", "content"})
"""Tables of which a node gives a share, so that several tasks read one node."""

COLUMNS: Final[dict[str, dict[str, DataType]]] = {
    "claims": {
        **dict.fromkeys(("resource_claim", "offset", "length", "crc32c", "claimants"), LONG),
        "container": TEXT,
        "file": LONG,
        "file_offset": LONG,
    },
    "resource_claims": {
        "resource_claim": LONG,
        "container": TEXT,
        "section": INT,
        "name": TEXT,
        "created_millis": LONG,
        "lifetime": INT,
        "length": LONG,
        "sealed": FLAG,
        "generation": LONG,
        "archived_millis": LONG,
        "intent": TEXT,
        **dict.fromkeys(("claims", "claimants", "live_bytes", "live_end", "punched_bytes", "file"), LONG),
        "last_death_millis": LONG,
    },
    "flowfiles": {
        "uuid": TEXT,
        "queue": TEXT,
        "size": LONG,
        **dict.fromkeys(("resource_claim", "claim_offset", "claim_length", "claim_crc32c", "start"), LONG),
        **dict.fromkeys(("entry_millis", "lineage_millis", "expires_millis", "deleted_millis"), LONG),
        "swapped": FLAG,
        "parents": UUIDS,
        "attributes": ATTRIBUTES,
    },
    "queues": {
        "queue": TEXT,
        "number": LONG,
        "priority": TEXT,
        "priority_attribute": TEXT,
        **dict.fromkeys(("count_max", "bytes_max", "expiration_millis", "flowfiles", "size", "swapped"), LONG),
    },
    "provenance": {
        "sequence": LONG,
        "transaction": LONG,
        "ordinal": INT,
        "millis": LONG,
        **dict.fromkeys(("type", "uuid", "component", "component_type", "relationship", "details"), TEXT),
        "transit_uri": TEXT,
        "alternate_identifier": TEXT,
        "duration_millis": LONG,
        "queue": TEXT,
        **dict.fromkeys(("entry_millis", "lineage_millis", "size"), LONG),
        "parents": UUIDS,
        "children": UUIDS,
        "attributes_before": ATTRIBUTES,
        "attributes": ATTRIBUTES,
    },
    "leases": {
        "lease": TEXT,
        "holder": TEXT,
        "resource_claims": ArrayType(LONG),
        **dict.fromkeys(("transaction", "created_millis", "expires_millis"), LONG),
        "holds_files": FLAG,
    },
    "runs": {
        "run": TEXT,
        "owner": TEXT,
        "reason": TEXT,
        **dict.fromkeys(("began_millis", "ended_millis", "steps_done", "freed_bytes", "copied_bytes"), LONG),
        "problem": TEXT,
    },
    "windows": {
        "operation": TEXT,
        "is_allowed": FLAG,
        "may_start": FLAG,
        "closes_millis": LONG,
        "overrun": TEXT,
        "opens_millis": LONG,
        "reason": TEXT,
    },
    "content": {"uuid": TEXT, "queue": TEXT, "offset": LONG, "content": BinaryType(), "problem": TEXT},
}


def columns_of(table: str) -> list[str]:
    """All columns of a table, the node first."""
    if table not in COLUMNS:
        raise SparkSourceError(f"there is no table {table}: {', '.join(COLUMNS)}")
    return [NODE, *COLUMNS[table]]


def schema_of(settings: Settings) -> StructType:
    """Of the columns that are asked for. `content` moves every byte, so it has to be asked for by name."""
    known = columns_of(settings.table)
    chosen = list(settings.columns) or known
    if unknown := [column for column in chosen if column not in known]:
        raise SparkSourceError(f"table {settings.table} has no column {', '.join(unknown)}: {', '.join(known)}")
    if settings.table == "content" and not settings.payload:
        raise SparkSourceError(
            "table content moves every byte to Spark: option payload=true says that it is meant; with_content opens "
            "content where it is needed"
        )
    return StructType([StructField(name, type_of(settings.table, name)) for name in chosen])


def type_of(table: str, column: str) -> DataType:
    """A column's type."""
    return TEXT if column == NODE else COLUMNS[table][column]
