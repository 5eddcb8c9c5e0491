"""Debian's Prometheus in a pod of the cluster: what it scrapes of the agents and the operator, and what it raises."""

import json
import math
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster import images
from tests.cluster.debian import program
from tests.cluster.prometheus import Answers, scraping
from tests.cluster.release import SYSTEM, Flows, account
from tests.cluster.scenario import panels
from tests.cluster.workloads import backup, made
from tests.e2e.story import Story
from ullage.contract import audience_of
from ullage.wire import tickets
from ullage.wire.tickets import EventHoldRequest

NAME = "prometheus"
PORT = 9090
AGENT_PORT = 8482
OPERATOR_PORT = 8483
TOKEN = "/configuration/token"
PATIENCE = "5s"
"""Of every alert here; in the chart they wait minutes, so that nobody is woken by what passes."""

SIZE = 64 << 10
ALERTS = Path(images.ROOT) / "charts/ullage/files/alerts.yaml"


@dataclass
class Watched:
    """The repository, and the Prometheus that watches it."""

    story: Story
    answers: Answers

    def firing(self) -> set[tuple[str, str]]:
        """Alerts and whom they are about."""
        found = self.answers.query('ALERTS{alertstate="firing"}')
        return {(each.labels["alertname"], each.labels.get("instance", "")) for each in found}


@pytest.fixture(scope="module")
def watched(story: Story) -> Iterator[Watched]:
    """Every agent and the operator are scraped, over TLS, with the token of an account that may get repositories."""
    flows = story.flows
    cluster = flows.cluster
    cluster.load(images.base_archive())
    cluster.apply(*account(flows.namespace, NAME, "scraper"), _configuration(flows), _pod(flows))
    cluster.kubectl("wait", "--for=condition=Ready", f"pod/{NAME}", flows.here, "--timeout=120s")
    address = cluster.get(f"pod/{NAME}", flows.here)["status"]["podIP"]
    answers = Answers(f"http://127.0.0.1:{cluster.forward(address, PORT)}")
    cluster.wait_until("Prometheus is ready", answers.is_ready)
    yield Watched(story, answers)
    cluster.kubectl("delete", "pod", NAME, flows.here)


def _configuration(flows: Flows) -> dict[str, Any]:
    """Addresses of DNS: Debian's Prometheus has no eyes for Kubernetes."""
    agents = [address_of(flows, node) for node in flows.cluster.nodes]
    operator = f"ullage-operator.{SYSTEM}.svc.cluster.local:{OPERATOR_PORT}"
    tls, alerts = {"ca_file": "/configuration/ca.crt"}, "/configuration/alerts.yaml"
    config = scraping(agents, operator, tls=tls, token=TOKEN, every="2s", alerts=alerts)
    rules = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule["for"] = PATIENCE
    files = {"prometheus.yml": json.dumps(config), "alerts.yaml": json.dumps(rules)}
    return made("v1", "ConfigMap", NAME, flows.namespace, data=files)


def address_of(flows: Flows, node: str) -> str:
    """At which the agent of a node tells its figures, by the name that its certificate has too."""
    return f"{node}.flows-nodes.{flows.namespace}.svc.cluster.local:{AGENT_PORT}"


def _pod(flows: Flows) -> dict[str, Any]:
    """The program comes from the node's disk: it needs the C library and nothing else."""
    flags = ["--config.file=/configuration/prometheus.yml", "--storage.tsdb.path=/data", "--log.level=warn"]
    container = {
        "name": NAME,
        "image": images.BASE_NAME,
        "imagePullPolicy": "Never",
        "command": [f"/program/{NAME}", *flags],
        "readinessProbe": {"httpGet": {"path": "/-/ready", "port": PORT}, "periodSeconds": 1},
        "volumeMounts": [
            {"name": "program", "mountPath": "/program", "readOnly": True},
            {"name": "configuration", "mountPath": "/configuration", "readOnly": True},
            {"name": "data", "mountPath": "/data"},
        ],
    }
    token = {"audience": audience_of(flows.namespace, "flows"), "path": "token"}
    sources = [
        {"configMap": {"name": NAME}},
        {"configMap": {"name": "flows-ullage-ca"}},
        {"serviceAccountToken": token},
    ]
    spec = {
        "serviceAccountName": NAME,
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
        "volumes": [
            {"name": "program", "hostPath": {"path": str(Path(program(NAME, "prometheus")).parent)}},
            {"name": "configuration", "projected": {"sources": sources}},
            {"name": "data", "emptyDir": {}},
        ],
    }
    return made("v1", "Pod", NAME, flows.namespace, spec=spec)


def test_every_panel_of_the_dashboards_shows_data(watched: Watched) -> None:
    """While content comes and goes and a stream does not read its events, no query of theirs is without an answer."""
    flows = watched.story.flows
    with flows.flight() as flight:
        flight.act(tickets.HOLD_EVENTS, EventHoldRequest(holder="late"))
    flows.cluster.apply(backup(flows.namespace, schedule="0 1 * * *", suspend=True))
    empty: list[str] = []

    def all_show_something() -> bool:
        (handle,) = flows.repository.handles.put_many([secrets.token_bytes(SIZE)])
        flows.repository.handles.delete(handle)
        empty[:] = ["/".join(panel) for panel, (expression, _) in panels().items() if not _shows(watched, expression)]
        return not empty

    try:
        flows.cluster.wait_until("all panels show something", all_show_something)
    finally:
        print(f"without data: {empty}")
        flows.cluster.kubectl("delete", "contentbackup", "nightly", flows.here)
    assert {each.labels["instance"] for each in watched.answers.query('up{job="ullage-agent"} == 1')} == {
        address_of(flows, node) for node in flows.cluster.nodes
    }


def _shows(watched: Watched, expression: str) -> bool:
    """Whether its query answers with some number: the quantile of an agent to which nobody wrote is none."""
    query = expression.replace("$job", ".+").replace("$instance", ".+").replace("$__rate_interval", "60s")
    return any(math.isfinite(each.value) for each in watched.answers.query(query))


def test_an_alert_fires_while_an_agent_hangs_and_clears_afterwards(watched: Watched) -> None:
    """Its process is stopped for a while: it is the one that the alert is about, and it goes on where it was."""
    flows = watched.story.flows
    node = next(node for node in flows.cluster.nodes if node != flows.repository.state().node)
    alert = ("UllageAgentDown", address_of(flows, node))
    pod = flows.pods()[node]
    flows.cluster.wait_until("no alert is about agents", lambda: "UllageAgentDown" not in dict(watched.firing()))

    flows.cluster.kill_container(flows.namespace, pod, "SIGSTOP")
    flows.cluster.wait_until("the alert fires", lambda: alert in watched.firing())
    assert [name for name, _ in watched.firing()].count("UllageAgentDown") == 1
    flows.cluster.kill_container(flows.namespace, pod, "SIGCONT")

    flows.cluster.wait_until("the alert clears", lambda: alert not in watched.firing())
    flows.wait_until_ready()
    assert watched.story.is_all_there()
