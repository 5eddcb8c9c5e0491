"""Nodes that are stopped, gone or late: a job says which, goes on without them, or waits, as it was told to."""

import contextlib
import threading
import uuid
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, StructField, StructType

from pyspark_ullage import DefaultSource
from tests.spark.fleet import Mixed
from ullage.client.flight import FlightClient
from ullage.wire.schemas import PUT_SCHEMA
from ullage.wire.tickets import WRITE_BEGIN, WRITE_COMMIT, WRITE_PREPARE, StagedWriteRequest
from ullage_spark import snapshot
from ullage_spark.addresses import FleetNode, addresses_of, with_objects
from ullage_spark.errors import NodesMissing
from ullage_spark.feed import QueueReader
from ullage_spark.fleet import MissingNode, Roll, at_snapshot, discover, roll_call
from ullage_spark.settings import NodeSnapshot, SourceOptions
from ullage_spark.writer import ContentBatchWriter, Packed

CONTENT = StructType([StructField("content", BinaryType())])
ROWS = pa.record_batch([pa.array([b"0", b"1"])], names=["content"])


def test_a_silent_node_fails_a_job_by_name_or_is_left_out_or_waited_for(mixed: Mixed) -> None:
    """It is stopped while connections to it stand, and goes on while somebody waits."""
    assert [node.name for node in discover(mixed.settings())] == ["a", "here"]
    mixed.stop()
    with pytest.raises(NodesMissing, match=f"1 of 2 nodes .* {mixed.silent} .*missingNodes=skip"):
        discover(mixed.settings())
    found = roll_call(mixed.settings(missingNodes="skip"))
    assert ([node.name for node in found.nodes], [each.name for each in found.missing]) == (["a"], [mixed.silent])
    with pytest.raises(NodesMissing):
        discover(mixed.settings(missingNodes="wait", missingWait="100"))

    later = threading.Timer(1.5, mixed.go_on)
    later.start()
    assert [node.name for node in discover(mixed.settings(missingNodes="wait"))] == ["a", "here"]
    later.join()


def test_none_left_is_no_fleet(mixed: Mixed) -> None:
    """To skip all nodes would be an empty answer that looks like one."""
    mixed.stop()
    with pytest.raises(NodesMissing, match="1 of 1"):
        discover(SourceOptions.of({"endpoint": mixed.silent, "missingNodes": "skip"}))


def read(options: dict[str, str]) -> list[dict[str, Any]]:
    """All rows of a table, as tasks would read them."""
    source = DefaultSource(options)
    reader = source.reader(source.schema())
    batches: list[Any] = [batch for part in reader.partitions() for batch in reader.read(part)]
    return [row for batch in batches for row in batch.to_pylist()]


def completeness(options: dict[str, str]) -> dict[str, tuple[bool, int | None]]:
    found = read({**options, "table": "completeness"})
    return {row["node"]: (row["is_read"], row["missing_bytes"]) for row in found}


def test_a_read_that_skips_says_what_is_missing(mixed: Mixed) -> None:
    """Before the snapshot, when nobody knows how much; at one, where it says what it held."""
    options: dict[str, Any] = {
        "endpoint": mixed.endpoint,
        "missingNodes": "skip",
        "localityWait": "0",
        "pushdown": "false",
    }
    nobody: Any = None
    with snapshot(nobody, **options) as moment:
        at = {**options, "snapshot": moment.id}
        assert moment.missing == ()
        assert completeness(at) == {"a": (True, 0), "here": (True, 0)}
        mixed.stop()
        assert completeness(at) == {"a": (True, 0), "here": (False, 15)}
        assert [row["node"] for row in read(at)] == ["a"] * 2
        with pytest.raises(NodesMissing, match="here"):
            read({**at, "missingNodes": "fail"})
    with snapshot(nobody, **options) as moment:
        at = {**options, "snapshot": moment.id}
        assert [each.name for each in moment.missing] == [mixed.silent]
        assert completeness(at) == {"a": (True, 0), mixed.silent: (False, None)}
        mixed.go_on()
        assert completeness(at) == {"a": (True, 0), "here": (False, None)}  # it is not in the snapshot
        assert [row["node"] for row in read(at)] == ["a"] * 2
    assert len(read(options)) == 5


