"""What a FlowFile was made from and what became of it, over all nodes: bounded, however much history there is.

Nodes find the events of a FlowFile through their index of uuids, so each generation is one question to all of them,
side by side, and takes as long for ten million events as for ten thousand.
"""

from collections.abc import Iterable, Sequence
from functools import reduce
from itertools import chain
from typing import Final, NamedTuple, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame

from ullage.wire.predicates import Among, Column, Predicate, some, written
from ullage_spark.settings import ReadOptions
from ullage_spark.snapshots import FleetSnapshot
from ullage_spark.tables import NODE, arrow_schema, schema_of

EVENTS: Final = "provenance"
FLOW_FILES_MAX: Final = 10_000
DEPTH_MAX: Final = 100

ASKED_MAX: Final = 1_000
"""Uuids of one question."""

ORDER: Final = ("time", NODE, "sequence")

Edge = tuple[str, str]
"""The uuids of a parent and of its child."""


class Rows(Protocol):
    """Where events are read: `FleetSnapshot`, or `FleetRows`."""

    def rows(self, table: str, columns: Sequence[str], predicate: Predicate) -> list[pa.RecordBatch]:
        """Those for which it is true."""
        ...


class FleetLineage(NamedTuple):
    """`events` of all FlowFiles in it, oldest first; `flow_files` are their uuids. `is_whole`: no bound was met."""

    events: DataFrame
    flow_files: frozenset[str]
    is_whole: bool


class TracedLineage(NamedTuple):
    """The same in the program that asks."""

    events: pa.Table
    flow_files: frozenset[str]
    is_whole: bool


def lineage(
    moment: FleetSnapshot,
    flow_file: str,
    *,
    depth: int = DEPTH_MAX,
    flow_files_max: int = FLOW_FILES_MAX,
    columns: Sequence[str] = (),
) -> FleetLineage:
    """Follow parents up and children down from a FlowFile, `depth` steps each way, at most `flow_files_max` of them.

    Of the events nothing comes to the driver but uuids, within the bound; `columns` are those of `events` (empty: all).
    Ancestors' other children are not its lineage, and are not followed.
    """
    found, is_whole = _kin(moment, flow_file, depth, flow_files_max)
    chosen = {"columns": [*columns]} if columns else {}
    parts = [moment.table(EVENTS, where=written(each), **chosen) for each in _about(found)]
    return FleetLineage(reduce(DataFrame.union, parts).orderBy(*ORDER), found, is_whole)


def traced(
    fleet: Rows, flow_file: str, *, depth: int = DEPTH_MAX, columns: Sequence[str], events_max: int = FLOW_FILES_MAX
) -> TracedLineage:
    """The same without Spark, with the oldest `events_max` of its events; `columns` are those of `events`."""
    found, is_whole = _kin(fleet, flow_file, depth, FLOW_FILES_MAX)
    read = list(dict.fromkeys((*columns, *ORDER)))
    batches = [batch for each in _about(found) for batch in fleet.rows(EVENTS, read, each)]
    schema = arrow_schema(schema_of(ReadOptions(endpoint="any", table=EVENTS, columns=tuple(read))))
    events = pa.Table.from_batches(batches, schema).sort_by([(name, "ascending") for name in ORDER])
    return TracedLineage(
        events.slice(0, events_max).select(list(columns)), found, is_whole and len(events) <= events_max
    )


def _kin(fleet: Rows, flow_file: str, depth: int, flow_files_max: int) -> tuple[frozenset[str], bool]:
    """The FlowFiles, and whether these are all."""
    up, up_whole = _walk(fleet, flow_file, depth, flow_files_max, is_up=True)
    down, down_whole = _walk(fleet, flow_file, depth, flow_files_max, is_up=False)
    return frozenset({flow_file} | up | down), up_whole and down_whole


def _about(flow_files: frozenset[str]) -> list[Predicate]:
    return [Among(Column("uuid"), uuids) for uuids in _batches(flow_files)]


def _walk(fleet: Rows, start: str, depth: int, flow_files_max: int, *, is_up: bool) -> tuple[set[str], bool]:
    """What is reached from the start, and whether that is all."""
    found: set[str] = set()
    frontier = {start}
    for _ in range(depth):
        reached: set[str] = set()
        for uuids in _batches(frontier):
            for parent, child in _edges(fleet, uuids):
                at, to = (child, parent) if is_up else (parent, child)
                if at in frontier and to != start:
                    reached.add(to)
        reached -= found
        if not reached:
            return found, True
        if len(found) + len(reached) > flow_files_max:
            return found | set(sorted(reached)[: flow_files_max - len(found)]), False
        found |= reached
        frontier = reached
    return found, False


def _edges(fleet: Rows, uuids: tuple[str, ...]) -> Iterable[Edge]:
    """Who was made from whom, of what these are in. Events of a split and of a merge name both."""
    return chain.from_iterable(map(_edges_in, fleet.rows(EVENTS, ("uuid", "parents", "children"), related_to(uuids))))


def related_to(uuids: tuple[str, ...]) -> Predicate:
    """Events about one of these FlowFiles, or that have one among their parents or children."""
    lists = [Among(Column(name), uuids, True) for name in ("parents", "children")]
    return some([Among(Column("uuid"), uuids), *lists])


def _edges_in(rows: pa.RecordBatch) -> Iterable[Edge]:
    for own, parents, children in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        yield from ((parent, own) for parent in parents if parent != own)
        yield from ((own, child) for child in children if child != own)


def _batches(uuids: Iterable[str]) -> Iterable[tuple[str, ...]]:
    listed = sorted(uuids)
    return [tuple(listed[at : at + ASKED_MAX]) for at in range(0, len(listed), ASKED_MAX)]
