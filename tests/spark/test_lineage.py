"""The lineage of a FlowFile over all nodes, and its command: without a JVM."""

import json
from contextlib import nullcontext
from typing import Any

import pytest
from click.testing import CliRunner

from tests.spark.fleet import Fleet
from ullage.engine.model import FlowFileRecord
from ullage.wire.schemas import SCHEMAS
from ullage.wire.tickets import TableTicket
from ullage_agent.cli import spark as command
from ullage_agent.cli.app import app
from ullage_spark import fleet as asking, lineage, reader
from ullage_spark.addresses import FleetNode
from ullage_spark.fleet import table_of
from ullage_spark.fleetrows import FleetRows
from ullage_spark.lineage import traced
from ullage_spark.settings import TableOptions
from ullage_spark.tables import NODE, ON_THE_WIRE

AWAY = "grpc://127.0.0.1:1"
COLUMNS = ("time", "node", "type", "uuid", "parents", "children")


def tree(fleet: Fleet) -> list[FlowFileRecord]:
    """A FlowFile, its three fragments, and the two of these that were merged; among others."""
    fleet.fill(3, 5)
    with fleet.repository("a").session() as session:
        root = session.write(session.create(), b"abcdef")
        parts = session.split(root, [2, 2, 2])
        merged = session.merge(parts[:2])
        session.transfer_many([root, *parts, merged], "in")
        session.commit()
    return [root, *parts, merged]


def test_it_is_that_of_the_node(fleet: Fleet) -> None:
    """Up and down from anywhere in a tree of splits and merges, with the events of all of them; bounds are told."""
    root, one, two, three, merged = (record.id for record in tree(fleet))
    rows = FleetRows.of({"endpoint": fleet.endpoint})

    def found(start: str, **bounds: Any) -> tuple[set[str], bool]:
        made = traced(rows, start, columns=COLUMNS, **bounds)
        uuids = made.events.column("uuid").to_pylist()
        expected = fleet.repository("a").history.lineage(start).events
        assert made.events.column_names == [*COLUMNS]
        assert bounds or uuids == [event.flow_file for event in expected if event.flow_file in made.flow_files]
        return {*made.flow_files}, made.is_whole

    assert found(root) == ({root, one, two, three, merged}, True)
    assert found(merged) == ({root, one, two, merged}, True)
    assert found(three) == ({root, three}, True)
    assert found(root, depth=1) == ({root, one, two, three}, False)
    assert not found(root, events_max=1)[1]
    assert found("00000000-0000-4000-8000-000000000000") == ({"00000000-0000-4000-8000-000000000000"}, True)
    assert traced(rows, "no uuid at all", columns=COLUMNS).events.num_rows == 0


def test_many_flow_files_are_asked_for_in_parts(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """A question has a bound, a generation has none."""
    records = tree(fleet)
    rows = FleetRows.of({"endpoint": fleet.endpoint})
    expected = traced(rows, records[0].id, columns=COLUMNS)
    monkeypatch.setattr(lineage, "ASKED_MAX", 1)

    found = traced(rows, records[0].id, columns=COLUMNS)

    assert found.flow_files == {record.id for record in records}
    assert found.events.equals(expected.events)


def test_the_command_starts_no_session(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """A JVM takes longer to start than nodes take to answer, and columns that it does not show are not sent."""
    root = tree(fleet)[0].id
    monkeypatch.setattr(command, "_session", None)
    sent = set[str]()

    def recorded(settings: TableOptions, node: FleetNode, wanted: TableTicket) -> Any:
        sent.update(wanted.columns or SCHEMAS[wanted.name].names)
        return table_of(settings, node, wanted)

    monkeypatch.setattr(reader, "table_of", recorded)

    asked = CliRunner().invoke(app, ["spark", "lineage", root, "-e", fleet.endpoint, "--json"])
    shown = CliRunner().invoke(app, ["spark", "lineage", root, "-e", fleet.endpoint, "--depth", "1"])
    away = CliRunner().invoke(app, ["spark", "lineage", root, "-e", "grpc://127.0.0.1"])

    assert asked.exit_code == 0, asked.output
    events = json.loads(asked.stdout[asked.stdout.index("[\n") :])
    assert {event["type"] for event in events} >= {"FORK"}
    assert all(event["time"].endswith("Z") and event["node"] == "a" for event in events)
    assert "FORK" in shown.stdout
    assert "there is more of it" in shown.output
    shows = {*command.LINEAGE, *lineage.ORDER} - {NODE}
    assert sent == {ON_THE_WIRE["provenance"][name].name for name in shows}
    assert away.exit_code == 2
    assert "no address of a node" in away.output


def test_commands_name_the_nodes_that_they_go_without(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What they show, or export, may not be all: with a session, which takes a snapshot, and without one."""
    monkeypatch.setattr(asking, "MISSING_SECONDS", 0.1)
    both = f"{fleet.endpoint},{AWAY}"
    words = ["spark", "lineage", tree(fleet)[0].id, "-e", both]

    skipped = CliRunner().invoke(app, [*words, "--missing-nodes", "skip"])
    failed = CliRunner().invoke(app, words)
    monkeypatch.setattr(command, "_session", nullcontext)  # to take a snapshot needs none
    with command._snapshot({"endpoint": both, "missingNodes": "skip", "pushdown": "false"}) as moment:
        told = capsys.readouterr().err

    assert skipped.exit_code == 0, skipped.output
    assert f"without node {AWAY}" in skipped.output
    assert (failed.exit_code, AWAY in failed.output) == (9, True)
    assert [each.name for each in moment.missing] == [AWAY]
    assert f"without node {AWAY}" in told
