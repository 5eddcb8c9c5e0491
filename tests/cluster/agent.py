"""The agent as a DaemonSet with its content on a hostPath, TLS from a Secret, and access as the cluster decides."""

import json
import ssl
from dataclasses import dataclass
from typing import Any

import httpx

from tests.cluster.errors import ClusterError
from tests.cluster.images import image_name
from tests.cluster.node import DATA, Cluster
from tests.cluster.workloads import service

AGENT = "ullage-agent"
LABELS = {"app": AGENT}
USER = 10001
PORT = 8480
CLIENT = "flow"


@dataclass
class AgentOnNode:
    """A running agent, reached through its Service."""

    cluster: Cluster
    namespace: str
    trust: ssl.SSLContext
    token: str
    port: int

    def url(self) -> str:
        """Through the Service."""
        return f"https://localhost:{self.port}"

    def ask(self, method: str, path: str, content: bytes | None = None) -> httpx.Response:
        """As one who may do everything with content; a new connection, because the pod behind it changes."""
        headers = {"Authorization": f"Bearer {self.token}"}
        with httpx.Client(base_url=self.url(), verify=self.trust, headers=headers, timeout=60.0) as client:
            return client.request(method, path, content=content)

    def _pods(self) -> list[dict[str, Any]]:
        listed = self.cluster.get("pods", f"--namespace={self.namespace}", f"--selector=app={AGENT}")
        return [pod for pod in listed["items"] if "deletionTimestamp" not in pod["metadata"]]

    def pod(self) -> str:
        """The name of the one pod there is."""
        (found,) = self._pods()
        return str(found["metadata"]["name"])

    def generation(self) -> str:
        """Changes with each start of the container; empty while none is ready."""
        ready = [
            status["containerID"]
            for pod in self._pods()
            for status in pod["status"].get("containerStatuses", [])
            if status["ready"]
        ]
        return ready[0] if len(ready) == 1 else ""

    def wait_for_another_generation(self, before: str) -> None:
        """Until a container that started later is ready and answers through the Service."""
        self.cluster.wait_until("the agent is ready again", lambda: self.generation() not in {"", before})
        self.cluster.wait_until("the agent answers through its Service", self.answers)

    def answers(self) -> bool:
        """Whether the Service leads to an agent that is ready."""
        try:
            return self.ask("GET", "/readyz").status_code == 200
        except httpx.TransportError:
            return False


def install_agent(cluster: Cluster, namespace: str, node: str) -> AgentOnNode:
    """Make the DaemonSet and all it needs, and wait until it answers."""
    serving = cluster.authority.server(AGENT, ["127.0.0.1"], ["localhost", f"{AGENT}.{namespace}.svc"])
    here = f"--namespace={namespace}"
    tls = [f"--cert={serving.certificate}", f"--key={serving.key}"]
    cluster.kubectl("create", "secret", "tls", "agent-tls", *tls, here)
    cluster.apply(*_accounts(namespace), _config(namespace), _daemon_set(namespace, node))
    cluster.apply(service(AGENT, namespace, LABELS, PORT))
    try:
        cluster.kubectl("rollout", "status", f"daemonset/{AGENT}", here, "--timeout=90s")
    except ClusterError as error:
        told = cluster.kubectl("describe", "pods", here) + cluster.kubectl("logs", f"daemonset/{AGENT}", here)
        raise ClusterError(f"the agent does not become ready:\n{told}") from error
    address = cluster.get(f"service/{AGENT}", here)["spec"]["clusterIP"]
    token = cluster.kubectl("create", "token", CLIENT, here).strip()
    trust = ssl.create_default_context(cafile=str(cluster.ca))
    agent = AgentOnNode(cluster, namespace, trust, token, cluster.forward(address, PORT))
    cluster.wait_until("the agent answers through its Service", agent.answers)
    return agent


def _accounts(namespace: str) -> list[dict[str, Any]]:
    """The agent may ask who somebody is and what they may do; the client may work with content."""
    rbac = {"apiVersion": "rbac.authorization.k8s.io/v1"}
    agent, client = ({"kind": "ServiceAccount", "name": name, "namespace": namespace} for name in (AGENT, CLIENT))
    verbs = ["get", "create", "delete"]
    rule = {"apiGroups": ["ullage.dev"], "resources": ["contentrepositories"], "verbs": verbs}
    reviews = {"kind": "ClusterRole", "name": "system:auth-delegator", "apiGroup": "rbac.authorization.k8s.io"}
    works = {"kind": "Role", "name": CLIENT, "apiGroup": "rbac.authorization.k8s.io"}
    inside = {"name": CLIENT, "namespace": namespace}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": AGENT, "namespace": namespace}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": inside},
        {
            **rbac,
            "kind": "ClusterRoleBinding",
            "metadata": {"name": namespace},
            "roleRef": reviews,
            "subjects": [agent],
        },
        {**rbac, "kind": "Role", "metadata": inside, "rules": [rule]},
        {**rbac, "kind": "RoleBinding", "metadata": inside, "roleRef": works, "subjects": [client]},
    ]


def _config(namespace: str) -> dict[str, Any]:
    spec = {"storage": {"hostPath": {"path": DATA}}, "tls": {"mode": "Secret"}, "auth": {"mode": "Kubernetes"}}
    document = {
        "apiVersion": "ullage.dev/v1alpha1",
        "kind": "ContentRepository",
        "metadata": {"name": "flows", "namespace": namespace},
        "spec": spec,
    }
    metadata = {"name": AGENT, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"flows.yaml": json.dumps(document)}}


def _daemon_set(namespace: str, node: str) -> dict[str, Any]:
    template = {"metadata": {"labels": LABELS}, "spec": _pod_spec(node)}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": AGENT, "namespace": namespace},
        "spec": {"selector": {"matchLabels": LABELS}, "template": template},
    }


def _pod_spec(node: str) -> dict[str, Any]:
    ready = {"httpGet": {"path": "/readyz", "port": PORT, "scheme": "HTTPS"}, "periodSeconds": 1}
    main = {
        "name": "agent",
        "image": image_name("agent"),
        "imagePullPolicy": "Never",
        "args": ["--init", "--config=/etc/ullage/flows.yaml"],
        "env": [{"name": "ULLAGE_NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        "readinessProbe": ready,
        "securityContext": {
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "data", "mountPath": DATA},
            {"name": "config", "mountPath": "/etc/ullage"},
            {"name": "tls", "mountPath": "/etc/ullage/tls"},
            {"name": "run", "mountPath": "/run/ullage"},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }
    # A hostPath belongs to root, and fsGroup does not reach it: this container gives it to the agent's user.
    owner = {
        "name": "owner",
        "image": image_name("agent"),
        "imagePullPolicy": "Never",
        "command": ["chown", f"{USER}:{USER}", DATA],
        "securityContext": {"runAsUser": 0, "runAsNonRoot": False},
        "volumeMounts": [{"name": "data", "mountPath": DATA}],
    }
    return {
        "serviceAccountName": AGENT,
        "nodeSelector": {"kubernetes.io/hostname": node},
        "terminationGracePeriodSeconds": 20,
        "securityContext": {"runAsNonRoot": True, "runAsUser": USER},
        "initContainers": [owner],
        "containers": [main],
        "volumes": [
            {"name": "data", "hostPath": {"path": DATA, "type": "DirectoryOrCreate"}},
            {"name": "config", "configMap": {"name": AGENT}},
            {"name": "tls", "secret": {"secretName": "agent-tls"}},
            {"name": "run", "emptyDir": {}},
            {"name": "tmp", "emptyDir": {}},
        ],
    }
