"""Every panel of the dashboards against the truth of a scenario: 128 MiB of content, or ULLAGE_SCENARIO_MIB."""

import math
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.cluster.drawing import draw
from tests.cluster.fleet import Fleet
from tests.cluster.operator_process import Operator, objects
from tests.cluster.prometheus import Sample
from tests.cluster.scenario import NODE, REFUSALS, SIZE, Scenario, panels, playing
from tests.cluster.workloads import backup, executor

pytestmark = pytest.mark.timeout(1200)  # seconds; a GiB takes a minute or two

MIB = 1 << 20
BLOCK = 4_096
SIZE_MIB = int(os.environ.get("ULLAGE_SCENARIO_MIB", "128"))
PICTURES = Path(__file__).parents[2] / ".pictures"
TOLERANCE = 0.02
STRETCH_SECONDS = 25.0
"""Of a rate: it is off by about the time between two scrapes, which is then a hundredth."""

NOTHING_IN_A_CONTAINER = ("Kept by leases", "Orphans", "Back-pressure", "Away")
NOTHING_ON_A_NODE = (
    *("FlowFiles", "Full queues", "Unavailable contents", "Unavailable swap files", "Records set aside"),
    *("Unproved files", "Oldest dead byte", "Goal missed", "Clock offset", "Leases", "Sessions", "Audit lines lost"),
    *("Not shipped for", "Not shipped", "Shipping fails"),
)
"""Panels that show trouble, or what no client of the scenario does."""

Values = dict[tuple[str, ...], float]
"""Of one panel, by the labels of its legend."""

Truths = dict[tuple[str, str], Values]
"""By dashboard and panel."""


@pytest.fixture
def scenario(
    fleet: Fleet, operator: Operator, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Scenario]:
    with playing(fleet, operator, place, tmp_path, SIZE_MIB, monkeypatch) as made:
        yield made


def shown(scenario: Scenario, panel: tuple[str, str], at: float, seconds: float) -> Values:
    """What a panel's query answers, by the labels of its legend; rates as what they come to in that time."""
    expression, legend = panels()[panel]
    stretch = f"{seconds * 1000:.0f}ms"
    query = expression.replace("$job", ".+").replace("$instance", ".+").replace("$__rate_interval", stretch)
    found = [each for each in scenario.prometheus.query(query, at) if _concerns(scenario, each)]
    is_rate = "rate(" in query and "quantile" not in query
    return {tuple(each.labels[label] for label in legend): each.value * (seconds if is_rate else 1) for each in found}


def _concerns(scenario: Scenario, sample: Sample) -> bool:
    """The operator may look after others too."""
    return sample.labels.get("namespace", scenario.place) == scenario.place


def differences(scenario: Scenario, truths: Truths, at: float, seconds: float) -> list[str]:
    """Each value that is more than two per cent off, that is missing, or that nobody expects."""
    told = []
    for panel, truth in truths.items():
        found = shown(scenario, panel, at, seconds)
        print(f"{'/'.join(panel)}: {found} {truth}")
        told += [
            f"{'/'.join(panel)} {key}: {found.get(key)}, and the truth is {truth.get(key, 0.0)}"
            for key in {*found, *truth}
            if not math.isclose(found.get(key, math.nan), truth.get(key, 0.0), rel_tol=TOLERANCE)
        ]
    return told


def commits(scenario: Scenario) -> dict[float, float]:
    """Of the agent's own histogram: how many took no longer, by seconds."""
    text = scenario.server.metrics.text().decode()
    rows = re.findall(r'ullage_commit_seconds_bucket\{le="([^"]+)"\} (\S+)', text)
    return {float(bound): float(count) for bound, count in rows}


def p99(before: dict[float, float], after: dict[float, float]) -> float:
    """Of the commits in between, by linear interpolation in their bucket."""
    counts = {bound: count - before[bound] for bound, count in after.items()}
    rank = 0.99 * counts[math.inf]
    lower, below = 0.0, 0.0
    for bound, count in counts.items():
        if count >= rank:
            return lower + (bound - lower) * (rank - below) / (count - below)
        lower, below = bound, count
    raise AssertionError("no commit")


