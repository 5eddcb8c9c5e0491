"""The operator as its own process and service account, against an API server; and what tests ask and say there."""

import contextlib
import json
import os
import select
import signal
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.cluster.control_plane import ControlPlane
from tests.cluster.errors import ClusterError
from tests.cluster.fleet import Fleet
from tests.cluster.workloads import made
from ullage.contract import API_VERSION, object_name
from ullage_operator.install import NAME, NAMESPACE
from ullage_operator.objects import digest

ROOT = Path(__file__).parents[2]
SECONDS_MAX = 60.0
ROOTS = ("/var/lib/ullage", "/var/lib/ullage/nested")
IMAGES = ("agent:1", "agent:2", "agent:3", "agent:broken", "agent:mended", "spark:1")
"""What the operator of these tests allows; the second directory lies where repositories of a namespace would."""

QUICK = {
    "ULLAGE_OPERATOR_SETTLE_SECONDS": "0.2",
    "ULLAGE_OPERATOR_FIGURES_SECONDS": "1",
    "ULLAGE_OPERATOR_ROOTS": ",".join(ROOTS),
    "ULLAGE_OPERATOR_IMAGES": ",".join(IMAGES),
}


class Operator:
    """The operator's process, started and killed at will. Settings as in its Deployment, but for the ports."""

    def __init__(
        self, fleet: ControlPlane, settings: Mapping[str, str] = QUICK, server: str = "", namespace: str = NAMESPACE
    ) -> None:
        """`server`: where the API server is reached instead; `namespace`: where it is installed."""
        self.fleet = fleet
        self.metrics_port = fleet.instance.free_port()
        self._name = f"operator-{self.metrics_port}"
        token = fleet.kubectl("create", "token", NAME, "--namespace", namespace, "--duration=2h").strip()
        config = json.loads(fleet.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": token}
        config["clusters"][0]["cluster"]["server"] = server or fleet.url
        kubeconfig = fleet.instance.home / f"{self._name}.kubeconfig"
        kubeconfig.write_text(json.dumps(config))
        self._environment = {
            "KUBECONFIG": str(kubeconfig),
            "ULLAGE_OPERATOR_METRICS_PORT": str(self.metrics_port),
            "ULLAGE_OPERATOR_HEALTH_PORT": "0",
            "ULLAGE_OPERATOR_NAMESPACE": namespace,
            **settings,
        }

    def start(self, **settings: str) -> None:
        """With these settings too."""
        command = [sys.executable, "-m", "ullage_operator"]
        self.pid = self.fleet.instance.start(self._name, command, self._environment | settings).pid

    def end(self, number: int = signal.SIGTERM) -> None:
        self.fleet.instance.end(self._name, number)

    def ended(self) -> None:
        """Wait until it has ended by itself; ClusterError if it goes on."""
        descriptor = os.pidfd_open(self.pid)
        has_ended, _, _ = select.select([descriptor], [], [], SECONDS_MAX)
        os.close(descriptor)
        if not has_ended:
            raise ClusterError(f"{self._name} goes on\n{self.tail()}")
        self.end()

    def answers(self) -> bool:
        """Whether it has started."""
        try:
            self.writes()
        except OSError:
            return False
        return True

    def is_logged(self, text: str) -> bool:
        return text in self.fleet.instance.log(self._name).read_text()

    def tail(self) -> str:
        """What it said last."""
        return self.fleet.instance.log(self._name).read_text()[-3000:]

    def writes(self) -> float:
        return sum(self.counted("api_writes").values())

    def counted(self, name: str) -> dict[str, float]:
        """One of its counters, by the value of its label."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=5) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        samples = [sample for family in families for sample in family.samples]
        found = [sample for sample in samples if sample.name == f"ullage_operator_{name}_total"]
        return {label: sample.value for sample in found for label in sample.labels.values()}

    def gauge(self, name: str, **labels: str) -> float:
        """One of its gauges, with these labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=5) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        samples = [sample for family in families for sample in family.samples]
        [found] = [s for s in samples if s.name == f"ullage_operator_{name}" and labels.items() <= s.labels.items()]
        return float(found.value)

    def runs(self, place: str, spec: dict[str, Any] | None = None) -> None:
        """The repository `flows` is applied, and a pod is ready on each of its nodes."""
        self.fleet.apply(repository(place, spec))
        self.until("the agents run", lambda: condition(self.fleet, place, "Reconciling") == "False")

    def until(self, what: str, holds: Callable[[], bool]) -> None:
        try:
            self.fleet.wait_until(what, holds, SECONDS_MAX)
        except ClusterError as error:
            kinds = "contentrepositories,daemonsets,pods,nodes"
            shown = self.fleet.kubectl("get", kinds, "--all-namespaces", "-o=wide")
            raise ClusterError(f"{error}\n{shown}\n{self.tail()}") from error


