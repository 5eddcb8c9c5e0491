"""The chart, installed by helm on two real nodes with the images of the Dockerfile: somebody's first day."""

import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.cluster import images
from tests.cluster.errors import ClusterError
from tests.cluster.node import Cluster
from tests.cluster.operator_process import objects, repository
from ullage_agent.client.errors import NotReachable
from ullage_agent.client.http import HttpClient
from ullage_agent.fleet import object_name

Answer = TypeVar("Answer")

pytestmark = pytest.mark.timeout(1200)  # seconds; on a busy machine an image alone takes minutes to load

CHART = images.ROOT / "charts" / "ullage"
SYSTEM = "ullage-system"
RELEASE = ("ullage", f"--namespace={SYSTEM}")
MIB = 1 << 20
SIZE = MIB // 4
"""Of one content: larger ones would end their file."""

CONTENTS = 32
BATCHES = 4

SPEC: dict[str, Any] = {
    "storage": {
        "hostPath": {"path": "/var/lib/ullage"},
        "containers": [{"name": "c1", "subPath": "c1", "capacity": "2Gi"}],
    },
    "compaction": {"minUsedPercentage": 0, "minReclaim": 0, "deletedRetention": "1s"},
}
CLOSED = [{"name": "newyear", "schedule": "0 0 1 1 *", "duration": "1m"}]
OPEN = [{"name": "always", "schedule": "* * * * *", "duration": "5m"}]


@pytest.fixture(scope="module")
def installed(cluster: Cluster) -> Iterator[Cluster]:
    """The release, in a namespace for restricted pods only; CRDs go at the end too: the cluster serves others."""
    for target in ("agent", "operator"):
        cluster.load(images.archive(target))
    name, tag = images.image_name("operator").rsplit(":", 1)
    values = {
        "image.repository": name,
        "image.tag": tag,
        "image.pullPolicy": "Never",
        "agentImage": images.image_name("agent"),
    }
    environment = [{"name": "ULLAGE_OPERATOR_FIGURES_SECONDS", "value": "1"}]
    with cluster.namespace(SYSTEM):
        cluster.kubectl("label", "namespace", SYSTEM, "pod-security.kubernetes.io/enforce=restricted")
        sets = [f"--set={key}={value}" for key, value in values.items()]
        sets.append(f"--set-json=extraEnv={json.dumps(environment)}")
        cluster.helm("install", *RELEASE, CHART, "--wait", "--timeout=180s", *sets)
        yield cluster
        if "ullage" in cluster.helm("list", f"--namespace={SYSTEM}", "--short"):
            cluster.helm("uninstall", *RELEASE, "--no-hooks", "--wait")
        names = ("contentrepositories", "contentrepositorynodes", "reclamationruns")
        cluster.kubectl("delete", "crd", *(f"{each}.ullage.dev" for each in names), "--timeout=60s")


@dataclass
class Flows:
    """A repository on both nodes, and a client of it that comes through its Service."""

    cluster: Cluster
    namespace: str
    client: HttpClient

    def apply(self, windows: list[dict[str, Any]]) -> None:
        """The repository with these windows."""
        self.cluster.apply(repository(self.namespace, SPEC | {"maintenance": {"windows": windows}}))

    def shown(self) -> dict[str, Any]:
        """As the API server has it."""
        found: dict[str, Any] = self.cluster.get("contentrepository/flows", f"--namespace={self.namespace}")
        return found

    def disk_bytes(self, node: str) -> int:
        """What the repository's content takes on a node's disk, from outside."""
        top: Path = self.cluster.nodes[node].disk / "data" / self.namespace / "flows" / "c1"
        return sum(path.stat().st_blocks * 512 for path in top.rglob("*") if path.is_file())

    def dead_bytes(self) -> int:
        """What the agent behind the Service says."""
        return sum(container.dead_bytes for container in self.answer(self.client.survey).containers)

    def answer(self, ask: Callable[[], Answer]) -> Answer:
        """What the agent says, however busy the machine is: who is not reached is asked again."""
        got: list[Answer] = []

        def asked() -> bool:
            with suppress(NotReachable):  # the node may be too busy to answer in time
                got.append(ask())
            return bool(got)

        self.cluster.wait_until("the agent answers through the Service", asked)
        return got[0]