def test_a_write_skips_nodes_only_if_no_earlier_run_may_have_decided_there(mixed: Mixed) -> None:
    """One with a name could be there already. What an attempt fails at, its retry tries elsewhere."""
    options = {"endpoint": mixed.endpoint, "queue": "in"}
    before = ContentBatchWriter({**options, "missingNodes": "skip"}, CONTENT, overwrite=False)
    assert before._node_for(0, 0).name == before._node_for(1, 1).name == "a"
    staged = before.write(iter([ROWS]))
    mixed.stop()
    with pytest.raises(NodesMissing):
        ContentBatchWriter(options, CONTENT, overwrite=False)
    with pytest.raises(NodesMissing, match="none is skipped, because the write has a name, daily"):
        ContentBatchWriter({**options, "missingNodes": "skip", "write": "daily"}, CONTENT, overwrite=False)

    before.commit([staged])
    without = ContentBatchWriter({**options, "missingNodes": "skip"}, CONTENT, overwrite=False)
    without.commit([without.write(iter([ROWS]))])
    assert mixed.fleet.drained("in") == [b"0", b"0", b"1", b"1"]


def test_a_stream_goes_on_without_a_node_and_takes_up_what_it_missed(mixed: Mixed) -> None:
    """Its FlowFiles come once, when it is there again. A batch that has some of it already is not run without them."""
    source = DefaultSource({"endpoint": mixed.endpoint, "queue": "in", "application": "test", "missingNodes": "skip"})
    stream = source.streamReader(source.schema())
    assert isinstance(stream, QueueReader)
    with contextlib.closing(FlightClient(mixed.silent)) as client, mixed.fleet.repository("a").session() as session:
        session.ingest("in", [b"here"] * 2)
        session.commit()
        write = str(uuid.uuid4())
        client.act(WRITE_BEGIN, StagedWriteRequest(write=write, queue="in"))
        attempt = str(uuid.uuid4())
        client.stage(write, attempt, Packed(iter([ROWS]), 1000).batches(), PUT_SCHEMA)
        for action in (WRITE_PREPARE, WRITE_COMMIT):
            client.act(action, StagedWriteRequest(write=write, attempts={attempt: 1}))

    def planned(start: dict[str, Any]) -> dict[str, Any]:
        return stream.latestOffset(start, ReadAllAvailable())

    def rows(start: dict[str, Any], end: dict[str, Any]) -> list[str]:
        parts = stream.partitions(start, end)
        return [n for part in parts for batch in stream.read(part) for n in batch.column("node").to_pylist()]

    mixed.stop()
    first = stream.initialOffset()
    second = planned(first)
    assert rows(first, second) == ["a", "a"]
    mixed.go_on()
    third = planned(second)
    mixed.stop()
    with pytest.raises(NodesMissing, match="a batch takes some of node here"):
        stream.partitions(second, third)
    mixed.go_on()
    assert rows(second, third) == ["here", "here"]
    assert rows(third, planned(third)) == []
    stream.stop()


def test_what_a_snapshot_is_missing_is_told_once() -> None:
    """By the node's name, though one that does not answer may be known by its address alone."""
    a, b = FleetNode(name="a", flight="grpc://a:1"), FleetNode(name="b", flight="grpc://b:1")
    parts = {name: NodeSnapshot(id="1", flight=f"grpc://{name}:1", live_bytes=7) for name in ("a", "c", "d")}
    silent = MissingNode(name="grpc://c:1", reason="silent")
    found = at_snapshot(Roll((a, b), (silent, MissingNode(name="e", reason="down"))), parts)
    assert found.nodes == (a,)
    assert {each.name: (each.reason, each.live_bytes) for each in found.missing} == {
        "b": ("it is not in the snapshot", None),
        "c": ("silent", 7),
        "d": ("it is not in the fleet any more", 7),
        "e": ("down", None),
    }


def test_kubernetes_lists_nodes_that_are_not_ready_or_have_no_agent() -> None:
    """They are missed, with what they last said that they hold."""
    endpoints = [
        {"hostname": "n-1", "nodeName": "n-1", "conditions": {"ready": True}},
        {"hostname": "n-2", "nodeName": "n-2", "conditions": {"ready": False}},
        {"hostname": "n-1", "nodeName": "n-1", "conditions": {"ready": False}},
    ]
    labels = {"kubernetes.io/service-name": "flows-nodes"}
    listed = {
        "metadata": {"namespace": "data", "labels": labels},
        "ports": [{"name": "flight", "port": 8481}],
        "endpoints": endpoints,
    }
    objects = [
        {"spec": {"repository": "flows", "nodeName": name}, "status": {"space": {"liveBytes": number}}}
        for number, name in enumerate(["n-1", "n-2", "n-3"])
    ] + [{"spec": {"repository": "flows", "nodeName": "n-4"}}]
    found = with_objects(addresses_of([listed]), objects)
    assert [(node.name, bool(node.flight), bool(node.trouble), node.live_bytes) for node in found] == [
        ("n-1", True, False, 0),
        ("n-2", True, True, 1),
        ("n-3", False, True, 2),
        ("n-4", False, True, None),
    ]
    nodes = msgspec.json.encode(found[2:]).decode()
    with pytest.raises(NodesMissing, match=r"n-3 .*no agent.*n-4"):
        discover(SourceOptions.of({"nodes": nodes}))
