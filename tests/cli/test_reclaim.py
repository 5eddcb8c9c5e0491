"""`ullage plan` and `ullage reclaim` as people and scripts use them."""

from datetime import UTC, datetime
from pathlib import Path

import click
import pytest
import yaml

from tests.cli.test_commands import (
    configure,
    root as root,  # the fixture
    spec_of,
    ullage,
    ullage_json,
)
from ullage.contract import ContractError, Duration, GoalSettings, dump, load_yaml
from ullage.engine.engine import Engine
from ullage_agent.cli.serve import with_goal
from ullage_agent.cli.space import _seconds_until

NOON = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)


def fragment(root: Path) -> None:
    """Files in which every third content lives."""
    with Engine.open(spec_of(root)) as repository:
        for _ in range(3):
            with repository.session() as session:
                for number in range(100):
                    session.ingest("drop" if number % 3 else "keep", [bytes([number]) * 20_000])
                session.commit()
        repository.queues.drop(repository.queue("drop"))


def test_a_plan_is_what_reclaim_then_does(root: Path) -> None:
    """The plan changes nothing and can be repeated; the run frees what it named, and what lives is still there."""
    fragment(root)
    before = ullage_json("survey", root=root)["totals"]

    plan = ullage_json("plan", "--policy", "CompactAll", root=root)
    dry = ullage_json("reclaim", "--dry-run", "--policy", "CompactAll", root=root)
    report = ullage_json("reclaim", "--policy", "CompactAll", "--bytes-per-second", "0", root=root)
    after = ullage_json("survey", root=root)["totals"]
    check = ullage_json("check", "--deep", root=root)

    forecast = plan.pop("forecast")
    assert plan == dry
    assert forecast["dead_bytes"] == sum(each["bytes"] for each in forecast["coming"]) > 0
    assert {step["action"] for step in plan["steps"]} == {"rewrite"}
    assert report["freed_bytes"] == plan["frees_bytes"] == before["disk_bytes"] - after["disk_bytes"]
    assert report["copied_bytes"] == plan["copies_bytes"] == before["live_bytes"] == after["live_bytes"]
    assert after["disk_to_live"] < 1.05
    assert check["problems"] == []


def test_status_says_when_dead_bytes_come_back(root: Path) -> None:
    """By what, what keeps them until then, and what would help; the same for programs."""
    fragment(root)

    shown, document = ullage("status", root=root).stdout, ullage_json("status", root=root)

    assert "102 FlowFiles in 2 queues" in shown
    assert "not by itself" in shown
    assert "below spec.compaction.minUsedPercentage" in shown
    assert "`ullage reclaim`" in shown
    assert document["state"]["flow_files"] == 102
    assert {each["when"] for each in document["forecast"]["coming"]} >= {"NotByItself"}
    assert "not by itself" in ullage("plan", root=root).stdout


def test_a_goal_is_told_and_can_be_an_option(root: Path) -> None:
    """How it is held, and what will be missed and why; `serve` takes it without a document."""
    fragment(root)
    document = load_yaml(root.with_suffix(".yaml").read_text())
    with_both = with_goal(document, 1.01, 3_600_000)
    assert with_both.spec.compaction.goal == GoalSettings(disk_to_live=1.01, max_dead_age=Duration(3_600_000))
    assert with_goal(with_both, None, None) == with_both
    with pytest.raises(ContractError, match="maxDeadAge"):
        with_goal(document, None, 1_000)
    root.with_suffix(".yaml").write_text(yaml.safe_dump(dump(with_both)))

    shown = ullage("status", root=root).stdout

    assert "goal: disk / live at most 1.01, now 2." in shown
    assert "goal: nothing dead for longer than 1h" in shown
    assert "goal: diskToLive is missed now: container c1 is" in shown
    assert "what helps: a lower spec.compaction.minUsedPercentage" in shown


