"""What `kubectl ullage status` makes of the objects of a cluster."""

from typing import Any

import pytest

from ullage.contract import ConditionStatus, time_of
from ullage.contract.conditions import TABLE
from ullage_agent.kubectl.ages import span
from ullage_agent.kubectl.fleet import CALM, HOPED, drain_document, fleet_document, node_cells
from ullage_agent.kubectl.status import show_fleet

NOW = 1_772_323_200_000
TROUBLE = {"Stalled", "Degraded", "DataUnavailable", "DiskPressure", "ClockImplausible", "GoalMissed"}
"""Conditions that are well when they do not hold."""


def condition(type: str, status: str, message: str = "") -> dict[str, Any]:
    return {"type": type, "status": status, "reason": "Why", "message": message}


def repository(*conditions: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"namespace": "data", "name": "flows"}, "status": {"nodes": 2, "conditions": list(conditions)}}


def node(name: str, spec: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    """One that spoke a second ago and is Ready, unless something else is said."""
    told = {"heartbeat": time_of(NOW - 1000), "conditions": [condition("Ready", "True")], **status}
    metadata = {"namespace": "data", "name": f"flows--{name}"}
    return {"metadata": metadata, "spec": {"repository": "flows", "nodeName": name, **(spec or {})}, "status": told}


def troubles(found: dict[str, Any]) -> list[str]:
    """What is wrong with a node."""
    [told] = fleet_document(repository(), [found], [], NOW)["nodes"]
    trouble: list[str] = told["trouble"]
    return trouble


def test_every_condition_is_hoped_for_or_feared() -> None:
    """A new condition takes its place in one of the three lists, so that none is read the wrong way round."""
    types = {row.type for rows in TABLE.values() for row in rows}
    assert types == set(HOPED) | CALM | TROUBLE
    assert not set(HOPED) & CALM
    assert not TROUBLE & (CALM | set(HOPED))


@pytest.mark.parametrize("type", sorted({*HOPED, *TROUBLE}))
@pytest.mark.parametrize("status", list(ConditionStatus))
def test_what_is_not_as_one_would_hope_is_told(type: str, status: str) -> None:
    """With the condition's own words; what is well is not told."""
    told = fleet_document(repository(condition(type, status, "in its words")), [], [], NOW)["trouble"]
    is_well = status == HOPED.get(type, "False")
    assert told == ([] if is_well else [f"{type} is {status}: in its words"])


def test_what_nobody_asks_for_is_no_trouble() -> None:
    """A repository without a bucket is not unwell for it."""
    asked = [condition("Replicated", "Unknown"), condition("Replicated", "Unknown") | {"reason": "NotAsked"}]
    told = fleet_document(repository(*asked), [], [], NOW)["trouble"]
    assert told == ["Replicated is Unknown: Why"]


@pytest.mark.parametrize(("status", "reason"), [("Unknown", "NotAsked"), ("True", "AllNodes"), ("False", "OnNodes")])
def test_what_a_bucket_lacks_is_shown_to_who_ships(
    status: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where nothing is shipped all that is live has one copy, and nobody needs to hear of it."""
    found = repository(condition("Replicated", status) | {"reason": reason})
    show_fleet(fleet_document(found, [node("a", soleCopyBytes=3 << 20), node("b", soleCopyBytes=1 << 20)], [], NOW), 20)
    assert ("bucket  lacks 4.0 MiB of what is live" in capsys.readouterr().out) == (reason != "NotAsked")


def test_what_goes_on_is_no_trouble() -> None:
    """A fleet that is paused, or waits for pods, says so on a line of its own."""
    told = fleet_document(repository(condition("Paused", "True", "by hand")), [], [], NOW)
    assert (told["now"], told["trouble"]) == (["Paused: by hand"], [])


def test_a_node_in_trouble_says_why() -> None:
    """Silence, damage, disks that are away, pods in the way: each in a line."""
    assert troubles(node("a")) == []
    assert troubles(node("a", heartbeat=time_of(NOW - 3_600_000))) == ["its agent has been silent for 60m"]
    assert troubles({**node("a"), "status": {}}) == ["its agent has not spoken yet"]
    assert troubles(node("a", unavailableContents=1)) == ["1 content can't be read"]
    assert troubles(node("a", recordsSetAside=2)) == ["2 records set aside"]
    assert troubles(node("a", containersAway=["c1", "c2"])) == ["the disk is away of: c1, c2"]
    deferral = {"deferral": {"since": time_of(NOW), "waitsFor": ["etl"]}}
    assert troubles(node("a", deferral)) == ["waits for etl"]


def test_the_worst_comes_first() -> None:
    """Nodes in trouble, then those with most dead bytes; those of other repositories are not there."""
    other = node("z")
    other["spec"]["repository"] = "others"
    elsewhere = node("y")
    elsewhere["metadata"]["namespace"] = "elsewhere"
    few, many = node("few", space={"deadBytes": 1}), node("many", space={"deadBytes": 9})
    ill = node("ill", recordsSetAside=1)
    told = fleet_document(repository(), [few, many, ill, other, elsewhere], [], NOW)
    assert [each["node"] for each in told["nodes"]] == ["ill", "many", "few"]
    assert told["totals"]["deadBytes"] == 10


def test_a_silent_node_is_not_called_ready() -> None:
    """Nobody knows how an agent is that never spoke, or not for long, whatever it said last."""
    [told] = fleet_document(repository(), [{**node("a"), "status": {}}], [], NOW)["nodes"]
    cells = node_cells(told)
    assert (cells["ready"], cells[">seen"]) == ("Unknown", "-")
    [told] = fleet_document(repository(), [node("a", heartbeat=time_of(NOW - 3_600_000))], [], NOW)["nodes"]
    assert told["ready"] == "Unknown"


def test_a_fleet_stays_a_table_on_a_narrow_screen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names as long as clouds make them: columns go, the least important first, and a node stays a line."""
    nodes = [node(f"ip-10-0-{number}-17.eu-central-1.compute.internal") for number in range(3)]
    fleet = fleet_document(repository(), nodes, [], NOW)
    for columns, titles in ((120, "archive"), (100, "disks"), (80, "dead")):
        monkeypatch.setenv("COLUMNS", str(columns))
        show_fleet(fleet, 3)
        lines = capsys.readouterr().out.splitlines()
        assert sum("compute.internal" in line for line in lines) == 3
        assert [line for line in lines if line.startswith("node") and titles in line]
        assert max(map(len, lines)) <= columns


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "0s"), (119, "119s"), (120, "2m"), (7199, "119m"), (7200, "2h"), (172_800, "2d")]
)
def test_ages_are_short(seconds: int, shown: str) -> None:
    """As kubectl shows them."""
    assert span(seconds) == shown


