"""History in figures: events by time, kind and place, small enough to keep when retention has taken the events."""

from typing import Final

from pyspark.sql import DataFrame, functions as F

from ullage_spark.tables import NODE

KEYS: Final = (NODE, "begins_millis", "type", "component_type", "component", "queue")


def rollup(events: DataFrame, seconds: int = 3_600) -> DataFrame:
    """For each stretch of time, node, type, component and queue: `events`, their `bytes`, and the mean time since the
    data came in (`lineage_seconds`).

    `day` is for `partitionBy`. Sequences are kept (`first_sequence`, `last_sequence`), so that it can be told what a
    figure is of, and that the next roll-up begins where this one ends.
    """
    span = seconds * 1000
    begins = (F.floor(F.col("millis") / span) * span).alias("begins_millis")
    rows = events.select(begins, *[column for column in events.columns if column != "begins_millis"])
    return (
        rows.groupBy(*KEYS)
        .agg(
            F.count("*").alias("events"),
            F.sum("size").alias("bytes"),
            F.avg((F.col("millis") - F.col("lineage_millis")) / 1000).alias("lineage_seconds"),
            F.min("sequence").alias("first_sequence"),
            F.max("sequence").alias("last_sequence"),
        )
        .withColumn("day", F.date_format(F.timestamp_millis("begins_millis"), "yyyy-MM-dd"))
    )
