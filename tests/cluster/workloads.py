"""Objects that several tests make, as plain dictionaries."""

from typing import Any


def pod(
    name: str, namespace: str, image: str, command: list[str], node: str, labels: dict[str, str], port: int = 0
) -> dict[str, Any]:
    """A pod of one container on one node; with a port it is Ready when somebody listens there."""
    container: dict[str, Any] = {"name": "main", "image": image, "command": command, "imagePullPolicy": "Never"}
    if port:
        container["readinessProbe"] = {"tcpSocket": {"port": port}, "periodSeconds": 1}
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    spec = {"nodeName": node, "terminationGracePeriodSeconds": 1, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def service(name: str, namespace: str, labels: dict[str, str], port: int) -> dict[str, Any]:
    """A Service of one TCP port in front of the pods with these labels."""
    metadata = {"name": name, "namespace": namespace}
    spec = {"selector": labels, "ports": [{"port": port, "targetPort": port}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}
