"""The chart as somebody installs it: a release of helm's on real nodes, and a repository under it with its client."""

import json
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import ullage
from tests.cluster import images, workloads
from tests.cluster.errors import ClusterError
from tests.cluster.node import Cluster
from tests.cluster.operator_process import repository
from ullage import Repository, Retries
from ullage.client.flight import FlightClient
from ullage.contract import ROLES, audience_of, rules_of
from ullage_operator.objects import RBAC

CHART = images.ROOT / "charts" / "ullage"
SYSTEM = "ullage-system"
RELEASE = ("ullage", f"--namespace={SYSTEM}")
KINDS = ("contentrepositories", "contentrepositorynodes", "reclamationruns", "contentbackups", "contentrestores")
PORT = 8480
FLIGHT_PORT = 8481
BALLAST = "ballast"
"""The file of a container that holds a reserve."""

SPEC: dict[str, Any] = {
    "storage": {
        "hostPath": {"path": "/var/lib/ullage"},
        "containers": [{"name": "c1", "subPath": "c1", "capacity": "2Gi"}],
    },
    "compaction": {"minUsedPercentage": 0, "minReclaim": 0, "deletedRetention": "1s"},
}
CLOSED = [{"name": "newyear", "schedule": "0 0 1 1 *", "duration": "1m"}]
OPEN = [{"name": "always", "schedule": "* * * * *", "duration": "5m"}]


def install(cluster: Cluster, chart: Path = CHART) -> None:
    """The release, with the images that the nodes have."""
    name, tag = images.image_name("operator").rsplit(":", 1)
    values = {
        "image.repository": name,
        "image.tag": tag,
        "image.pullPolicy": "Never",
        "agentImage": images.image_name("agent"),
        "sparkImage": images.image_name("spark"),
        "allowedImages[0]": images.BASE_NAME,
    }
    environment = [{"name": "ULLAGE_OPERATOR_FIGURES_SECONDS", "value": "1"}]
    sets = [f"--set={key}={value}" for key, value in values.items()]
    sets.append(f"--set-json=extraEnv={json.dumps(environment)}")
    cluster.helm("install", *RELEASE, chart, "--wait", "--timeout=180s", *sets)


@contextmanager
def installed_on(cluster: Cluster, chart: Path = CHART) -> Iterator[Cluster]:
    """The release, in a namespace for restricted pods only; CRDs go at the end too: the cluster serves others."""
    for target in ("agent", "operator"):
        cluster.load(images.archive(target))
    with cluster.namespace(SYSTEM):
        cluster.kubectl("label", "namespace", SYSTEM, "pod-security.kubernetes.io/enforce=restricted")
        install(cluster, chart)
        yield cluster
        if "ullage" in cluster.helm("list", f"--namespace={SYSTEM}", "--short"):
            cluster.helm("uninstall", *RELEASE, "--no-hooks", "--wait")
        cluster.kubectl("delete", "crd", *(f"{each}.ullage.dev" for each in KINDS), "--timeout=60s")


