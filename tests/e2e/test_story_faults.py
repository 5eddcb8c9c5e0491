"""What goes wrong on a cluster that nobody looks after, told of the repository of the story."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import msgspec

from tests.cluster.node import Cluster
from tests.cluster.release import SYSTEM, Flows
from tests.e2e.story import Story
from ullage import Retries
from ullage.errors import NotReachable
from ullage_operator.repository import certificates

COUNT = 20
SIZE = 64 << 10
OPERATOR = ("deployment/ullage-operator", f"--namespace={SYSTEM}")


def test_an_agent_serves_on_while_kubelet_and_containerd_are_killed(story: Story) -> None:
    """Both come back and find the pod: it is the same container, which was not asked to end."""
    flows = story.flows
    story.keep(COUNT, SIZE)
    node = flows.repository.state().node
    pod = flows.pods()[node]
    before = _container(flows, pod)

    flows.cluster.restart_programs(node)

    flows.wait_until_ready()
    assert flows.pods()[node] == pod
    assert _container(flows, pod) == before
    assert story.is_all_there()


def test_an_expired_certificate_is_replaced_without_a_restart(story: Story) -> None:
    """The operator was away for the life of a certificate: clients refuse the agents, and say why; once it is back
    they are served again, by the same agents.
    """
    flows = story.flows
    story.keep(COUNT, SIZE)
    pods = flows.pods()
    before = {pod: _container(flows, pod) for pod in pods.values()}
    with _operator_away(flows.cluster):
        _let_expire(flows)
        flows.cluster.wait_until("clients refuse the certificate", lambda: "expired" in _complaint(flows))

    flows.cluster.wait_until("clients are served again", lambda: _complaint(flows) == "")
    flows.connect()
    assert flows.pods() == pods
    assert {pod: _container(flows, pod) for pod in pods.values()} == before
    assert story.is_all_there()


def _container(flows: Flows, pod: str) -> tuple[str, int]:
    """Which container runs in the pod, and how often one was started anew."""
    status = flows.cluster.get(f"pod/{pod}", flows.here)["status"]["containerStatuses"][0]
    return status["containerID"], status["restartCount"]


@contextmanager
def _operator_away(cluster: Cluster) -> Iterator[None]:
    """No pod of the operator runs meanwhile."""
    cluster.kubectl("scale", *OPERATOR, "--replicas=0")
    chosen = ("--selector=app.kubernetes.io/name=ullage-operator", f"--namespace={SYSTEM}")
    cluster.wait_until("the operator is gone", lambda: not cluster.get("pods", *chosen)["items"])
    yield
    cluster.kubectl("scale", *OPERATOR, "--replicas=1")
    cluster.kubectl("rollout", "status", *OPERATOR, "--timeout=120s")


def _let_expire(flows: Flows) -> None:
    """Put in place what the operator would have signed so long ago that it has ended."""
    names = ("flows-ullage-authority", "flows-ullage-tls")
    kept = certificates.kept_of(*(_secret(flows, name) for name in names))
    unsigned = msgspec.structs.replace(kept, leaf="", leaf_key="")
    began = datetime.now(UTC) - certificates.LEAF_LIFE - timedelta(hours=1)
    expired = certificates.rotated(unsigned, began, "story", ["localhost"])
    assert certificates.expiry(expired.leaf) < datetime.now(UTC)
    leaf = certificates.secrets_of(expired)[1]
    data = {name: base64.b64encode(text.encode()).decode() for name, text in leaf.items()}
    patch = json.dumps({"data": data})
    flows.cluster.kubectl("patch", "secret", names[1], flows.here, "--type=merge", f"--patch={patch}")


def _secret(flows: Flows, name: str) -> dict[str, str]:
    data = flows.cluster.get(f"secret/{name}", flows.here)["data"]
    return {key: base64.b64decode(text).decode() for key, text in data.items()}


def _complaint(flows: Flows) -> str:
    """Of a client that connects now; nothing if it is answered."""
    try:
        with flows.connected(Retries(attempts=1)) as repository:
            repository.state()
    except NotReachable as error:
        return str(error)
    return ""
