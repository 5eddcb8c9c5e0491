"""The jobs, each held against a computation over one node's own records."""

import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from click.testing import CliRunner
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.types import StructField, StructType

from tests.operator.support import repository
from tests.spark.fleet import Fleet
from ullage.client.flight import FlightClient
from ullage.contract import Calendar, MaintenanceOperation
from ullage.embedded.pace import Pace
from ullage.embedded.tables import Moment
from ullage.engine.byteranges import unpack_ranges
from ullage.wire.tickets import TableTicket
from ullage_agent.cli.app import app
from ullage_operator.planning.build import PROGRAM, SPARK_SUBMIT, run_object
from ullage_spark import SparkSourceError, snapshot
from ullage_spark.addresses import FleetNode
from ullage_spark.archive import RESTORED_FROM, exported, restorable
from ullage_spark.fleet import discover
from ullage_spark.lineage import lineage
from ullage_spark.plan import Budget, carry_out, reclamation_plan
from ullage_spark.report import FLOWFILES, RESOURCE_CLAIMS, fragmentation
from ullage_spark.settings import SourceOptions
from ullage_spark.space import HANDLES, NOBODY, figures
from ullage_spark.tables import COLUMNS, NODE, ON_THE_WIRE

ROOT = Path(__file__).parents[2]
MB = 1 << 20
KEYS = ("node", "container", "queue", "age", "size")


def scatter(fleet: Fleet, seed: int = 1) -> None:
    """Files of which much is dead: survivors among and beside contents that went, and files in which nothing lives."""
    fleet.rest()
    random_bytes = random.Random(seed).randbytes
    for agent in fleet.agents.values():
        repository = agent.repository
        for _ in range(3):
            with repository.session() as session:
                for number in range(12):
                    record = session.write(session.create(), random_bytes(20_000 + 1_000 * number))
                    session.transfer(record, "kept" if number % 4 == 1 else "gone")
                session.transfer(session.write(session.create(), random_bytes(1_000)), "other")
                session.commit()
            with repository.session() as session:
                session.ingest("free", [random_bytes(MB)])
                session.commit()
        repository.handles.put_many([random_bytes(5_000)] * 3)
        with repository.session() as session:
            (record,) = session.get_many("other", 1)
            session.transfer_many([record, session.clone(record), session.clone(record)], "clones")
            session.commit()
        for queue in ("gone", "free"):
            repository.queues.drop(repository.queue(queue))
    fleet.seal()


def dead_bytes(fleet: Fleet) -> dict[str, int]:
    """What the nodes' own ledgers say: written, not punched, and not alive."""
    found = {}
    for name, agent in fleet.agents.items():
        entries = [entry for entry in agent.repository.ledger.entries() if not entry.claim.archived_millis]
        punched = sum(run.length for entry in entries for run in unpack_ranges(entry.claim.holes))
        found[name] = sum(entry.claim.length - entry.live_bytes for entry in entries) - punched
    return found


def needless(spark: SparkSession) -> list[str]:
    """Columns that a report is said to read, and can be made without."""

    def empty(table: str, names: Iterable[str]) -> DataFrame:
        return spark.createDataFrame([], StructType([StructField(name, COLUMNS[table][name]) for name in names]))

    found = []
    tables = {"resource_claims": RESOURCE_CLAIMS, "flowfiles": FLOWFILES}
    for without, left in [(table, name) for table, names in tables.items() for name in names]:
        made = [
            empty(table, [name for name in names if (table, name) != (without, left)])
            for table, names in tables.items()
        ]
        with suppress(AnalysisException):  # the column is needed: as it should be
            fragmentation(made[0], made[1], 0)
            found.append(f"{without}.{left}")
    return found


