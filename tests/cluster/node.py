"""A control plane with real nodes: containerd, kubelet, CNI, kube-proxy and DNS, each node in namespaces of its own.

Needs root, a kernel that lets it make namespaces and mounts, and Debian's containerd, runc, CNI plugins and nftables.
"""

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tests.cluster import images
from tests.cluster.cgroups import make_cgroup
from tests.cluster.control_plane import LOOPBACK, PODS, SERVICES, ControlPlane, Place
from tests.cluster.dns import corefile, dns_objects
from tests.cluster.errors import ClusterError, NotPossibleHereError, printed
from tests.cluster.instance import Instance
from tests.cluster.machines import FIRST_NODE, HUB, Machine, boot_hub, boot_machine, wire
from tests.cluster.node_files import cni_config, containerd_config, kubelet_config
from tests.cluster.say import step
from tests.cluster.tools import TOOLS, tool

PROGRAMS = ("unshare", "nsenter", "ip", "nft", "containerd", "runc", "ctr", "conntrack")
CNI_PLUGINS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
NODE_PROGRAMS = ("containerd", "kubelet", "kube-proxy")
PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"

DATA = "/var/lib/ullage"
"""A folder of each node, for hostPath volumes; it outlives the node's processes."""


class Cluster(ControlPlane):
    """A control plane and its nodes. Make one with `cluster_running`."""

    def __init__(self, instance: Instance) -> None:
        self.hub = boot_hub(instance)
        super().__init__(instance, Place(self.hub.enter, self.hub.init, HUB, "0.0.0.0"))
        self.nodes: dict[str, Machine] = {}
        self._loaded: list[Path] = []

    def start(self) -> None:
        """Start the control plane on the hub, and DNS beside it."""
        self.forward(LOOPBACK, self.port, self.port)
        super().start()
        config = self.instance.home / "Corefile"
        config.write_text(corefile(self.kubeconfig_for("coredns", "system:masters")))
        self.start_program("coredns", [f"-conf={config}"])
        self.apply(*dns_objects())

    def add_node(self) -> str:
        """The name of one more node, once it is Ready."""
        number = len(self.nodes) + 1
        name = f"node{number}"
        for program in ("kubelet", "kube-proxy"):
            tool(program)
        with step(f"start {name}: containerd, kubelet, kube-proxy"):
            self._boot(name, number)
            self.kubectl("wait", "--for=create", f"node/{name}", "--timeout=60s")
            self.kubectl("wait", "--for=condition=Ready", f"node/{name}", "--timeout=120s")
        return name

    def _boot(self, name: str, number: int) -> None:
        machine = boot_machine(self.instance, name, f"10.100.0.{FIRST_NODE + number - 1}")
        wire(self.hub, machine, number)
        self.nodes[name] = machine
        self._mount_disk(machine)
        if number == 1:  # from outside, Services are reached through the first node
            self.hub.on_its_network(f"ip route replace {SERVICES} via {machine.address}")
        self._start_containerd(machine, number)
        self._start_kubelet(machine)
        self._start_proxy(machine)

    def _mount_disk(self, machine: Machine) -> None:
        """Put the machine's own folders where programs look for them: none of them writes to the real ones."""
        hosts = machine.disk / "hosts"
        hosts.write_text("127.0.0.1 localhost\n" + "".join(f"{m.address} {m.name}\n" for m in self.nodes.values()))
        folders = {"/var/log": "log", "/var/lib/kubelet": "kubelet", "/etc/cni": "cni", DATA: "data"}
        created = [Path(path) for path in ("/var/lib/kubelet", "/etc/cni", DATA)]
        script = "mount -t tmpfs tmpfs /run; mkdir -p /run/netns; "
        script += "mount -t tmpfs tmpfs /var/lib/cni 2>/dev/null || true; "
        for here in folders.values():
            (machine.disk / here).mkdir(exist_ok=True)
        # The mount points may be missing; made in a layer over /etc and /var/lib they are this machine's alone.
        for top in sorted({str(path.parent) for path in created}):
            layer = machine.disk / "layers" / top.strip("/").replace("/", "-")
            for part in ("upper", "work"):
                (layer / part).mkdir(parents=True, exist_ok=True)
            script += f"mount -t overlay overlay -o lowerdir={top},upperdir={layer}/upper,workdir={layer}/work {top}; "
        for there, here in folders.items():
            script += f"mkdir -p {there}; mount --bind {machine.disk / here} {there}; "
        machine.shell(f"{script} mount --bind {hosts} /etc/hosts")

    def _start_containerd(self, machine: Machine, number: int) -> None:
        plugins = next((folder for folder in CNI_PLUGINS if (folder / "ptp").exists()), CNI_PLUGINS[0])
        (machine.disk / "cni" / "10-ullage.conflist").write_text(cni_config(number))
        config = machine.disk / "containerd.toml"
        config.write_text(containerd_config(machine.disk, plugins))
        self._start(machine, "containerd", f"--config={config}")

        def answers() -> bool:
            return "Server" in machine.shell("ctr version 2>&1 || true")

        self.wait_until(f"containerd of {machine.name} answers", answers)
        for archive in (images.pause_archive(), *self._loaded):
            machine.run("ctr", "--namespace=k8s.io", "images", "import", archive)

    def _start_kubelet(self, machine: Machine) -> None:
        serving = self.authority.server(f"{machine.name}-kubelet", [machine.address], [machine.name])
        group = make_cgroup(self.instance, machine.name)
        config = machine.disk / "kubelet.json"
        config.write_text(kubelet_config(self.ca, serving, group))
        user = f"system:node:{machine.name}"
        kubeconfig = self.kubeconfig_for(user, "system:nodes", host=HUB)
        named = (f"--node-ip={machine.address}", f"--hostname-override={machine.name}")
        self._start(machine, "kubelet", f"--config={config}", f"--kubeconfig={kubeconfig}", *named)

    def _start_proxy(self, machine: Machine) -> None:
        config = self.kubeconfig_for("system:kube-proxy", host=HUB)
        named = (f"--kubeconfig={config}", f"--hostname-override={machine.name}", f"--cluster-cidr={PODS}")
        kernel = ("--proxy-mode=nftables", "--conntrack-max-per-core=0", "--conntrack-min=0")
        self._start(machine, "kube-proxy", *named, *kernel)

    def _start(self, machine: Machine, name: str, *flags: str) -> None:
        program = tool(name) if name in TOOLS else name
        self.instance.start(f"{machine.name}-{name}", [*machine.enter, program, *flags], {"PATH": PATH})

    def cut_power(self, name: str) -> None:
        """End everything on a node at once, pods included; its disk stays as the processes left it."""
        self.instance.end(name)
        for program in NODE_PROGRAMS:  # dead with it; what is left of them is how we entered
            self.instance.end(f"{name}-{program}")

    def restart(self, name: str) -> None:
        """Cut a node's power, boot it again from its disk, and wait until it is Ready."""
        with self._starting(name):
            self.cut_power(name)
            self._boot(name, int(name.removeprefix("node")))

    def restart_programs(self, name: str) -> None:
        """SIGKILL to a node's kubelet and containerd, which are started again at once; its pods live on."""
        with self._starting(name):
            for program in ("kubelet", "containerd"):
                self.instance.end(f"{name}-{program}")
            self._start_containerd(self.nodes[name], int(name.removeprefix("node")))
            self._start_kubelet(self.nodes[name])

    @contextmanager
    def _starting(self, name: str) -> Iterator[None]:
        """Wait until a node whose kubelet is started anew is Ready again."""
        before = self._boot_id(name)
        with step(f"restart {name}"):
            yield
            self.wait_until(f"{name} has started again", lambda: self._boot_id(name) != before)
            self.kubectl("wait", "--for=condition=Ready", f"node/{name}", "--timeout=120s")

    def _boot_id(self, name: str) -> str:
        """Changes with each start of the node's kubelet: it writes an event of its own."""
        listed = self.get(
            "events", "--namespace=default", f"--field-selector=reason=Starting,involvedObject.name={name}"
        )
        return ",".join(sorted(str(event["metadata"]["uid"]) for event in listed["items"]))

    def load(self, archive: Path) -> None:
        """Put an image on every node, those added later included."""
        if archive not in self._loaded:
            self._loaded.append(archive)
            with step(f"load {archive.stem} on {len(self.nodes)} nodes"):
                for machine in self.nodes.values():
                    machine.run("ctr", "--namespace=k8s.io", "images", "import", archive)

    def kill_container(self, namespace: str, pod: str, signal: str = "SIGKILL") -> None:
        """A signal to the first process of a pod's first container."""
        found: Any = self.get(f"pod/{pod}", f"--namespace={namespace}")
        container = found["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
        self.nodes[found["spec"]["nodeName"]].run(
            "ctr", "--namespace=k8s.io", "tasks", "kill", f"--signal={signal}", container
        )


def why_no_node() -> str:
    """What this machine lacks for a node, in one line; empty if nothing."""
    try:
        images.need((*PROGRAMS, *images.PROGRAMS))
        if not any((folder / "ptp").exists() for folder in CNI_PLUGINS):
            return "no CNI plugins: apt-get install containernetworking-plugins"
        printed(["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "true"])
    except ClusterError as error:
        return " ".join(str(error).split())
    return ""


def start_cluster(instance: Instance, nodes: int) -> Cluster:
    """A control plane with this many nodes, all Ready, in an instance that the caller destroys."""
    cluster = Cluster(instance)
    cluster.start()
    for _ in range(nodes):
        cluster.add_node()
    return cluster


@contextmanager
def cluster_running(nodes: int = 1) -> Iterator[Cluster]:
    """A control plane with this many nodes, gone at the end. Raises `NotPossibleHereError` where that cannot be."""
    if lacking := why_no_node():
        raise NotPossibleHereError(lacking)
    with closing(Instance.create("cluster")) as instance:
        yield start_cluster(instance, nodes)