@pytest.fixture(scope="module")
def operator(fleet: Fleet) -> Iterator[Operator]:
    """Installed by install.yaml, except that its process runs here."""
    documents = list(yaml.safe_load_all((ROOT / "deploy" / "install.yaml").read_text()))
    definitions = [each for each in documents if each["kind"] == "CustomResourceDefinition"]
    fleet.apply(*definitions)
    for definition in definitions:
        fleet.kubectl("wait", "--for=condition=Established", f"crd/{definition['metadata']['name']}", "--timeout=30s")
    fleet.apply(*(each for each in documents if each["kind"] not in ("CustomResourceDefinition", "Deployment")))
    fleet.add_nodes(3, "worker")
    running = Operator(fleet)
    running.start()
    yield running
    running.end()


@pytest.fixture
def place(fleet: Fleet, operator: Operator) -> Iterator[str]:
    """A namespace whose repositories are deleted while the operator still runs."""
    with fleet.namespace(awaits_end=False) as name:
        yield name
        fleet.kubectl("delete", "contentrepositories", "--all", "--namespace", name, "--timeout=60s")


def repository(place: str, spec: dict[str, Any] | None = None, name: str = "flows") -> dict[str, Any]:
    return made(API_VERSION, "ContentRepository", name, place, spec=spec or {})


def objects(fleet: ControlPlane, place: str, name: str = "") -> dict[str, Any]:
    """Node objects by node: all, or those of one repository."""
    found = fleet.get("contentrepositorynodes", "--namespace", place)["items"]
    return {each["spec"]["nodeName"]: each for each in found if name in ("", each["spec"]["repository"])}


def condition(fleet: ControlPlane, place: str, type: str, name: str = "flows") -> str:
    found = fleet.get("contentrepository", name, "--namespace", place).get("status") or {}
    return next((c["status"] for c in found.get("conditions", ()) if c["type"] == type), "")


def say_ready(
    fleet: ControlPlane,
    place: str,
    node: str,
    name: str = "flows",
    troubles: Mapping[str, str] | None = None,
    **more: Any,
) -> None:
    """What an agent of the repository would write of itself; `troubles`: conditions that hold, and their reasons."""
    now = now_text()
    said = {"Ready": "Serves", **(troubles or {})}
    conditions = [
        {"type": type, "status": "True", "reason": reason, "message": f"{reason} in words", "lastTransitionTime": now}
        for type, reason in said.items()
    ]
    generation = fleet.get("contentrepository", name, "--namespace", place)["metadata"]["generation"]
    status = {
        "heartbeat": now,
        "settingsGeneration": generation,
        "repositoryUuid": "u",
        "conditions": conditions,
        **more,
    }
    say(fleet, place, "contentrepositorynode", object_name(name, node), status)


def say(fleet: ControlPlane, place: str, kind: str, name: str, status: dict[str, Any]) -> None:
    """Of an object, as its own controller would."""
    patch = f"--patch={json.dumps({'status': status})}"
    fleet.kubectl("patch", kind, name, "--namespace", place, "--subresource=status", "--type=merge", patch)


def token_of_pod(fleet: ControlPlane, place: str, node: str) -> str:
    """That of the agent's pod on a node."""
    here = ("--namespace", place)
    pod = next(each for each in fleet.get("pods", *here)["items"] if each["spec"].get("nodeName") == node)
    bound = ("--bound-object-kind=Pod", f"--bound-object-name={pod['metadata']['name']}")
    uid = f"--bound-object-uid={pod['metadata']['uid']}"
    return fleet.kubectl("create", "token", "flows-ullage-agent", *here, *bound, uid).strip()


def template(fleet: ControlPlane, place: str) -> dict[str, Any]:
    """Of the DaemonSet's pods: what stands in their spec."""
    found: dict[str, Any] = fleet.get("daemonset", "flows-ullage", "--namespace", place)["spec"]["template"]["spec"]
    return found


def now_text() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def done_by(ticket: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """What an agent would write of this ticket once it has done what it says; `more`: of the report."""
    whose = {name: ticket[name] for name in ("id", "run", "runUid") if name in ticket}
    return {**whose, "state": "Completed", **more}


@contextlib.contextmanager
def spoiled_authority(fleet: ControlPlane, operator: Operator, place: str, name: str) -> Iterator[None]:
    """The secret of a repository's authority is no certificate, as if somebody had edited it; gone at the end."""
    secret = ("secret", f"ullage-authority-{digest(f'{place}/{name}')}", "--namespace", NAMESPACE)
    fleet.kubectl("patch", *secret, "--type=merge", '--patch={"data": {"ca.crt": "bm9uZQ=="}}')
    operator.end()
    operator.start()
    yield
    fleet.kubectl("delete", *secret)
