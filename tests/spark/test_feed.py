"""The streaming source over a queue: each FlowFile once, whatever fails, and nobody else gets what a batch has."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from pyspark_ullage import DefaultSource
from tests.spark.fleet import Fleet, streamed
from tests.spark.test_content import SCHEMA, collected, digests, expected
from tests.support import drain, put_all
from ullage_spark import with_content
from ullage_spark.feed import QueueReader
from ullage_spark.offsets import Offset

HELD = "stream:test:in"
Rows = list[tuple[str, str]]


def standing(fleet: Fleet, queue: str = "in") -> Rows:
    """Node and uuid of what stands in a queue."""
    return sorted((n, r.id) for n in fleet.agents for r in fleet.repository(n).queue(queue).records())


def options_of(fleet: Fleet, **options: str) -> dict[str, str]:
    return {"endpoint": fleet.endpoint, "queue": "in", "application": "test", **options}


def reader(fleet: Fleet, **options: str) -> QueueReader:
    source = DefaultSource(options_of(fleet, **options))
    found = source.streamReader(source.schema())
    assert isinstance(found, QueueReader)
    return found


def rows_between(stream: QueueReader, start: Offset, end: Offset) -> Rows:
    found: Rows = []
    for part in stream.partitions(dict(start), dict(end)):
        for batch in stream.read(part):
            found += zip(batch.column("node").to_pylist(), batch.column("uuid").to_pylist(), strict=True)
    return sorted(found)


class Consumer:
    """A query that writes down what each of its batches had, and may be told to fail in one."""

    def __init__(self, spark: SparkSession, fleet: Fleet, checkpoint: Path) -> None:
        self._spark, self._fleet, self._checkpoint = spark, fleet, checkpoint
        self.batches: list[tuple[int, Rows]] = []
        self.fails_at: int | None = None

    def run(self, **options: str) -> None:
        """Until it has read what was there when it began."""
        df = self._spark.readStream.format("ullage").options(**options_of(self._fleet, **options)).load()
        query = (
            df.writeStream.foreachBatch(self._take)
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def _take(self, df: DataFrame, number: int) -> None:
        rows = sorted((row.node, row.uuid) for row in df.select("node", "uuid").collect())
        self.batches.append((number, rows))
        if number == self.fails_at:
            self.fails_at = None
            raise RuntimeError("on purpose")


def test_flow_files_come_once_over_failures_and_restarts(spark: SparkSession, fleet: Fleet, tmp_path: Path) -> None:
    """In batches of a bounded size; the batch that failed comes again as it was, and what is read is gone."""
    fleet.fill(1, 20)
    waiting, others = standing(fleet), standing(fleet, "out")
    consumer = Consumer(spark, fleet, tmp_path / "checkpoint")
    consumer.fails_at = 1
    with pytest.raises(Exception, match="on purpose"):
        consumer.run(maxEvents="20")
    assert standing(fleet, HELD) != []
    consumer.run(maxEvents="20")

    by_number = dict(consumer.batches)
    assert [number for number, _ in consumer.batches] == [0, 1, 1, 2]
    assert consumer.batches[1] == consumer.batches[2]
    assert [len(rows) for rows in by_number.values()] == [20, 20, 8]
    assert sorted(row for rows in by_number.values() for row in rows) == waiting
    assert (standing(fleet), standing(fleet, HELD), standing(fleet, "out")) == ([], [], others)

    fleet.fill(2, 2)
    more = standing(fleet)
    consumer.run()
    assert consumer.batches[-1] == (3, more)


def test_content_is_opened_while_a_batch_has_it(spark: SparkSession, fleet: Fleet, tmp_path: Path) -> None:
    """Without a snapshot: what a stream has taken is there until the batch is carried out."""
    contents = fleet.fill(3, 10)
    wanted = expected({key: contents[key] for key in standing(fleet)})
    taken = spark.readStream.format("ullage").options(**options_of(fleet)).load()
    found = streamed(with_content(taken, digests, SCHEMA, endpoint=fleet.endpoint), tmp_path)

    assert found.count() == len(wanted)
    assert collected(found) == wanted


def test_admission_is_fair_and_what_is_planned_stays_planned(fleet: Fleet) -> None:
    """A driver that died before it wrote an offset down finds the same FlowFiles under the next one."""
    fleet.fill(4, 10)
    waiting = standing(fleet)
    stream = reader(fleet)
    start: Offset = stream.initialOffset()
    first: Offset = stream.latestOffset(dict(start), ReadMaxRows(10))
    again: Offset = reader(fleet).latestOffset(dict(start), ReadMaxRows(10))

    assert first == again == json.loads(json.dumps(first))
    assert {name: place["count"] for name, place in first.items()} == {"a": 5, "b": 5}
    batch = rows_between(stream, start, first)
    assert batch == rows_between(reader(fleet), start, first)
    rest: Offset = stream.latestOffset(dict(first), ReadAllAvailable())
    assert sorted(batch + rows_between(stream, first, rest)) == waiting
    assert stream.partitions(dict(rest), dict(rest)) == []
    assert len(standing(fleet, HELD)) == len(waiting) - len(batch)
    stream.commit(dict(rest))
    assert standing(fleet, HELD) == []
    stream.stop()


def test_what_comes_later_is_not_waited_for(fleet: Fleet) -> None:
    """A trigger that ends takes what was there at first, however much arrives meanwhile."""
    fleet.fill(5, 2)
    count = len(standing(fleet))
    stream = reader(fleet)
    stream.prepareForTriggerAvailableNow()
    place = stream.initialOffset()
    total = 0
    for _ in range(6):
        place = stream.latestOffset(place, ReadMaxRows(3))
        total = sum(each["count"] for each in place.values())
        put_all(fleet.repository("a"), "in", [b"late"] * 3)

    assert total == count
    stream.stop()


def test_a_stream_that_was_away_for_too_long_is_told(fleet: Fleet) -> None:
    """What it had taken went back, so others have it, or it comes again: never a batch with fewer rows in silence."""
    fleet.fill(6, 2)
    waiting = standing(fleet)
    stream = reader(fleet)
    start: Offset = stream.initialOffset()
    end: Offset = stream.latestOffset(dict(start), ReadMaxRows(1_000))
    stream.stop()
    for name in fleet.agents:
        fleet.repository(name).feeds.give_back("test", "in", 0)

    with pytest.raises(Exception, match="do not wait for it any more"):
        rows_between(reader(fleet), start, end)
    lenient = reader(fleet, failOnDataLoss="false")
    assert rows_between(lenient, start, end) == []
    assert rows_between(lenient, end, lenient.latestOffset(dict(end), ReadMaxRows(1_000))) == waiting
    lenient.stop()


def test_nobody_else_gets_what_a_batch_has(fleet: Fleet) -> None:
    """And what stands in no batch yet is anybody's."""
    fleet.fill(7, 10)
    stream = reader(fleet)
    start: Offset = stream.initialOffset()
    end: Offset = stream.latestOffset(dict(start), ReadMaxRows(10))
    drained = sum(len(drain(fleet.repository(name), "in")) for name in fleet.agents)

    assert drained + len(rows_between(stream, start, end)) == 28
    stream.stop()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda place: {**place, "repository": "another"}, "another repository than before"),
        (lambda place: {**place, "sequence": place["sequence"] + 1, "count": place["count"] + 1}, "1 of 1 FlowFiles"),
    ],
)
def test_a_checkpoint_of_something_else_is_not_taken_for_this(
    fleet: Fleet, change: Callable[[Any], Any], message: str
) -> None:
    """The stream stops, unless it may lose some."""
    stream = reader(fleet)
    start = stream.initialOffset()
    end = {name: change(place) for name, place in start.items()}

    with pytest.raises(Exception, match=message):
        rows_between(stream, start, end)
    assert rows_between(reader(fleet, failOnDataLoss="false"), start, end) == []


@pytest.mark.parametrize("options", [{"queue": ""}, {"application": ""}, {"snapshot": "{}"}, {"table": "claims"}])
def test_what_cannot_be_consumed_says_why(fleet: Fleet, options: dict[str, str]) -> None:
    """Before the query starts."""
    with pytest.raises(Exception, match=r"options queue and application|option snapshot is of a read"):
        reader(fleet, **options)
