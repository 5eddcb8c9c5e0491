import hashlib
import secrets
from collections.abc import Iterator

import httpx
import pytest

from tests.cluster import images
from tests.cluster.agent import AGENT, AgentOnNode, install_agent
from tests.cluster.node import Cluster

pytestmark = pytest.mark.timeout(1200)  # seconds; on a busy machine an image alone takes minutes to load

MIB = 1 << 20


@pytest.fixture(scope="module")
def agent(cluster: Cluster) -> Iterator[AgentOnNode]:
    """The DaemonSet of our image on the first node, with its content on a hostPath."""
    cluster.load(images.archive("agent"))
    with cluster.namespace(f"agent-{secrets.token_hex(4)}") as namespace:
        yield install_agent(cluster, namespace, node="node1")


def put(agent: AgentOnNode, content: bytes) -> str:
    answer = agent.ask("POST", "/v1/handles", content)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def digest(agent: AgentOnNode, handle: str) -> str:
    answer = agent.ask("GET", f"/v1/handles/{handle}")
    assert answer.status_code == 200, answer.text
    return hashlib.sha256(answer.content).hexdigest()


def test_the_agent_runs_without_root_on_a_read_only_root(cluster: Cluster, agent: AgentOnNode) -> None:
    """The container's user is not root, cannot write to its root, and Python's path has no current directory."""
    here = f"--namespace={agent.namespace}"
    look = "import os, sys; print(os.getuid(), sys.flags.safe_path); open('/opt/ullage/new', 'w')"
    refused = cluster.kubectl(
        *("exec", here, f"daemonset/{AGENT}", "--", "sh", "-c", f'python -c "{look}" 2>&1 || true')
    )

    assert refused.startswith("10001 True")
    assert "Read-only file system" in refused


def test_a_stranger_is_refused(agent: AgentOnNode) -> None:
    """Without a token the answer is 401: the agent asks the cluster who may do what."""
    with httpx.Client(base_url=agent.url(), verify=agent.trust) as client:
        assert client.get("/v1/handles").status_code == 401


@pytest.mark.parametrize("how", ["pod deletion", "SIGKILL", "node restart"])
def test_content_survives(cluster: Cluster, agent: AgentOnNode, how: str) -> None:
    """What was acknowledged through the Service is read back the same after the pod, process or node was ended."""
    print(f"seed: none, random content of 3 MiB before {how}")
    content = secrets.token_bytes(3 * MIB)
    handle = put(agent, content)
    before = agent.generation()

    if how == "pod deletion":
        cluster.kubectl("delete", "pod", agent.pod(), f"--namespace={agent.namespace}", "--wait")
    elif how == "SIGKILL":
        cluster.kill_container(agent.namespace, agent.pod())
    else:
        cluster.restart("node1")
    agent.wait_for_another_generation(before)

    assert digest(agent, handle) == hashlib.sha256(content).hexdigest()