def test_when_dead_bytes_come_back_is_summed(capsys: pytest.CaptureFixture[str]) -> None:
    """A line each that is not nothing; an agent that does not say it counts for nothing."""
    sums = {"windowBytes": 3 << 20, "heldBytes": 1 << 20}
    nodes = [node("a", space={"returning": sums}), node("b", space={"returning": sums}), node("c")]

    told = fleet_document(repository(), nodes, [], NOW)
    show_fleet(told, 20)

    assert told["returning"]["windowBytes"] == 6 << 20
    shown = [line.split() for line in capsys.readouterr().out.splitlines() if "back" in line]
    assert shown == [
        ["back", "6.0", "MiB", "when", "a", "window", "opens"],
        ["back", "2.0", "MiB", "when", "readers", "let", "go"],
    ]


def test_a_time_that_no_calendar_has_is_not_known() -> None:
    """A heartbeat that somebody wrote by hand keeps nobody from seeing the rest."""
    [told] = fleet_document(repository(), [node("a", heartbeat="2026-02-30T00:00:00Z")], [], NOW)["nodes"]
    assert (told["ready"], told["secondsSinceHeartbeat"]) == ("Unknown", None)


def backup(name: str, spec: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    """One that wrote all nodes two hours ago."""
    done = {"phase": "Completed", "nodes": 3, "nodesDone": 3, "bytes": 3 << 20, "lastSuccess": time_of(NOW - 7_200_000)}
    metadata = {"namespace": "data", "name": name, "creationTimestamp": time_of(NOW)}
    asked = {"repository": "flows", "bucket": "s3://flows/b", "schedule": "0 2 * * *", **(spec or {})}
    return {"metadata": metadata, "spec": asked, "status": {**done, **status}}


def shown(capsys: pytest.CaptureFixture[str], *backups: dict[str, Any], restores: tuple[Any, ...] = ()) -> list[str]:
    show_fleet(fleet_document(repository(), [], [], NOW, backups, restores), 20)
    return capsys.readouterr().out.splitlines()


def test_backups_stand_there_with_what_was_read_of_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """How old the last whole one is, when the next is due, and how its verification went; those of others do not."""
    monkeypatch.setenv("COLUMNS", "120")
    whole = {"phase": "Completed", "lastCompleted": time_of(NOW - 3_600_000), "samplePercentage": 5}
    damaged = {**whole, "damagedSince": time_of(NOW), "nodesDamaged": 2, "damage": "n1: content/c1/1: it is missing"}
    lines = shown(
        capsys,
        backup("nightly", nextRun=time_of(NOW + 72_000_000), verification=whole),
        backup("hurt", verification=damaged),
        backup("young", {"schedule": "", "suspend": True}, phase="Pending", nodesDone=0, lastSuccess=None),
        backup("busy", verification={"phase": "Running", "nodes": 3, "nodesDone": 1, "nodesFailed": 1}),
        backup("theirs", {"repository": "others"}),
    )
    found = {line.split()[0]: " ".join(line.split()[1:]) for line in lines if line and not line.startswith(" ")}
    assert found["nightly"] == "Completed 3 of 3 3.0 MiB 2h ago in 20h whole 60m ago, 5 % read"
    assert found["hurt"].endswith("2h ago - damage on 2 nodes")
    assert found["young"] == "Pending 0 of 3 3.0 MiB never suspended not asked for"
    assert found["busy"].endswith("running, 1 of 3, 1 failed")
    assert "theirs" not in found


def test_what_is_wrong_with_a_backup_stands_below_it_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage is in two conditions, and in one line; what never ran, or is not asked for, is no trouble."""
    monkeypatch.setenv("COLUMNS", "120")
    damage = "n1: content/c1/1: it is missing"
    conditions = [
        {"type": type, "status": "False", "reason": "Damaged", "message": damage}
        for type in ("BackupCurrent", "BackupVerified")
    ]
    stalled = {"type": "Stalled", "status": "True", "reason": "NodeNotEmpty", "message": "There is a repository."}
    calm = [
        {"type": "BackupCurrent", "status": "False", "reason": "Never"},
        {"type": "BackupVerified", "status": "Unknown", "reason": "NotAsked"},
        {"type": "Stalled", "status": "False", "reason": "Working"},
    ]
    restores = (
        {
            "metadata": {"namespace": "data", "name": "back"},
            "spec": {"repository": "flows", "node": "n1", "place": "s3://flows/b/n1"},
            "status": {"phase": "Running", "progress": "40 %", "conditions": [stalled]},
        },
    )
    lines = shown(capsys, backup("calm", conditions=calm), backup("hurt", conditions=conditions), restores=restores)
    told = [line.strip() for line in lines if line.startswith(("  backup", "  restore"))]
    assert told == [
        f"backup hurt: BackupCurrent is False and BackupVerified is False, Damaged: {damage}",
        "restore back: Stalled is True, NodeNotEmpty: There is a repository.",
    ]
    names = [line.split()[0] for line in lines if line.startswith(("calm", "hurt"))]
    assert names == ["hurt", "calm"]
    assert any(line.split() == ["back", "n1", "Running", "40", "%", "s3://flows/b/n1"] for line in lines)


@pytest.mark.parametrize(
    ("draining", "read", "silent_seconds", "told"),
    [
        (True, 2, 1, ("True", "Why")),
        (True, 1, 1, ("Unknown", "Waits")),
        (False, 2, 1, ("Unknown", "Waits")),
        (True, 2, 3_600, ("Unknown", "Waits")),
    ],
)
def test_a_drain_has_ended_when_the_agent_says_so_of_this_drain(
    *, draining: bool, read: int, silent_seconds: int, told: tuple[str, str]
) -> None:
    """Not one that was silent since, or has yet to read that it is to take nothing new."""
    found = node(
        "n",
        {"draining": draining},
        conditions=[condition("Drained", "True")],
        observedGeneration=read,
        heartbeat=time_of(NOW - silent_seconds * 1000),
        soleCopyBytes=7,
    )
    found["metadata"]["generation"] = 2

    document = drain_document(found, NOW)

    assert (document["drained"], document["reason"]) == told
    assert (document["repository"], document["soleCopyBytes"]) == ("flows", 7)
