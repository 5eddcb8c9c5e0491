"""Objects that several tests make, as plain dictionaries."""

from typing import Any

from ullage.contract import API_VERSION
from ullage_operator.objects import RBAC, binding


def made(
    api_version: str, kind: str, name: str, namespace: str = "", *, metadata: dict[str, Any] | None = None, **rest: Any
) -> dict[str, Any]:
    """Any object; `metadata`: what it has beside name and namespace."""
    place = {"namespace": namespace} if namespace else {}
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name, **place, **(metadata or {})}, **rest}


def pod(
    name: str, namespace: str, image: str, command: list[str], node: str, labels: dict[str, str], port: int = 0
) -> dict[str, Any]:
    """A pod of one container on one node; with a port it is Ready when somebody listens there."""
    container: dict[str, Any] = {"name": "main", "image": image, "command": command, "imagePullPolicy": "Never"}
    if port:
        container["readinessProbe"] = {"tcpSocket": {"port": port}, "periodSeconds": 1}
    spec = {"nodeName": node, "terminationGracePeriodSeconds": 1, "containers": [container]}
    return made("v1", "Pod", name, namespace, metadata={"labels": labels}, spec=spec)


def service(name: str, namespace: str, labels: dict[str, str], port: int) -> dict[str, Any]:
    """A Service of one TCP port in front of the pods with these labels."""
    spec = {"selector": labels, "ports": [{"port": port, "targetPort": port}]}
    return made("v1", "Service", name, namespace, spec=spec)


def account(name: str, namespace: str, role: str, kind: str = "ClusterRole") -> list[dict[str, Any]]:
    """A ServiceAccount that has a role in its namespace."""
    bound = binding(kind, role, name, namespace)
    return [made("v1", "ServiceAccount", name, namespace), made(f"{RBAC}/v1", "RoleBinding", name, namespace, **bound)]


def run(place: str, node: str, name: str = "now", **spec: Any) -> dict[str, Any]:
    """What an administrator asks for: a ReclamationRun on one node."""
    return made(API_VERSION, "ReclamationRun", name, place, spec={"repository": "flows", "nodes": [node], **spec})


def backup(place: str, name: str = "nightly", **spec: Any) -> dict[str, Any]:
    """A ContentBackup of the repository `flows`."""
    asked = {"repository": "flows", "bucket": "s3://flows/backups", **spec}
    return made(API_VERSION, "ContentBackup", name, place, spec=asked)


def restore(namespace: str, name: str, node: str, **spec: Any) -> dict[str, Any]:
    """A ContentRestore of the repository `flows` onto a node."""
    where = {} if "backup" in spec else {"place": "s3://flows/backups/old"}
    asked = {"repository": "flows", "node": node, **where, **spec}
    return made(API_VERSION, "ContentRestore", name, namespace, spec=asked)


def executor(place: str, node: str) -> dict[str, Any]:
    """A pod of Spark's on a node."""
    labels = {"spark-role": "executor", "spark-app-name": "etl"}
    spec = {"nodeName": node, "containers": [{"name": "executor", "image": "none"}]}
    return made("v1", "Pod", "exec-1", place, metadata={"labels": labels}, spec=spec)


def unplaced(pod: dict[str, Any], name: str) -> dict[str, Any]:
    """The same under another name, and as each is at first: no scheduler has found a node for it."""
    spec = {key: value for key, value in pod["spec"].items() if key != "nodeName"} | {"schedulerName": "nobody"}
    return {**pod, "metadata": {**pod["metadata"], "name": name}, "spec": spec}


def definition(group: str, version: str, kind: str) -> dict[str, Any]:
    """A kind of somebody else's, of which any object is taken."""
    singular = kind.lower()
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    served = {"name": version, "served": True, "storage": True, "subresources": {"status": {}}, "schema": schema}
    names = {"kind": kind, "plural": f"{singular}s", "singular": singular}
    spec = {"group": group, "scope": "Namespaced", "names": names, "versions": [served]}
    # Whoever makes a kind of a group of Kubernetes must say where it was agreed on.
    agreed = {"annotations": {"api-approved.kubernetes.io": "unapproved, for tests"}}
    name = f"{singular}s.{group}"
    return made("apiextensions.k8s.io/v1", "CustomResourceDefinition", name, metadata=agreed, spec=spec)
