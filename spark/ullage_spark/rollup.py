"""History in figures: events by time, kind and place, small enough to keep when retention has taken the events."""

from typing import Final

from pyspark.sql import DataFrame, functions as F

from ullage_spark.tables import NODE

KEYS: Final = (NODE, "begins_time", "type", "component_type", "component", "queue")


def rollup(events: DataFrame, seconds: int = 3_600) -> DataFrame:
    """For each stretch of time, node, type, component and queue: `events`, their `bytes`, and the mean time since the
    data came in (`lineage_seconds`).

    `day` is for `partitionBy`. Sequences are kept (`first_sequence`, `last_sequence`), so that it can be told what a
    figure is of, and that the next roll-up begins where this one ends.
    """
    span = seconds * 1000
    begins = (F.timestamp_millis(F.floor(F.unix_millis("time") / span) * span)).alias("begins_time")
    rows = events.select(begins, *[column for column in events.columns if column != "begins_time"])
    return (
        rows.groupBy(*KEYS)
        .agg(
            F.count("*").alias("events"),
            F.sum("size").alias("bytes"),
            F.avg((F.unix_millis("time") - F.unix_millis("lineage_time")) / 1000).alias("lineage_seconds"),
            F.min("sequence").alias("first_sequence"),
            F.max("sequence").alias("last_sequence"),
        )
        .withColumn("day", F.date_format("begins_time", "yyyy-MM-dd"))
    )
