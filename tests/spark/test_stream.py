"""The streaming source: every event of every node once, however the query is stopped and started."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadMaxRows

from pyspark_ullage import DefaultSource
from tests.spark.fleet import Fleet, fleet_at, streamed
from ullage.contract import Duration
from ullage.wire.provenance import EventQuery
from ullage_spark.offsets import shares
from ullage_spark.stream import EventReader

Follow = Callable[..., dict[str, list[int]]]


def sequences(fleet: Fleet) -> dict[str, list[int]]:
    return {
        name: [event.sequence for event in fleet.repository(name).history.query(EventQuery(limit=10_000)).events]
        for name in fleet.agents
    }


@pytest.fixture
def follow(spark: SparkSession, fleet: Fleet, tmp_path: Path) -> Follow:
    """Run the query until it has read all, and return everything it ever wrote."""

    def run(**options: str) -> dict[str, list[int]]:
        given = {"endpoint": fleet.endpoint, "table": "provenance", "columns": "node,sequence,type", **options}
        df = spark.readStream.format("ullage").options(**given).load()
        found: dict[str, list[int]] = {}
        for row in streamed(df, tmp_path).collect():
            found.setdefault(row.node, []).append(row.sequence)
        return {name: sorted(each) for name, each in sorted(found.items())}

    return run


def test_events_come_once_over_restarts(fleet: Fleet, follow: Follow, tmp_path: Path) -> None:
    """In batches of a bounded size, across runs of the query, with events that come in between."""
    fleet.fill(1, 10)
    assert follow(maxEvents="25") == sequences(fleet)
    batches = len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]*")))
    assert batches >= 3
    fleet.fill(2, 5)
    assert follow(maxEvents="1000") == sequences(fleet)


def reader(fleet: Fleet, **options: str) -> EventReader:
    given = {"endpoint": fleet.endpoint, "table": "provenance", **options}
    source = DefaultSource(given)
    found = source.streamReader(source.schema())
    assert isinstance(found, EventReader)
    return found


def test_admission_is_fair_and_offsets_are_json(fleet: Fleet) -> None:
    """A limit is shared by the nodes; what one does not use the others get; nothing is read twice."""
    fleet.fill(6, 10)
    stream = reader(fleet)
    start = stream.initialOffset()
    last = {name: found[-1] for name, found in sequences(fleet).items()}

    first = stream.latestOffset(start, ReadMaxRows(10))
    assert {name: place["sequence"] for name, place in first.items()} == {"a": 5, "b": 5}
    assert json.loads(json.dumps(first)) == first
    rest = stream.latestOffset(first, ReadMaxRows(1_000_000))
    assert {name: place["sequence"] for name, place in rest.items()} == last
    assert stream.partitions(rest, rest) == []
    counts = [part.through - part.after for part in stream.partitions(start, rest)]  # type: ignore[attr-defined]
    assert counts == list(last.values())
    assert reader(fleet, startingPosition="latest").initialOffset() == rest
    assert shares({"a": 2, "b": 100, "c": 0}, 10) == {"a": 2, "b": 8, "c": 0}
    assert shares({"a": 5, "b": 5}, 3) == {"a": 2, "b": 1}


def test_another_repository_is_not_taken_for_the_same(fleet: Fleet) -> None:
    """Its sequences mean other events: the stream stops, unless it may lose some."""
    fleet.fill(7, 3)
    stream = reader(fleet)
    place = {"repository": "another", "sequence": 5}
    start = {**stream.initialOffset(), "a": place}
    end = stream.latestOffset(start, ReadMaxRows(1_000))

    with pytest.raises(Exception, match="another repository than before"):
        stream.partitions(start, end)
    lenient = reader(fleet, failOnDataLoss="false")
    first = min(lenient.partitions(start, end), key=lambda part: part.node.name)  # type: ignore[attr-defined]
    assert first.after == 0  # type: ignore[attr-defined]


def test_what_is_gone_is_told(fleet: Fleet) -> None:
    """A range of which events are missing is an error, not a shorter answer."""
    fleet.fill(8, 3)
    stream = reader(fleet)
    end = stream.latestOffset(stream.initialOffset(), ReadMaxRows(1_000))
    beyond = {name: {**place, "sequence": place["sequence"] + 7} for name, place in end.items()}

    with pytest.raises(Exception, match="7 of the events"):
        list(stream.read(stream.partitions(end, beyond)[0]))
    lenient = reader(fleet, failOnDataLoss="false")
    assert list(lenient.read(lenient.partitions(end, beyond)[0])) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"table": "flowfiles"}, "queue and application"),
        ({"startingPosition": "middle"}, "earliest or latest"),
        ({"snapshot": "{}"}, "option snapshot is of a read, and this is a stream"),
    ],
)
def test_what_cannot_be_followed_says_why(fleet: Fleet, options: dict[str, str], message: str) -> None:
    """Before the query starts."""
    with pytest.raises(Exception, match=message):
        reader(fleet, **options)


def test_nodes_keep_what_is_not_read_as_long_as_the_stream_is_there(tmp_path: Path) -> None:
    """Retention would have taken it long ago; it goes on when the stream has read it, or has stopped."""
    brief = {"max_storage_time": Duration(1)}
    with fleet_at(tmp_path, "a", "b", provenance=brief) as fleet:
        fleet.rest()
        fleet.fill(9, 5)
        repository = fleet.repository("a")
        repository.provenance.holds.end("restart")
        repository.provenance.drain()
        stream = reader(fleet)
        start = stream.initialOffset()
        end = stream.latestOffset(start, ReadMaxRows(1_000))

        assert repository.provenance.retain() == 0
        found = [batch for part in stream.partitions(start, end) for batch in stream.read(part)]
        assert sum(batch.num_rows for batch in found) == sum(map(len, sequences(fleet).values()))
        stream.commit(end)
        assert repository.provenance.retain() == 1
        fleet.fill(10, 5)
        repository.provenance.drain()
        assert repository.provenance.retain() == 0
        stream.stop()
        assert repository.provenance.retain() == 1


def test_a_stream_may_hold_nothing(fleet: Fleet) -> None:
    """With hold=0 its nodes do as their settings say."""
    fleet.fill(9, 1)
    repository = fleet.repository("a")
    repository.provenance.holds.end("restart")
    stream = reader(fleet, hold="0")
    stream.latestOffset(stream.initialOffset(), ReadMaxRows(1_000))

    assert repository.provenance.holds.wanted_after(0) is None
    stream.stop()
