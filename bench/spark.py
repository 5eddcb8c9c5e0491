"""`python -m bench.spark`: contents and tables through Spark, beside Spark's own readers of the same bytes.

Everything in one run on one machine, so that the ratios mean something: contents in a task beside a plain loop of pread
and checksum, beside Parquet and binaryFile, the sink beside a Parquet write; tables, plans and lineage by their size.
Each line says what is wanted. --quick: small, so that the start of a job counts for more than it should.
"""

import argparse
import math
import os
import resource
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from crc32c import crc32c
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import BinaryType, StructField, StructType

from bench.exponents import slope
from pyspark_ullage import DefaultSource
from tests.spark.fleet import Fleet, fleet_at
from tests.spark.played import played_apart
from ullage.contract import Quantity
from ullage.embedded.flowfiles import ROWS
from ullage.engine.engine import Engine
from ullage_spark import snapshot, with_content
from ullage_spark.fingerprint import Fingerprint
from ullage_spark.fleet import discover
from ullage_spark.lineage import lineage
from ullage_spark.opener import FOUND_BY, GROUP_BYTES, GROUP_ROWS, ContentUse, Opener, pickled
from ullage_spark.plan import reclamation_plan
from ullage_spark.settings import SourceOptions, as_options
from ullage_spark.whereabouts import ADDRESS
from ullage_spark.workers import begin_task
from ullage_spark.writer import StagedAttempt

MB = 1 << 20
FAN_OUT_SECONDS = {"snapshot": 2, "begin and commit": 3}
ROOT = Path(__file__).parents[1]
REPEATS = 3
TURNS = 12


def measured(work: Callable[[], Any]) -> float:
    """Seconds of the best of a few runs: the others met somebody else's work."""
    best = float("inf")
    for _ in range(REPEATS):
        best = min(best, seconds_of(work))
    return best


def in_turns(*works: Callable[[], Any], turns: int = TURNS) -> list[float]:
    """The same of works of a moment each, which are to be compared: what else the machine does meets all of them."""
    rounds = [list(map(seconds_of, works)) for _ in range(turns)]
    return list(map(min, zip(*rounds, strict=True)))


