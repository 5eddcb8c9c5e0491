"""The batch source: each task reads one share of one node's table, in Arrow batches bounded by bytes.

`partitions` plans and takes nothing: Spark calls it once and uses it for every later action. What shall agree is read
at a snapshot that somebody holds (`snapshots.py`); without one each task sees the moment in which it begins, and a node
is read by one task, so that at least its own rows agree. At a snapshot of several nodes partitions are slots, bound to
shares when their tasks run (`slots.py`).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructField, StructType

from ullage.errors import NotReachable, UllageError
from ullage.wire.documents import COUNT_MAX
from ullage.wire.predicates import written
from ullage.wire.tickets import ABOUT, Nothing, TableTicket
from ullage_spark.addresses import FleetNode
from ullage_spark.carried import Carried
from ullage_spark.errors import SparkSourceError
from ullage_spark.eventparts import Stretch, stretches
from ullage_spark.fleet import BUSY_SECONDS, Roll, ask, asked_again, called, on_each, roll_call, table_of
from ullage_spark.lineage_events import ToldRun
from ullage_spark.predicates import NOTHING, Where
from ullage_spark.settings import NodeSnapshot, ReadOptions, TableOptions
from ullage_spark.slots import SlotPart, begin_scan
from ullage_spark.tables import (
    COLUMNS,
    COMPLETENESS,
    NODE,
    ON_THE_WIRE,
    PARTED,
    arrow_schema,
    columns_of,
    in_spark,
    schema_asked,
)
from ullage_spark.workers import begin_planning, begin_task

EVENTS: Final = "provenance"

PARTS: Final = 4
"""Tasks a node, where a snapshot lets several read it: an agent's own work is one thread a stream."""


class TablePart(Carried, InputPartition):
    """One share of one node's table: the same few bytes however large the table."""

    def __init__(
        self, node: FleetNode, part: int, parts: int, snapshot: str | None, stretch: Stretch = (0, None)
    ) -> None:
        """`stretch` is of events."""
        self.node = node
        self.part = part
        self.parts = parts
        self.snapshot = snapshot
        self.stretch = stretch


class RollPart(Carried, InputPartition):
    """Who is there when the task runs."""


