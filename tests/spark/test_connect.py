"""Spark Connect and executors of their own: each in a process, since a session of another kind cannot stand beside."""

import hashlib
import json
import subprocess
import sys

import pytest

from tests.spark.fleet import Fleet
from tests.support import drain

PROGRAM = """
import hashlib, json, sys
import pyarrow as pa
from pyspark.sql import SparkSession
from ullage_spark import snapshot, with_content

kind, endpoint = sys.argv[1:]
builder = SparkSession.builder.config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "2")
if kind == "connect":
    spark = builder.remote("local[2]").getOrCreate()
else:
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.executor.memory", "512m")
    spark = builder.master("local-cluster[2,1,512]").getOrCreate()


def digests(rows, contents):
    found = [hashlib.sha256(content).hexdigest() for content in contents]
    return pa.RecordBatch.from_arrays([rows.column("uuid"), pa.array(found)], names=["uuid", "digest"])


with snapshot(spark, endpoint=endpoint) as held:
    df = with_content(held.table("flowfiles", where="queue IS NOT NULL"), digests, "uuid string, digest string",
                      endpoint=endpoint)
    found = {row.uuid: row.digest for row in df.collect()}
written = spark.createDataFrame([(bytearray([n]) * n,) for n in range(50)], "content binary").repartition(4)
written.write.format("ullage").mode("append").options(endpoint=endpoint, queue="written").save()
print(json.dumps({"found": found, "kind": type(spark).__module__}))
spark.stop()
"""


@pytest.mark.parametrize("kind", ["connect", "cluster"])
def test_another_kind_of_session_reads_and_writes_the_same(fleet: Fleet, kind: str) -> None:
    """Through a Connect server, and with executors that are processes of their own."""
    contents = fleet.fill(9, 5)
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, kind, fleet.endpoint], capture_output=True, check=False, text=True, timeout=240
    )

    assert ran.returncode == 0, ran.stderr[-4000:]
    told = json.loads(ran.stdout.splitlines()[-1])
    assert ("connect" in told["kind"]) == (kind == "connect")
    records = fleet.records()
    queued = {key: content for key, content in contents.items() if records[key].queue}
    wanted = {uuid: hashlib.sha256(content).hexdigest() for (_, uuid), content in queued.items()}
    assert told["found"] == wanted
    written = [content for name in fleet.agents for content in drain(fleet.repository(name), "written")]
    assert sorted(written) == sorted(bytes([n]) * n for n in range(50))
    assert fleet.hidden() == 0
