"""What to give back over the whole fleet: Spark plans, agents copy.

The plan is worked out of totals that agents keep for each resource claim, so it costs what there are of these, and not
of claims. Each row has the generation that it was planned for: an agent leaves out what has changed since.
"""

import time
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from pyspark.sql import Column, DataFrame, Window, functions as F

from ullage.client.node import Node
from ullage.client.repository import RemoteRepository
from ullage.errors import CompactionRefused, RunUnderWay, WindowClosed
from ullage.wire.space import RunProgress, RunRequest
from ullage_spark.addresses import FleetNode, http_url_of
from ullage_spark.errors import SparkSourceError
from ullage_spark.fleet import discover
from ullage_spark.settings import SourceOptions, as_options
from ullage_spark.tables import NODE

DEAD_BYTES_MIN: Final = 64 << 10
"""A file with less to gain is left alone: opening it costs more than it gives."""

RESOURCES_MAX: Final = 100_000
"""Resource claims of one run: more come with the next."""

COMPACT_ALL, STATS_BASED = "CompactAll", "StatsBased"
POLICIES: Final = (COMPACT_ALL, STATS_BASED)
"""Those of the agents' policies by which Spark can plan."""

LIVE_FRACTION_MAX: Final = 0.7
"""The default of spec.compaction.maxLiveFraction."""

BLOCK_BYTES: Final = 4_096
"""Copying less costs as much."""


class Budget(NamedTuple):
    """What a run may cost on each disk of each node: bytes copied, and resource claims touched."""

    copied_bytes: int = 10 << 30
    resource_claims: int = 10_000


RESOURCE_CLAIMS: Final = (
    *(NODE, "container", "resource_claim", "file", "generation", "length", "punched_bytes", "live_bytes", "live_end"),
    *("sealed", "intent", "archived_time", "created_time"),
)
"""The columns that a plan is made of."""


def reclamation_plan(
    resource_claims: DataFrame,
    budget: Budget | None = None,
    *,
    windows: DataFrame | None = None,
    policy: str = COMPACT_ALL,
    dead_bytes_min: int = DEAD_BYTES_MIN,
    live_fraction_max: float = LIVE_FRACTION_MAX,
    now_millis: int | None = None,
) -> DataFrame:
    """`node`, `container`, `resource_claim`, `generation`, `action`, `frees_bytes`, `copies_bytes`, `place`, `policy`;
    with the table `windows` also `may_start`, `closes_time`, `opens_time` and `why`: when the action may run.

    On each disk first what costs nothing (delete, truncate), then what to rewrite, as far as the budget goes. One
    shuffle, sized by resource claims; nothing is collected. SparkSourceError for a policy that only agents know.
    """
    if policy not in POLICIES:
        raise SparkSourceError(f"there is no policy {policy!r} to plan by: {', '.join(POLICIES)}")
    budget = budget or Budget()
    now = int(time.time() * 1000) if now_millis is None else now_millis
    costed = _costed(_candidates(resource_claims, dead_bytes_min), dead_bytes_min)
    if policy == STATS_BASED:
        is_worth = F.col("lives") <= live_fraction_max * (F.col("length") - F.col("punched_bytes"))
        costed = costed.filter(is_worth | (F.col("action") != "rewrite"))
    best = Window.partitionBy(NODE, "container").orderBy(
        F.col("copies_bytes") > 0, _cost(policy, now), F.desc("frees_bytes"), "resource_claim"
    )
    made = (
        costed.withColumn("copied", F.sum("copies_bytes").over(best))
        .withColumn("place", F.row_number().over(best))
        .filter((F.col("copied") <= budget.copied_bytes) & (F.col("place") <= budget.resource_claims))
        .drop("copied", "lives", "length", "punched_bytes", "created_time")
        .withColumn("policy", F.lit(policy))
    )
    return made if windows is None else _with_windows(made, windows)


def _candidates(resource_claims: DataFrame, dead_bytes_min: int) -> DataFrame:
    """Files with something to give back. What was rewritten lies in another file: whether that one is worth another
    rewrite is its own row's affair.
    """
    inside = resource_claims.groupBy(NODE, F.col("file").alias("resource_claim")).agg(
        F.sum("live_bytes").alias("lives"),
        F.max(F.when(F.col("resource_claim") == F.col("file"), F.col("live_end"))).alias("own_end"),
        F.sum(F.when(F.col("resource_claim") == F.col("file"), 0).otherwise(1)).alias("moved_in"),
    )
    return (
        resource_claims.filter("resource_claim = file and sealed and intent is null and archived_time is null")
        .join(inside, [NODE, "resource_claim"])
        .withColumn("dead", F.col("length") - F.col("punched_bytes") - F.col("lives"))
        .filter(F.col("dead") >= dead_bytes_min)
    )


