"""What goes wrong on a cluster that nobody looks after, told of the repository of the story."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from tests.cluster.node import Cluster
from tests.cluster.release import SYSTEM, Flows
from tests.e2e.story import Story
from ullage import Retries
from ullage.errors import NotReachable
from ullage_operator import certificates
from ullage_operator.objects import RepositoryObject
from ullage_operator.repository.trust import authority_of, authority_secret_name, certificate_names, host_label

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
    repository = RepositoryObject.of(flows.shown())
    secret = flows.cluster.get(f"secret/{authority_secret_name(repository)}", f"--namespace={SYSTEM}")
    began = datetime.now(UTC) - certificates.LEAF_LIFE - timedelta(hours=1)
    for found in flows.cluster.get("contentrepositorynodes", flows.here)["items"]:
        names = certificate_names(repository, host_label(found["spec"]["nodeName"]))
        request = found["status"]["certificateRequest"]
        expired = certificates.renewed(authority_of(secret), "", request, began, "story", names)
        assert certificates.expiry(expired) < datetime.now(UTC)
        patch = f"--patch={json.dumps({'spec': {'certificate': expired}})}"
        name = f"contentrepositorynode/{found['metadata']['name']}"
        flows.cluster.kubectl("patch", name, flows.here, "--type=merge", patch)


def _complaint(flows: Flows) -> str:
    """Of a client that connects now; nothing if it is answered."""
    try:
        with flows.connected(Retries(attempts=1)) as repository:
            repository.state()
    except NotReachable as error:
        return str(error)
    return ""