class Flows:
    """A repository on all nodes, reached through its Service on the first node."""

    repository: Repository

    def __init__(
        self, cluster: Cluster, namespace: str, folder: Path, spec: dict[str, Any] = SPEC, *, has_account: bool = False
    ) -> None:
        """`has_account`: somebody has made the account `flow` and given it rights; it gets all of them otherwise."""
        self.cluster = cluster
        self._spec = spec
        self.namespace = namespace
        self.here = f"--namespace={namespace}"
        self._folder = folder
        self._connected = ExitStack()
        if not has_account:
            cluster.apply(*account(namespace, "flow", "admin"))

    def apply(self, windows: list[dict[str, Any]], **more: Any) -> None:
        """The repository with these windows, and more of its spec."""
        self.cluster.apply(repository(self.namespace, self._spec | {"maintenance": {"windows": windows}} | more))

    def change(self, **sections: Any) -> None:
        """From the next time that it is applied on its spec has these."""
        self._spec = self._spec | sections

    def begin(self) -> None:
        """Apply it with a window that is closed, wait until it is Ready, and connect to it anew."""
        self.apply(CLOSED)
        self.wait_until_ready()
        self.connect()

    def wait_until_ready(self) -> None:
        """All agents serve what was applied last."""
        try:
            self.cluster.wait_until("all agents serve", lambda: self.is_("Ready"), seconds_max=180)
        except ClusterError as error:
            raise ClusterError(f"{error}\n{self._told()}") from error

    def is_(self, condition: str) -> bool:
        """Whether the operator says so of what was applied last."""
        found = self.shown()
        status = found.get("status") or {}
        true = {each["type"] for each in status.get("conditions") or () if each["status"] == "True"}
        return condition in true and status["observedGeneration"] == found["metadata"]["generation"]

    def connect(self) -> None:
        """With the authority, the address and a token as they are now."""
        authority = self._folder / "ca.crt"
        authority.write_text(self.cluster.get("configmap/flows-ullage-ca", self.here)["data"]["ca.crt"])
        audience = f"--audience={audience_of(self.namespace, 'flows')}"
        token = self.cluster.kubectl("create", "token", "flow", self.here, "--duration=2h", audience).strip()
        address = self.cluster.get("service/flows-local", self.here)["spec"]["clusterIP"]
        url = f"https://localhost:{self.cluster.forward(address, PORT)}"
        self._address = url, token, str(authority)
        self._connected.close()
        self.repository = self._connected.enter_context(self.connected())
        self.repository.state()

    def connected(self, retries: Retries | None = None, *, is_known: bool = True) -> Repository:
        """Another connection to the same place, for whoever wants other retries, or shows no token."""
        url, token, authority = self._address
        return ullage.connect(url, token=token if is_known else None, ca_file=authority, retries=retries)

    def flight(self) -> FlightClient:
        """A client over Flight of the same agent, as the same account."""
        _, token, authority = self._address
        address = self.cluster.get("service/flows-local", self.here)["spec"]["clusterIP"]
        return FlightClient(
            f"grpc+tls://localhost:{self.cluster.forward(address, FLIGHT_PORT)}", token, ca_file=authority
        )

    def disconnect(self) -> None:
        """Let go of the connection; the repository stays as it is."""
        self._connected.close()

    def close(self) -> None:
        """Delete it, if it is still there."""
        self.disconnect()
        if self.cluster.get("contentrepositories", self.here)["items"]:
            self.delete()

    def delete(self) -> None:
        """Delete it and wait until its agents have ended; its data stays.

        The object is gone first: its pods are collected in the background, and write until they end.
        """
        self.cluster.kubectl("delete", "contentrepository", "flows", self.here, "--timeout=120s")
        self.cluster.wait_until("its agents have ended", lambda: not self.pods())

    def shown(self) -> dict[str, Any]:
        """As the API server has it."""
        found: dict[str, Any] = self.cluster.get("contentrepository/flows", self.here)
        return found

    def disk_bytes(self, node: str) -> int:
        """What the repository's content takes on a node's disk, from outside; the ballast is none."""
        top: Path = self.cluster.nodes[node].disk / "data" / self.namespace / "flows" / "c1"
        return sum(path.stat().st_blocks * 512 for path in top.rglob("*") if path.is_file() and path.name != BALLAST)

    def half_dropped(self, batches: int, count: int, size: int) -> tuple[dict[str, bytes], int]:
        """Put `batches` of `count` contents of `size` bytes and delete every second one, until the agent counts it as
        dead: what is kept, by handle, and how many bytes were dropped.
        """
        kept: dict[str, bytes] = {}
        before = self.dead_bytes()
        for _ in range(batches):
            contents = [secrets.token_bytes(size) for _ in range(count)]
            handles = self.repository.handles.put_many(contents)
            kept |= dict(list(zip(handles, contents, strict=True))[::2])
            for handle in handles[1::2]:
                self.repository.handles.delete(handle)
        dropped = batches * count * size // 2
        self.cluster.wait_until("what was dropped is dead", lambda: self.dead_bytes() >= before + dropped)
        return kept, dropped

    def dead_bytes(self) -> int:
        """What the agent behind the Service says; what has moved to the archive is dead too."""
        return sum(each.dead_bytes + each.archived_bytes for each in self.repository.reclamation.survey().containers)

    def pods(self) -> dict[str, str]:
        """The agents' pods by node; one that waits for its node is on none."""
        listed = self.cluster.get("pods", self.here, "--selector=app.kubernetes.io/name=ullage-agent")["items"]
        return {each["spec"]["nodeName"]: each["metadata"]["name"] for each in listed if "nodeName" in each["spec"]}

    def _told(self) -> str:
        """What is known of a repository that does not get ready."""

        def said(*words: str) -> str:
            try:
                return self.cluster.kubectl(*words)
            except ClusterError as error:  # of a container that never began there is no log: that is told too
                return str(error)

        status = json.dumps(self.shown().get("status"), indent=1)
        pods = said("describe", "pods", self.here)[-6000:]
        chosen = "--selector=app.kubernetes.io/name=ullage-agent"
        logs = said("logs", chosen, self.here, "--all-containers")[-3000:]
        operator = said("logs", "deployment/ullage-operator", f"--namespace={SYSTEM}", "--tail=40")
        return f"{status}\n{pods}\n{logs}\n{operator}"


def account(place: str, name: str, role: str) -> list[dict[str, Any]]:
    """Somebody with what belongs to this role on the repository `flows`."""
    rules = rules_of(ROLES[role], ["flows"])
    made = workloads.made(f"{RBAC}/v1", "Role", name, place, rules=rules)
    return [made, *workloads.account(name, place, name, "Role")]
