"""The story's large Spark job: writes so many contents of a MiB, and reads each of them where it lies.

    large_job.py ENDPOINT QUEUE COUNT

Each thing that it has done is a line of JSON; `amid` comes while it reads.
"""

import hashlib
import json
import os
import sys
import threading
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession, functions

from ullage_spark import snapshot

SIZE = 1 << 20
DIGEST = 64
CREDENTIALS = {"tokenFile": "/var/run/secrets/tokens/ullage", "caFile": "/var/run/secrets/tokens/ca.crt"}
TASKS = 64
PARTS = 16
"""Tasks that read, of each node."""

AMID = 4
"""Tasks that have ended when it counts as being in the middle of reading."""

LOOK_SECONDS = 0.2


def checked(rows: pa.RecordBatch, contents: list[bytes | None]) -> pa.RecordBatch:
    """Runs in tasks: which content each is, if it is whole, where it lies, and where the task runs."""
    return pa.RecordBatch.from_pydict(
        {
            "number": pa.array([number_of(content) for content in contents], pa.int64()),
            "node": rows.column("node"),
            "ran_on": pa.array([os.environ["ULLAGE_NODE"]] * len(contents)),
            "length": pa.array([len(content or b"") for content in contents], pa.int64()),
        }
    )


def number_of(content: bytes | None) -> int | None:
    """Its number stands before the digest of the rest; None for one that is not what was written."""
    if content is None:
        return None
    number, digest, rest = content[:DIGEST], content[DIGEST : 2 * DIGEST], content[2 * DIGEST :]
    return int(number) if hashlib.sha256(rest).hexdigest().encode() == digest else None


def made(count: int, spark: SparkSession) -> Any:
    """Contents, each with its number and the digest of the rest, which is no two's."""
    rest = f"rpad(sha2(cast(id as string), 512), {SIZE - 2 * DIGEST}, sha2(cast(-id as string), 512))"
    text = f"concat(lpad(cast(id as string), {DIGEST}, '0'), sha2({rest}, 256), {rest})"
    return spark.range(0, count, 1, TASKS).select(functions.expr(f"encode({text}, 'utf-8')").alias("content"))


def tell(what: str, **figures: Any) -> None:
    """A line for the test to find."""
    print("STORY " + json.dumps({"what": what, **figures}), flush=True)


def watch(spark: SparkSession, over: threading.Event) -> None:
    """Tell once some tasks of what is read have ended, and how it goes on."""
    tracker = spark.sparkContext.statusTracker()
    while not over.wait(LOOK_SECONDS):
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        if any(stage is not None and stage.numCompletedTasks >= AMID for stage in stages):
            tell("amid")
            return


def main(endpoint: str, queue: str, count: str) -> None:
    """All of it."""
    spark = SparkSession.builder.getOrCreate()
    options: dict[str, Any] = {"endpoint": endpoint, **CREDENTIALS}
    written = made(int(count), spark)
    written.write.format("ullage").mode("append").options(**options, queue=queue, write=queue).save()
    tell("written")
    with snapshot(spark, **options) as moment:
        schema = "number bigint, node string, ran_on string, length bigint"
        read = moment.with_content(checked, schema, where=f"queue = '{queue}'", parts=PARTS)
        over = threading.Event()
        watching = threading.Thread(target=watch, args=(spark, over))
        watching.start()
        # One pass over the contents: what it gives is small, and is counted in several ways.
        found = read.groupBy("node", "ran_on", "number").agg(functions.sum("length").alias("bytes")).collect()
        over.set()
        watching.join()
        ran_on = {row.ran_on for row in found}
        tell(
            "read",
            contents=len(found),
            distinct=len({row.number for row in found} - {None}),
            bytes=sum(row.bytes for row in found),
            local=sum(row.node == row.ran_on for row in found),
            could_be_local=sum(row.node in ran_on for row in found),
        )
    tell("ended")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