def seconds_of(work: Callable[[], Any]) -> float:
    """Seconds of one run, of what cannot be done twice."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def count_bytes(_rows: pa.RecordBatch, contents: list[bytes]) -> pa.RecordBatch:
    """The least that a task can do with contents."""
    return pa.RecordBatch.from_arrays([pa.array([sum(map(len, contents))], pa.int64())], names=["bytes"])


def noop(df: DataFrame) -> None:
    """Everything is made, nothing is kept."""
    df.write.format("noop").mode("overwrite").save()


def plain_loop(fleet: Fleet, rows: pa.Table, group_bytes: int = 0) -> None:
    """What reading verified content costs at least: one pread and one checksum a claim, in one process.

    Each content is forgotten at once, so that all come to lie in the same memory, which the processor has at hand; or
    with `group_bytes` so many of them are kept, as a task's function gets them.
    """
    repository = fleet.repository("a")
    opened: dict[int, int] = {}
    group: list[bytes] = []
    kept = 0
    try:
        columns = (rows.column(name).to_pylist() for name in ADDRESS[:4])
        for resource, offset, length, crc in zip(*columns, strict=True):
            if resource not in opened:
                entry = repository.ledger.entry(resource)
                assert entry is not None
                path = repository.content.path_of(entry.claim)
                opened[resource] = os.open(path, os.O_RDONLY)
            data = os.pread(opened[resource], length, offset)
            assert crc32c(data) == crc
            kept += length
            if kept > group_bytes:
                group.clear()
                kept = 0
            group.append(data)
    finally:
        for descriptor in opened.values():
            os.close(descriptor)


def opener_of(fleet: Fleet) -> Opener:
    """What the driver sends to each task."""
    settings = SourceOptions.of(as_options({"endpoint": fleet.endpoint}))
    return Opener(settings, {node.name: node for node in discover(settings)}, ContentUse(pickled(count_bytes)))


def in_task(opener: Opener, rows: pa.Table) -> None:
    """What a task does with the rows that Spark gives it, here and without Spark."""
    for _ in opener.run(iter(rows.to_batches(max_chunksize=GROUP_ROWS))):
        continue


def settle(repository: Engine) -> None:
    """Wait for what follows a write, which takes as much of the processor as reading: events go into files, and those
    into their index.
    """
    repository.provenance.drain()
    while repository.provenance.index_step():
        pass


class Sized:
    """What one size of content showed: seconds of each, for so many of them."""

    def __init__(self, size: int, count: int) -> None:
        self.size, self.count = size, count
        self.write = self.parquet_write = self.loop = self.path = self.task = self.parquet_read = 0.0
        self.grouping_loop = self.by_rows = 0.0

    def row(self) -> str:
        """In Markdown."""
        mb = self.count * self.size / MB
        return (
            f"| {self.size:,} B | {mb / self.task:,.0f} MB/s | {self.parquet_read / self.task:.2f} | "
            f"{mb / self.by_rows:,.0f} MB/s | "
            f"{self.loop / self.path:.2f} | {self.grouping_loop / self.path:.2f} | "
            f"{mb / self.write:,.0f} MB/s | {self.parquet_write / self.write:.2f} |"
        )


def contents(spark: SparkSession, directory: Path, size: int, total: int) -> Sized:
    """One size of content: read in tasks and written, beside Parquet and the loop."""
    found = Sized(size, total // size)
    with fleet_at(directory / f"fleet-{size}", "a") as fleet:
        made = (
            spark.range(found.count)
            .repartition(2)
            .selectExpr(f"cast(rpad(cast(id as string), {size}, 'x') as binary) as content")
        )
        parquet = str(directory / f"{size}.parquet")
        options = {"endpoint": fleet.endpoint, "queue": "in"}
        noop(made)
        found.write = seconds_of(lambda: made.write.format("ullage").mode("append").options(**options).save())
        found.parquet_write = seconds_of(lambda: made.write.option("compression", "none").parquet(parquet))
        settle(fleet.repository("a"))
        with snapshot(spark, endpoint=fleet.endpoint) as held:
            rows = held.table("flowfiles", columns=list(FOUND_BY))
            by_rows = with_content(rows, count_bytes, "bytes bigint", endpoint=fleet.endpoint)
            found.by_rows = measured(lambda: noop(by_rows))
            at_source = held.with_content(count_bytes, "bytes bigint", columns=())
            found.task, found.parquet_read = in_turns(
                lambda: noop(at_source), lambda: noop(spark.read.parquet(parquet)), turns=2 * REPEATS
            )
            addresses = rows.toArrow()
            found.loop, found.grouping_loop, found.path = in_turns(
                lambda: plain_loop(fleet, addresses),
                lambda: plain_loop(fleet, addresses, GROUP_BYTES),
                partial(in_task, opener_of(fleet), addresses),
            )
    return found


def files(spark: SparkSession, directory: Path, count: int) -> float:
    """Rows a second of binaryFile at 1 KB."""
    folder = directory / "files"
    folder.mkdir()
    for number in range(count):
        (folder / str(number)).write_bytes(b"x" * 1_000)
    return count / measured(lambda: noop(spark.read.format("binaryFile").load(str(folder))))


class ReadyRows(DataSource):
    """What Spark itself moves of rows: those of a file, over and over, out of as many tasks as the table is read by."""

    @classmethod
    def name(cls) -> str:
        return "ready"

    def reader(self, schema: StructType) -> DataSourceReader:
        return ReadyReader(self.options)


class ReadyReader(DataSourceReader):
    """Of `times` times the rows of `path`, in each of both tasks."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._path, self._times = options["path"], int(options["times"])

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(0), InputPartition(1)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        begin_task()  # else the look for garbage afterwards would be at the cost of what is measured next
        with pa.ipc.open_file(self._path) as file:
            batch = file.get_batch(0)
        for _ in range(self._times):
            yield batch


def ready(spark: SparkSession, directory: Path, table: DataFrame, count: int) -> Callable[[], DataFrame]:
    """So many rows like those of a table, loaded anew at each call."""
    rows = table.limit(ROWS).toArrow().combine_chunks()
    path = directory / "ready.arrow"
    with pa.ipc.new_file(str(path), rows.schema) as file:
        file.write_table(rows)
    spark.dataSource.register(ReadyRows)
    times = count // (2 * rows.num_rows)
    return lambda: (
        spark.read.format("ready").schema(table.schema).option("path", str(path)).option("times", times).load()
    )