def test_the_report_shares_out_what_is_dead(spark: SparkSession, fleet: Fleet) -> None:
    """Every dead byte is somebody's or nobody's; live bytes are those of the queues, clones sharing one claim."""
    scatter(fleet)
    with snapshot(spark, endpoint=fleet.endpoint) as held:
        now = max(agent.repository.clock.now_millis() for agent in fleet.agents.values())
        report = fragmentation(held.table("resource_claims"), held.table("flowfiles"), now)
        plan = report._jdf.queryExecution().optimizedPlan().toString()
        rows = report.collect()
        alone = [row for node in held.nodes for row in space_of(node, json.loads(held.id)[node.name]["id"], now)]

    assert needless(spark) == []
    assert plan.count("RelationV2") == 3  # tables are read as often as they stand here
    pinned: dict[str, int] = defaultdict(int)
    live: dict[tuple[str, str], int] = defaultdict(int)
    for row in rows:
        pinned[row.node] += row.pinned_bytes
        live[row.node, row.queue] += row.live_bytes
    for name, dead in dead_bytes(fleet).items():
        assert abs(pinned[name] - dead) <= len(rows)
    assert live["a", "kept"] == 3 * (21_000 + 25_000 + 29_000)
    assert (live["a", "clones"], live["a", "other"], live["b", HANDLES]) == (1_000, 2_000, 15_000)
    assert {row.queue for row in rows} == {"kept", "other", "clones", HANDLES, NOBODY}
    assert {row.age for row in rows} == {"under an hour", ""}
    assert [row.pinned_bytes for row in rows] == sorted((row.pinned_bytes for row in rows), reverse=True)
    # A history has the same without Spark, but for the order in which fractions were added up.
    whole = {tuple(row[name] for name in KEYS): (row.flowfiles, row.live_bytes, row.files) for row in rows}
    assert {tuple(row[n] for n in KEYS): (row["flowfiles"], row["live_bytes"], row["files"]) for row in alone} == whole
    assert sum(abs(row["pinned_bytes"]) for row in alone) == pytest.approx(sum(pinned.values()), abs=len(rows))


def space_of(node: FleetNode, snapshot: str, now_millis: int) -> list[dict[str, Any]]:
    """Figures of a node, with its contents told apart in three passes."""
    with FlightClient(node.flight) as client:

        def read(name: str, columns: list[str]) -> pa.RecordBatchReader:
            return client.table(TableTicket(name=name, snapshot=snapshot, columns=columns))

        found: list[dict[str, Any]] = figures(node.name, now_millis, read, pass_rows=10).to_pylist()
        return found


def test_a_plan_keeps_its_budget_and_takes_the_best_first(spark: SparkSession, fleet: Fleet) -> None:
    """On each disk: what copies nothing, then what frees most for each byte copied, as far as the budget goes."""
    scatter(fleet)
    with snapshot(spark, endpoint=fleet.endpoint, holds=False) as held:
        resources = held.table("resource_claims").cache()
        everything = reclamation_plan(resources).collect()
        tight = reclamation_plan(resources, Budget(copied_bytes=100_000)).collect()
        few = reclamation_plan(resources, Budget(resource_claims=2)).collect()
        resources.unpersist()

    for name, agent in fleet.agents.items():
        mine = sorted((row for row in everything if row.node == name), key=lambda row: row.place)
        entries = {entry.claim.index: entry for entry in agent.repository.ledger.entries()}
        assert mine
        for row in mine:
            entry = entries[row.resource_claim]
            assert row.generation == entry.claim.generation
            assert row.frees_bytes <= entry.claim.length - entry.live_bytes
            assert row.copies_bytes == (entry.live_bytes if row.action == "rewrite" else 0)
        assert [row.copies_bytes > 0 for row in mine] == sorted(row.copies_bytes > 0 for row in mine)
        assert sum(row.copies_bytes for row in tight if row.node == name) <= 100_000
        assert len([row for row in few if row.node == name]) == 2
    assert 0 < len(tight) < len(everything)


def test_agents_carry_a_plan_out_and_leave_what_has_changed(spark: SparkSession, fleet: Fleet) -> None:
    """What was planned is given back, contents stay as they are, and a resource claim of another generation is left."""
    scatter(fleet)
    options: dict[str, Any] = {"nodes": fleet.nodes}
    before = dead_bytes(fleet)
    with snapshot(spark, holds=False, **options) as held:
        made = reclamation_plan(held.table("resource_claims")).cache()
        stale = made.withColumn("generation", made.generation + 1)
        ignored = carry_out(stale, override=True, **options)
        assert [run.run and run.run.freed_bytes for run in ignored] == [0, 0]
        runs = carry_out(made, override=True, **options)
        planned = {row.node: row["sum(frees_bytes)"] for row in made.groupBy("node").sum("frees_bytes").collect()}
        made.unpersist()

    after = dead_bytes(fleet)
    assert [(run.node, run.run and run.run.problem, run.refusal) for run in runs] == [("a", None, ""), ("b", None, "")]
    for name in fleet.agents:
        assert before[name] - after[name] >= 0.9 * planned[name]
        assert fleet.repository(name).check(deep=True).problems == ()


