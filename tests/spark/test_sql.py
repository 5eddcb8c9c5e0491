"""Tables of a catalog, in SQL alone: they are made, described, read, viewed, written and registered."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from click.testing import CliRunner
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.spark.fleet import Fleet
from ullage_agent.cli.app import app
from ullage_spark import register
from ullage_spark.catalog import TABLES, statements
from ullage_spark.errors import SparkSourceError
from ullage_spark.settings import ReadOptions, WriteOptions
from ullage_spark.tables import COLUMNS, declared, options_of

DATABASE = "ullage_flows"


@pytest.fixture
def sql(spark: SparkSession) -> Iterator[SparkSession]:
    """The session that all share, without what a test leaves in its catalog."""
    yield spark
    spark.sql(f"DROP DATABASE IF EXISTS {DATABASE} CASCADE")
    for name in ("things", "strange", "copied"):
        spark.sql(f"DROP TABLE IF EXISTS {name}")
    for name in ("large", "wrong", "incoming"):
        spark.sql(f"DROP VIEW IF EXISTS {name}")


def test_a_table_is_made_described_viewed_and_read(sql: SparkSession, fleet: Fleet) -> None:
    """CREATE TABLE was refused for keys that Spark adds; and Spark gives no reader the options of its tables."""
    contents = fleet.fill(1, 5)
    sql.sql(
        f"CREATE TABLE things USING ullage OPTIONS (Endpoint '{fleet.endpoint}', MISSINGNODES 'skip', queue 'in') "
        "TBLPROPERTIES ('owned.by' = 'somebody')"
    )

    described = {row.col_name: row for row in sql.sql("DESCRIBE things").collect()}
    assert described["attributes"].data_type == "map<string,string>"
    assert described["queue"].comment == "null: a handle"
    assert sql.sql("SELECT count(*) FROM things").head() == (len(contents),)
    assert sql.sql("SELECT count(*) FROM things WITH (where 'size = 1')").head() == (6,)
    sql.sql("CREATE VIEW large AS SELECT node, size FROM things WHERE size > 200000 AND queue IS NOT NULL")
    assert sorted(sql.sql("SELECT * FROM large").collect()) == sorted(
        (node, size) for node in "ab" for size in (300_000, 1_100_000) for _ in ("in", "out")
    )


def test_what_is_inserted_is_written_once(sql: SparkSession, fleet: Fleet) -> None:
    """Into the queue of the table, or the one that the statement names; an overwrite is refused with the reason."""
    sql.sql(f"CREATE TABLE things USING ullage OPTIONS (endpoint '{fleet.endpoint}', table 'put', queue 'in')")
    sql.sql("INSERT INTO things VALUES (X'61', map('k', 'v')), (X'62', map())")
    sql.sql("INSERT INTO things (content) SELECT encode(cast(id AS STRING), 'utf-8') FROM range(2)")
    sql.sql("INSERT INTO things WITH (queue 'other') VALUES (X'63', NULL)")
    rows = sql.createDataFrame([(bytearray(b"d"), {"k": "w"})], "content binary, attributes map<string,string>")
    rows.createOrReplaceTempView("incoming")
    # Columns of the very names and types that the table has: Spark hands them to the writer without the options.
    sql.sql("INSERT INTO things WITH (queue 'same') SELECT content, attributes FROM incoming")
    rows.writeTo("things").option("queue", "same").append()
    assert fleet.drained("same") == [b"d", b"d"]

    attributes = [record.attribute_map() for record in fleet.records().values()]
    assert [each["k"] for each in attributes if "k" in each] == ["v"]
    assert (fleet.drained("in"), fleet.drained("other")) == ([b"0", b"1", b"a", b"b"], [b"c"])
    for statement, reason in (
        ("INSERT OVERWRITE things VALUES (X'61', map())", "contents are never overwritten"),
        ("SELECT * FROM things", "table put is only written"),
        ("INSERT INTO things VALUES (NULL, NULL)", "holds nulls"),
    ):
        with pytest.raises(PySparkException, match=reason):
            sql.sql(statement).collect()
    assert fleet.hidden() == 0


def test_what_a_catalog_cannot_keep_is_refused_with_the_reason(sql: SparkSession, fleet: Fleet) -> None:
    """Before the table is there, as far as Spark asks; else when it is read."""
    named = f"endpoint '{fleet.endpoint}'"
    for options, reason in (
        (f"{named}, tabel 'queues'", "did you mean table"),
        (f"{named}, use 'x'", "unknown option use"),
        (f"{named}, missingNodes 'maybe'", "option missingNodes is fail or skip or wait, not 'maybe'"),
        (f"{named}, token 'secret'", "option tokenFile names the file"),
        ("table 'queues'", "name the fleet"),
    ):
        with pytest.raises(PySparkException, match=reason):
            sql.sql(f"CREATE TABLE strange USING ullage OPTIONS ({options})")
    sql.sql(f"CREATE TABLE strange (uuid STRING) USING ullage OPTIONS ({named})")
    with pytest.raises(PySparkException, match="only if CREATE TABLE names no columns"):
        sql.sql("SELECT * FROM strange").collect()
    sql.sql(f"CREATE OR REPLACE TEMPORARY VIEW wrong (uuid STRING, size INT) USING ullage OPTIONS ({named})")
    with pytest.raises(PySparkException, match="column size of table flowfiles is bigint, not int"):
        sql.sql("SELECT * FROM wrong").collect()


def test_a_write_gets_no_options_of_the_table_that_its_rows_are_of() -> None:
    """Columns take metadata along, into Parquet too: rows would go into a queue that nobody named."""
    made = declared(
        {"provider": "ullage", "option.endpoint": "grpc://a:1", "option.queue": "in", "option.table": "put"}
    )
    other = {"Endpoint": "grpc://b:1"}

    assert options_of(other, made, WriteOptions) == other
    assert options_of({"TTL": "1"}, made, WriteOptions) == {"endpoint": "grpc://a:1", "queue": "in", "ttl": "1"}
    assert options_of({}, made, ReadOptions) == {"endpoint": "grpc://a:1", "table": "put"}


def test_one_call_registers_a_fleet(sql: SparkSession, fleet: Fleet) -> None:
    """Every table but that of contents; again over what was there."""
    fleet.fill(2, 5)
    for _ in range(2):
        assert register(sql, "flows", endpoint=fleet.endpoint) == DATABASE

    shown = sql.sql(f"SHOW TABLES IN {DATABASE}").collect()
    assert {row.tableName for row in shown if not row.isTemporary} == {*TABLES}  # views of the session are in each
    assert {*TABLES} == COLUMNS.keys() - {"content"}
    joined = sql.sql(
        f"SELECT q.queue, count(*) FROM {DATABASE}.queues q JOIN {DATABASE}.flowfiles f USING (node, queue) GROUP BY 1"
    )
    assert sorted(joined.collect()) == [("in", 18), ("out", 18)]


def test_a_database_of_another_repository_is_left_as_it_is(sql: SparkSession) -> None:
    """Two of the same name, in different namespaces, would be one database; the second one gets another name."""
    for _ in range(2):
        assert register(sql, endpoint="kubernetes:data/flows") == DATABASE

    with pytest.raises(SparkSourceError, match=r"has the tables of kubernetes:data/flows.* say another name"):
        register(sql, endpoint="kubernetes:other/flows")

    assert sql.catalog.getDatabase(DATABASE).description == "Tables of kubernetes:data/flows"
    assert register(sql, "other", endpoint="kubernetes:other/flows") == "ullage_other"
    sql.sql("DROP DATABASE ullage_other CASCADE")


def test_a_databases_name_is_one_that_catalogs_take() -> None:
    """And SQL's own quote in an option ends nothing."""
    made = statements(endpoint="kubernetes:data/flows-1.x")[0]
    assert made == "CREATE DATABASE IF NOT EXISTS ullage_flows_1_x COMMENT 'Tables of kubernetes:data/flows-1.x'"
    assert " ullage_flows COMMENT" in statements(endpoint="kubernetes:flows")[0]
    assert r"'grpc://a\'b\\:1'" in statements("x", endpoint=r"grpc://a'b\:1")[1]
    with pytest.raises(SparkSourceError, match="name the repository"):
        statements(endpoint="grpc://a:1")


def test_spark_sql_runs_what_the_command_prints(fleet: Fleet, tmp_path: Path) -> None:
    """In a program where nobody writes Python."""
    fleet.fill(3, 5)
    printed = CliRunner().invoke(app, ["spark", "tables", "-e", fleet.endpoint, "--repository", "flows"])
    script = tmp_path / "tables.sql"
    asked = f"SELECT queue, sum(flowfiles) FROM {DATABASE}.queues GROUP BY 1 ORDER BY 1;"
    script.write_text(f"{printed.stdout}\n{asked}\n", encoding="utf-8")
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-sql"), "--master", "local[1]", "-f", str(script)]
    for name, value in {
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
    }.items():
        command += ["--conf", f"{name}={value}"]

    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=dict(os.environ))

    assert printed.exit_code == 0, printed.output
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert ran.stdout.split() == ["in", "18", "out", "18"]