def waiting(scenario: Scenario) -> Truths:
    """While half of the content is dropped, and a pod of Spark's is in the way."""
    here = (scenario.place, "flows")
    dropped = len(scenario.dropped) * SIZE
    ends = scenario.batches * SIZE  # of each file the last content was dropped
    dead = {"tail": ends, "middle": dropped - ends, "unused": 0}
    return {
        ("fleet", "Deferrals"): {here: 1},
        ("fleet", "Tickets"): {here: 0},
        ("fleet", "Dead by kind"): {(kind,): size for kind, size in dead.items()},
        ("node", "Dead space"): {("c1", kind): size for kind, size in dead.items()},
    }


def reclaimed(scenario: Scenario, freed: int, commit_seconds: float, reconciled: dict[str, float], at: float) -> Truths:
    """At the end of the run, after some refusals: every panel there is."""
    here, instance = (scenario.place, "flows"), scenario.server.urls["metrics"].split("/")[2]
    kept, dropped = len(scenario.kept) * SIZE, len(scenario.dropped) * SIZE
    kinds = ("tail", "middle", "unused")
    actions = dict.fromkeys(shown(scenario, ("node", "Reclaim actions"), at, 60), 0.0)
    errors = refusals(scenario, at)
    return {
        ("node", "Space in use"): {("c1",): kept},
        ("node", "Dead space"): {("c1", kind): 0 for kind in kinds},
        ("node", "Archive"): {("c1",): 0},
        ("node", "Tombstones"): {("c1",): 0},
        ("node", "Free"): {("c1",): shutil.disk_usage(scenario.content).free},
        ("node", "Write amplification"): {(instance,): (2 * kept + dropped) / (kept + dropped)},
        ("node", "Reclaimed"): {(instance,): freed},
        ("node", "Reclaim actions"): actions | {("rewrite",): scenario.report()["actions"]},
        ("node", "Windows"): {(name,): 1 for name in ("Delete", "Truncate", "Punch", "Rewrite")},
        ("node", "Commit p99"): {(instance,): commit_seconds},
        ("node", "Log"): {(instance,): scenario.log_bytes},
        ("node", "Age of checkpoint"): {(instance,): snapshot_age(scenario, at)},
        ("node", "Provenance waiting"): {(instance,): len(scenario.kept) + 2 * len(scenario.dropped)},
        ("node", "Stream backlog"): {(instance, "audit", "(events)"): len(scenario.kept) + 2 * len(scenario.dropped)},
        ("node", "Stream lag"): {(instance, "audit", "(events)"): at - scenario.first_event.millis / 1000},
        ("node", "Errors"): errors,
        ("node", "Poisoned"): {("c1",): 0},
        ("node", "Ready"): {(instance,): 1},
        ("node", "On disk"): {("c1",): scenario.disk_bytes()},
        **{("node", title): {("c1",): 0} for title in NOTHING_IN_A_CONTAINER},
        **{("node", title): {(instance,): 0} for title in NOTHING_ON_A_NODE},
        ("fleet", "Live"): {(): kept},
        ("fleet", "Dead by kind"): {(kind,): 0 for kind in kinds},
        ("fleet", "Reclaimed"): {(): freed},
        ("fleet", "Copied"): {(): kept},
        ("fleet", "Fullest"): {(instance, "c1"): scenario.disk_bytes() / scenario.capacity},
        ("fleet", "Errors"): errors,
        ("fleet", "Nodes"): {(*here, "wanted"): 3, (*here, "ready"): 1, (*here, "lost"): 0},
        ("fleet", "Windows open"): {here: 1},
        ("fleet", "Tickets"): {here: 0},
        ("fleet", "Deferrals"): {here: 0},
        ("fleet", "Wanting"): {here: 0},
        ("fleet", "Overdue"): {here: 0},
        ("fleet", "Backups current"): {(scenario.place, "nightly"): 1},
        ("fleet", "Backups damaged"): {(scenario.place, "nightly"): 0},
        ("fleet", "Backups verified"): {(scenario.place, "nightly"): 1},
        ("fleet", "Certificates end in"): {here: scenario.certificate_ends() - at},
        ("fleet", "Conditions"): {(*here, name): float(holds) for name, holds in scenario.conditions().items()},
        ("fleet", "Operators at work"): {(): 1},
        ("fleet", "Reconciliations"): {(outcome,): count for outcome, count in reconciled.items()},
    }


