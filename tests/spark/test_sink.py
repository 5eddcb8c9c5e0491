"""The sink: what was written is there once, whatever becomes of tasks, of commits and of the driver."""

import random
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, MapType, StringType, StructField, StructType

from pyspark_ullage import DefaultSource
from tests.spark.fleet import Fleet
from ullage.errors import NotReachable, WriteClosed
from ullage.wire.tickets import WRITE_COMMIT
from ullage_spark import SparkSourceError, writer
from ullage_spark.addresses import FleetNode
from ullage_spark.errors import WriteNotFinished
from ullage_spark.fingerprint import Fingerprint
from ullage_spark.fleet import HERE, ask
from ullage_spark.settings import SourceOptions
from ullage_spark.writer import Packed, StagedAttempt

SCHEMA = "content binary, attributes map<string,string>"
COLUMNS = StructType(
    [StructField("content", BinaryType()), StructField("attributes", MapType(StringType(), StringType()))]
)
CONTENTS = [random.Random(7).randbytes(size) for size in (0, 1, 5_000, 300_000, *range(10, 400))]


def rows(spark: SparkSession, parts: int = 3) -> DataFrame:
    found = [(bytearray(content), {"n": str(number)}) for number, content in enumerate(CONTENTS)]
    return spark.createDataFrame(found, SCHEMA).repartition(parts)


def test_contents_and_attributes_arrive_once(spark: SparkSession, fleet: Fleet) -> None:
    """On all nodes, in a queue or as handles with their time to live; nothing is left over."""
    df = rows(spark)
    df.write.format("ullage").mode("append").options(endpoint=fleet.endpoint, queue="in", stageBytes=50_000).save()
    df.select("content").write.format("ullage").mode("append").options(endpoint=fleet.endpoint, ttl=3_600_000).save()

    records = fleet.records()
    numbers = Counter(r.attribute_map().get("n") for r in records.values() if r.queue)
    handles = [record for record in records.values() if not record.queue]
    assert numbers == Counter(str(number) for number in range(len(CONTENTS)))
    assert len(handles) == len(CONTENTS)
    assert all(3_590_000 < record.expires_millis - record.entry_millis <= 3_700_000 for record in handles)
    assert {name for name, _ in records} == {"a", "b"}
    assert fleet.drained("in") == sorted(CONTENTS)
    assert fleet.hidden() == 0


def test_a_large_content_goes_over_several_rows(spark: SparkSession, fleet: Fleet) -> None:
    """Larger than a transaction, than a batch and than a piece."""
    big = random.Random(8).randbytes(20 << 20)
    df = spark.createDataFrame([(bytearray(big),), (bytearray(b"small"),)], "content binary").coalesce(1)

    df.write.format("ullage").mode("append").options(endpoint=fleet.endpoint, queue="in").save()

    assert fleet.drained("in") == sorted([big, b"small"])


