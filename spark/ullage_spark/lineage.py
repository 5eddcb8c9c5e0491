"""What a FlowFile was made from and what became of it, over all nodes: bounded, however much history there is."""

from typing import Final, NamedTuple

from pyspark.sql import DataFrame, functions as F

from ullage_spark.tables import NODE

EVENTS_MAX: Final = 10_000
DEPTH_MAX: Final = 100


class FleetLineage(NamedTuple):
    """`events` of all FlowFiles in it, oldest first; `flow_files` are their uuids. `is_whole`: no bound was met."""

    events: DataFrame
    flow_files: frozenset[str]
    is_whole: bool


def lineage(
    events: DataFrame, flow_file: str, *, depth: int = DEPTH_MAX, flow_files_max: int = EVENTS_MAX
) -> FleetLineage:
    """Follow parents up and children down from a FlowFile, `depth` steps each way, at most `flow_files_max` of them.

    `events` is the table `provenance`. Each step joins the edges with the few FlowFiles found last; what comes to the
    driver is uuids, within the bound. Ancestors' other children are not its lineage, and are not followed.
    """
    edges = _edges(events).persist()
    try:
        up, up_whole = _walk(edges, flow_file, "child", "parent", depth, flow_files_max)
        down, down_whole = _walk(edges, flow_file, "parent", "child", depth, flow_files_max)
    finally:
        edges.unpersist()
    found = frozenset({flow_file} | up | down)
    named = F.broadcast(_frame(events, found, "uuid"))
    return FleetLineage(events.join(named, "uuid").orderBy("time", NODE, "sequence"), found, up_whole and down_whole)


def _edges(events: DataFrame) -> DataFrame:
    """Who was made from whom, each pair once. Events of a split and of a merge name both."""
    of_parents = events.select(F.explode("parents").alias("parent"), F.col("uuid").alias("child"))
    of_children = events.select(F.col("uuid").alias("parent"), F.explode("children").alias("child"))
    return of_parents.union(of_children).filter("parent != child").distinct()


def _walk(edges: DataFrame, start: str, at: str, to: str, depth: int, flow_files_max: int) -> tuple[set[str], bool]:
    """What is reached from the start, and whether that is all."""
    found: set[str] = set()
    frontier = {start}
    for _ in range(depth):
        step = edges.join(F.broadcast(_frame(edges, frontier, at)), at).select(to).distinct()
        reached = {row[0] for row in step.limit(flow_files_max + 1).collect()} - found - {start}
        if not reached:
            return found, True
        if len(found) + len(reached) > flow_files_max:
            return found | set(sorted(reached)[: flow_files_max - len(found)]), False
        found |= reached
        frontier = reached
    return found, False


def _frame(like: DataFrame, uuids: set[str] | frozenset[str], name: str) -> DataFrame:
    return like.sparkSession.createDataFrame([(uuid,) for uuid in sorted(uuids)], f"{name} string")
