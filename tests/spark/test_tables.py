"""The batch source: every table of every node, as a single-node computation sees it."""

import re
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession, functions as F

from tests.spark.fleet import Fleet
from ullage.contract import MaintenanceOperation
from ullage_spark import snapshot
from ullage_spark.tables import COLUMNS, NODE, PUT

DOC = Path(__file__).parents[2] / "docs" / "spark.md"


def test_the_page_lists_every_column() -> None:
    """docs/spark.md has a row for each table, with Spark's types."""
    text = DOC.read_text(encoding="utf-8").partition("## Tables")[2].partition("\n## ")[0]
    for table, columns in COLUMNS.items():
        (row,) = [line for line in text.splitlines() if line.startswith(f"| `{table}` |")]
        found = re.findall(r"`(\w+)` (.+?)(?=, `| \|)", row.split("|", 2)[2])
        assert found == [
            (name, kind.simpleString().replace(",", ", ")) for name, kind in columns.items() if name != NODE
        ], table


def test_every_table_is_what_the_nodes_hold(spark: SparkSession, fleet: Fleet) -> None:
    """FlowFiles, claims, totals and queues at one snapshot, read in parts by several tasks, each row once."""
    contents = fleet.fill(1)
    with snapshot(spark, endpoint=fleet.endpoint) as held:
        fleet.fill(2)
        flow_files = {(row.node, row.uuid): row for row in held.table("flowfiles").collect()}
        claims = held.table("claims", parts=3).collect()
        totals = {(row.node, row.resource_claim): row for row in held.table("resource_claims").collect()}
        queues = {(row.node, row.queue): row for row in held.table("queues").collect()}
        events = held.table("provenance").count()
        leases = held.table("leases").collect()
        assert held.table("runs").count() == 0

    records = {key: record for key, record in fleet.records().items() if key in contents}
    assert flow_files.keys() == contents.keys()
    for key, row in flow_files.items():
        assert (row.size, row.attributes["from"]) == (len(contents[key]), key[0])
        assert row.resource_claim == (None if (claim := records[key].claim) is None else claim.resource)
    assert queues["a", "in"].flowfiles == queues["b", "out"].flowfiles == 64
    of_a = [len(content) for key, content in contents.items() if key[0] == "a" and flow_files[key].queue == "in"]
    assert queues["a", "in"].size == sum(of_a)
    expected = Counter(
        (key[0], record.claim.resource, record.claim.offset)
        for key, record in records.items()
        if record.claim is not None
    )
    assert {(row.node, row.resource_claim, row.offset): row.claimants for row in claims} == expected
    assert sum(row.live_bytes for row in totals.values()) == sum(row.length for row in claims)
    assert events == len(contents)
    assert {row.node for row in leases} == {"a", "b"}
    assert all(agent.repository.leases.all() == [] for agent in fleet.agents.values())


def test_columns_and_conditions_are_applied_where_the_rows_are(spark: SparkSession, fleet: Fleet) -> None:
    """The same rows as Spark's own filter keeps, of the chosen columns in their order."""
    fleet.fill(3)

    def read(**options: str) -> DataFrame:
        return spark.read.format("ullage").options(endpoint=fleet.endpoint, **options).load()

    everything = read()
    chosen = read(columns="size,node,queue", where="queue = 'in' AND size >= 200 and node IN ('a')")
    handles = read(columns="uuid", where="queue IS NULL")

    assert chosen.columns == ["size", "node", "queue"]
    wanted = everything.filter("queue = 'in' and size >= 200 and node = 'a'").select("size", "node", "queue")
    assert sorted(chosen.collect()) == sorted(wanted.collect()) != []
    assert handles.count() == everything.filter("queue is null").count() == 20


