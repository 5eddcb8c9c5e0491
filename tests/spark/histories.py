"""What a history holds, read as anybody reads it: a folder by its manifest, Iceberg by a scan."""

from typing import Any

import pyarrow.dataset
from pyiceberg.catalog import load_catalog

from ullage.clock import Clock
from ullage_spark.histories import addresses_of_files
from ullage_spark.history import ICEBERG


class Tomorrow(Clock):
    """A day ahead: what happened today is of a day that is over."""

    def now_millis(self) -> int:
        return super().now_millis() + 86_400_000


def rows_of(where: str, table: str) -> list[dict[str, Any]]:
    """All rows of a table of a history."""
    if where.startswith(ICEBERG):
        catalog, _, namespace = where.removeprefix(ICEBERG).partition("/")
        found = load_catalog(catalog).load_table(f"{namespace}.{table}").scan().to_arrow()
    else:
        files = addresses_of_files(where, table)
        found = pyarrow.dataset.dataset(files).to_table() if files else pyarrow.table({})
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


def rows(where: str) -> dict[str, Any]:
    """The events by node and sequence, the runs by node and uuid, and what the roll-up counts by node."""
    counted: dict[str, int] = {}
    for row in rows_of(where, "rollup"):
        counted[row["node"]] = counted.get(row["node"], 0) + row["events"]
    return {
        "events": sorted([row["node"], row["sequence"]] for row in rows_of(where, "events")),
        "runs": sorted([row["node"], row["run"]] for row in rows_of(where, "runs")),
        "counted": counted,
    }
