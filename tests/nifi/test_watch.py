"""`ullage nifi watch`: what it measures is what a survey says, whatever fails, and Prometheus can be asked for it."""

import json
import re
import shlex
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from prometheus_client import generate_latest

from tests.chart.documents import commands
from tests.cluster.debian import program
from tests.cluster.prometheus import Answers
from tests.nifi.example import DAY, NOW_MILLIS, QUEUES, example, write_nifi
from tests.nifi.test_command import run
from tests.nifi.written import Written
from tests.service.running import until
from tests.support import ManualClock
from ullage.nifi.home import find_home
from ullage.nifi.surveying import survey_nifi
from ullage_agent.cli.nifi_metrics import NIFI_TABLE, OTHERS, PREFIX, NiFiMetrics, values_of
from ullage_agent.cli.nifi_watch import NiFiWatch

ROOT = Path(__file__).parents[2]
BOARD = ROOT / "charts/ullage/files/dashboards/nifi.json"
EXAMPLES = sorted((ROOT / "examples/nifi").glob("*.yaml"))
RUNBOOKS = sorted((ROOT / "docs/runbooks").glob("NiFi*.md"))


@pytest.fixture
def nifi(tmp_path: Path) -> Path:
    """The one of docs/nifi.md."""
    example(tmp_path / "nifi")
    return tmp_path / "nifi"


def shown(metrics: NiFiMetrics) -> dict[str, float]:
    """Every series, as Prometheus reads it, without the prefix."""
    lines = generate_latest(metrics.registry).decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name.removeprefix(PREFIX): float(value) for name, _, value in pairs}


def test_the_metrics_are_what_a_survey_says(nifi: Path) -> None:
    """Uses add up to all files, and a queue says what comes back once it is empty."""
    watching = NiFiWatch(lambda: find_home(str(nifi)), 20, 60)
    watching.survey()
    found = shown(watching.metrics)
    survey = survey_nifi(find_home(str(nifi)), ManualClock(NOW_MILLIS))

    uses = {name: value for name, value in found.items() if name.startswith("content_bytes")}
    assert sum(uses.values()) == survey.space.size
    assert uses['content_bytes{use="dead_tails"}'] == survey.space.dead_tails > 0
    first = max(survey.queues, key=lambda queue: queue.alone)
    assert found[f'queue_alone_bytes{{queue="{first.name}"}}'] == first.alone > 0
    assert (found["flowfiles"], found["transaction"]) == (survey.flowfiles, survey.transaction)
    assert (found["survey_success"], found['surveys_total{outcome="complete"}']) == (1, 1)
    assert found['volume_free_bytes{container="default"}'] > 0
    assert {re.sub(r"\{.*", "", name) for name in found} == {entry.name for entry in NIFI_TABLE}