def test_times_are_timestamps(spark: SparkSession, fleet: Fleet) -> None:
    """They were numbers of milliseconds, of which 0 said that there is none; conditions compare them as times."""
    fleet.fill(7, 5)
    repository = fleet.repository("a")
    brief = repository.handles.put_many([b"brief"], ttl_millis=3_600_000)[0]
    millis = {record.id: record.entry_millis for record in fleet.records().values()}
    middle = sorted(millis.values())[len(millis) // 2]
    spelled = datetime.fromtimestamp(middle / 1000, UTC).isoformat()

    def read(where: str) -> dict[str, Row]:
        options = {"endpoint": fleet.endpoint, "where": where}
        df = spark.read.format("ullage").options(**options).load()
        return {row.uuid: row for row in df.withColumn("millis", F.unix_millis("entry_time")).collect()}

    everything = read("")
    assert {uuid: row.millis for uuid, row in everything.items()} == millis
    assert {uuid for uuid, row in everything.items() if row.expires_time is not None} == {brief}
    assert all(row.deleted_time is None for row in everything.values())
    assert read(f"entry_time >= TIMESTAMP '{spelled}'").keys() == {id for id, at in millis.items() if at >= middle}
    assert read(f"entry_time IN (TIMESTAMP '{spelled}')").keys() == {id for id, at in millis.items() if at == middle}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"table": "nonesuch"}, "there is no table nonesuch"),
        ({"columns": "uuid,x"}, "has no column x"),
        ({"table": "content"}, "payload=true"),
        ({"where": "x = 1"}, "has no column x"),
        ({"where": "size >"}, "option where: nothing I know at the end"),
        ({"where": "entry_time > TIMESTAMP 'noon'"}, "'noon' is no time: TIMESTAMP '2026"),
        ({"where": "size ; 1"}, "nothing I know"),
        ({"where": "queue IS NULLAND size = 1"}, "nothing I know"),
        ({"where": "size = 1 XOR size = 2"}, "nothing I know at 'XOR size = 2'"),
        ({"colums": "x"}, "unknown option colums: did you mean columns"),
        ({"parts": "many"}, "option parts is a number"),
        ({"parts": "-1"}, "from 0 to 100000, not '-1'"),
        ({"payload": "maybe"}, "option payload is true or false"),
        ({"snapshot": "x"}, "option snapshot"),
        ({"endpoint": ""}, "name the fleet"),
        ({"MISSINGNODES": "x"}, "option missingNodes is fail or skip or wait, not 'x'"),
        (
            {"queue": "in"},
            "option queue is of a write or of .*, and this is",
        ),
        ({"missingNode": "skip"}, "did you mean missingNodes"),
    ],
)
def test_what_cannot_be_read_says_why(spark: SparkSession, fleet: Fleet, options: dict[str, str], message: str) -> None:
    """Before a task runs, in the words of docs/spark.md."""
    with pytest.raises(PySparkException, match=message):
        spark.read.format("ullage").options(**{"endpoint": fleet.endpoint, **options}).load().collect()


def test_content_as_a_table_comes_in_pieces(spark: SparkSession, fleet: Fleet) -> None:
    """All bytes of all nodes, in batches that stay small."""
    contents = fleet.fill(4, 20)
    rows = (
        spark.read.format("ullage")
        .options(endpoint=fleet.endpoint, table="content", payload="true", batchBytes="1000000")
        .load()
        .collect()
    )

    found: dict[tuple[str, str], dict[int, bytes]] = {}
    for row in rows:
        found.setdefault((row.node, row.uuid), {})[row.offset] = bytes(row.content)
    assert {key: b"".join(piece for _, piece in sorted(pieces.items())) for key, pieces in found.items()} == contents


READ = """
import sys
from pyspark_ullage import DefaultSource

source = DefaultSource({"endpoint": sys.argv[1], "columns": "node,uuid,queue,size,attributes"})
reader = source.reader(source.schema())
for part in reader.partitions():
    for batch in reader.read(part):
        print(*map("@".join, zip(batch["uuid"].to_pylist(), batch["node"].to_pylist())))
print("pandas" in sys.modules)
"""


def test_a_task_that_reads_does_not_import_pandas(fleet: Fleet) -> None:
    """It takes each worker longer than a hundred thousand rows do, and nothing there needs it."""
    fleet.fill(5, 10)

    done = subprocess.run([sys.executable, "-c", READ, fleet.endpoint], capture_output=True, text=True, check=True)

    *found, is_imported = done.stdout.split()
    assert sorted(found) == sorted(f"{uuid}@{node}" for node, uuid in fleet.records())
    assert is_imported == "False"


def test_an_empty_fleet_has_tables(spark: SparkSession, fleet: Fleet) -> None:
    """No rows, and the columns that there would be; of the windows and the nodes something can be said all the same."""
    said = {"windows": 2 * len(MaintenanceOperation), "completeness": 2}
    for table, columns in COLUMNS.items():
        options = {"endpoint": fleet.endpoint, "table": table, "payload": "true"}
        read = spark.read.format("ullage").options(**options).load()
        assert read.columns == [*columns]
        assert table == PUT or read.count() == said.get(table, 0), table
