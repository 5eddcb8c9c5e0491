import urllib.request
from pathlib import Path

from tests.cluster import images
from tests.cluster.instance import State, sweep
from tests.cluster.node import Cluster
from tests.cluster.test_control_plane import killed
from tests.cluster.workloads import pod, service

SERVE = "cd /tmp; hostname > index.html; exec python3 -m http.server 8000"


def test_a_service_leads_to_pods_of_both_nodes(cluster: Cluster, cluster_namespace: str) -> None:
    """A pod on each node answers behind one Service, from outside and from a pod by the Service's name."""
    cluster.load(images.base_archive())
    labels = {"app": "web"}
    for node in cluster.nodes:
        cluster.apply(pod(f"web-{node}", cluster_namespace, images.BASE_NAME, ["sh", "-c", SERVE], node, labels, 8000))
    cluster.apply(service("web", cluster_namespace, labels, 8000))
    here = f"--namespace={cluster_namespace}"
    cluster.kubectl("wait", "--for=condition=Ready", "pod", "--all", here, "--timeout=60s")
    address = cluster.get("service/web", here)["spec"]["clusterIP"]
    port = cluster.forward(address, 8000)

    outside: set[str] = set()

    def both_answered() -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10) as answer:
            outside.add(answer.read().decode().strip())
        return len(outside) == 2

    cluster.wait_until("both pods have answered", both_answered)
    ask = "import urllib.request; print(urllib.request.urlopen('http://web:8000/').read().decode())"
    for node in cluster.nodes:
        inside = cluster.kubectl("exec", here, f"web-{node}", "--", "python3", "-c", ask)
        assert inside.strip() in outside
    assert outside == {f"web-{node}" for node in cluster.nodes}


def test_a_killed_owner_leaves_no_node(cluster: Cluster) -> None:
    """After SIGKILL a sweep leaves no process, control group, mount or file of the node, and spares other clusters."""
    home = killed("node", "cluster_running")
    recorded = State.read(home)
    assert {"hub", "node1", "node1-kubelet", "etcd"} <= {process.name for process in recorded.processes}
    assert any(Path(folder).exists() for folder in recorded.cgroups)

    sweep()

    assert not any(process.lives for process in recorded.processes)
    assert [folder for folder in recorded.cgroups if Path(folder).exists()] == []
    assert not home.exists()
    assert home.name not in Path("/proc/self/mountinfo").read_text()
    assert _processes_that_mention(home.name) == []
    assert cluster.instance.home.exists()


def _processes_that_mention(word: str) -> list[str]:
    commands = (path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists())
    return [command.decode(errors="replace") for command in commands if word.encode() in command]