def test_a_survey_that_fails_is_told_and_the_next_one_is_made(nifi: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Old values are none; what the volumes have left is measured all the same; the log has a line each."""
    watching = NiFiWatch(lambda: find_home(str(nifi)), 20, 60)
    watching.survey()
    away = nifi / "flowfile_repository" / "away"
    (nifi / "flowfile_repository" / "journals").rename(away)
    watching.survey()
    watching.survey()
    failed = shown(watching.metrics)
    away.rename(nifi / "flowfile_repository" / "journals")
    watching.survey()

    assert failed["survey_success"] == 0
    assert "flowfiles" not in failed
    assert failed['volume_free_bytes{container="default"}'] > 0
    assert failed["survey_timestamp_seconds"] > 0
    assert failed['surveys_total{outcome="failed"}'] == 2
    assert shown(watching.metrics)["survey_success"] == 1
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2
    assert "the survey failed" in told[0]
    assert "has no journals" in told[0]
    assert told[1] == "the survey works again"


def test_another_trouble_is_told_as_well(nifi: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not only the one that it began with."""
    watching = NiFiWatch(lambda: find_home(str(nifi)), 20, 60)
    repository = nifi / "flowfile_repository"
    (repository / "journals").rename(repository / "away")
    watching.survey()
    repository.rename(nifi / "gone")
    watching.survey()
    watching.survey()

    told = capsys.readouterr().err.splitlines()
    assert [("has no journals" in line, "is no directory" in line) for line in told] == [(True, False), (False, True)]


def test_a_volume_that_is_away_has_no_figures(nifi: Path) -> None:
    """What it had left is not what it has."""
    watching = NiFiWatch(lambda: find_home(str(nifi)), 20, 60)
    watching.survey()
    assert 'volume_free_bytes{container="default"}' in shown(watching.metrics)
    (nifi / "content_repository").rename(nifi / "away")

    watching.survey()

    assert not [name for name in shown(watching.metrics) if name.startswith("volume_")]


def test_a_nifi_that_is_not_there_yet_stops_nothing(tmp_path: Path) -> None:
    """Its volume may be mounted later than this begins."""
    watching = NiFiWatch(lambda: find_home(str(tmp_path / "nifi")), 20, 60)
    watching.survey()
    assert shown(watching.metrics)["survey_success"] == 0
    example(tmp_path / "nifi")
    watching.survey()
    assert shown(watching.metrics)["survey_success"] == 1


def test_a_slow_survey_is_told_while_it_goes_on() -> None:
    """The time that it has taken grows, beside the values of the one before."""
    now = [100.0]
    metrics = NiFiMetrics(20, lambda: now[0])
    metrics.begin()
    now[0] += 2
    metrics.end(None)
    metrics.begin()
    now[0] += 1
    assert shown(metrics)["survey_duration_seconds"] == 2
    now[0] += 500
    assert shown(metrics)["survey_duration_seconds"] == 501


def test_only_so_many_queues_have_series_of_their_own(tmp_path: Path) -> None:
    """However many there are: the others are one, and nothing of them is lost."""
    flowfiles = [Written(number, f"queue-{number}", "", 0, 0, NOW_MILLIS - DAY - number) for number in range(50)]
    write_nifi(tmp_path / "nifi", flowfiles, len(flowfiles))
    survey = survey_nifi(find_home(str(tmp_path / "nifi")), ManualClock(NOW_MILLIS))

    values = [each for each in values_of(survey, 5) if each.name == "queue_flowfiles"]
    oldest = [each.value for each in values_of(survey, 5) if each.name == "queue_oldest_timestamp_seconds"]

    assert len(values) == 6
    assert sum(each.value for each in values) == 50
    assert [each.value for each in values if each.labels == (OTHERS,)] == [45]
    assert min(oldest) == (NOW_MILLIS - DAY - 49) / 1_000
    dead = [each.labels for each in values_of(survey, 5) if each.name == "queue_dead_bytes"]
    assert len(dead) == 5
    assert (OTHERS,) not in dead  # nobody knows which files they share


@contextmanager
def watched(*arguments: str) -> Iterator[str]:
    """`ullage nifi watch` as a process: where it serves."""
    command = [str(Path(sys.executable).parent / "ullage"), "nifi", "watch", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert "metrics on http://" in line, line + process.stdout.read()
        yield line.split()[2].rstrip(",")
    finally:
        process.terminate()
        assert process.wait(timeout=60) == 0
        process.stdout.close()


def text_of(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read(), "utf-8")


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[Answers]:
    """A real one, which scrapes this target each second."""
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "scrape_configs": [{"job_name": "nifi", "static_configs": [{"targets": [target]}]}],
        "rule_files": [str(ROOT / "charts/ullage/files/alerts.yaml")],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [
            *(program("prometheus", "prometheus"), f"--config.file={folder / 'prometheus.yml'}"),
            *(f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"),
        ]
    )
    answers = Answers(f"http://127.0.0.1:{port}")
    try:
        until(answers.is_ready, "Prometheus")
        yield answers
    finally:
        process.terminate()
        process.wait(timeout=30)


def test_prometheus_answers_every_panel(nifi: Path, tmp_path: Path) -> None:
    """A real one, which scrapes a real process; the panels' own queries have the survey's values."""
    panels = json.loads(BOARD.read_text(encoding="utf-8"))["panels"]
    selector = {"$job": "nifi", "$instance": ".+", "$__rate_interval": "1m"}
    listen = ("--listen", "127.0.0.1:0", "--every", "1s")
    with watched(str(nifi), *listen) as url, prometheus(tmp_path, url.split("/")[2]) as answers:
        until(lambda: bool(answers.query('ullage_nifi_survey_success{job="nifi"} == 1')), "a scrape")
        empty = []
        for panel in panels:
            expression = panel["targets"][0]["expr"]
            for name, value in selector.items():
                expression = expression.replace(name, value)
            if not answers.query(expression):
                empty.append(panel["title"])
        queues = answers.query("ullage_nifi_queue_alone_bytes > 0")
        fires = answers.query("ALERTS")
    assert empty == ["Full in"]  # the volume does not fill, as far as an hour of nothing tells
    assert [each.labels["queue"] for each in queues] == [
        " / ".join(filter(None, (group, f"{source} -> {end}"))) for group, source, end in list(QUEUES.values())[:1]
    ]
    assert [each for each in fires if "NiFi" in each.labels["alertname"]] == []


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_a_sidecar_of_the_examples_watches(nifi: Path, path: Path) -> None:
    """With its own arguments, where its volumes are mounted; each mount is read-only."""
    cluster, monitor = yaml.safe_load_all(path.read_text(encoding="utf-8"))
    spec = cluster["spec"]
    (sidecar,) = (
        spec["sidecarConfigs"] if "sidecarConfigs" in spec else spec["nodes"]["podOverrides"]["spec"]["containers"]
    )
    assert all(mount["readOnly"] for mount in sidecar["volumeMounts"])
    assert monitor["spec"]["podMetricsEndpoints"][0]["port"] == sidecar["ports"][0]["name"]
    assert sidecar["command"] == ["ullage", "nifi", "watch"]
    assert f"--listen=0.0.0.0:{sidecar['ports'][0]['containerPort']}" in sidecar["args"]

    given = [each for each in sidecar["args"] if not each.startswith("--listen")]
    with watched("--listen", "127.0.0.1:0", "--every", "1s", *(place(each, nifi) for each in given)) as url:
        until(lambda: f"{PREFIX}survey_success 1.0" in text_of(url), "a survey")
        told = text_of(url)
    assert 'queue="Ingest / PutS3 -> funnel"' in told


def place(argument: str, nifi: Path) -> str:
    """What an example mounts, where this NiFi has it."""
    for mounted, here in (
        *(("/nifi/flowfile_repository", "flowfile_repository"), ("/nifi/flowfile", "flowfile_repository")),
        *(("/nifi/content_repository", "content_repository"), ("/nifi/content", "content_repository")),
        *(("/nifi/data/", "conf/"), ("/nifi/database/", "conf/")),
    ):
        if mounted in argument:
            return argument.replace(mounted, str(nifi / here) + ("/" if here.endswith("/") else ""))
    return argument


@pytest.mark.parametrize("runbook", RUNBOOKS, ids=lambda path: path.stem)
def test_the_commands_of_a_runbook_work(nifi: Path, runbook: Path) -> None:
    """Those that are typed into the sidecar."""
    typed = [each.text.split(" -- ullage nifi ")[1] for each in commands(runbook) if " -- ullage nifi " in each.text]
    assert typed
    for each in typed:
        words = [place(word, nifi) for word in shlex.split(each)]
        assert "88 FlowFiles" in run(*("1Mi" if word == "10Gi" else word for word in words)).stdout


def test_an_address_that_is_none_is_refused(nifi: Path) -> None:
    """Before anything is looked at."""
    for address in ("9464", "127.0.0.1:", "127.0.0.1:99999"):
        assert "is no address" in run("watch", nifi, "--listen", address, expect=2).output
    assert "name CONF" in run("watch", "--listen", "127.0.0.1:0", expect=2).output
