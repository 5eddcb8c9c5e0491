"""A read, a write, tables of SQL and streams with each version of PySpark that is promised. Of `make spark-full`: they
are 450 MB each, in folders of `.venv`, and are installed once.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pyspark
import pytest
from pyspark.sql import SparkSession, functions as F

from tests.spark.fleet import Fleet, streamed
from ullage.wire.provenance import EventQuery
from ullage_spark import register, snapshot
from ullage_spark.versions import HAS_LIMITS

OLDER: Final = ("4.0.5", "4.1.4", "4.2.1")
ROUND: Final = "test_a_round_of_everything"
SECONDS_MAX: Final = 600.0


@pytest.fixture(params=OLDER)
def older(request: pytest.FixtureRequest) -> Path:
    """The folder in which this version of PySpark is; it is installed there where it is not yet."""
    version: str = request.param
    folder = Path(sys.prefix) / f"pyspark-{version}"
    if not folder.exists():
        part = folder.with_name(f"{folder.name}.part")
        # What it needs besides is what the newest needs.
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", f"--target={part}"]
        subprocess.run([*pip, f"pyspark=={version}"], check=True, timeout=SECONDS_MAX)
        part.rename(folder)
    return folder


def test_older_versions_do_the_same(older: Path) -> None:
    """Each in a process of its own, which has it before the one that is installed."""
    environment = {**os.environ, "PYTHONPATH": str(older), "ULLAGE_PYSPARK": older.name.removeprefix("pyspark-")}
    # PySpark 4.0 and 4.1 leave sockets to the garbage.
    options = ["-q", "-p", "no:cacheprovider", "-n", "0", "-W", "ignore::ResourceWarning"]
    command = [sys.executable, "-m", "pytest", *options, f"{__file__}::{ROUND}"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)

    assert ran.returncode == 0, ran.stdout
    assert "1 passed" in ran.stdout


def test_a_round_of_everything(spark: SparkSession, fleet: Fleet, tmp_path: Path) -> None:
    """Of the version at hand; what it does not have is told."""
    assert pyspark.__version__ == os.environ.get("ULLAGE_PYSPARK", pyspark.__version__) == spark.version
    fleet.fill(1, 5)
    with snapshot(spark, endpoint=fleet.endpoint) as held:
        rows = held.table("flowfiles", where="size > 200000")
        assert rows.filter("queue = 'in'").count() == 4
        assert rows.agg(F.min("size"), F.count("entry_time")).head() == (300_000, 12)
        read = held.with_content(lambda rows, contents: rows.select(["uuid"]), "uuid string", where="queue = 'in'")
        assert read.count() == 18
    database = register(spark, "flows", endpoint=fleet.endpoint)
    try:
        assert spark.sql(f"SELECT count(*) FROM {database}.flowfiles WHERE queue = 'out'").head() == (18,)
        spark.sql(f"INSERT INTO {database}.put WITH (queue 'sql') VALUES (X'61', map('k', 'v'))")
    finally:
        spark.sql(f"DROP DATABASE {database} CASCADE")
    assert fleet.drained("sql") == [b"a"]

    new = spark.createDataFrame([(bytearray([at]),) for at in range(8)], "content binary")
    new.write.format("ullage").mode("append").options(endpoint=fleet.endpoint, queue="new").save()
    assert fleet.drained("new") == [bytes([at]) for at in range(8)]
    _streams(spark, fleet, tmp_path)


def _streams(spark: SparkSession, fleet: Fleet, tmp_path: Path) -> None:
    """Events come once over a restart; a stream writes; one that consumes a queue does, or says what it needs."""
    events = spark.readStream.format("ullage").options(endpoint=fleet.endpoint, table="provenance")
    for seed in (2, 3):
        fleet.fill(seed, 3)
        last = {
            name: len(agent.repository.history.query(EventQuery(limit=10_000)).events)
            for name, agent in fleet.agents.items()
        }
        found = streamed(events.load().select("node", "sequence"), tmp_path / "events")
        counted = found.groupBy("node").agg(F.count("*"), F.countDistinct("sequence"), F.max("sequence")).collect()
        assert {row[0]: row[1:] for row in counted} == {name: (each,) * 3 for name, each in last.items()}

    contents = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 7).load()
    query = (
        contents.select(F.encode(F.col("value").cast("string"), "utf-8").alias("content"))
        .writeStream.format("ullage")
        .options(endpoint=fleet.endpoint, queue="sunk", application="sinks")
        .option("checkpointLocation", str(tmp_path / "sinks"))
        .trigger(once=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert fleet.drained("sunk") == [str(at).encode() for at in range(7)]

    consuming = spark.readStream.format("ullage").options(endpoint=fleet.endpoint, queue="in", application="consumes")
    if HAS_LIMITS:
        assert streamed(consuming.load().select("node", "uuid"), tmp_path / "queue").count() == 2 * (9 + 7 + 7)
    else:
        with pytest.raises(Exception, match=r"a stream that consumes a queue needs PySpark 4\.2 or newer"):
            streamed(consuming.load(), tmp_path / "queue")