def _costed(candidates: DataFrame, dead_bytes_min: int) -> DataFrame:
    """What each would take, and give."""
    tail = F.col("length") - F.col("own_end")
    is_tail = (F.col("moved_in") == 0) & (tail >= F.greatest(F.lit(dead_bytes_min), F.col("dead") / 2))
    action = F.when(F.col("lives") == 0, "delete").when(is_tail, "truncate").otherwise("rewrite")
    return candidates.select(
        NODE,
        "container",
        "resource_claim",
        "generation",
        action.alias("action"),
        F.when(action == "truncate", tail).otherwise(F.col("dead")).alias("frees_bytes"),
        F.when(action == "rewrite", F.col("lives")).otherwise(F.lit(0)).alias("copies_bytes"),
        *("lives", "length", "punched_bytes", "created_time"),
    )


def _cost(policy: str, now_millis: int) -> Column:
    """The less the better: bytes copied for each one freed; by StatsBased (policies.py) also weighed by age."""
    if policy == COMPACT_ALL:
        return F.col("copies_bytes") / F.col("frees_bytes")
    age = F.greatest(F.lit(1), F.lit(now_millis) - F.unix_millis("created_time"))
    copied = F.greatest(F.lit(BLOCK_BYTES), F.col("copies_bytes"))
    return 2 * copied / (F.col("frees_bytes") * age.cast("double"))


def _with_windows(made: DataFrame, windows: DataFrame) -> DataFrame:
    """When each action may run on its node. A node that says nothing allows nothing."""
    said = windows.select(
        NODE,
        F.lower("operation").alias("action"),
        F.col("may_start").alias("said"),
        "closes_time",
        "opens_time",
        F.col("reason").alias("why"),
    )
    joined = made.join(F.broadcast(said), [NODE, "action"], "left")
    return joined.select(
        *made.columns, F.coalesce("said", F.lit(False)).alias("may_start"), "closes_time", "opens_time", "why"
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
    """What became of a plan on one node: its run, or why there is none now."""

    node: str
    planned: int
    run: RunProgress | None
    refusal: str = ""


def carry_out(plan: DataFrame, *, override: bool = False, **options: Any) -> list[NodeRun]:
    """Hand each node its rows as one run of reclamation, under its windows, and follow all to the end.

    Only resource claims come to the driver. A node that will not begin now, since its windows are closed or another
    run is under way, has a `refusal`; the others go on.
    """
    settings = SourceOptions.of(as_options(options))
    nodes = {node.name: node for node in discover(settings)}
    handed = [(node, request, _client(settings, nodes, node)) for node, request in _by_node(plan, override=override)]
    begun = [(client, _begin(client, node, request)) for node, request, client in handed]
    found = []
    for client, latest in begun:
        with client:
            run = latest.run
            while run is not None and run.ended_millis is None:
                run = client.reclamation.run(run.id, wait_seconds=0.5)
            found.append(latest._replace(run=run))
    return found


def _begin(client: RemoteRepository, node: str, request: RunRequest) -> NodeRun:
    planned = len(request.resources or ())
    try:
        return NodeRun(node, planned, client.reclamation.begin(request))
    except (WindowClosed, CompactionRefused, RunUnderWay) as refusal:
        return NodeRun(node, planned, None, str(refusal))


def _by_node(plan: DataFrame, *, override: bool) -> Iterator[tuple[str, RunRequest]]:
    by_node: dict[tuple[str, str], list[tuple[int, int]]] = {}
    rows = plan.select(NODE, "policy", "resource_claim", "generation").orderBy(NODE, "place")
    for node, policy, resource_claim, generation in rows.toLocalIterator():
        by_node.setdefault((node, policy), []).append((resource_claim, generation))
    for (node, policy), resources in by_node.items():
        yield node, RunRequest(policy=policy, override=override, resources=resources[:RESOURCES_MAX])


def _client(settings: SourceOptions, nodes: Mapping[str, FleetNode], name: str) -> RemoteRepository:
    node = nodes.get(name)
    if node is None:
        raise SparkSourceError(f"the plan is for node {name}, which is not in the fleet that the options name")
    url = http_url_of(node)
    return RemoteRepository(Node(url=url, token=settings.bearer(url), ca_file=settings.authority()))
