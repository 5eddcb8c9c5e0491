"""Rows of a fleet's tables in the program that asks, without Spark: of few, which nodes find through their indexes."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import msgspec
import pyarrow as pa

from ullage.client.retries import PASSING
from ullage.errors import UllageError
from ullage.wire.predicates import Predicate, written
from ullage.wire.tickets import TableTicket
from ullage_spark.addresses import FleetNode
from ullage_spark.errors import SparkSourceError
from ullage_spark.fleet import MissingNode, called, on_each
from ullage_spark.reader import table_rows
from ullage_spark.settings import ReadOptions, as_options
from ullage_spark.tables import schema_of


class FleetRows:
    """Of these nodes; `missing` are those that it goes without."""

    def __init__(self, settings: ReadOptions, nodes: Sequence[FleetNode], missing: Sequence[MissingNode] = ()) -> None:
        self._settings = settings
        self._nodes = tuple(nodes)
        self.missing = tuple(missing)

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Of the nodes that the options name. NodesMissing as anywhere."""
        settings = ReadOptions.of(as_options(options))
        roll = called(settings)
        return cls(settings, roll.nodes, roll.missing)

    def rows(self, table: str, columns: Sequence[str], predicate: Predicate) -> list[pa.RecordBatch]:
        """Those of all nodes for which it is true, at the snapshot if the options name one. NodesMissing."""
        settings = msgspec.structs.replace(
            self._settings, table=table, columns=tuple(columns), where=written(predicate)
        )
        schema, snapshots = schema_of(settings), settings.snapshots()
        found: list[pa.RecordBatch] = []

        def read(node: FleetNode) -> None:
            wanted = TableTicket(name=table, snapshot=snapshots[node.name].id if snapshots else None)
            try:
                found.extend(list(table_rows(settings, node, schema, wanted)))
            except PASSING:
                raise
            except UllageError as refusal:
                raise SparkSourceError(f"node {node.name}, table {table}: {refusal}") from refusal

        on_each(settings, self._nodes, read)
        return found