class TableReader(Carried, DataSourceReader):
    """See the module's text. It takes no pushed filters: tests/spark/test_traps.py says why."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._settings = ReadOptions.of(options)
        settings = self._settings
        self._schema = schema
        self._rows = self._asked_for()
        self._where = Where(settings.table, settings.where)
        if settings.table != EVENTS and (settings.after or settings.through != COUNT_MAX):
            raise SparkSourceError(f"options after and through are of table {EVENTS}, and this is {settings.table}")

    def partitions(self) -> list[InputPartition]:
        begin_planning()
        settings = self._settings
        snapshots = settings.snapshots()
        if settings.table == COMPLETENESS:
            return [RollPart(None)]
        nodes = [node for node in self._discovered(at_snapshot=bool(snapshots)) if self._where.reads(node.name)]
        if settings.table == EVENTS:
            return self._stretches(nodes, snapshots)
        parts = (settings.parts or (PARTS if snapshots else 1)) if settings.table in PARTED else 1
        if snapshots and settings.table in PARTED and len(nodes) > 1 and settings.locality_wait_millis:
            return begin_scan(settings, nodes, snapshots, parts)
        return [TablePart(node, part, parts, _id_of(snapshots, node.name)) for node in nodes for part in range(parts)]

    def _stretches(self, nodes: Sequence[FleetNode], snapshots: Mapping[str, NodeSnapshot]) -> list[InputPartition]:
        settings = self._settings
        found: dict[str, list[InputPartition]] = {}
        through = None if settings.through == COUNT_MAX else settings.through

        def split(node: FleetNode) -> None:
            about = ask(settings, node, ABOUT, Nothing())
            rest = self._where.at(node.name)
            stretched = stretches(about.first_sequence, about.last_sequence, rest, settings.after, through)
            id = _id_of(snapshots, node.name)
            found[node.name] = [TablePart(node, 0, 1, id, stretch) for stretch in stretched]

        on_each(settings, nodes, split)
        return [part for _, parts in sorted(found.items()) for part in parts]

    def _discovered(self, *, at_snapshot: bool) -> tuple[FleetNode, ...]:
        """A snapshot tells of its own reads. Of others Spark says no more than that they are planned."""
        if at_snapshot:
            return called(self._settings).nodes
        with ToldRun.of("ullage.read", self._settings, inputs=[self._settings.table]).told():
            return called(self._settings).nodes

    def read(self, partition: InputPartition) -> Iterator[Any]:
        begin_task()
        if isinstance(partition, RollPart):
            return self._completeness()
        part = self._bound(partition) if isinstance(partition, SlotPart) else partition
        if not isinstance(part, TablePart):  # nothing is left, or Spark runs one task even where there is nothing
            return iter(())
        return self._made(part.node, self._batches(part))

    def _completeness(self) -> Iterator[pa.RecordBatch]:
        target = arrow_schema(self._schema)
        found = completeness(roll_call(self._settings))
        yield from bounded(shaped(self._where.chosen(found), target), self._settings.batch_bytes)

    def _asked_for(self) -> StructType:
        """The table's columns that are read."""
        self._schema = schema_asked(self._schema, self._settings.table)
        return self._schema

    def _made(self, _node: FleetNode, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What Spark gets of them."""
        return rows

    def _bound(self, part: SlotPart) -> TablePart | None:
        found = part.bound(self._settings)
        if found is None:
            return None
        node, bound = found
        return TablePart(node, bound.share, bound.shares, _id_of(self._settings.snapshots(), bound.home))

    def _batches(self, part: TablePart) -> Iterator[pa.RecordBatch]:
        name = self._settings.table
        after, through = part.stretch
        share = (part.part, part.parts)
        wanted = TableTicket(name=name, snapshot=part.snapshot, part=share, after=after, through=through)
        try:
            yield from table_rows(self._settings, part.node, self._rows, wanted)
        except NotReachable:
            raise
        except UllageError as refusal:
            raise SparkSourceError(f"node {part.node.name}, table {name}: {refusal}") from refusal


def _id_of(snapshots: Mapping[str, NodeSnapshot], node: str) -> str | None:
    return snapshots[node].id if snapshots else None


def completeness(found: Roll) -> pa.RecordBatch:
    """The table of that name: every node of the fleet, those first that are left out."""
    rows: list[tuple[str, bool, str | None, int | None]] = []
    rows += [(each.name, False, each.reason, each.live_bytes) for each in found.missing]
    rows += [(node.name, True, None, 0) for node in found.nodes]
    schema = arrow_schema(StructType([StructField(*each) for each in COLUMNS[COMPLETENESS].items()]))
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    return pa.RecordBatch.from_arrays(
        [pa.array(list(column), field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


def table_rows(
    settings: TableOptions, node: FleetNode, schema: StructType, wanted: TableTicket
) -> Iterator[pa.RecordBatch]:
    """Rows of a node's table that the option `where` chooses, in this schema: the node sends no others."""
    rest = Where(wanted.name, settings.where).at(node.name)
    if rest in NOTHING:
        return
    target = arrow_schema(schema)
    for batch in _received(settings, node, target.names, msgspec.structs.replace(wanted, where=written(rest))):
        yield from bounded(in_spark(batch, wanted.name, node.name, target), settings.batch_bytes)


def _received(
    settings: TableOptions, node: FleetNode, names: Collection[str], wanted: TableTicket
) -> Iterator[pa.RecordBatch]:
    """What a node sends of these columns, as it sends them."""
    known = columns_of(wanted.name)
    columns = [name for name in known if name in names and name != NODE] or known[1:2]
    fields = ON_THE_WIRE[wanted.name]
    ticket = msgspec.structs.replace(wanted, columns=[fields[name].name for name in columns], runs=True)
    return asked_again(settings, lambda: table_of(settings, node, ticket), busy_seconds=BUSY_SECONDS)


def shaped(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """Exactly the columns and types that Spark expects: it compares the first batch's, and nothing of the others."""
    columns = []
    for field in target:
        column = batch.column(field.name)
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=target)


def bounded(batch: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """Slices of about so many bytes, none empty: rows of one table are more or less alike."""
    if not batch.num_rows:
        return
    rows = max(1, batch.num_rows * bytes_max // max(1, batch.nbytes))
    for at in range(0, batch.num_rows, rows):
        yield batch.slice(at, rows)