@pytest.fixture(scope="module")
def flows(installed: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flows]:
    """Applied with a window that is closed, and Ready."""
    with installed.namespace(f"flows-{secrets.token_hex(4)}") as place:
        here = f"--namespace={place}"
        installed.apply(*_client_account(place))
        installed.apply(repository(place, SPEC | {"maintenance": {"windows": CLOSED}}))
        try:
            installed.kubectl("wait", "--for=condition=Ready", "contentrepository/flows", here, "--timeout=180s")
        except ClusterError as error:
            raise ClusterError(f"{error}\n{_told(installed, place)}") from error
        authority = tmp_path_factory.mktemp("flows") / "ca.crt"
        authority.write_text(installed.get("configmap/flows-ullage-ca", here)["data"]["ca.crt"])
        token = installed.kubectl("create", "token", "flow", here, "--duration=2h").strip()
        address = installed.get("service/flows-local", here)["spec"]["clusterIP"]
        url = f"https://localhost:{installed.forward(address, 8480)}"
        with HttpClient(url, token, ca_file=str(authority), timeout_seconds=15.0) as client:
            made = Flows(installed, place, client)
            made.answer(client.state)
            yield made
        found = installed.get("contentrepositories", here)["items"]
        if found:
            installed.kubectl("delete", "contentrepository", "flows", here, "--timeout=120s")


def test_a_window_opens_and_the_disk_gets_its_space_back(flows: Flows) -> None:
    """Content comes through the Service, half of it goes; the closed window keeps it, the opened one gives it back."""
    kept, dropped = _half_dropped(flows)
    node = flows.answer(flows.client.state).node
    full = flows.disk_bytes(node)
    assert full >= BATCHES * CONTENTS * SIZE
    flows.cluster.wait_until("what was dropped is dead", lambda: flows.dead_bytes() >= dropped)
    assert flows.shown()["status"]["reclaimed"] == "0"
    assert flows.disk_bytes(node) >= full

    flows.apply(OPEN)

    flows.cluster.wait_until("the disk has its space back", lambda: flows.disk_bytes(node) <= full - dropped)
    flows.cluster.wait_until("the status says so", lambda: flows.shown()["status"]["reclaimed"] == "16Mi")
    table = flows.cluster.kubectl("get", "contentrepositories", f"--namespace={flows.namespace}")
    print(table)
    row = dict(zip(table.splitlines()[0].split(), table.splitlines()[1].split(), strict=False))
    assert (row["NODES"], row["READY"], row["RECLAIMED"]) == ("2", "2", "16Mi")
    for id, content in kept.items():
        assert flows.answer(partial(flows.client.get, id)) == content


def _half_dropped(flows: Flows) -> tuple[dict[str, bytes], int]:
    """What is kept, by id, and how many bytes were dropped: every second content of each batch."""
    kept: dict[str, bytes] = {}
    for _ in range(BATCHES):
        contents = [secrets.token_bytes(SIZE) for _ in range(CONTENTS)]
        stored = flows.answer(partial(flows.client.put_many, contents, [{}] * CONTENTS, key=secrets.token_hex(8)))
        kept |= dict(list(zip(stored.ids, contents, strict=True))[::2])
        for id in stored.ids[1::2]:
            flows.answer(partial(flows.client.delete, id, key=f"delete-{id}"))
    return kept, BATCHES * CONTENTS * SIZE // 2


def test_a_run_on_demand_passes_over_a_closed_window(flows: Flows) -> None:
    """A ReclamationRun that overrides the windows: its report is that of the node, and the disk falls."""
    flows.apply(CLOSED)
    _, dropped = _half_dropped(flows)
    flows.cluster.wait_until("what was dropped is dead", lambda: flows.dead_bytes() >= dropped)
    node = flows.answer(flows.client.state).node
    full = flows.disk_bytes(node)
    here = f"--namespace={flows.namespace}"
    run = {
        "apiVersion": "ullage.dev/v1alpha1",
        "kind": "ReclamationRun",
        "metadata": {"name": "now", "namespace": flows.namespace},
        "spec": {"repository": "flows", "nodes": [node], "overrideWindows": True},
    }
    flows.cluster.apply(run)

    flows.cluster.kubectl(
        "wait", "--for=jsonpath={.status.phase}=Completed", "reclamationrun/now", here, "--timeout=120s"
    )

    assert flows.cluster.get("reclamationrun/now", here)["status"]["freed"] == "16Mi"
    assert flows.disk_bytes(node) <= full - dropped