def test_a_plan_says_what_may_run_when(spark: SparkSession, fleet: Fleet) -> None:
    """As each node's own windows say of each action; a node that may not begin says so, and the other one is done."""
    scatter(fleet)
    fleet.close_windows("b")
    options: dict[str, Any] = {"nodes": fleet.nodes}
    with snapshot(spark, holds=False, **options) as held:
        windows = held.table("windows")
        verdicts = {(row.node, row.operation.lower()): row for row in windows.collect()}
        made = reclamation_plan(held.table("resource_claims"), windows=windows).cache()
        rows = made.collect()
        runs = {run.node: run for run in carry_out(made, **options)}
        made.unpersist()

    assert len(verdicts) == 2 * len(MaintenanceOperation)
    calendar = Calendar(fleet.agents["b"].server.host.spec.maintenance)
    opens = calendar.status(MaintenanceOperation.REWRITE, int(time.time() * 1000)).opens_millis
    assert opens is not None
    assert verdicts["b", "rewrite"].opens_time.timestamp() * 1000 == opens
    assert {(row.node, row.may_start) for row in rows} == {("a", True), ("b", False)}
    assert all(
        row.opens_time.timestamp() * 1000 == opens and "window night" in row.why for row in rows if row.node == "b"
    )
    assert {row.action for row in rows if row.node == "b"} >= {"delete", "rewrite"}
    assert runs["a"].run is not None
    assert runs["a"].run.freed_bytes > 0
    assert runs["b"].run is None
    assert "window night" in runs["b"].refusal


def test_a_plan_goes_by_the_policy_that_was_chosen(spark: SparkSession, fleet: Fleet) -> None:
    """StatsBased leaves full files alone, takes the old ones first, and so does the run that follows."""
    base = {"node": "a", "container": "c1", "sealed": True, "intent": None, "archived_time": None, "generation": 1}
    hour = 3_600_000
    files = [(1, 500_000, 1), (2, 500_000, 90), (3, 950_000, 50), (4, 100_000, 2), (5, 0, 1)]
    table = spark.createDataFrame(
        [
            {**base, "resource_claim": id, "file": id, "live_bytes": live, "live_end": MB, "length": MB}
            | {"punched_bytes": 0, "created_time": datetime.fromtimestamp((100 - age) * 3_600, UTC)}
            for id, live, age in files
        ],
        "node string, container string, sealed boolean, intent string, archived_time timestamp, generation bigint, "
        "resource_claim bigint, file bigint, live_bytes bigint, live_end bigint, length bigint, punched_bytes bigint, "
        "created_time timestamp",
    )

    def order(policy: str) -> list[int]:
        made = reclamation_plan(table, policy=policy, now_millis=100 * hour)
        assert {row.policy for row in made.select("policy").distinct().collect()} == {policy}
        return [row.resource_claim for row in made.orderBy("place").collect()]

    assert order("CompactAll") == [5, 4, 1, 2, 3]
    assert order("StatsBased") == [5, 2, 4, 1]
    with pytest.raises(SparkSourceError, match="no policy 'Mine'"):
        reclamation_plan(table, policy="Mine")


def test_agents_go_by_the_plans_policy_too(spark: SparkSession, fleet: Fleet) -> None:
    """A file of which nine tenths live is rewritten by CompactAll, and left alone by StatsBased."""
    fleet.rest()
    repository = fleet.repository("a")
    with repository.session() as session:
        for number in range(20):
            record = session.write(session.create(), random.Random(number).randbytes(40_000))
            session.transfer(record, "gone" if number in (4, 9) else "kept")
        session.commit()
    repository.queues.drop(repository.queue("gone"))
    fleet.seal()
    options: dict[str, Any] = {"nodes": fleet.nodes}
    with snapshot(spark, holds=False, **options) as held:
        made = reclamation_plan(held.table("resource_claims")).cache()
        assert [row.action for row in made.collect()] == ["rewrite"]
        (by_stats,) = carry_out(made.withColumn("policy", functions.lit("StatsBased")), override=True, **options)
        (by_all,) = carry_out(made, override=True, **options)
        made.unpersist()

    assert by_stats.run is not None
    assert by_stats.run.freed_bytes == 0
    assert by_all.run is not None
    assert by_all.run.freed_bytes > 60_000