def failing(first: int) -> Any:
    """Attempts that stage all of their rows, and then fail, so many times."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        yield from batches
        context = TaskContext.get()
        if context is not None and context.partitionId() == 0 and first:
            raise ValueError("on purpose")

    return run


def test_a_failed_job_leaves_nothing(spark: SparkSession, fleet: Fleet) -> None:
    """Other tasks had staged all of theirs: it is gone, and the same data can be written again."""
    df = rows(spark)
    broken = df.mapInArrow(failing(1), SCHEMA)
    write = {"endpoint": fleet.endpoint, "queue": "in"}

    with pytest.raises(PySparkException, match="on purpose"):
        broken.write.format("ullage").mode("append").options(**write).save()
    assert (fleet.hidden(), fleet.records()) == (0, {})

    df.write.format("ullage").mode("append").options(**write).save()
    assert fleet.drained("in") == sorted(CONTENTS)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("'x' as content", "column content of binary"),
        ("content, 1 as attributes", "map of string to string"),
        ("content, 1 as other", "columns other cannot be stored"),
        ("cast(null as binary) as content", "holds nulls"),
        ("content, map('a', cast(null as string)) as attributes", "column attributes: the attribute a"),
        ("content, map('uuid', 'a') as attributes", "the attribute uuid belongs to the record"),
        ("content, map('a', cast(X'ff' as string)) as attributes", "invalid|UTF"),
    ],
)
def test_what_cannot_be_stored_is_refused(spark: SparkSession, fleet: Fleet, columns: str, message: str) -> None:
    """Before anything is visible, and no column is left out in silence."""
    df = rows(spark).selectExpr(*columns.split(", ", 1))
    with pytest.raises(PySparkException, match=message):
        df.write.format("ullage").mode("append").options(endpoint=fleet.endpoint).save()
    with pytest.raises(PySparkException, match="never overwritten"):
        rows(spark).write.format("ullage").mode("overwrite").options(endpoint=fleet.endpoint).save()
    assert (fleet.hidden(), fleet.records()) == (0, {})


class Job:
    """One write, its attempts run by the test in any order: what Spark does to a sink when things fail."""

    def __init__(self, fleet: Fleet, **options: str) -> None:
        self.options = {"endpoint": fleet.endpoint, "queue": "in", **options}
        self.source = DefaultSource(self.options)
        schema = COLUMNS
        self.writer = self.source.writer(schema, overwrite=False)

    def attempt(self, *contents: bytes) -> StagedAttempt:
        batch = pa.record_batch({"content": pa.array(contents, pa.binary())})
        found = self.writer.write(iter([batch]))
        assert isinstance(found, StagedAttempt)
        return found


def test_attempts_that_do_not_count_leave_nothing(fleet: Fleet) -> None:
    """Retries and speculative copies stage beside each other; one that begins after the verdict is refused."""
    job = Job(fleet)
    job.attempt(b"died unheard")
    first, copy, other = job.attempt(b"one"), job.attempt(b"one"), job.attempt(b"two")
    job.writer.commit([first, other, None])

    with pytest.raises(WriteClosed):
        job.attempt(b"late")
    job.writer.abort([first, copy, other])  # as Spark does when it believes that the commit failed
    job.writer.commit([first, other])

    assert fleet.drained("in") == [b"one", b"two"]
    assert fleet.hidden() == 0


def test_an_attempt_after_the_abort_is_refused(fleet: Fleet) -> None:
    """Spark starts attempts even after it has aborted their job."""
    job = Job(fleet)
    job.attempt(b"one")
    job.writer.abort([None, None])

    with pytest.raises(WriteClosed):
        job.attempt(b"late")
    with pytest.raises(Exception, match="attempt"):
        job.writer.commit([StagedAttempt("a", str(uuid.uuid4()), 1, Fingerprint())])
    assert (fleet.hidden(), fleet.records()) == (0, {})


def test_a_write_of_too_many_tasks_is_refused_before_any_node_prepares(fleet: Fleet) -> None:
    """Each node is told of all attempts that count, and keeps them."""
    job = Job(fleet)
    staged = job.attempt(b"one")
    others = [StagedAttempt("a", str(uuid.uuid4()), 1, Fingerprint()) for _ in range(110_000)]

    with pytest.raises(SparkSourceError, match=r"110,001 tasks have written rows.*coalesce"):
        job.writer.commit([staged, *others])
    job.writer.commit([staged])

    assert fleet.drained("in") == [b"one"]


@pytest.mark.parametrize("dies_at", ["prepare", "first commit", "second commit"])
def test_a_named_write_is_finished_by_whoever_repeats_it(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, dies_at: str
) -> None:
    """The driver dies amid the commit on two nodes: run again under its name, the write is there once."""
    job = Job(fleet, write="daily 2026-11-21")
    messages: list[Any] = [attempt_on(job, name, name.encode()) for name in ("a", "b")]
    calls: list[str] = []

    class Died(Exception):
        pass

    def dying(settings: SourceOptions, node: FleetNode, action: Any, request: Any) -> Any:
        calls.append(action.name)
        over = {"prepare": 1, "first commit": 1, "second commit": 2}[dies_at]
        if action.name == f"write-{dies_at.rsplit(maxsplit=1)[-1]}" and calls.count(action.name) >= over:
            raise Died
        return ask(settings, node, action, request)

    monkeypatch.setattr(writer, "ask", dying)
    with pytest.raises(Died):
        job.writer.commit(messages)
    monkeypatch.undo()
    seen = len(fleet.records())
    assert seen == (dies_at == "second commit")

    again = Job(fleet, write="daily 2026-11-21")
    again.writer.commit([attempt_on(again, name, name.encode()) for name in ("a", "b")])

    assert fleet.drained("in") == [b"a", b"b"]
    assert fleet.hidden() == 0
    assert all(agent.repository.staging.pending() == [] for agent in fleet.agents.values())


def test_a_name_is_for_one_write(fleet: Fleet) -> None:
    """The same rows again, split up otherwise, do nothing; other ones under the name are refused."""

    def written(*parts: tuple[bytes, ...], **options: str) -> None:
        job = Job(fleet, write="daily", **options)
        job.writer.commit([job.attempt(*part) for part in parts])

    written((b"1", b"2"), (b"3", b"3"))
    written((b"3",), (b"2", b"3", b"1"))
    for other in ((b"1", b"2", b"3"), (b"1", b"2", b"3", b"4"), (b"1", b"2", b"3", b"3", b"3")):
        with pytest.raises(SparkSourceError, match=r"write daily has been carried out already, with .*rows"):
            written(other)
    with pytest.raises(SparkSourceError, match="queue 'in' instead of 'out'"):
        written((b"1", b"2", b"3", b"3"), queue="out")
    assert fleet.drained("in") == [b"1", b"2", b"3", b"3"]


def test_a_write_that_is_open_is_for_its_queue(fleet: Fleet) -> None:
    """Else the rows of a repeat would stand in the queue of the run before it."""
    Job(fleet, write="daily").attempt(b"left behind")
    with pytest.raises(SparkSourceError, match="began for another queue or ttl, and is open"):
        Job(fleet, write="daily", queue="out")
    assert fleet.records() == {}


def test_a_batch_of_before_a_stream_changed_its_queue_is_done(fleet: Fleet) -> None:
    """Spark repeats the last one after a restart, and the program may be another one by then."""
    for queue in ("in", "out"):
        options = {"endpoint": fleet.endpoint, "queue": queue, "application": "test"}
        stream = writer.ContentStreamWriter(options, COLUMNS)
        rows = pa.record_batch({"content": pa.array([b"once"], pa.binary())})
        staged = stream._stage(stream._write_of(0), iter([rows]), begins=True)
        stream.commit([staged], 0)
    assert fleet.drained("in") == [b"once"]
    assert "out" not in fleet.repository("a").queues._by_name or fleet.drained("out") == []


def attempt_on(job: Job, node: str, content: bytes) -> StagedAttempt:
    """An attempt of an executor that stands on this node."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(HERE, node)
        return job.attempt(content)