def test_an_agent_may_not_speak_for_another_node(flows: Flows) -> None:
    """With the token that the kubelet gave to the pod of node2: the status of node1's object is refused by name."""
    place = flows.namespace
    pods = flows.cluster.get("pods", f"--namespace={place}", "--selector=app.kubernetes.io/name=ullage-agent")["items"]
    pod = next(each["metadata"]["name"] for each in pods if each["spec"]["nodeName"] == "node2")
    path = f"/apis/ullage.dev/v1alpha1/namespaces/{place}/contentrepositorynodes"
    said = {}
    for node in ("node1", "node2"):
        url = f"https://kubernetes.default.svc{path}/{object_name('flows', node)}/status"
        said[node] = flows.cluster.kubectl("exec", pod, f"--namespace={place}", "--", "python3", "-c", PATCH, url)

    assert "an agent on node2 must leave the object of node1 alone" in said["node1"]
    assert said["node2"].startswith("200")


PATCH = """
import http.client, ssl, sys, urllib.parse
account = "/var/run/secrets/kubernetes.io/serviceaccount"
url = urllib.parse.urlsplit(sys.argv[1])
there = http.client.HTTPSConnection(url.hostname, context=ssl.create_default_context(cafile=account + "/ca.crt"))
headers = {"Authorization": "Bearer " + open(account + "/token").read(), "Content-Type": "application/merge-patch+json"}
there.request("PATCH", url.path, '{"status": {"version": "1"}}', headers)
answer = there.getresponse()
print(answer.status, answer.read().decode())
"""


def test_each_agent_has_a_name_of_its_node(flows: Flows) -> None:
    """A pod of the cluster reaches each agent by its node's name, and its certificate says the same."""
    place = flows.namespace
    ask = "import ssl, sys, urllib.request as r; c = ssl.create_default_context(cafile='/etc/ullage/tls/ca.crt'); "
    ask += "print([r.urlopen(u, context=c).status for u in sys.argv[1:]])"
    urls = [f"https://{node}.flows-nodes.{place}.svc:8480/readyz" for node in ("node1", "node2")]

    said = flows.cluster.kubectl(
        "exec", "daemonset/flows-ullage", f"--namespace={place}", "--", "python3", "-c", ask, *urls
    )

    assert said.strip().splitlines()[-1] == "[200, 200]"


def test_the_release_is_tested_and_removed(flows: Flows) -> None:
    """`helm test` passes; uninstalling is refused while a repository is there, and leaves nothing afterwards."""
    cluster, here = flows.cluster, f"--namespace={flows.namespace}"
    cluster.helm("test", *RELEASE, "--timeout=120s")
    with pytest.raises(ClusterError):
        cluster.helm("uninstall", *RELEASE, "--wait", "--timeout=120s")
    assert cluster.get("deployment/ullage-operator", f"--namespace={SYSTEM}")["status"]["readyReplicas"] == 1

    cluster.kubectl("delete", "contentrepository", "flows", here, "--timeout=120s")
    cluster.helm("uninstall", *RELEASE, "--wait", "--timeout=120s")

    assert objects(cluster, flows.namespace) == {}
    assert "ullage" not in cluster.kubectl("get", "clusterroles,clusterrolebindings,validatingadmissionpolicies")
    assert "contentrepositories.ullage.dev" in cluster.kubectl("get", "crds")
    assert flows.disk_bytes("node1") >= BATCHES * CONTENTS * SIZE


def _client_account(place: str) -> list[dict[str, Any]]:
    """Somebody who may work with the content of `flows`."""
    rbac = {"apiVersion": "rbac.authorization.k8s.io/v1"}
    inside = {"name": "flow", "namespace": place}
    verbs = ["get", "create", "delete"]
    rule = {"apiGroups": ["ullage.dev"], "resources": ["contentrepositories"], "verbs": verbs}
    role = {"kind": "Role", "name": "flow", "apiGroup": "rbac.authorization.k8s.io"}
    subject = {"kind": "ServiceAccount", "name": "flow", "namespace": place}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": inside},
        {**rbac, "kind": "Role", "metadata": inside, "rules": [rule]},
        {**rbac, "kind": "RoleBinding", "metadata": inside, "roleRef": role, "subjects": [subject]},
    ]


def _told(cluster: Cluster, place: str) -> str:
    """What is known of a repository that does not get ready."""
    here = f"--namespace={place}"
    status = json.dumps(cluster.get("contentrepository/flows", here).get("status"), indent=1)
    pods = cluster.kubectl("describe", "pods", here)[-4000:]
    logs = cluster.kubectl("logs", "--selector=app.kubernetes.io/name=ullage-agent", here, "--all-containers")[-3000:]
    operator = cluster.kubectl("logs", "deployment/ullage-operator", f"--namespace={SYSTEM}", "--tail=40")
    return f"{status}\n{pods}\n{logs}\n{operator}"
