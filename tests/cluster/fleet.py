"""A control plane with nodes that are only played: kwok says what kubelets would, for hundreds of them.

Pods on them become Running and Ready without a container, and go when deleted. What a node does with files is not here.
Each node's kubelet is kwok: ports of all pods lead to one port of this machine, and what they say is in one file.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tests.cluster.control_plane import LOOPBACK, ControlPlane
from tests.cluster.instance import Instance
from tests.cluster.say import step
from tests.cluster.tools import tool
from tests.cluster.workloads import made

STAGES = Path(__file__).parent / "kwok.yaml"


class Fleet(ControlPlane):
    """A control plane whose nodes are kwok's. Make one with `fleet_running`."""

    def start(self) -> None:
        """Play every node that `add_nodes` makes, and the pods on them."""
        tool("kwok")
        super().start()
        self.pod_port = self.instance.free_port()
        self._kubelet_port = self.instance.free_port()
        self.pod_log.touch()
        kubelet = self.authority.server("kwok-kubelet", [LOOPBACK], [])
        self.start_program(
            "kwok",
            [
                f"--config={STAGES},{self._kubelet_config()}",
                f"--kubeconfig={self.kubeconfig_for('kwok', 'system:masters')}",
                "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
                # Without leases the cluster takes each node for dead after 50 s, and its pods for not ready for good.
                "--node-lease-duration-seconds=120",
                f"--server-address={LOOPBACK}:{self._kubelet_port}",
                f"--node-ip={LOOPBACK}",
                f"--node-port={self._kubelet_port}",
                f"--tls-cert-file={kubelet.certificate}",
                f"--tls-private-key-file={kubelet.key}",
            ],
        )

    @property
    def pod_log(self) -> Path:
        """What every container says, in the format of container runtimes: `TIME stdout F TEXT`."""
        return self.instance.home / "pods.log"

    def _kubelet_config(self) -> Path:
        """Where the ports of pods lead, and where their logs are."""
        target = {"address": LOOPBACK, "port": self.pod_port}
        made = {
            "ClusterPortForward": {"forwards": [{"target": target}]},
            "ClusterLogs": {"logs": [{"logsFile": str(self.pod_log), "follow": True}]},
        }
        documents = [
            {"apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": kind, "metadata": {"name": "all"}, "spec": spec}
            for kind, spec in made.items()
        ]
        path = self.instance.home / "kubelet.yaml"
        path.write_text("---\n".join(json.dumps(each) + "\n" for each in documents))
        return path

    @staticmethod
    def node_documents(numbers: Iterable[int], prefix: str = "fleet") -> list[dict[str, Any]]:
        """The nodes of these numbers, for who makes them by the hundred."""
        return [_node(f"{prefix}-{number}") for number in numbers]

    def add_nodes(self, count: int, prefix: str = "fleet") -> list[str]:
        """Their names, once all of them are Ready."""
        names = [f"{prefix}-{number}" for number in range(count)]
        with step(f"add {count} nodes"):
            self.apply(*(_node(name) for name in names))
            self.kubectl("wait", "--for=condition=Ready", "--timeout=30s", *(f"node/{name}" for name in names))
        return names


def _node(name: str) -> dict[str, Any]:
    capacity = {"cpu": "32", "memory": "256Gi", "pods": "110", "ephemeral-storage": "1Ti"}
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "type": "kwok"}
    metadata = {"labels": labels, "annotations": {"kwok.x-k8s.io/node": "fake"}}
    return made("v1", "Node", name, metadata=metadata, status={"allocatable": capacity, "capacity": capacity})


@contextmanager
def fleet_running(audited_user: str = "") -> Iterator[Fleet]:
    """A control plane with kwok and no node yet, gone at the end. `audited_user`: see ControlPlane."""
    with closing(Instance.create("fleet")) as instance:
        cluster = Fleet(instance)
        cluster.audited_user = audited_user
        cluster.start()
        yield cluster