def test_a_node_that_is_away_is_told_later(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once one node has committed, nothing is aborted any more; the other one learns of it from the repeat."""
    job = Job(fleet, write="w")
    messages: list[Any] = [attempt_on(job, name, name.encode()) for name in ("a", "b")]

    def away(settings: SourceOptions, node: FleetNode, action: Any, request: Any) -> Any:
        if node.name == "b" and action is WRITE_COMMIT:
            raise NotReachable("away")
        return ask(settings, node, action, request)

    monkeypatch.setattr(writer, "ask", away)
    with pytest.raises(WriteNotFinished, match="b first"):
        job.writer.commit(messages)
    with pytest.raises(WriteNotFinished):
        job.writer.abort(messages)
    monkeypatch.undo()

    Job(fleet, write="w")
    assert fleet.drained("in") == [b"a", b"b"]


def test_a_dead_drivers_write_ends_by_itself(fleet: Fleet) -> None:
    """Its nodes abort it when its time is over."""
    job = Job(fleet, lasts="1000")
    job.attempt(b"left behind")
    assert fleet.hidden() == 1

    gate = threading.Event()
    for _ in range(200):
        if not fleet.hidden():
            break
        gate.wait(0.1)
        for agent in fleet.agents.values():
            agent.repository.staging.expire()
    assert (fleet.hidden(), fleet.records()) == (0, {})


def test_transactions_are_counted_as_the_node_counts_them(fleet: Fleet) -> None:
    """Small and large contents mixed: a message that says another number could not be committed."""
    sizes = [0, 10, 9 << 20, 10, 8 << 20, (8 << 20) + 1, 1, 20 << 20]
    batch = pa.record_batch({"content": pa.array([b"x" * size for size in sizes], pa.binary())})
    packed = Packed(iter([batch]), 1 << 20)
    assert sum(1 for _ in packed.batches()) > packed.transactions == 7

    job = Job(fleet)
    message = job.attempt(*[b"x" * size for size in sizes])
    job.writer.commit([message])
    assert list(map(len, fleet.drained("in"))) == sorted(sizes)


def test_a_stream_writes_each_batch_once(spark: SparkSession, fleet: Fleet, tmp_path: Any) -> None:
    """A query that is started anew, its last commit forgotten, commits the same batch again: nothing is double."""
    source = tmp_path / "source"
    rows(spark, 2).write.parquet(str(source))
    checkpoint = tmp_path / "checkpoint"

    def run() -> None:
        df = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(source))
        query = (
            df.writeStream.format("ullage")
            .options(endpoint=fleet.endpoint, queue="in", application="test")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run()
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (checkpoint / "commits" / f".{last.name}.crc").unlink(missing_ok=True)
    run()

    assert fleet.drained("in") == sorted(CONTENTS)
    assert fleet.hidden() == 0


def test_a_stream_needs_a_name(fleet: Fleet) -> None:
    """Without one two streams would take each other's batches for their own."""
    source = DefaultSource({"endpoint": fleet.endpoint})
    with pytest.raises(SparkSourceError, match="application"):
        source.streamWriter(COLUMNS, overwrite=False)