def snapshot_age(scenario: Scenario, at: float) -> float:
    """Of the file on the disk, when the agent was last scraped: seconds."""
    scraped = scenario.prometheus.query("timestamp(ullage_checkpoint_age_seconds)", at)[0].value
    return scraped - (scenario.content.parent / "flowfile" / "snapshot").stat().st_mtime


def refusals(scenario: Scenario, at: float) -> Values:
    """Of every sort none, but for those that were asked for."""
    every = dict.fromkeys(shown(scenario, ("node", "Errors"), at, 60), 0.0)
    return every | {("no-such-handle",): REFUSALS}


def test_every_panel_shows_what_happened(fleet: Fleet, scenario: Scenario) -> None:
    """Content comes and half goes, a deferral, a run, refusals, a failed sync: at each moment the panels say so."""
    place, deferrals = scenario.place, ("fleet", "Deferrals")
    fleet.apply(backup(place, schedule="0 1 * * *", suspend=True))
    began_commits = commits(scenario)
    beginning = scenario.quiet()
    began = beginning.since
    fleet.apply(executor(place, NODE))
    scenario.fill()
    full = scenario.disk_bytes()
    scenario.join()
    scenario.until("it waits for Spark", lambda: "deferral" in objects(fleet, place)[NODE]["spec"])
    scenario.until("it is told", lambda: shown(scenario, deferrals, time.time(), 60) == {(place, "flows"): 1})
    at = scenario.scraped()
    assert differences(scenario, waiting(scenario), at, at - began) == []

    at_once = ("--wait=false", "--grace-period=0", "--force")
    fleet.kubectl("delete", "pod", "exec-1", "--namespace", place, *at_once)
    scenario.until("it is reclaimed", lambda: scenario.report().get("state") == "Completed")
    scenario.until("the ticket is gone", lambda: "ticket" not in objects(fleet, place)[NODE]["spec"])
    scenario.refuse()
    scenario.until("rates are exact", lambda: time.time() - began > STRETCH_SECONDS)
    end = scenario.quiet()
    at = end.scraped
    reconciled = {outcome: count - beginning.reconciles[outcome] for outcome, count in end.reconciles.items()}
    freed = scenario.report()["freedBytes"]
    truths = reclaimed(scenario, freed, p99(began_commits, commits(scenario)), reconciled, at)
    assert truths.keys() == panels().keys()
    assert freed == len(scenario.dropped) * SIZE
    # With holes a file may have more than four extents, whose list ext4 then keeps in a block of its own.
    lists = BLOCK * scenario.file_count()
    assert freed - lists <= full - scenario.disk_bytes() <= freed + lists
    assert differences(scenario, truths, at, at - began) == []

    scenario.break_disk()
    at = scenario.scraped()
    errors = refusals(scenario, at) | {("write-failed",): 1.0}
    failed: Truths = {("node", "Poisoned"): {("c1",): 1}, ("node", "Errors"): errors}
    assert differences(scenario, failed, at, at - began) == []
    poisoned = 'ALERTS{alertname="UllageFsyncPoisoned",alertstate="firing"}'
    scenario.until("the alert fires", lambda: len(scenario.prometheus.query(poisoned)) == 1)
    PICTURES.mkdir(exist_ok=True)
    for name in ("fleet", "node"):
        drawn = draw(name, scenario.prometheus.query_stretch, began, scenario.scraped())
        (PICTURES / f"dashboard-{name}.svg").write_text(drawn, encoding="utf-8")


def test_who_shows_no_token_scrapes_nothing(scenario: Scenario) -> None:
    """The agent's figures are not for everybody."""
    url = f"{scenario.server.urls['metrics']}metrics".replace("127.0.0.1", "localhost")
    answer = httpx.get(url, verify=False)
    assert answer.status_code == 401
