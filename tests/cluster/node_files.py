"""What a node's programs are configured with."""

import json
from pathlib import Path

from tests.certificates import Credentials
from tests.cluster.dns import CLUSTER_DNS
from tests.cluster.images import PAUSE_NAME

CRI = 'plugins."io.containerd.grpc.v1.cri"'
REGISTRIES = "registries"
"""The folder of a node's disk that says where a registry is; containerd reads it at each pull."""


def containerd_config(disk: Path, plugins: Path) -> str:
    """Make containerd use runc; its sockets lie in the machine's own /run."""
    return f"""version = 2
root = "{disk / "containerd"}"
state = "/run/containerd"

[plugins."io.containerd.internal.v1.opt"]
  path = "{disk / "opt"}"

[{CRI}]
  sandbox_image = "{PAUSE_NAME}"
  # Root of a container may lack the privilege to make itself safer from the kernel's memory killer.
  restrict_oom_score_adj = true

[{CRI}.registry]
  config_path = "{disk / REGISTRIES}"

[{CRI}.cni]
  bin_dir = "{plugins}"
  conf_dir = "/etc/cni"

[{CRI}.containerd]
  snapshotter = "overlayfs"

[{CRI}.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[{CRI}.containerd.runtimes.runc.options]
  SystemdCgroup = false
"""


def registry_hosts(url: str) -> str:
    """Pull from here what is named by the registry in whose folder this lies, as `hosts.toml`."""
    return f"""server = "{url}"

[host."{url}"]
  capabilities = ["pull", "resolve"]
"""


def cni_config(number: int) -> str:
    """Pods of node `number`: each has a link of its own to the node, which routes.

    On a bridge two pods of one node would answer each other past the node's address translation, and a Service would
    seem dead to its neighbours.
    """
    ranges = [[{"subnet": f"10.244.{number}.0/24"}]]
    # The given addresses are forgotten when the machine stops, as its pods are.
    addresses = {"type": "host-local", "ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}], "dataDir": "/run/cni"}
    pods = {"type": "ptp", "ipMasq": False, "ipam": addresses}
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return json.dumps({"cniVersion": "0.4.0", "name": "ullage", "plugins": [pods, ports]}, indent=1)


def kubelet_config(ca: Path, serving: Credentials, cgroup: str) -> str:
    """A kubelet that shares its kernel and its disk with others, and so neither reserves nor evicts for itself."""
    return json.dumps(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {"anonymous": {"enabled": False}, "x509": {"clientCAFile": str(ca)}},
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(serving.certificate),
            "tlsPrivateKeyFile": str(serving.key),
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": cgroup,
            "failCgroupV1": False,
            "failSwapOn": False,
            "enforceNodeAllocatable": [],
            "evictionHard": dict.fromkeys(("nodefs.available", "nodefs.inodesFree", "imagefs.available"), "0%"),
            "imageGCHighThresholdPercent": 100,
            "volumePluginDir": "/var/lib/kubelet/volume-plugins",
            "clusterDNS": [CLUSTER_DNS],
            "clusterDomain": "cluster.local",
            "resolvConf": "",
            "nodeStatusUpdateFrequency": "2s",
            "syncFrequency": "2s",  # how soon a pod sees its ConfigMap change; a minute is usual
        },
        indent=1,
    )
