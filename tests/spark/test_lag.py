"""What a query's progress says of each node: how much is not read, since when that waits, and which node is silent."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadMaxRows

from pyspark_ullage import DefaultSource
from tests.spark.fleet import Fleet
from ullage.wire.provenance import EventQuery
from ullage_spark.offsets import FleetStreamReader

KINDS = [{"queue": "in", "application": "lagging"}, {"table": "provenance"}]


def oldest(fleet: Fleet, node: str, kind: dict[str, str], read: int) -> int:
    """When the first of what a stream has not read came, by the node's own records."""
    repository = fleet.repository(node)
    if "queue" in kind:
        return min(record.queued for record in repository.queue("in").records()) // 1000
    (event,) = repository.history.query(EventQuery(after=read, limit=1)).events
    return event.millis


def reader(fleet: Fleet, kind: dict[str, str], **options: str) -> FleetStreamReader:
    source = DefaultSource({"endpoint": fleet.endpoint, **kind, **options})
    found = source.streamReader(source.schema())
    assert isinstance(found, FleetStreamReader)
    return found


@pytest.mark.parametrize("kind", KINDS, ids=["queue", "events"])
def test_what_is_not_read_is_told_by_node_and_age(fleet: Fleet, kind: dict[str, str]) -> None:
    """Nothing before anything is planned, and nothing once all is."""
    fleet.fill(3, 20)
    stream = reader(fleet, kind)
    start = stream.initialOffset()
    assert stream.reportLatestOffset() == {}
    first = stream.latestOffset(start, ReadMaxRows(8))

    lags = stream.reportLatestOffset()

    total = 24 if "queue" in kind else max(event.sequence for event in events(fleet, "a"))
    assert lags == {
        name: {"backlog": total - 4, "oldest_unread_millis": oldest(fleet, name, kind, 4)} for name in fleet.agents
    }
    stream.latestOffset(first, ReadMaxRows(1_000_000))
    assert stream.reportLatestOffset() == {name: {"backlog": 0, "oldest_unread_millis": None} for name in "ab"}
    stream.stop()


def events(fleet: Fleet, node: str) -> Any:
    return fleet.repository(node).history.query(EventQuery(limit=10_000)).events


@pytest.mark.parametrize("kind", KINDS, ids=["queue", "events"])
def test_a_node_that_is_silent_is_told_of_and_stops_nobody(fleet: Fleet, kind: dict[str, str]) -> None:
    """Whether it went before the batch was planned, or since."""
    fleet.fill(3, 20)
    stream = reader(fleet, kind, missingNodes="skip")
    first = stream.latestOffset(stream.initialOffset(), ReadMaxRows(8))
    fleet.agents["b"].stop()

    since, again = stream.reportLatestOffset(), stream.latestOffset(first, ReadMaxRows(8))
    before = stream.reportLatestOffset()

    assert again["a"]["sequence"] > first["a"]["sequence"]
    for lags in (since, before):
        assert lags["a"]["backlog"] > 0
        silent = next(lag for name, lag in lags.items() if name != "a")
        assert set(silent) == {"missing"}
    stream.stop()


@pytest.mark.parametrize("kind", KINDS, ids=["queue", "events"])
def test_a_querys_progress_shows_it(spark: SparkSession, fleet: Fleet, tmp_path: Path, kind: dict[str, str]) -> None:
    """As Spark has it for listeners and dashboards: batch by batch it gets less."""
    fleet.fill(3, 20)
    options = {"endpoint": fleet.endpoint, "maxEvents": "20", **kind}
    query = (
        spark.readStream.format("ullage")
        .options(**options)
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()

    told = [json.loads(each["sources"][0]["latestOffset"]) for each in query.recentProgress]
    backlogs = [[lags[name]["backlog"] for name in "ab"] for lags in told if lags]
    assert backlogs[0][0] > 0
    assert backlogs == sorted(backlogs, reverse=True)
    assert backlogs[-1] == [0, 0]
