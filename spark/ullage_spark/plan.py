"""What to give back over the whole fleet: Spark plans, agents copy.

The plan is worked out of totals that agents keep for each resource claim, so it costs what there are of these, and not
of claims. Each row has the generation that it was planned for: an agent leaves out what has changed since.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from pyspark.sql import (
    DataFrame,
    Window,
    functions as F,  # noqa: N812
)

from ullage_agent.client import Retries
from ullage_agent.client.documents import Run, RunWish
from ullage_agent.client.http import HttpClient
from ullage_spark.errors import SparkSourceError
from ullage_spark.fleet import Node, discover, http_url_of
from ullage_spark.settings import Settings, as_options
from ullage_spark.tables import NODE

DEAD_BYTES_MIN: Final = 64 << 10
"""A file with less to gain is left alone: opening it costs more than it gives."""

RESOURCES_MAX: Final = 100_000
"""Resource claims of one run: more come with the next."""


class Budget(NamedTuple):
    """What a run may cost on each disk of each node: bytes copied, and resource claims touched."""

    copied_bytes: int = 10 << 30
    resource_claims: int = 10_000


def reclamation_plan(
    resource_claims: DataFrame, budget: Budget | None = None, *, dead_bytes_min: int = DEAD_BYTES_MIN
) -> DataFrame:
    """`node`, `container`, `resource_claim`, `generation`, `action`, `frees_bytes`, `copies_bytes`, `place`.

    On each disk first what costs nothing (delete, truncate), then what frees most for each byte copied (rewrite), as
    far as the budget goes. One shuffle, sized by resource claims; nothing is collected.
    """
    budget = budget or Budget()
    # What was rewritten lies in another file: whether that file is worth another rewrite is its own row's affair.
    inside = resource_claims.groupBy(NODE, F.col("file").alias("resource_claim")).agg(
        F.sum("live_bytes").alias("lives"),
        F.max(F.when(F.col("resource_claim") == F.col("file"), F.col("live_end"))).alias("own_end"),
        F.sum(F.when(F.col("resource_claim") == F.col("file"), 0).otherwise(1)).alias("moved_in"),
    )
    candidates = (
        resource_claims.filter("resource_claim = file and sealed and intent is null and archived_millis = 0")
        .join(inside, [NODE, "resource_claim"])
        .withColumn("dead", F.col("length") - F.col("punched_bytes") - F.col("lives"))
        .filter(F.col("dead") >= dead_bytes_min)
    )
    tail = F.col("length") - F.col("own_end")
    is_tail = (F.col("moved_in") == 0) & (tail >= F.greatest(F.lit(dead_bytes_min), F.col("dead") / 2))
    action = F.when(F.col("lives") == 0, "delete").when(is_tail, "truncate").otherwise("rewrite")
    costed = candidates.select(
        NODE,
        "container",
        "resource_claim",
        "generation",
        action.alias("action"),
        F.when(action == "truncate", tail).otherwise(F.col("dead")).alias("frees_bytes"),
        F.when(action == "rewrite", F.col("lives")).otherwise(F.lit(0)).alias("copies_bytes"),
    )
    best = Window.partitionBy(NODE, "container").orderBy(
        (F.col("copies_bytes") / F.col("frees_bytes")).asc(), F.desc("frees_bytes"), "resource_claim"
    )
    return (
        costed.withColumn("copied", F.sum("copies_bytes").over(best))
        .withColumn("place", F.row_number().over(best))
        .filter((F.col("copied") <= budget.copied_bytes) & (F.col("place") <= budget.resource_claims))
        .drop("copied")
    )


class Total(NamedTuple):
    """What a plan comes to. Sizes in bytes."""

    nodes: int
    resource_claims: int
    frees_bytes: int
    copies_bytes: int


def total(plan: DataFrame) -> Total:
    """Of all its rows."""
    sums = [F.coalesce(F.sum(column), F.lit(0)) for column in ("frees_bytes", "copies_bytes")]
    row = plan.agg(F.countDistinct(NODE), F.count("*"), *sums).first()
    assert row is not None
    return Total(*row)


class NodeRun(NamedTuple):
    """What became of a plan on one node."""

    node: str
    planned: int
    run: Run


def carry_out(
    plan: DataFrame,
    *,
    override: bool = False,
    retries: Retries | None = None,
    on_progress: Callable[[NodeRun], None] = lambda _: None,
    **options: Any,
) -> list[NodeRun]:
    """Hand each node its rows as one run of reclamation, under its windows, and follow all to the end.

    Only resource claims come to the driver. `Refused` (window-closed, run-under-way) if a node will not begin; the runs
    of other nodes go on then.
    """
    settings = Settings.of(as_options(options))
    nodes = {node.name: node for node in discover(settings)}
    pause = retries or Retries()
    begun = [(name, len(resources), _client(settings, nodes, name), resources) for name, resources in _by_node(plan)]
    runs = [
        (name, count, client, client.begin_run(_wish(resources, override=override)))
        for name, count, client, resources in begun
    ]
    found = []
    for name, count, client, run in runs:
        with client:
            while run.ended_millis is None:
                on_progress(NodeRun(name, count, run))
                pause.sleep(0.5)
                run = pause.run(lambda client=client, run=run: client.run(run.id))  # type: ignore[misc] # noqa: PLW2901
        found.append(NodeRun(name, count, run))
        on_progress(found[-1])
    return found


def _wish(resources: list[tuple[int, int]], *, override: bool) -> RunWish:
    return RunWish(policy="CompactAll", override=override, resources=resources)


def _by_node(plan: DataFrame) -> Iterator[tuple[str, list[tuple[int, int]]]]:
    by_node: dict[str, list[tuple[int, int]]] = {}
    for row in plan.select(NODE, "resource_claim", "generation").orderBy(NODE, "place").toLocalIterator():
        by_node.setdefault(row[0], []).append((row[1], row[2]))
    for name, resources in by_node.items():
        yield name, resources[:RESOURCES_MAX]


def _client(settings: Settings, nodes: Mapping[str, Node], name: str) -> HttpClient:
    node = nodes.get(name)
    if node is None:
        raise SparkSourceError(f"the plan is for node {name}, which is not in the fleet that the options name")
    return HttpClient(http_url_of(node), settings.bearer(), ca_file=settings.ca_file or None)