def test_lineage_is_that_of_the_node(spark: SparkSession, fleet: Fleet) -> None:
    """Up and down from anywhere in a tree of splits and merges; a bound is told."""
    repository = fleet.repository("a")
    with repository.session() as session:
        root = session.write(session.create(), b"abcdef")
        parts = session.split(root, [2, 2, 2])
        merged = session.merge(parts[:2])
        session.transfer_many([root, *parts, merged], "in")
        session.commit()
    fleet.fill(3, 5)

    with snapshot(spark, endpoint=fleet.endpoint) as held:
        for start in (root, parts[1], merged):
            found = lineage(held, start.id)
            expected = repository.history.lineage(start.id)
            up_and_down = {
                uuid for event in expected.events for uuid in (event.flow_file, *event.parent_ids, *event.child_ids)
            }
            assert found.flow_files <= up_and_down | {start.id}
            assert found.is_whole
        whole = lineage(held, root.id)
        assert whole.flow_files == {root.id, merged.id, *(part.id for part in parts)}
        assert lineage(held, parts[2].id).flow_files == {root.id, parts[2].id}
        assert lineage(held, merged.id).flow_files == {root.id, merged.id, parts[0].id, parts[1].id}
        assert not lineage(held, root.id, depth=1).is_whole
        assert len(lineage(held, root.id, flow_files_max=2).flow_files) == 3
        assert {row.uuid for row in whole.events.collect()} <= whole.flow_files


def test_an_export_is_restored_byte_for_byte(spark: SparkSession, fleet: Fleet, tmp_path: Path) -> None:
    """Contents and attributes come back in another queue, and say which FlowFiles they were."""
    contents = fleet.fill(5, 10)
    where = {"where": "queue IS NOT NULL"}
    with snapshot(spark, endpoint=fleet.endpoint) as held:
        exported(held.table("flowfiles", **where), endpoint=fleet.endpoint).write.parquet(str(tmp_path / "out"))
    before = set(fleet.records())
    writer = restorable(spark.read.parquet(str(tmp_path / "out"))).write.format("ullage").mode("append")
    writer.options(endpoint=fleet.endpoint, queue="restored").save()

    restored = {key: record for key, record in fleet.records().items() if key not in before}
    origins = {}
    for (name, _), record in restored.items():
        attributes = record.attribute_map()
        uuid, _, node = attributes[RESTORED_FROM].partition("@")
        assert attributes["from"] == node
        content = (
            b"" if record.claim is None else fleet.repository(name).reader.read(record.claim, 0, record.size, None)
        )
        origins[node, uuid] = content
    assert origins == {key: content for key, content in contents.items() if key in origins}
    assert len(origins) == 2 * 2 * 14


