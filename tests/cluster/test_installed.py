"""The chart, installed by helm on two real nodes with the images of the Dockerfile: somebody's first day."""

import secrets
from collections.abc import Iterator

import pytest

from tests.cluster.errors import ClusterError
from tests.cluster.node import Cluster
from tests.cluster.operator_process import objects
from tests.cluster.release import RELEASE, SYSTEM, Flows, installed_on
from tests.cluster.workloads import run
from ullage.contract import object_name

MIB = 1 << 20
SIZE = MIB // 4
"""Of one content: larger ones would end their file."""

CONTENTS = 32
BATCHES = 4


@pytest.fixture(scope="module")
def installed(cluster: Cluster) -> Iterator[Cluster]:
    """The release on both nodes."""
    with installed_on(cluster):
        yield cluster


@pytest.fixture(scope="module")
def flows(installed: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flows]:
    """Applied with a window that is closed, and Ready."""
    with installed.namespace(f"flows-{secrets.token_hex(4)}") as place:
        made = Flows(installed, place, tmp_path_factory.mktemp("flows"))
        made.begin()
        yield made
        made.close()


def test_a_run_on_demand_passes_over_a_closed_window(flows: Flows) -> None:
    """A ReclamationRun that overrides the windows: its report is that of the node, and the disk falls."""
    _, dropped = flows.half_dropped(BATCHES, CONTENTS, SIZE)
    node = flows.repository.state().node
    full = flows.disk_bytes(node)
    flows.cluster.apply(run(flows.namespace, node, overrideWindows=True))

    flows.cluster.kubectl(
        "wait", "--for=jsonpath={.status.phase}=Completed", "reclamationrun/now", flows.here, "--timeout=120s"
    )

    assert flows.cluster.get("reclamationrun/now", flows.here)["status"]["freed"] == "16Mi"
    assert flows.disk_bytes(node) <= full - dropped


def test_an_agent_may_not_speak_for_another_node(flows: Flows) -> None:
    """With the token that the kubelet gave to the pod of node2: the status of node1's object is refused by name."""
    place = flows.namespace
    pod = flows.pods()["node2"]
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
    cluster = flows.cluster
    cluster.helm("test", *RELEASE, "--timeout=120s")
    with pytest.raises(ClusterError):
        cluster.helm("uninstall", *RELEASE, "--wait", "--timeout=120s")
    assert cluster.get("deployment/ullage-operator", f"--namespace={SYSTEM}")["status"]["readyReplicas"] == 1

    flows.delete()
    cluster.helm("uninstall", *RELEASE, "--wait", "--timeout=120s")

    assert objects(cluster, flows.namespace) == {}
    assert "ullage" not in cluster.kubectl("get", "clusterroles,clusterrolebindings,validatingadmissionpolicies")
    assert "contentrepositories.ullage.dev" in cluster.kubectl("get", "crds")
    assert flows.disk_bytes("node1") >= BATCHES * CONTENTS * SIZE // 2  # the other half was dropped, and reclaimed
