"""Who pins which disk: what keeps dead bytes from being given back, by node, disk, queue, age and size.

A file is given back as a whole when nothing in it lives, or else by copying what does. So each survivor pins a part of
the dead bytes beside it: shared out here by the bytes that live, and a content's part among the FlowFiles that share
it. The parts add up to what is dead.
"""

from pyspark.sql import Column, DataFrame, Window, functions as F

from ullage_spark.space import AGES, HANDLES, LARGEST, NOBODY, OLDEST, SIZES
from ullage_spark.tables import NODE

RESOURCE_CLAIMS = (NODE, "resource_claim", "file", "container", "length", "punched_bytes", "archived_time")
FLOWFILES = (NODE, "queue", "size", "resource_claim", "claim_offset", "claim_length", "entry_time")
"""The columns that it reads."""


def fragmentation(resource_claims: DataFrame, flowfiles: DataFrame, now_millis: int) -> DataFrame:
    """`node`, `container`, `queue`, `age`, `size`: `flowfiles`, their `live_bytes`, the `pinned_bytes` that are dead
    beside them, and the `files` that they keep; the worst first.

    Both tables at one snapshot. What lives in no file is there as well, so that the sums are those of the disks.
    `flowfiles` is read once, `resource_claims` twice; no row of either comes to the driver.
    """
    owned = flowfiles.filter("resource_claim is not null").select(
        NODE,
        "resource_claim",
        "claim_offset",
        "claim_length",
        F.coalesce("queue", F.lit(HANDLES)).alias("queue"),
        _bucket(F.lit(now_millis) - F.unix_millis("entry_time"), AGES, OLDEST).alias("age"),
        _bucket(F.col("size"), SIZES, LARGEST).alias("size"),
    )
    births = resource_claims.select(NODE, "resource_claim", "file")
    # Windows where joins of a table with what is counted of it would read the table once more each.
    claimants = F.count("*").over(Window.partitionBy(NODE, "resource_claim", "claim_offset"))
    placed = (
        owned.join(births, [NODE, "resource_claim"])
        .withColumn("share", F.col("claim_length") / claimants)
        .withColumn("file_live", F.sum("share").over(Window.partitionBy(NODE, "file")))
        .drop("resource_claim", "claim_offset", "claim_length")
    )
    dead = F.round(F.col("length") - F.col("punched_bytes") - F.coalesce("file_live", F.lit(0.0))).cast("bigint")
    parts = (
        resource_claims.filter("resource_claim = file and archived_time is null")
        .select(NODE, "file", "container", "length", "punched_bytes")
        .join(placed, [NODE, "file"], "left")
        .withColumn("dead_bytes", F.greatest(F.lit(0), dead))
        .filter("file_live is not null or dead_bytes > 0")
        .withColumn("pinned", F.col("dead_bytes") * F.coalesce(F.col("share") / F.col("file_live"), F.lit(1)))
        .fillna({"queue": NOBODY, "age": "", "size": ""})
    )
    return (
        parts.groupBy(NODE, "container", "queue", "age", "size")
        .agg(
            F.count("share").alias("flowfiles"),
            F.coalesce(F.round(F.sum("share")), F.lit(0)).cast("bigint").alias("live_bytes"),
            F.round(F.sum("pinned")).cast("bigint").alias("pinned_bytes"),
            F.countDistinct("file").alias("files"),
        )
        .orderBy(F.desc("pinned_bytes"), NODE, "container", "queue", "age", "size")
    )


def _bucket(value: Column, bounds: tuple[tuple[str, int], ...], last: str) -> Column:
    return F.coalesce(*(F.when(value < bound, name) for name, bound in bounds), F.lit(last))