def test_the_command_line_asks_the_same(
    spark: SparkSession, fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JSON for programs, Parquet for more, and a plain word where nothing can be asked. A report is sent the columns
    that it reads, and no others.
    """
    scatter(fleet)
    run = CliRunner().invoke
    whole, sent = Moment.batches, defaultdict[str, set[str]](set)

    def recorded(moment: Moment, wanted: TableTicket, pace: Pace) -> Any:
        sent[wanted.name].update(wanted.columns or ["everything"])
        return whole(moment, wanted, pace)

    with monkeypatch.context() as patched:
        patched.setattr(Moment, "batches", recorded)
        report = run(app, ["spark", "report", "-e", fleet.endpoint, "--json"])
    shown = run(app, ["spark", "report", "-e", fleet.endpoint], env={"COLUMNS": "200"})
    plan = run(app, ["spark", "plan", "-e", fleet.endpoint, "-o", str(tmp_path / "plan")])
    nothing = run(app, ["spark", "report"], env={"ULLAGE_ENDPOINT": ""})
    other = run(app, ["spark", "plan", "-e", fleet.endpoint, "--policy", "Mine"])
    done = run(app, ["spark", "plan", "--nodes", fleet.nodes, "--run", "--override", "--json"])

    assert {row["queue"] for row in json.loads(report.stdout)} >= {"kept", NOBODY}
    assert sent == {
        table: {ON_THE_WIRE[table][name].name for name in names if name != NODE}
        for table, names in (("resource_claims", RESOURCE_CLAIMS), ("flowfiles", FLOWFILES))
    }
    assert "pinned_bytes" in shown.stdout
    assert plan.exit_code == 0, plan.output
    assert spark.read.parquet(str(tmp_path / "plan")).columns[:4] == [
        "node",
        "container",
        "resource_claim",
        "generation",
    ]
    assert (nothing.exit_code, other.exit_code) == (2, 2)
    runs = json.loads(done.stdout[done.stdout.index("[\n") :])  # the agents of this process log before it
    assert [(each["node"], each["run"]["problem"]) for each in runs] == [("a", None), ("b", None)]


def test_the_command_line_works_where_no_environment_is_active(fleet: Fleet, tmp_path: Path) -> None:
    """Spark took the `python3` of PATH, which had none of the package. What goes wrong is a line."""
    fleet.fill(6, 5)
    away = "grpc://127.0.0.1:1"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK"))}
    environment |= {"PATH": "/usr/bin:/bin", "JAVA_HOME": java_home(), "SPARK_LOCAL_IP": "127.0.0.1"}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).with_name("ullage")), "spark", *words]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    exported = run("export", "out", "-e", fleet.endpoint, "--where", "queue = 'in'")
    wrong = run("export", "out2", "-e", fleet.endpoint, "--where", "quee = 'in'")
    missing = run("tables", "-e", away)

    assert exported.returncode == 0, exported.stderr[-3000:]
    assert len(list((tmp_path / "out").glob("*.parquet"))) > 0
    assert wrong.returncode == 2
    assert wrong.stderr.splitlines()[-1].startswith(
        "ullage: option where: table flowfiles has no column quee: node, uuid"
    )
    # PySpark's own workers may leave one of a broken pipe, when Spark ends before they do.
    assert not re.search(r'File ".*/ullage_(agent|spark)/', wrong.stderr)
    assert (missing.returncode, missing.stderr.splitlines()) == (
        2,
        ["ullage: name the repository: the fleet's tables become ullage_<repository>.<table>"],
    )


def java_home() -> str:
    """Of the Java in this PATH, which need not be the system's."""
    found = os.environ.get("JAVA_HOME") or str(Path(shutil.which("java") or "java").resolve().parents[1])
    assert Path(found, "bin", "java").exists()
    return found


def test_spark_submit_takes_the_image_s_program(fleet: Fleet, tmp_path: Path) -> None:
    """As the operator's planning calls it: the plan on stdout, and its last words where a pod keeps them."""
    scatter(fleet)
    last_words = tmp_path / "termination-log"
    job = run_object(repository(), "spark:1", 0, is_application=False, has_authority=False)
    there: list[str] = job["spec"]["template"]["spec"]["containers"][0]["command"]
    here = {
        SPARK_SUBMIT: str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
        PROGRAM: str(ROOT / "deploy/ullage_spark_submit.py"),
        "--summary=/dev/termination-log": f"--summary={last_words}",
        "--endpoint=kubernetes:data/flows": f"--endpoint={fleet.endpoint}",
    }
    command = [here.get(word, word) for word in there if not word.startswith("--token-file=")]
    assert here.keys() <= set(there)
    command.insert(1, "--conf=spark.driver.host=127.0.0.1")

    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert ended.returncode == 0, ended.stderr[-3000:]
    rows = json.loads(ended.stdout)
    assert {row["node"] for row in rows} == {"a", "b"}
    assert last_words.read_text().startswith(f"{len(rows)} resource claims on 2 nodes give ")


@pytest.mark.parametrize("option", ["nodes", "endpoint"])
def test_nodes_are_known_by_their_own_names(fleet: Fleet, option: str) -> None:
    """Whichever way they were found."""
    given = {"nodes": fleet.nodes} if option == "nodes" else {"endpoint": fleet.endpoint}
    found = discover(SourceOptions.of(given))

    assert [node.name for node in found] == ["a", "b"]
    assert [node.repository for node in found] == [
        agent.repository.identity.repository for agent in fleet.agents.values()
    ]
