"""Analyse: what do the contents of a queue hold, and who keeps the disks full? All of one moment.

spark-submit examples/spark/analyse.py ENDPOINT QUEUE
"""

import sys
import time
from collections import Counter

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, functions as F

from ullage_spark import snapshot, with_content
from ullage_spark.report import FLOWFILES, RESOURCE_CLAIMS, fragmentation


def words(_rows: pa.RecordBatch, contents: list[bytes | None]) -> pa.RecordBatch:
    """Runs in the tasks: of some contents, each word and how often it comes."""
    counts = Counter(word.decode(errors="replace") for content in contents for word in (content or b"").split())
    return pa.RecordBatch.from_arrays(
        [pa.array(counts.keys(), pa.string()), pa.array(counts.values(), pa.int64())], names=["word", "times"]
    )


def common_words(flowfiles: DataFrame, endpoint: str) -> DataFrame:
    """The words of all contents, the most frequent first."""
    counted = with_content(flowfiles, words, "word string, times bigint", endpoint=endpoint)
    return counted.groupBy("word").agg(F.sum("times").alias("times")).orderBy(F.desc("times"), "word")


def main(endpoint: str, queue: str) -> None:
    """Two questions to one snapshot."""
    spark = SparkSession.builder.appName("ullage-analyse").getOrCreate()
    with snapshot(spark, endpoint=endpoint) as moment:
        print(f"the most frequent words in queue {queue}:")
        common_words(moment.table("flowfiles", where=f"queue = '{queue}'"), endpoint).show(10)
        print("who pins which disk:")
        files = moment.table("resource_claims", columns=RESOURCE_CLAIMS)
        flowfiles = moment.table("flowfiles", columns=FLOWFILES)
        fragmentation(files, flowfiles, int(time.time() * 1000)).show(10, truncate=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
