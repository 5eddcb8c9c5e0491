"""The options `where`, `after` and `through`, and how a read of events is split: without a JVM, over real Flight."""

import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    In,
    IsNotNull,
    IsNull,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)
from pyspark.sql.streaming.datasource import ReadMaxRows

from pyspark_ullage import DefaultSource
from tests.spark.fleet import Fleet
from ullage.client import flight, localtables
from ullage.client.arriving import require_sound
from ullage.wire.predicates import EVERY, Predicate
from ullage.wire.where import VALUES_MAX
from ullage_spark import eventparts
from ullage_spark.errors import EventsLost, SparkSourceError
from ullage_spark.eventparts import PARTS_MAX, stretches
from ullage_spark.offsets import FleetStreamReader, Offset
from ullage_spark.predicates import Where
from ullage_spark.pushdown import PushingReader
from ullage_spark.reader import TableReader

Row = dict[str, Any]


def reader_of(fleet: Fleet, table: str, **options: Any) -> TableReader:
    """As Spark makes it of options."""
    given = {"endpoint": fleet.endpoint, "table": table} | {name: str(value) for name, value in options.items()}
    return TableReader(given, DefaultSource(given).schema())


def rows_of(reader: TableReader) -> list[Row]:
    """Of all partitions."""
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows nodes have sent, table by table."""
    found: list[int] = []

    def counted(where: str, batch: pa.RecordBatch) -> None:
        found.append(batch.num_rows)
        require_sound(where, batch)

    for way in (flight, localtables):
        monkeypatch.setattr(way, "require_sound", counted)
    return found


MEANT: dict[str, Any] = {
    "queue = 'in' OR size < 2": lambda node, queue, record: queue == "in" or record.size < 2,
    "queue IN ('out', 'none') AND NOT size = 0": lambda node, queue, record: queue == "out" and record.size,
    "queue IS NULL": lambda node, queue, record: queue is None,
    "size BETWEEN 100 AND 300000": lambda node, queue, record: 100 <= record.size <= 300_000,
    "node = 'a' AND queue LIKE 'o%'": lambda node, queue, record: node == "a" and queue == "out",
    "node = 'a' OR size = 1": lambda node, queue, record: node == "a" or record.size == 1,
    "attributes['from'] = 'b'": lambda node, queue, record: node == "b",
    "entry_time < TIMESTAMP '2020-01-01' OR node LIKE 'b%'": lambda node, queue, record: node == "b",
    "expires_time IS NOT NULL": lambda node, queue, record: False,
}


def test_nodes_send_the_rows_that_are_meant_and_no_others(fleet: Fleet, received: list[int]) -> None:
    """Whichever columns are read beside."""
    fleet.fill(1, 10)
    queues = {(name, at): each.name for name in "ab" for at, each in fleet.repository(name).snapshot().queues.items()}
    for where, is_meant in MEANT.items():
        expected = {
            key
            for key, record in fleet.records().items()
            if is_meant(key[0], queues.get((key[0], record.queue)), record)
        }
        received.clear()

        rows = rows_of(reader_of(fleet, "flowfiles", where=where, columns="uuid,node"))

        assert {(row["node"], row["uuid"]) for row in rows} == expected, where
        assert sum(received) == len(expected), where


def pushing(fleet: Fleet, **options: str) -> PushingReader:
    """As Spark makes it for a session that pushes filters."""
    given = {"endpoint": fleet.endpoint, "pushdown": "true", **options}
    source = DefaultSource(given)
    made = source.reader(source.schema())
    assert isinstance(made, PushingReader)
    return made


def test_filters_of_sparks_own_are_evaluated_by_nodes(fleet: Fleet, received: list[int]) -> None:
    """Beside the option; those that nodes cannot evaluate, or not alike, are given back as they are."""
    fleet.fill(1, 10)
    everything = rows_of(reader_of(fleet, "flowfiles"))
    soon = datetime(2100, 1, 1, tzinfo=UTC)
    pushed: list[tuple[Filter, Callable[[Row], object]]] = [
        (EqualTo(("queue",), "in"), lambda row: row["queue"] == "in"),
        (Not(EqualTo(("queue",), "in")), lambda row: row["queue"] not in ("in", None)),
        (In(("size",), (0, 1, 5)), lambda row: row["size"] in (0, 1)),
        (Not(In(("queue",), ("in",))), lambda row: row["queue"] == "out"),
        (GreaterThan(("size",), 300), lambda row: row["size"] > 300),
        (LessThanOrEqual(("entry_time",), soon), lambda row: True),
        (IsNull(("queue",)), lambda row: row["queue"] is None),
        (IsNotNull(("expires_time",)), lambda row: False),
        (EqualTo(("swapped",), False), lambda row: True),
        (StringStartsWith(("queue",), "o"), lambda row: row["queue"] == "out"),
        (StringEndsWith(("queue",), "%"), lambda row: False),
        (StringContains(("node",), "b"), lambda row: row["node"] == "b"),
    ]
    for filter, is_meant in pushed:
        reader = PushingReader(
            {"endpoint": fleet.endpoint, "where": "size >= 1"}, DefaultSource({"endpoint": fleet.endpoint}).schema()
        )
        received.clear()

        assert list(reader.pushFilters([filter])) == []
        rows = rows_of(reader)

        assert sorted(row["uuid"] for row in rows) == sorted(
            row["uuid"] for row in everything if row["size"] >= 1 and is_meant(row)
        ), filter
        assert sum(received) == len(rows)

    given_back = [
        EqualTo(("size",), 1.5),
        EqualTo(("parents",), ["x"]),
        EqualTo(("attributes", "from"), "a"),
        EqualTo(("entry_time",), datetime(2100, 1, 1)),  # noqa: DTZ001 - of no zone, as TIMESTAMP_NTZ is
        EqualNullSafe(("queue",), "in"),
        EqualTo(("queue",), None),
    ]
    reader = pushing(fleet)
    left = list(reader.pushFilters([pushed[0][0], *given_back]))
    assert [any(each is one for one in left) for each in given_back] == [True] * len(given_back)
    assert len(left) == len(given_back)
    many: list[Filter] = [In(("size",), tuple(range(VALUES_MAX + 10)))]
    assert reader.pushFilters(many) == many


def test_a_node_whose_rows_are_left_out_is_not_read(fleet: Fleet, received: list[int]) -> None:
    """It gets no task."""
    fleet.fill(2, 3)
    reader = reader_of(fleet, "flowfiles", where="node IN ('b', 'c') AND queue = 'in'")

    assert [part.node.name for part in reader.partitions()] == ["b"]  # type: ignore[attr-defined]
    assert {row["node"] for row in rows_of(reader)} == {"b"}
    assert rows_of(reader_of(fleet, "completeness", where="node = 'a' AND is_read"))[0]["missing_bytes"] == 0


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"where": "size = 'a'"}, "option where: column size is bigint, and 'a' is string: write a number"),
        ({"where": "queue = 5"}, "option where: column queue is string, and 5 is bigint: write 'text'"),
        ({"where": "entry_millis = 5"}, "option where: table flowfiles has no column entry_millis: node, uuid"),
        ({"where": "queue = "}, "option where: nothing I know at the end"),
        ({"after": 5}, "options after and through are of table provenance"),
        ({"through": -1}, "option through is a number"),
    ],
)
def test_what_is_wrong_is_told_before_a_task_begins(options: dict[str, Any], why: str) -> None:
    """It names the option and the column, and no node: none is asked."""
    given = {"endpoint": "grpc://127.0.0.1:1"} | {name: str(value) for name, value in options.items()}
    with pytest.raises(SparkSourceError) as raised:
        TableReader(given, DefaultSource(given).schema())

    assert str(raised.value).startswith(why)
    assert "127.0.0.1" not in str(raised.value)


def test_a_read_of_events_is_split_and_bounded(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each event in one task, also those that come after the planning."""
    monkeypatch.setattr(eventparts, "PART_EVENTS", 20)
    fleet.fill(3, 30)
    lasts = {name: fleet.repository(name).provenance.span()[1] for name in "ab"}
    assert min(lasts.values()) > 40

    def sequences(**options: Any) -> tuple[int, list[tuple[str, int]]]:
        reader = reader_of(fleet, "provenance", columns="node,sequence", **options)
        return len(reader.partitions()), sorted((row["node"], row["sequence"]) for row in rows_of(reader))

    def between(after: int, through: int) -> list[tuple[str, int]]:
        return [(name, at) for name in "ab" for at in range(after + 1, min(through, lasts[name]) + 1)]

    everything = between(0, 1_000_000)
    assert sequences() == (sum(-(-last // 20) for last in lasts.values()), everything)
    assert sequences(after=13) == (sum(-(-(last - 13) // 20) for last in lasts.values()), between(13, 1_000_000))
    assert sequences(after=13, through=30) == (2, between(13, 30))
    assert sequences(where="sequence > 13 AND sequence <= 30") == (2, between(13, 30))
    assert sequences(where="sequence IN (14, 50)", through=20) == (2, [("a", 14), ("b", 14)])
    assert sequences(after=5, through=5) == (0, [])
    assert sequences(where="time < TIMESTAMP '2020-01-01'")[1] == []
    assert sequences(where=f"time <= TIMESTAMP '{datetime.now(UTC)}'")[1] == everything

    one = rows_of(reader_of(fleet, "provenance", where="sequence = 7 AND node = 'a'"))[0]["uuid"]
    assert sequences(where=f"uuid = '{one}'") == (2, [("a", 7)])

    reader = reader_of(fleet, "provenance", columns="node,sequence")
    reader.partitions()
    planned = reader.partitions()
    with fleet.repository("a").session() as session:
        session.ingest("in", [b"later"])
        session.commit()
    rows = [row for part in planned for batch in reader.read(part) for row in batch.to_pylist()]
    assert ("a", lasts["a"] + 1) in {(row["node"], row["sequence"]) for row in rows}
    assert len(rows) == len(everything) + 1


def test_stretches_lie_end_to_end(seed: int) -> None:
    """However much there is and whatever is wanted of it, so many that planning stays small."""
    chance = random.Random(seed)
    for _ in range(500):
        first = chance.randint(1, 1_000)
        last = first + chance.choice((-1, 0, 5, 100_000, 250_000, 10**9))
        after, through = chance.choice((0, 10, first + 1_000)), chance.choice((None, 20, first + 300_000))
        low = chance.choice((None, 7, first + 50))
        rest: Predicate = EVERY if low is None else Where("provenance", f"sequence > {low}").predicate

        found = stretches(first, last, rest, after, through)

        begin = max(first - 1, after, low or 0)
        assert len(found) <= PARTS_MAX + 1
        if through is None:
            assert found[-1][1] is None
        elif begin < min(last, through):
            assert found[-1][1] == min(last, through)
        if found:
            assert found[0][0] == begin
            assert [end for _, end in found[:-1]] == [start for start, _ in found[1:]]
            assert all(end is None or start < end for start, end in found)


def stream_of(fleet: Fleet, **options: str) -> FleetStreamReader:
    """As Spark makes it of options."""
    source = DefaultSource({"endpoint": fleet.endpoint, **options})
    stream = source.streamReader(source.schema())
    assert isinstance(stream, FleetStreamReader)
    return stream


def rows_between(stream: FleetStreamReader, start: Offset, end: Offset) -> list[Row]:
    """Of all partitions of a batch."""
    parts = stream.partitions(dict(start), dict(end))
    return [row for part in parts for batch in stream.read(part) for row in batch.to_pylist()]


EVENTS = {"table": "provenance"}
QUEUE = {"queue": "in", "application": "test"}


@pytest.mark.parametrize(
    ("options", "where", "is_meant", "place", "problem"),
    [
        (EVENTS, "size >= 200", lambda row: row["size"] >= 200, "sequence", "3 of the events"),
        (QUEUE, "size >= 200", lambda row: row["size"] >= 200, "count", "3 of .* do not wait for it any more"),
    ],
    ids=["events", "a queue"],
)
def test_nodes_send_a_stream_the_rows_that_are_meant_and_miss_all_others(
    fleet: Fleet,
    received: list[int],
    options: Row,
    where: str,
    is_meant: Callable[[Row], bool],
    place: str,
    problem: str,
) -> None:
    """Rows that are gone may have been meant, so they are missed; but not those of a node that is left out by name."""
    fleet.fill(1, 10)
    every = stream_of(fleet, **options)
    start: Offset = every.initialOffset()
    end: Offset = every.latestOffset(dict(start), ReadMaxRows(1_000))
    everything = rows_between(every, start, end)
    expected = [row for row in everything if is_meant(row)]
    received.clear()

    assert rows_between(stream_of(fleet, where=where, **options), start, end) == expected
    assert sum(received) == len(expected) > 0
    assert len(everything) > len(expected)

    beyond: Any = {name: {**at, place: at[place] + 3} for name, at in end.items()}  # type: ignore[literal-required]
    with pytest.raises(EventsLost, match=problem):
        rows_between(stream_of(fleet, where=where, **options), start, beyond)
    lenient = stream_of(fleet, where=where, failOnDataLoss="false", **options)
    assert rows_between(lenient, start, beyond) == expected
    received.clear()
    assert rows_between(stream_of(fleet, where="node = 'elsewhere'", **options), start, beyond) == []
    assert received == []
    for stream in (every, lenient):
        stream.stop()
