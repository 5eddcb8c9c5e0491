"""`python -m bench.spark`: contents and tables through Spark, beside Spark's own readers of the same bytes.

Everything in one run on one machine, so that the ratios mean something: contents in a task beside a plain loop of pread
and checksum, the sink beside a Parquet write, tables beside a Parquet scan, a plan at several sizes. --quick: small.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from crc32c import crc32c
from pyspark.sql import DataFrame, SparkSession

from tests.spark.fleet import Fleet, fleet_at
from ullage_spark import snapshot, with_content
from ullage_spark.content import ADDRESS
from ullage_spark.plan import reclamation_plan

MB = 1 << 20
ROOT = Path(__file__).parents[1]
REPEATS = 3


def measured(work: Callable[[], Any]) -> float:
    """Seconds of the best of a few runs: the others met somebody else's work."""
    best = float("inf")
    for _ in range(REPEATS):
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return best


def count_bytes(_rows: pa.RecordBatch, contents: list[bytes | None]) -> pa.RecordBatch:
    """The least that a task can do with contents."""
    return pa.RecordBatch.from_arrays([pa.array([sum(len(c or b"") for c in contents)], pa.int64())], names=["bytes"])


def noop(df: DataFrame) -> None:
    """Everything is made, nothing is kept."""
    df.write.format("noop").mode("overwrite").save()


def plain_loop(fleet: Fleet) -> None:
    """What reading verified content costs at least: one pread and one checksum a claim, in one process."""
    repository = fleet.repository("a")
    opened: dict[int, int] = {}
    try:
        for record in repository.ledger.flow_files():
            claim = record.claim
            if claim is None:
                continue
            if claim.resource not in opened:
                entry = repository.ledger.entry(claim.resource)
                assert entry is not None
                path = repository.content.container_of(entry.claim).current_path(entry.claim)
                opened[claim.resource] = os.open(path, os.O_RDONLY)
            data = os.pread(opened[claim.resource], claim.length, claim.offset)
            assert crc32c(data) == claim.crc
    finally:
        for descriptor in opened.values():
            os.close(descriptor)


def contents(spark: SparkSession, directory: Path, size: int, total: int) -> Iterator[str]:
    """One size of content: read in tasks and written, beside Parquet, binaryFile and the loop."""
    count = total // size
    with fleet_at(directory / f"fleet-{size}", "a") as fleet:
        made = (
            spark.range(count)
            .repartition(2)
            .selectExpr(f"cast(rpad(cast(id as string), {size}, 'x') as binary) as content")
        )
        parquet = str(directory / f"{size}.parquet")
        options = {"endpoint": fleet.endpoint, "queue": "in"}
        began = time.perf_counter()
        made.write.format("ullage").mode("append").options(**options).save()
        write = time.perf_counter() - began
        began = time.perf_counter()
        made.write.option("compression", "none").parquet(parquet)
        parquet_write = time.perf_counter() - began
        loop = measured(lambda: plain_loop(fleet))
        with snapshot(spark, endpoint=fleet.endpoint) as held:
            rows = held.table("flowfiles", columns=",".join(("node", *ADDRESS)))
            task = measured(lambda: noop(with_content(rows, count_bytes, "bytes bigint", endpoint=fleet.endpoint)))
        read = measured(lambda: noop(spark.read.parquet(parquet)))
        mb = count * size / MB
        yield (
            f"| {size:,} B | {mb / task:,.0f} MB/s | {read / task:.2f} | {loop / task:.2f} | {mb / write:,.0f} MB/s | "
            f"{parquet_write / write:.2f} |"
        )


def files(spark: SparkSession, directory: Path, count: int) -> float:
    """Rows a second of binaryFile at 1 KB."""
    folder = directory / "files"
    folder.mkdir()
    for number in range(count):
        (folder / str(number)).write_bytes(b"x" * 1024)
    return count / measured(lambda: noop(spark.read.format("binaryFile").load(str(folder))))


def tables(spark: SparkSession, directory: Path, count: int) -> Iterator[str]:
    """Rows of metadata, at a snapshot."""
    with fleet_at(directory / "tables", "a") as fleet:
        repository = fleet.repository("a")
        for _ in range(0, count, 10_000):
            with repository.session() as session:
                session.ingest("in", [b"x" * 100] * 10_000, {"kind": "bench"})
                session.commit()
        columns = "node,uuid,queue,size,resource_claim,claim_offset,entry_millis,swapped"
        with snapshot(spark, endpoint=fleet.endpoint, holds=False) as held:
            took = measured(lambda: noop(held.table("flowfiles", columns=columns, parts=2)))
    yield f"{count:,} FlowFiles, 8 columns: {count / took:,.0f} rows/s"


def plans(spark: SparkSession, sizes: list[int]) -> Iterator[str]:
    """A plan over so many resource claims, as the table has them."""
    before: tuple[int, float] | None = None
    for count in sizes:
        resources = spark.range(count).selectExpr(
            "concat('node-', id % 16) as node",
            "'c1' as container",
            "0L as created_millis",
            "id as resource_claim",
            "id as file",
            "true as sealed",
            "cast(null as string) as intent",
            "0L as archived_millis",
            "1L as generation",
            "1048576L as length",
            "0L as punched_bytes",
            "id * 7919 % 1048576 as live_bytes",
            "1048576L as live_end",
        )
        took = measured(lambda resources=resources: noop(reclamation_plan(resources)))  # type: ignore[misc]
        growth = (
            "" if before is None else f", {took / before[1]:.1f} times as long for {count // before[0]} times as many"
        )
        before = (count, took)
        yield f"plan over {count:,} resource claims: {took:.1f} s{growth}"


@contextmanager
def session(directory: Path) -> Iterator[SparkSession]:
    """local[2], quiet."""
    paths = [str(ROOT / name) for name in ("agent", "spark", ".")]
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    made = (
        builder.config("spark.driver.memory", "2g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.local.dir", str(directory / "local"))
        .getOrCreate()
    )
    made.sparkContext.setLogLevel("OFF")
    try:
        yield made
    finally:
        made.stop()


def main() -> None:
    """Measure, and print Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--dir", help="where to work: on the disk that is to be measured")
    options = parser.parse_args()
    total = (32 if options.quick else 256) * MB
    with tempfile.TemporaryDirectory(prefix="ullage-bench-", dir=options.dir) as place:
        directory = Path(place)
        with session(directory) as spark:
            print("| content | read in tasks | to Parquet's read | to a pread loop | written | to Parquet's write |")
            print("|---|---|---|---|---|---|")
            for size in (1_000, 100_000, 10_000_000):
                for line in contents(spark, directory, size, total):
                    print(line, flush=True)
            print(f"\nbinaryFile, 1 KB: {files(spark, directory, 2_000 if options.quick else 20_000):,.0f} rows/s")
            for line in tables(spark, directory, 50_000 if options.quick else 500_000):
                print(line, flush=True)
            for line in plans(spark, [10_000, 100_000] if options.quick else [100_000, 1_000_000, 10_000_000]):
                print(line, flush=True)


if __name__ == "__main__":
    main()