def tables(spark: SparkSession, directory: Path, count: int) -> str:
    """Rows of metadata: at first, when every swap file has to be read, at a new snapshot, and again at the same one.

    Each in turn with ready rows that are planned alike, anew or as before, which is what Spark itself moves: other work
    on the machine, and a JVM that gets faster run by run, meet all.
    """
    with fleet_at(directory / "tables", "a") as fleet:
        repository = fleet.repository("a")
        for _ in range(0, count, 10_000):
            with repository.session() as session:
                session.ingest("in", [b"x" * 100] * 10_000, {"kind": "bench"})
                session.commit()
        settle(repository)
        columns = "node,uuid,queue,size,resource_claim,claim_offset,entry_time,swapped"

        def read_once() -> None:
            with snapshot(spark, endpoint=fleet.endpoint, holds=False) as fresh:
                noop(fresh.table("flowfiles", columns=columns, parts=2))

        with snapshot(spark, endpoint=fleet.endpoint, holds=False) as held:
            few = held.table("flowfiles", columns=columns, parts=2, where="not swapped")  # of which nothing is kept
            loaded = ready(spark, directory, few, count)
            bare = loaded()
            for warm in (bare, few, bare):
                noop(warm)
            at_first = seconds_of(read_once)
            table = held.table("flowfiles", columns=columns, parts=2)
            # What is loaded anew is planned anew, by a Python process of Spark's.
            works = (read_once, lambda: noop(loaded()), lambda: noop(table), lambda: noop(bare))
            in_turns(*works, turns=1)
            once, itself_once, again, itself = in_turns(*works)
    return (
        f"{count:,} FlowFiles, 8 columns: {count / once:,.0f} rows/s at a new snapshot, {itself_once / once:.2f} of "
        f"the {count / itself_once:,.0f} ready ones that Spark itself moves; {count / again:,.0f} when read again, "
        f"{itself / again:.2f} of {count / itself:,.0f} (wanted: 0.8). The first reader of all gets "
        f"{count / at_first:,.0f} rows/s, {itself_once / at_first:.2f} of that"
    )


def lineages(spark: SparkSession, directory: Path, sizes: list[int]) -> Iterator[str]:
    """The lineage of one FlowFile among so many events of a node: whole, and what of it the walk in the driver is."""
    before: tuple[int, float] | None = None
    for count in sizes:
        with fleet_at(directory / f"events-{count}", "a", provenance=PLENTY) as fleet:
            sought = family_among(fleet.repository("a"), count)
            with snapshot(spark, endpoint=fleet.endpoint, holds=False) as held:
                found = lineage(held, sought)
                took = measured(lambda held=held, sought=sought: lineage(held, sought).events.collect())  # type: ignore[misc]
                walk = measured(lambda held=held, sought=sought: lineage(held, sought))  # type: ignore[misc]
        growth = ""
        if before is not None:
            growth = f", exponent {math.log(took / before[1]) / math.log(count / before[0]):.2f}"
        before = count, took
        yield (
            f"lineage of a FlowFile among {count:,} events: {took:.2f} s (wanted: 2), of which {walk:.2f} s until its "
            f"{len(found.flow_files)} FlowFiles are known{growth}"
        )


PLENTY = {"max_storage_size": Quantity(1 << 40), "rollover_events": 100_000}


def family_among(repository: Engine, count: int) -> str:
    """So many events, amid them those of a FlowFile that was split and merged again; its uuid."""
    sought = ""
    for at in range(0, count, 10_000):
        with repository.session() as session:
            session.ingest("in", [b""] * 9_900, {"n": str(at)})
            if at == count // 20_000 * 10_000:
                root = session.write(session.create(), bytes(1_000))
                parts = session.split(root, [100] * 10)
                session.transfer_many([root, *parts, session.merge(parts[:5])], "in")
                sought = root.id
            session.commit()
    settle(repository)
    return sought