def test_people_see_what_it_costs(root: Path) -> None:
    """Tables and sentences name the actions, the bytes, and why something is left."""
    fragment(root)

    plan = ullage("plan", root=root).stdout
    guarded = ullage("plan", "--respect-guards", root=root).stdout
    late = ullage("reclaim", "--until", "0s", root=root).stdout
    done = ullage("reclaim", "--bytes-per-second", "1Gi", root=root).stdout

    assert "rewrite" in plan
    assert "nothing was changed" in plan
    assert "below spec.compaction.minUsedPercentage" in guarded
    assert "left: the ticket ended" in late
    assert "resource claims rewritten" in done
    assert "given back" in done


def test_nonsense_is_refused(root: Path) -> None:
    """A policy, rate or time that there is not names what there is."""
    assert "choose one of 'StatsBased', 'CompactAll'" in ullage("plan", "--policy", "x", root=root, expect=2).stderr
    assert "not a quantity" in ullage("reclaim", "--bytes-per-second", "fast", root=root, expect=2).stderr
    assert "is no time" in ullage("reclaim", "--until", "soon", root=root, expect=2).stderr


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30m", 1800),
        ("12:30", 1800),
        ("11:00", 23 * 3600),
        ("2026-01-31T14:00:00+01:00", 3600),
        ("2026-01-31T11:00:00+00:00", 0),
    ],
)
def test_the_end_of_a_run_is_said_in_three_ways(text: str, seconds: float) -> None:
    """A duration, the next time of day, or a date; a date that is past is now."""
    assert _seconds_until(text, NOON) == seconds


@pytest.mark.parametrize("text", ["", "25:00", "tomorrow", "12"])
def test_what_is_no_time_is_refused(text: str) -> None:
    """Rather than taken for something."""
    with pytest.raises(click.UsageError):
        _seconds_until(text, NOON)


CLOSED = """
  archive: {enabled: false}
  maintenance:
    windows: [{name: leap, schedule: "0 0 29 2 *", duration: 1m, operations: [Delete, Truncate, Punch, Rewrite]}]
"""


@pytest.mark.parametrize("command", ["reclaim", "truncate", "clean"])
def test_a_command_outside_of_its_window_says_when_and_ends_with_code_8(root: Path, command: str) -> None:
    """Nothing is touched while the windows are closed, unless somebody says so; `--override` is that."""
    fragment(root)
    with Engine.open(spec_of(root)) as repository:
        with repository.session() as session:
            session.ingest("keep", [b"k"])
            session.ingest("drop", [bytes(2 << 20)])
            session.commit()
        with repository.session() as session:
            session.ingest("drop", [bytes(2 << 20)])
            session.commit()
        repository.queues.drop(repository.queue("drop"))
    configure(root, CLOSED)
    before = ullage_json("survey", root=root)["totals"]["disk_bytes"]

    closed = ullage(command, root=root, expect=8)
    untouched = ullage_json("survey", root=root)["totals"]["disk_bytes"]
    report = ullage_json(command, "--override", root=root)

    assert "outside of window leap; opens at " in closed.stderr
    assert closed.stdout == ""
    assert before == untouched
    assert report.get("report", report)["freed_bytes"] > 0


def test_compaction_by_hand_that_the_settings_refuse_ends_with_code_8(root: Path) -> None:
    """By the setting's name, with nothing touched; a window that is open, and `--override`, change nothing about it."""
    fragment(root)
    configure(root, "  compaction: {triggers: [Periodic]}\n")
    before = ullage_json("survey", root=root)["totals"]["dead_bytes"]

    for flags in ([], ["--override"]):
        refused = ullage("reclaim", *flags, root=root, expect=8)
        assert "spec.compaction.triggers is [Periodic], without Admin" in refused.stderr
        assert refused.stdout == ""

    assert ullage_json("survey", root=root)["totals"]["dead_bytes"] == before > 0


def test_override_does_not_resume_what_is_paused(root: Path) -> None:
    """Somebody paused it in the configuration: that is where it is resumed."""
    fragment(root)
    configure(root, "  maintenance: {paused: true}\n")

    closed = ullage("reclaim", "--override", root=root, expect=8)

    assert "spec.maintenance.paused is true" in closed.stderr
    assert ullage_json("survey", root=root)["totals"]["dead_bytes"] > 0
