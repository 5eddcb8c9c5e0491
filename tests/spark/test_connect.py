"""Spark Connect, and executors that get their packages with --archives: each in a process, since a session of another
kind cannot stand beside.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
from pathlib import Path

import pyspark
import pytest

from tests.spark.cluster import SECONDS_MAX
from tests.spark.fleet import Fleet

ROOT = Path(__file__).parents[2]
SUBMIT = [
    str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
    "--master=local-cluster[2,1,512]",
    *("--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.executor.memory=512m"),
]

PROGRAM = """
import hashlib, json, sys
import pyarrow as pa
from pyspark.sql import SparkSession
from ullage_spark import register, snapshot, with_content

kind, endpoint = sys.argv[1:]
builder = SparkSession.builder.config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "2")
if kind == "connect":
    spark = builder.remote("local[2]").getOrCreate()
else:
    spark = builder.getOrCreate()


def digests(rows, contents):
    found = [hashlib.sha256(content).hexdigest() for content in contents]
    return pa.RecordBatch.from_arrays([rows.column("uuid"), pa.array(found)], names=["uuid", "digest"])


with snapshot(spark, endpoint=endpoint) as held:
    df = with_content(held.table("flowfiles", where="queue IS NOT NULL"), digests, "uuid string, digest string",
                      endpoint=endpoint)
    found = {row.uuid: row.digest for row in df.collect()}
    at_source = held.with_content(digests, "uuid string, digest string", where="queue IS NOT NULL").collect()
    assert {row.uuid: row.digest for row in at_source} == found


def packages(batches):
    import ullage, ullage_spark

    for batch in batches:
        yield pa.RecordBatch.from_arrays([pa.array([ullage_spark.__file__, ullage.__file__])], names=["path"])


places = spark.range(1).mapInArrow(packages, "path string").collect()
written = spark.createDataFrame([(bytearray([n]) * n,) for n in range(50)], "content binary").repartition(4)
written.write.format("ullage").mode("append").options(endpoint=endpoint, queue="written").save()
tables = register(spark, "fleet", endpoint=endpoint)
rows = "SELECT content, map('from', 'sql') FROM VALUES (X'01') t(content)"
spark.sql(f"INSERT INTO {tables}.put WITH (queue 'sql') {rows}")
counted = spark.sql(f"SELECT queue, count(*) AS n FROM {tables}.flowfiles WITH (columns 'queue') GROUP BY queue")
assert ("sql", 1) in [(row.queue, row.n) for row in counted.collect()]
print(json.dumps({"found": found, "kind": type(spark).__module__, "places": [place.path for place in places]}))
spark.stop()
"""


def pack_environment(path: Path) -> None:
    """What `venv` and `venv-pack` make, `job` and `job.tar.gz`, but that what is not ours is found where it is."""
    job = path / "job"
    venv.EnvBuilder(symlinks=True, with_pip=False).create(job)
    (packages,) = job.glob("lib/python3*/site-packages")
    for name in ("agent/ullage", "spark/ullage_spark", "spark/pyspark_ullage"):
        shutil.copytree(ROOT / name, packages / Path(name).name, ignore=shutil.ignore_patterns("__pycache__"))
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    with tarfile.open(path / "job.tar.gz", "w:gz") as archive:
        archive.add(job, arcname=".")


@pytest.mark.timeout(2 * SECONDS_MAX)
@pytest.mark.parametrize("kind", ["connect", "archives"])
def test_another_kind_of_session_reads_and_writes_the_same(fleet: Fleet, tmp_path: Path, kind: str) -> None:
    """Through a Connect server; and with executors that have nothing but an environment sent along, as docs/spark.md
    makes it.
    """
    contents = fleet.fill(9, 5)
    (tmp_path / "job.py").write_text(PROGRAM, encoding="utf-8")
    command, environment = [sys.executable], dict(os.environ)
    if kind == "archives":
        pack_environment(tmp_path)
        command = [*SUBMIT, "--archives", "job.tar.gz#job", "--conf", "spark.pyspark.python=./job/bin/python"]
        environment = {name: value for name, value in environment.items() if not name.startswith(("PYTHON", "PYSPARK"))}
        environment["PYSPARK_DRIVER_PYTHON"] = "job/bin/python"
    ran = subprocess.run(
        [*command, "job.py", kind, fleet.endpoint],
        capture_output=True,
        check=False,
        cwd=tmp_path,
        env=environment,
        text=True,
        timeout=SECONDS_MAX,
    )

    assert ran.returncode == 0, ran.stderr[-4000:]
    told = json.loads(ran.stdout.splitlines()[-1])
    assert ("connect" in told["kind"]) == (kind == "connect")
    records = fleet.records()
    queued = {key: content for key, content in contents.items() if records[key].queue}
    if kind == "archives":  # each executor has unpacked its own
        assert all(re.search(r"/app-[^/]+/\d+/job/", place) for place in told["places"]), told["places"]
    wanted = {uuid: hashlib.sha256(content).hexdigest() for (_, uuid), content in queued.items()}
    assert told["found"] == wanted
    assert fleet.drained("written") == sorted(bytes([n]) * n for n in range(50))
    assert fleet.drained("sql") == [b"\1"]
    assert fleet.hidden() == 0
