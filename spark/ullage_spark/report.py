"""Who pins which disk: what keeps dead bytes from being given back, by node, disk, queue, age and size.

A file is given back as a whole when nothing in it lives, or else by copying what does. So each survivor pins a part of
the dead bytes beside it: shared out here by the bytes that live, and a content's part among the FlowFiles that share
it. The parts add up to what is dead.
"""

from pyspark.sql import (
    Column,
    DataFrame,
    functions as F,  # noqa: N812 - as everybody who uses Spark writes it
)

from ullage_spark.tables import NODE

DAY_MILLIS = 86_400_000
AGES = (("under an hour", 3_600_000), ("under a day", DAY_MILLIS), ("under a week", 7 * DAY_MILLIS))
OLDEST = "a week or more"
SIZES = (("under 64 KiB", 64 << 10), ("under 1 MiB", 1 << 20), ("under 64 MiB", 64 << 20))
LARGEST = "64 MiB or more"
HANDLES = "(handles)"
NOBODY = "(nothing lives in it)"


def fragmentation(resource_claims: DataFrame, flowfiles: DataFrame, now_millis: int) -> DataFrame:
    """`node`, `container`, `queue`, `age`, `size`: `flowfiles`, their `live_bytes`, the `pinned_bytes` that are dead
    beside them, and the `files` that they keep; the worst first.

    Both tables at one snapshot. What lives in no file is there as well, so that the sums are those of the disks. One
    shuffle by resource claim, none of FlowFiles to the driver.
    """
    owned = flowfiles.filter("resource_claim is not null").select(
        NODE,
        "resource_claim",
        "claim_offset",
        "claim_length",
        F.coalesce("queue", F.lit(HANDLES)).alias("queue"),
        _bucket(F.lit(now_millis) - F.col("entry_millis"), AGES, OLDEST).alias("age"),
        _bucket(F.col("size"), SIZES, LARGEST).alias("size"),
    )
    claims = (
        owned.groupBy(NODE, "resource_claim", "claim_offset")
        .agg(F.count("*").alias("claimants"))
        .join(owned, [NODE, "resource_claim", "claim_offset"])
        .withColumn("share", F.col("claim_length") / F.col("claimants"))
    )
    births = resource_claims.select(NODE, "resource_claim", "file")
    placed = claims.join(births, [NODE, "resource_claim"])
    files = _files(resource_claims, placed)
    parts = placed.join(files, [NODE, "file"]).withColumn(
        "pinned", F.col("dead_bytes") * F.col("share") / F.col("file_live")
    )
    pinned = parts.groupBy(NODE, "container", "queue", "age", "size").agg(
        F.count("*").alias("flowfiles"),
        F.round(F.sum("share")).cast("bigint").alias("live_bytes"),
        F.round(F.sum("pinned")).cast("bigint").alias("pinned_bytes"),
        F.countDistinct("file").alias("files"),
    )
    free = (
        files.filter("file_live = 0 and dead_bytes > 0")
        .groupBy(NODE, "container")
        .agg(
            F.lit(0).cast("bigint").alias("flowfiles"),
            F.lit(0).cast("bigint").alias("live_bytes"),
            F.sum("dead_bytes").alias("pinned_bytes"),
            F.count("*").alias("files"),
        )
    )
    nobody = free.withColumns({"queue": F.lit(NOBODY), "age": F.lit(""), "size": F.lit("")})
    return pinned.unionByName(nobody).orderBy(F.desc("pinned_bytes"), NODE, "container", "queue", "age", "size")


def _files(resource_claims: DataFrame, placed: DataFrame) -> DataFrame:
    """Each file that is there: what lives in it, wherever it was born, and what is dead."""
    live = placed.groupBy(NODE, "file").agg(F.sum("share").alias("live"))
    return (
        resource_claims.filter("resource_claim = file and archived_millis = 0")
        .select(NODE, F.col("resource_claim").alias("file"), "container", "length", "punched_bytes")
        .join(live, [NODE, "file"], "left")
        .withColumn("file_live", F.coalesce("live", F.lit(0.0)))
        .withColumn(
            "dead_bytes",
            F.greatest(F.lit(0), F.round(F.col("length") - F.col("punched_bytes") - F.col("file_live")).cast("bigint")),
        )
        .select(NODE, "file", "container", "file_live", "dead_bytes")
    )


def _bucket(value: Column, bounds: tuple[tuple[str, int], ...], last: str) -> Column:
    found = F.when(F.lit(False), "")
    for name, bound in bounds:
        found = found.when(value < bound, name)
    return found.otherwise(last)
