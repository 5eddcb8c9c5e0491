"""The cluster's DNS: CoreDNS as a process of the hub, behind the Service that every pod asks."""

from pathlib import Path
from typing import Any

from tests.cluster.machines import HUB

CLUSTER_DNS = "10.96.0.10"


def corefile(kubeconfig: Path) -> str:
    """Answer for the cluster's own names, and for no other: there is no network beyond it."""
    return f""".:53 {{
    bind {HUB}
    errors
    kubernetes cluster.local in-addr.arpa {{
        kubeconfig {kubeconfig}
        pods insecure
    }}
    cache 5
}}
"""


def dns_objects() -> tuple[dict[str, Any], dict[str, Any]]:
    """The Service kube-dns, and the slice that points it to the hub."""
    metadata = {"name": "kube-dns", "namespace": "kube-system"}
    protocols = [("dns", "UDP"), ("dns-tcp", "TCP")]
    ports = [{"name": name, "port": 53, "protocol": protocol} for name, protocol in protocols]
    service = {"apiVersion": "v1", "kind": "Service", "metadata": metadata}
    slices = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4"}
    labels = {"kubernetes.io/service-name": "kube-dns"}
    return (
        {**service, "spec": {"clusterIP": CLUSTER_DNS, "ports": ports}},
        {
            **slices,
            "metadata": {**metadata, "labels": labels},
            "ports": ports,
            "endpoints": [{"addresses": [HUB], "conditions": {"ready": True}}],
        },
    )
