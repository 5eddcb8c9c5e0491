"""A history of a fleet: each event and each run is in it once, whoever is killed or silent meanwhile. No JVM runs."""

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyiceberg.utils.config import Config

from tests.service.running import until
from tests.spark.fleet import Fleet, Mixed, fleet_at
from tests.spark.histories import rows, rows_of
from tests.support import ManualClock
from ullage.clock import Clock
from ullage.contract import Duration
from ullage.wire.provenance import EventQuery
from ullage.wire.space import RunRequest
from ullage_agent.cli.app import app
from ullage_spark.dayfiles import GROUP_BYTES, DayFiles, compacted, rows_of as file_rows
from ullage_spark.errors import EventsLost, NodesMissing, SparkSourceError
from ullage_spark.histories import KEPT_MILLIS
from ullage_spark.history import ICEBERG, SCHEMAS, HistoryRun, fed, written
from ullage_spark.rollup import rolled_up

ROOT = Path(__file__).parents[2]
RUNNER = CliRunner()
STRIDES = {"folder": 4, "iceberg": 29}
"""From one step before which a history is killed to the next: a kill and what follows take a fifth of a second."""


@pytest.fixture(params=["folder", "iceberg"])
def where(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the history is kept: below `tmp_path/history`."""
    folder = tmp_path / "history"
    if request.param == "folder":
        return str(folder)
    folder.mkdir()
    settings = {"TYPE": "sql", "URI": f"sqlite:///{folder}/catalog", "WAREHOUSE": f"file://{folder}"}
    settings["PY_IO_IMPL"] = "pyiceberg.io.fsspec.FsspecFileIO"  # in Python, so that its steps are heard of
    for name, value in settings.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__TEST__{name}", value)
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # read when it was imported
    return "iceberg:test/flows"


def feed(where: str, clock: Clock | None = None, **options: Any) -> HistoryRun:
    with written(where, clock or Clock()) as tables:
        return fed(tables, options, clock or Clock())


def roll_up(where: str, seconds: int = 3_600) -> list[str]:
    with written(where, Clock()) as tables:
        return rolled_up(tables, seconds)


def events(fleet: Fleet) -> list[list[Any]]:
    """By the nodes' own records."""
    return sorted(
        [name, event.sequence]
        for name in fleet.agents
        for event in fleet.repository(name).history.query(EventQuery(limit=10_000)).events
    )


def reclaim(fleet: Fleet, node: str) -> str:
    """A run that somebody asked for, to its end."""
    reclamation = fleet.agents[node].server.host.repository.reclamation
    run = reclamation.begin(RunRequest(override=True))
    return reclamation.run(run.id, wait_seconds=60).id


def test_what_is_new_is_added_once(fleet: Fleet, where: str) -> None:
    """Events in commits of some, runs when they have ended, and a look at space with each run."""
    fleet.fill(3, 5)
    done = [["a", reclaim(fleet, "a")]]
    first = feed(where, endpoint=fleet.endpoint, maxEvents=20)
    assert (first.rows["events"], first.rows["runs"]) == (len(events(fleet)), 1)
    assert feed(where, endpoint=fleet.endpoint).rows == {"events": 0, "runs": 0, "space": first.rows["space"]}

    fleet.fill(4, 5)
    done.append(["b", reclaim(fleet, "b")])
    feed(where, endpoint=fleet.endpoint)

    found = rows(where)
    assert (found["events"], found["runs"]) == (events(fleet), sorted(done))
    assert len({row["time"] for row in rows_of(where, "space") if row["node"] == "a"}) == 3


def test_what_nodes_give_back_by_themselves_is_a_run_too(fleet: Fleet, tmp_path: Path) -> None:
    """Of no owner, and with the reason why it was allowed; what somebody asked for is told once."""
    fleet.rest()
    for agent in fleet.agents.values():
        with agent.repository.session() as session:
            session.ingest("dead", [b"x" * (1 << 20)] * 3)
            session.commit()
        agent.repository.queues.drop(agent.repository.queue("dead"))
    fleet.seal()
    freed = fleet.repository("a").reclamation.clean().freed_bytes
    asked = reclaim(fleet, "b")
    for _ in range(2):
        feed(str(tmp_path / "history"), endpoint=fleet.endpoint)

    by_itself, by_hand = sorted(rows_of(str(tmp_path / "history"), "runs"), key=lambda row: row["node"])
    assert (by_itself["node"], by_itself["owner"], by_itself["freed_bytes"]) == ("a", "", freed)
    assert by_itself["reason"].startswith("clean: no window is about Delete")
    assert (by_hand["node"], by_hand["run"]) == ("b", asked)
    assert by_hand["freed_bytes"] >= 3 << 20


def test_a_roll_up_counts_once_however_often_it_runs(fleet: Fleet, where: str) -> None:
    """A day is counted anew when it has more events, or when stretches have another length."""
    fleet.fill(3, 5)
    feed(where, endpoint=fleet.endpoint)
    today = datetime.now(UTC).date().isoformat()
    assert roll_up(where)[-1:] == [today]
    assert roll_up(where) == []
    fleet.fill(4, 5)
    feed(where, endpoint=fleet.endpoint)
    assert roll_up(where)[-1:] == [today]

    for seconds in (3_600, 60):
        roll_up(where, seconds)
        found = rows_of(where, "rollup")
        for name in fleet.agents:
            truth = fleet.repository(name).history.query(EventQuery(limit=10_000)).events
            mine = [row for row in found if row["node"] == name]
            assert sum(row["events"] for row in mine) == len(truth)
            assert sum(row["bytes"] for row in mine) == sum(event.size for event in truth)
            assert max(row["last_sequence"] for row in mine) == truth[-1].sequence
            spent = sum(event.millis - event.lineage_millis for event in truth) / 1000
            assert sum(row["lineage_seconds"] * row["events"] for row in mine) == pytest.approx(spent)
        assert {row["begins_time"].timestamp() % seconds for row in found} == {0}


def test_a_kill_at_any_step_loses_nothing_and_doubles_nothing(
    fleet: Fleet, where: str, tmp_path: Path, seed: int
) -> None:
    """By SIGKILL, before each file, sync, rename, removal and commit; nothing that was not committed stays."""
    fleet.rest()
    fleet.fill(3, 1)
    run = reclaim(fleet, "a")
    stride = STRIDES["iceberg" if where.startswith(ICEBERG) else "folder"]
    arguments = [fleet.endpoint, where, str(tmp_path / "history"), str(1 + seed % stride), str(stride)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.killed_history", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr

    told = [json.loads(line) for line in done.stdout.splitlines()]
    truth: dict[str, Any] = {
        "events": events(fleet),
        "runs": [["a", run]],
        "counted": {name: len(events(fleet)) // 2 for name in "ab"},
    }
    truth["orphans"] = 0
    assert len(told) > 5
    for each in told:
        assert {name: each[name] for name in truth} == truth, f"killed before step {each['step']}"


def test_a_silent_node_is_left_out_and_caught_up(mixed: Mixed, tmp_path: Path) -> None:
    """What the others have is in the history, whether the job fails for its sake or not."""
    where = str(tmp_path / "history")
    mixed.stop()
    with pytest.raises(NodesMissing, match=mixed.silent):
        feed(where, endpoint=mixed.endpoint)
    assert rows(where)["events"] == [["a", 1], ["a", 2]]
    with pytest.raises(NodesMissing, match="1 of 1 nodes"):
        feed(where, endpoint=mixed.silent, missingNodes="skip")
    found = feed(where, endpoint=mixed.endpoint, missingNodes="skip")
    assert [each.name for each in found.missing] == [mixed.silent]
    assert {node for node, _ in rows(where)["events"]} == {"a"}
    mixed.go_on()
    feed(where, endpoint=mixed.endpoint)

    assert rows(where)["events"] == [["a", 1], ["a", 2], ["here", 1], ["here", 2], ["here", 3]]
    assert {row["node"] for row in rows_of(where, "space")} == {"a", "here"}


def test_a_node_that_is_killed_amid_a_run_is_caught_up(
    mixed: Mixed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first commit, which has some of it: what follows comes once it is back, and nothing comes twice."""
    where = str(tmp_path / "history")
    with written(where, Clock()) as tables:
        table, commit = tables["events"], tables["events"].commit

        def commit_and_kill(*arguments: Any) -> None:
            commit(*arguments)
            mixed.other.kill()

        monkeypatch.setattr(table, "commit", commit_and_kill)
        options = {"endpoint": mixed.endpoint, "missingNodes": "skip", "maxEvents": 2}
        assert [each.name for each in fed(tables, options, Clock()).missing] == ["here"]
    assert rows(where)["events"] == [["a", 1], ["a", 2], ["here", 1]]
    mixed.other.start()
    feed(where, endpoint=mixed.endpoint, missingNodes="wait")

    assert rows(where)["events"] == [["a", 1], ["a", 2], ["here", 1], ["here", 2], ["here", 3]]


def test_events_that_are_gone_stop_their_node_until_somebody_lets_them_go(fleet: Fleet, tmp_path: Path) -> None:
    """The others are read; the same where a node has another repository than before."""
    where = str(tmp_path / "history")
    fleet.fill(3, 5)
    feed(where, endpoint=fleet.endpoint)
    before = rows(where)["events"]
    fleet.fill(4, 5)
    with written(where, Clock()) as tables:
        table = tables["events"]
        another = {**table.state, "a": {**table.state["a"], "repository": "another"}}
        table.commit(another, [])
    with pytest.raises(EventsLost, match="node a has another repository than before"):
        feed(where, endpoint=fleet.endpoint)
    assert {node for node, _ in rows(where)["events"][len(before) :]} == {"b"}

    result = RUNNER.invoke(app, ["spark", "history", where, "-e", fleet.endpoint, "--skip-lost"])
    assert result.exit_code == 0, result.output
    assert "another repository" in result.stderr
    assert len(rows(where)["events"]) == len(events(fleet)) + len(before) // 2


def test_what_is_not_read_yet_is_held_and_what_is_gone_is_told(tmp_path: Path) -> None:
    """Nodes that keep events for a millisecond keep those that a history waits for; after its time they are gone."""
    where = str(tmp_path / "history")
    with fleet_at(tmp_path, "a", provenance={"max_storage_time": Duration(1)}) as fleet:
        fleet.rest()  # it would remove the last events, too
        provenance = fleet.repository("a").provenance
        provenance.holds.end("restart")

        def fill() -> int:
            fleet.fill(3, 1)
            provenance.drain()
            return provenance.span()[1]

        def retain(first: int) -> None:
            until(
                lambda: provenance.retain() >= 0 and provenance.span()[0] == first, f"the events before {first} to go"
            )

        read = fill()
        feed(where, endpoint=fleet.endpoint)
        unread = fill()
        retain(read + 1)
        feed(where, endpoint=fleet.endpoint)
        assert rows(where)["events"] == [["a", at + 1] for at in range(unread)]

        (holder,) = provenance.holds.all(0)
        provenance.holds.end(holder)
        newest = fill()
        retain(newest + 1)
        fill()
        with pytest.raises(EventsLost, match=f"{newest - unread} of the events after {unread} "):
            feed(where, endpoint=fleet.endpoint)
        found = feed(where, endpoint=fleet.endpoint, failOnDataLoss=False)
    assert len(found.lost) == 1


def some_rows(days: int, count: int, payload: int = 10) -> pa.RecordBatch:
    """Events over several days, one after the other."""
    day = 86_400_000_000
    made = {field.name: pa.nulls(count, field.type) for field in SCHEMAS["events"] if field.name != "day"}
    made["sequence"] = pa.array(range(count), pa.int64())
    times = [1_700_000_000_000_000 + at % days * day for at in range(count)]
    made["time"] = pa.array(times, pa.int64()).cast(pa.timestamp("us", "UTC"))
    made["details"] = pa.array([f"{at:0{payload}}" for at in range(count)])
    return pa.RecordBatch.from_pydict(made, schema=pa.schema(list(SCHEMAS["events"])[1:]))


def test_days_that_are_over_become_one_file(where: str) -> None:
    """Small files of a day are merged when it is over, or when they are many; no row changes."""
    with written(where, Clock()) as tables:
        table, schema = tables["events"], SCHEMAS["events"]
        for _ in range(3):
            files = DayFiles(table, schema)
            files.write(some_rows(3, 10))
            table.commit({"n": 1}, files.close())
        assert compacted(table, schema, "2023-11-16") == 6  # the last day goes on
        assert compacted(table, schema, "2023-11-17") == 3
        assert compacted(table, schema, "2023-11-17") == 0
        assert sorted((file.day, file.rows) for file in table.files()) == [
            ("2023-11-14", 12),
            ("2023-11-15", 9),
            ("2023-11-16", 9),
        ]
        assert table.state == {"n": 1}
        found = [row for batch in file_rows(table, table.files()) for row in batch.to_pylist()]
    assert sorted(row["sequence"] for row in found) == sorted([*range(10)] * 3)
    assert all(row["day"] == row["time"].date() for row in found)


def test_what_was_merged_stays_for_whoever_began_before(tmp_path: Path) -> None:
    """For an hour; what nobody committed goes at once."""
    where, clock = str(tmp_path), ManualClock()
    with written(where, clock) as tables:
        table = tables["events"]
        for _ in range(2):
            files = DayFiles(table, SCHEMAS["events"])
            files.write(some_rows(1, 2))
            table.commit({}, files.close())
        before = [Path(table.address(file)) for file in table.files()]
        compacted(table, SCHEMAS["events"], "2024-01-01")
        table.create("2023-11-14")[1].close()
    kept = ""
    for seconds, are_there in ((KEPT_MILLIS / 1000 - 1, True), (2, False)):
        clock.advance(seconds)
        with written(where, clock) as tables:
            (file,) = tables["events"].files()
            kept = tables["events"].address(file)
            assert {path.exists() for path in before} == {are_there}
    assert [str(path) for path in tmp_path.rglob("*.parquet")] == [kept]


def test_files_are_written_in_bounded_memory(tmp_path: Path) -> None:
    """Ten times as many rows take no more of it, when they are written and when they are merged."""
    used: list[int] = []
    with written(str(tmp_path), Clock()) as tables:
        table = tables["events"]
        for count in (4, 40):
            most = 0
            files = DayFiles(table, SCHEMAS["events"])
            for _ in range(count):
                files.write(some_rows(1, 1_000, 4_000))
                most = max(most, pa.total_allocated_bytes())
            table.commit({}, files.close())
            for batch in file_rows(table, table.files()[-1:]):
                assert batch.nbytes < 3 * GROUP_BYTES
                most = max(most, pa.total_allocated_bytes())
            used.append(most)
    assert used[1] < 2 * used[0]


def test_a_history_has_one_writer(fleet: Fleet, where: str) -> None:
    """In a folder another one is refused at once, in Iceberg when it commits what this one has committed."""
    fleet.fill(3, 1)

    def feed_twice() -> None:
        with written(where, Clock()) as tables, written(where, Clock()) as others:
            fed(others, {"endpoint": fleet.endpoint}, Clock())
            fed(tables, {"endpoint": fleet.endpoint}, Clock())

    with pytest.raises(SparkSourceError, match="another process writes to the history"):
        feed_twice()
    feed(where, endpoint=fleet.endpoint)
    assert rows(where)["events"] == events(fleet)


def test_the_command_says_what_it_added_and_what_is_wrong(
    fleet: Fleet, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """In words or as JSON, and nothing beside; a roll-up needs no fleet."""
    fleet.fill(3, 1)
    where = str(tmp_path / "history")
    history = ["spark", "history", where, "-e", fleet.endpoint]
    assert f"{len(events(fleet))} rows of events" in RUNNER.invoke(app, history).output
    assert json.loads(RUNNER.invoke(app, [*history, "--json"]).stdout)["rows"]["events"] == 0
    assert "1 days rolled up" in RUNNER.invoke(app, ["spark", "rollup", where]).output
    for place, told in (("test", "iceberg:CATALOG/NAMESPACE does"), ("nowhere/flows", "catalog nowhere: URI missing")):
        wrong = RUNNER.invoke(app, ["spark", "rollup", f"iceberg:{place}"])
        assert (wrong.exit_code, told in wrong.output) == (2, True)
    assert "aligned" not in capfd.readouterr().err
