"""Ingest: files of any filesystem that Spark reads become FlowFiles of a queue, each once.

    spark-submit examples/spark/ingest.py ENDPOINT SOURCE QUEUE [NAME]

With a NAME the ingest may be run again after any failure: what was carried out under it is not done twice.
"""

import sys

from pyspark.sql import DataFrame, SparkSession, functions as F


def flow_files(files: DataFrame) -> DataFrame:
    """Content and attributes of a DataFrame as `binaryFile` reads it."""
    named = {
        "filename": F.element_at(F.split("path", "/"), -1),
        "source": F.col("path"),
        "modified": F.col("modificationTime").cast("string"),
    }
    attributes = F.create_map(*[part for name, value in named.items() for part in (F.lit(name), value)])
    return files.select("content", attributes.alias("attributes"))


def main(endpoint: str, source: str, queue: str, name: str = "") -> None:
    """Read, and write once."""
    spark = SparkSession.builder.appName("ullage-ingest").getOrCreate()
    files = spark.read.format("binaryFile").option("recursiveFileLookup", "true").load(source)
    writer = flow_files(files).write.format("ullage").mode("append")
    writer.options(endpoint=endpoint, queue=queue, write=name).save()
    print(f"{files.count()} files of {source} stand in queue {queue}")


if __name__ == "__main__":
    main(*sys.argv[1:])
