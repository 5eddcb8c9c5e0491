"""What the story's Spark job does: write, read back where the content lies, report, and go on reading until it is told.

    spark_job.py ENDPOINT QUEUE UNTIL

It goes on until there is a queue UNTIL, without a snapshot; with `held` for good, at one; with `fail` it fails instead.
Each thing that it has done is a line of JSON.
"""

import json
import os
import sys
import time
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession, functions

from ullage_spark import snapshot, with_content
from ullage_spark.report import fragmentation

ROWS = 64
SIZE = 64 << 10
CREDENTIALS = {"tokenFile": "/var/run/secrets/tokens/ullage", "caFile": "/var/run/secrets/tokens/ca.crt"}
SNAPSHOT_SECONDS = 40.0
"""How long nodes keep the snapshot of a driver that is gone."""


def opened(rows: pa.RecordBatch, contents: list[bytes | None]) -> pa.RecordBatch:
    """Runs in tasks: how long each content is, where the task runs, whether it holds files of the repository, and
    whether its JVM speaks to it over a Unix socket.
    """
    targets = []
    for number in os.listdir("/proc/self/fd"):
        try:
            targets.append(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:
            continue  # the descriptor that listed the others
    is_local = any("/c1/" in target for target in targets)
    count = len(contents)
    columns = {
        "node": rows.column("node"),
        "ran_on": pa.array([os.environ["ULLAGE_NODE"]] * count),
        "is_local": pa.array([is_local] * count),
        "is_beside": pa.array([os.environ.get("PYTHON_UNIX_DOMAIN_ENABLED") == "True"] * count),
        "length": pa.array([len(content or b"") for content in contents], pa.int64()),
    }
    return pa.RecordBatch.from_pydict(columns)


def tell(what: str, **figures: Any) -> None:
    """A line for the test to find."""
    print("STORY " + json.dumps({"what": what, **figures}), flush=True)


def main(endpoint: str, queue: str, until: str) -> None:
    """All of it."""
    spark = SparkSession.builder.getOrCreate()
    options: dict[str, Any] = {"endpoint": endpoint, **CREDENTIALS}
    if until == "fail":
        raise SystemExit("told to fail")
    text = functions.expr(f"encode(rpad(cast(id as string), {SIZE}, 'x'), 'utf-8')")
    written = spark.range(0, ROWS, 1, 8).select(text.alias("content"))
    written.write.format("ullage").mode("append").options(**options, queue=queue, write=queue).save()
    tell("written", rows=ROWS)
    with snapshot(spark, ttl_seconds=SNAPSHOT_SECONDS, **options) as moment:
        flowfiles = moment.table("flowfiles", where=f"queue = '{queue}'")
        schema = "node string, ran_on string, is_local boolean, is_beside boolean, length bigint"
        read = with_content(flowfiles, opened, schema, **options).cache()
        sums = read.agg(functions.count("*"), functions.sum("length")).first()
        assert sums is not None
        local = read.filter("is_local and node = ran_on").count()
        tell("read", rows=sums[0], bytes=sums[1], local=local, beside=read.filter("is_beside").count())
        found = fragmentation(moment.table("resource_claims"), moment.table("flowfiles"), int(time.time() * 1000))
        tell("report", pinned={f"{row.node}/{row.queue}": row.pinned_bytes for row in found.collect()})
        while until == "held":
            tell("seen", rows=flowfiles.count())
    queues = spark.read.format("ullage").options(**options, table="queues").load()
    while queues.filter(functions.col("queue") == until).isEmpty():
        tell("waited")
    tell("ended")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
