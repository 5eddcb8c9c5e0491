"""Late binding: tasks read what lies on their node, each share once, and the same share whenever they run again."""

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.cluster import SECONDS_MAX, SOCKET, python_at, run
from tests.spark.fleet import Fleet, fleet_at
from tests.spark.test_traps import pickle_of
from ullage_spark import snapshot
from ullage_spark.fleet import HERE
from ullage_spark.reader import TablePart, TableReader
from ullage_spark.settings import ReadOptions
from ullage_spark.slots import SlotPart
from ullage_spark.tables import schema_of

LOCAL = """
import json, os
import pyarrow as pa
from ullage_spark import snapshot, with_content

endpoint, socket = sys.argv[1:]


def where(rows, contents):
    here = os.environ["ULLAGE_NODE"]
    columns = [rows.column("node"), rows.column("uuid"), pa.array([here] * len(contents)), pa.array(map(len, contents))]
    return pa.RecordBatch.from_arrays(columns, names=["node", "uuid", "here", "length"])


spark = session("local-cluster[2,1,512]")
options = {"endpoint": endpoint, "socket": socket}
with snapshot(spark, **options) as held:
    spark.range(2, numPartitions=2).mapInArrow(lambda rows: rows, "id bigint").count()  # both executors are up
    rows = held.table("flowfiles", parts=8)
    schema = "node string, uuid string, here string, length bigint"
    found = with_content(rows, where, schema, **options).collect()
    at_source = held.with_content(where, schema, parts=8).collect()
print(json.dumps([[row.asDict() for row in each] for each in (found, at_source)]))
spark.stop()
"""


@pytest.mark.timeout(2 * SECONDS_MAX)
def test_most_reads_are_local_with_one_executor_a_node(tmp_path: Path) -> None:
    """At least nine of ten contents are opened on the node where they lie, through its socket, by two executors that
    see no other; and all of them are read once.
    """
    with fleet_at(tmp_path, "a", "b") as fleet:
        contents = fleet.fill(11, 150)
        lines = run(LOCAL, fleet.endpoint, SOCKET, python=python_at(tmp_path, fleet), cwd=tmp_path)
        both = json.loads(lines[-1])

    for rows in both:  # opened by the tasks that have the rows, and by those that read them
        assert {(row["node"], row["uuid"]): row["length"] for row in rows} == {k: len(v) for k, v in contents.items()}
        assert len(rows) == len(contents)
        assert {row["here"] for row in rows} == {"a", "b"}
        local = sum(row["here"] == row["node"] for row in rows) / len(rows)
        print(f"local: {local:.3f}")
        assert local >= 0.9


def reader_of(fleet: Fleet, held: str, **options: str) -> TableReader:
    given = {"endpoint": fleet.endpoint, "snapshot": held, "parts": "3", **options}
    return TableReader(given, schema_of(ReadOptions.of(given)))


def rows_of(reader: TableReader, part: object) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for batch in reader.read(part):  # type: ignore[arg-type]
        found += zip(batch.column("node").to_pylist(), batch.column("uuid").to_pylist(), strict=True)
    return found


def test_a_slot_reads_the_same_wherever_it_runs_again(
    spark: SparkSession, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A retry on another node does not read that node's share instead: nothing is read twice or left out."""
    contents = fleet.fill(12, 20)
    with snapshot(spark, endpoint=fleet.endpoint) as held:
        reader = reader_of(fleet, held.id)
        slots = reader.partitions()
        monkeypatch.setenv(HERE, "b")
        first = rows_of(reader, slots[5])
        monkeypatch.setenv(HERE, "a")
        again = rows_of(reader, slots[5])
        everything = [row for slot in reversed(slots) for row in rows_of(reader, slot)]

    assert {node for node, _ in first} == {"b"}
    assert again == first
    assert sorted(everything) == sorted(contents)
    assert all(isinstance(slot, SlotPart) and len(pickle_of(slot)) < 4_000 for slot in slots)


def test_actions_of_one_dataframe_read_the_same(spark: SparkSession, fleet: Fleet) -> None:
    """A snapshot read in slots is as steady as any table: counts, joins with itself, some rows and then all."""
    contents = fleet.fill(13, 20)
    with snapshot(spark, endpoint=fleet.endpoint) as held:
        df = held.table("flowfiles", columns="node,uuid")
        assert len(df.take(3)) == 3
        assert df.count() == df.distinct().count() == len(contents)
        assert df.join(df.withColumnRenamed("node", "other"), "uuid").filter("node = other").count() == len(contents)


def test_binding_beforehand_is_an_option(spark: SparkSession, fleet: Fleet) -> None:
    """And what one node alone holds has nothing to be bound."""
    with snapshot(spark, endpoint=fleet.endpoint) as held:
        assert all(isinstance(p, TablePart) for p in reader_of(fleet, held.id, localityWait="0").partitions())
        assert all(isinstance(p, TablePart) for p in reader_of(fleet, held.id, table="queues").partitions())
    alone = next(iter(fleet.agents.values())).server.urls["flight"]
    with snapshot(spark, endpoint=alone) as held:
        assert all(isinstance(p, TablePart) for p in reader_of(fleet, held.id, endpoint=alone).partitions())


def test_a_slot_of_a_snapshot_that_is_over_says_so(spark: SparkSession, fleet: Fleet) -> None:
    """Who keeps the list forgets it with the snapshot: a late task fails, rather than read something else."""
    with snapshot(spark, endpoint=fleet.endpoint) as held:
        reader = reader_of(fleet, held.id)
        slots = reader.partitions()
    with pytest.raises(Exception, match="its time is over"):
        rows_of(reader, slots[0])
