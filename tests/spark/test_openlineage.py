"""OpenLineage events, as its own file transport writes them: what is read, what is written, and how it ended."""

import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import BinaryType, StructField, StructType

from pyspark_ullage import DefaultSource
from tests.spark.fleet import Fleet
from ullage.clock import Clock
from ullage_spark import lineage_events, snapshot
from ullage_spark.history import fed, written
from ullage_spark.lineage_events import ToldRun, namespace_of
from ullage_spark.settings import SourceOptions
from ullage_spark.writer import ContentBatchWriter

CONTENT = StructType([StructField("content", BinaryType())])
ROWS = pa.record_batch([pa.array([b"0", b"1"])], names=["content"])
Told = list[tuple[str, str, list[str], list[str]]]


class Events:
    """What the transport has written: of each event its job, its state, and the datasets' names."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def raw(self) -> list[dict[str, Any]]:
        if not self._file.exists():
            return []
        return [json.loads(line) for line in self._file.read_text(encoding="utf-8").splitlines()]

    def told(self) -> Told:
        return [
            (
                each["job"]["name"],
                each["eventType"],
                sorted(dataset["name"] for dataset in each["inputs"]),
                sorted(dataset["name"] for dataset in each["outputs"]),
            )
            for each in self.raw()
        ]


@pytest.fixture
def events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Events:
    """The file transport, as its settings in the environment make it."""
    file = tmp_path / "events.json"
    for name, value in {"TYPE": "file", "LOG_FILE_PATH": str(file), "APPEND": "true"}.items():
        monkeypatch.setenv(f"OPENLINEAGE__TRANSPORT__{name}", value)
    lineage_events._client.cache_clear()
    return Events(file)


def write(fleet: Fleet, queue: str, **options: str) -> ContentBatchWriter:
    """A writer on its way to where Spark commits: it was pickled."""
    made = ContentBatchWriter({"endpoint": fleet.endpoint, "queue": queue, **options}, CONTENT, overwrite=False)
    found: ContentBatchWriter = pickle.loads(pickle.dumps(made))
    return found


def test_a_write_is_told_from_its_start_to_its_end(
    fleet: Fleet, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One run, of the queue that it goes to; a part of the run that the environment names."""
    parent = "7f6e3c0e-8a57-7f30-9d0b-0c9a4f6d1e11"
    monkeypatch.setenv("OPENLINEAGE_PARENT_ID", f"airflow/daily.load/{parent}")
    monkeypatch.setenv("OPENLINEAGE_NAMESPACE", "billing")
    writer = write(fleet, "orders")
    writer.commit([writer.write(iter([ROWS]))])
    gone = write(fleet, "")
    gone.abort([])

    assert events.told() == [
        ("ullage.write", "START", [], ["queues/orders"]),
        ("ullage.write", "COMPLETE", [], ["queues/orders"]),
        ("ullage.write", "START", [], ["handles"]),
        ("ullage.write", "FAIL", [], ["handles"]),
    ]
    first, second, third, fourth = events.raw()
    assert first["run"]["runId"] == second["run"]["runId"] != third["run"]["runId"] == fourth["run"]["runId"]
    assert first["job"]["namespace"] == "billing"
    assert first["run"]["facets"]["parent"]["run"]["runId"] == parent
    addresses = sorted(fleet.endpoint.replace("grpc://", "ullage://").split(","))
    assert {each["outputs"][0]["namespace"] for each in events.raw()} == {addresses[0]}


def test_a_snapshot_tells_what_was_read_at_it_or_why_it_failed(fleet: Fleet, events: Events) -> None:
    """Tables by their names, each once."""
    session: Any = Reading()
    with snapshot(session, endpoint=fleet.endpoint) as moment:
        for table in ("flowfiles", "queues", "flowfiles"):
            moment.table(table)
    with pytest.raises(ZeroDivisionError), snapshot(session, endpoint=fleet.endpoint):
        raise ZeroDivisionError

    ends = [told for told in events.told() if told[1] != "START"]
    assert ends == [("ullage.read", "COMPLETE", ["flowfiles", "queues"], []), ("ullage.read", "FAIL", [], [])]
    assert "ZeroDivisionError" in events.raw()[-1]["run"]["facets"]["errorMessage"]["message"]


class Reading:
    """What a snapshot asks a session for; it makes no DataFrame."""

    def __getattr__(self, _: str) -> Any:
        return self

    def __call__(self, *_: object, **__: object) -> Any:
        return self


def test_streams_and_histories_are_told_too(fleet: Fleet, events: Events, tmp_path: Path) -> None:
    """Of a stream each batch, of a history each run, with where its files are."""
    fleet.fill(3, 2)
    source = DefaultSource({"endpoint": fleet.endpoint, "queue": "in", "application": "billing"})
    stream = source.streamReader(source.schema())
    start = stream.initialOffset()
    stream.partitions(start, stream.latestOffset(start, ReadMaxRows(2)))
    stream.stop()
    with written(str(tmp_path / "history"), Clock()) as tables:
        fed(tables, {"endpoint": fleet.endpoint}, Clock())

    read = ["flowfiles", "provenance", "resource_claims", "runs"]
    files = [str(tmp_path / "history" / name) for name in ("events", "runs", "space")]
    assert events.told() == [
        ("ullage.stream.billing", "START", ["queues/in"], []),
        ("ullage.stream.billing", "COMPLETE", ["queues/in"], []),
        ("ullage.history", "START", read, files),
        ("ullage.history", "COMPLETE", read, files),
    ]


def test_nothing_is_told_unless_somebody_said_where(fleet: Fleet, tmp_path: Path) -> None:
    """The package is not even loaded, and nothing goes to the console, which is its default."""
    lineage_events._client.cache_clear()
    writer = write(fleet, "orders")
    writer.commit([writer.write(iter([ROWS]))])
    assert lineage_events._client.cache_info().currsize == 0


def test_a_transport_that_fails_is_logged_and_fails_no_job(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its folder is not there, or its settings are none."""
    for kind, where in (("file", "/nowhere/events"), ("none", "")):
        monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", kind)
        monkeypatch.setenv("OPENLINEAGE__TRANSPORT__LOG_FILE_PATH", where)
        lineage_events._client.cache_clear()
        writer = write(fleet, f"of-{kind}")
        writer.commit([writer.write(iter([ROWS]))])
        assert len(fleet.drained(f"of-{kind}")) == 2
        assert "OpenLineage was not told that ullage.write is at COMPLETE" in caplog.text
        caplog.clear()


def test_a_fleet_in_kubernetes_has_its_name() -> None:
    """Whatever addresses its nodes have."""
    settings = SourceOptions(endpoint="kubernetes:data/flows")
    assert namespace_of(settings) == "ullage://data/flows"
    assert ToldRun.of("job", settings).fleet == ""
