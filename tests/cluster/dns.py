"""The cluster's DNS: CoreDNS as a process of the hub, behind the Service that every pod asks."""

from pathlib import Path
from typing import Any

from tests.cluster.machines import HUB
from tests.cluster.workloads import made

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
    where = ("kube-dns", "kube-system")
    protocols = {"dns": "UDP", "dns-tcp": "TCP"}
    ports = [{"name": name, "port": 53, "protocol": protocol} for name, protocol in protocols.items()]
    labels = {"labels": {"kubernetes.io/service-name": "kube-dns"}}
    hub: dict[str, Any] = {"addressType": "IPv4", "endpoints": [{"addresses": [HUB], "conditions": {"ready": True}}]}
    return (
        made("v1", "Service", *where, spec={"clusterIP": CLUSTER_DNS, "ports": ports}),
        made("discovery.k8s.io/v1", "EndpointSlice", *where, metadata=labels, ports=ports, **hub),
    )