def plans(spark: SparkSession, sizes: list[int]) -> Iterator[str]:
    """A plan over so many resource claims, as the table has them."""
    before: tuple[int, float] | None = None
    for count in sizes:
        resources = spark.range(count).selectExpr(
            "concat('node-', id % 16) as node",
            "'c1' as container",
            "timestamp_millis(0L) as created_time",
            "id as resource_claim",
            "id as file",
            "true as sealed",
            "cast(null as string) as intent",
            "cast(null as timestamp) as archived_time",
            "1L as generation",
            "1048576L as length",
            "0L as punched_bytes",
            "id * 7919 % 1048576 as live_bytes",
            "1048576L as live_end",
        )
        took = measured(lambda resources=resources: noop(reclamation_plan(resources)))  # type: ignore[misc]
        growth = ""
        if before is not None:
            exponent = math.log(took / before[1]) / math.log(count / before[0])
            growth = f", exponent {exponent:.2f} (wanted: at most 1.1)"
        before = (count, took)
        yield f"plan over {count:,} resource claims: {took:.1f} s{growth}"


def fan_out(counts: list[int]) -> Iterator[str]:
    """What a driver asks of so many nodes that are played in a process of their own."""
    costs: dict[str, dict[int, float]] = {step: {} for step in FAN_OUT_SECONDS}
    for count in counts:
        with played_apart(count) as addresses:
            options: dict[str, Any] = {"endpoint": ",".join(addresses)}
            for step, took in zip(FAN_OUT_SECONDS, _steps(options), strict=True):
                costs[step][count] = took
                yield f"{step} on {count:,} nodes: {took:.2f} s (wanted for 1,000: {FAN_OUT_SECONDS[step]} s)"
    for step, each in costs.items():
        yield f"{step}: exponent {slope(each):.2f} (wanted: at most 1.1)"


def _steps(options: dict[str, Any]) -> list[float]:
    """Seconds of a snapshot, and of the begin and commit of a write."""
    source = DefaultSource({**options, "queue": "in"})
    nobody: Any = None

    def take() -> None:
        with snapshot(nobody, **options, pushdown="false"):
            pass

    nodes = [node.name for node in discover(SourceOptions.of(options))]  # connections stand from here on
    messages: list[Any] = [StagedAttempt(name, str(uuid.uuid4()), 1, Fingerprint()) for name in nodes]

    def write() -> None:
        source.writer(StructType([StructField("content", BinaryType())]), overwrite=False).commit(messages)

    return in_turns(take, write, turns=2 * REPEATS)


@contextmanager
def session(directory: Path) -> Iterator[SparkSession]:
    """local[2], quiet."""
    paths = [str(ROOT / name) for name in ("agent", "spark", ".")]
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    made = (
        builder.config("spark.driver.memory", "6g")
        .config("spark.python.unix.domain.socket.enabled", "true")  # over TCP each task waits 40 ms to begin
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
    parser.add_argument("--fan-out", action="store_true", help="only what a driver asks of many nodes: without Spark")
    parser.add_argument("--dir", help="where to work: on the disk that is to be measured")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ullage-bench-", dir=options.dir) as place:
        directory = Path(place).resolve()  # sockets are named by whole paths
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # each node takes a connection
        for line in fan_out([30, 100] if options.quick else [100, 300, 1_000]):
            print(line, flush=True)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if options.fan_out:
            return
        with session(directory) as spark:
            report(spark, directory, is_quick=options.quick)


def report(spark: SparkSession, directory: Path, *, is_quick: bool) -> None:
    """All of it, line by line."""
    total = (32 if is_quick else 256) * MB
    print(
        "| content | read by a job | to Parquet's read (1) | by rows of a DataFrame | in tasks to a loop (0.8) | "
        "to a loop that keeps a group | written | to Parquet's write |"
    )
    print("|---|---|---|---|---|---|---|---|")
    small = None
    for size in (1_000, 100_000, 10_000_000):
        # Of small ones there are many; of large ones so many that starting the job is not what is measured.
        found = contents(spark, directory, size, total if size == 1_000 else 4 * total)
        small = small or found
        print(found.row(), flush=True)
    assert small is not None
    rate = files(spark, directory, 2_000 if is_quick else 20_000)
    ratio = small.count / small.task / rate
    print(
        f"\nbinaryFile, 1 KB: {rate:,.0f} rows/s; contents in tasks {ratio:,.0f} times that (wanted: 100)", flush=True
    )
    print(tables(spark, directory, 50_000 if is_quick else 2_000_000), flush=True)
    for line in plans(spark, [10_000, 100_000] if is_quick else [100_000, 1_000_000, 10_000_000]):
        print(line, flush=True)
    for line in lineages(spark, directory, [20_000] if is_quick else [100_000, 1_000_000, 3_000_000]):
        print(line, flush=True)


if __name__ == "__main__":
    main()
