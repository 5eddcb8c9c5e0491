"""Machines of a cluster's own: namespaces of network, mounts and process ids, wired to each other and to nothing else.

    this machine ── forward ──┐
                              │ hub: control plane, DNS      10.100.0.1, bridge lan0
                              ├── node1: kubelet, pods       10.100.0.11, pods 10.244.1.0/24
                              └── node2                      10.100.0.12, pods 10.244.2.0/24

The first process of each id namespace is recorded by the instance: killing it ends every process in it, and with the
last of them the kernel drops the mounts and the network. What stays is the machine's disk, a folder of the instance.
"""

import os
import select
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.errors import NotPossibleHereError, printed
from tests.cluster.instance import Instance, Process

HUB = "10.100.0.1"
FIRST_NODE = 11

SECONDS_TO_START = 10
ROUNDS = 100

INIT = "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)\nwhile True: signal.pause()"
"""The first process: the kernel reaps what is orphaned in its namespace, because it ignores its children's ends."""


@dataclass(frozen=True)
class Machine:
    """A set of namespaces, and the folder that stands for its disk."""

    name: str
    address: str
    disk: Path
    init: int

    @property
    def enter(self) -> tuple[str, ...]:
        """Before a command: run it on this machine."""
        return ("nsenter", f"--target={self.init}", "--net", "--mount", "--pid", "--")

    def run(self, *command: str | Path) -> str:
        """What a command on this machine prints; `ClusterError` if it fails."""
        return printed([*self.enter, *command])

    def shell(self, script: str) -> str:
        """What a script on this machine prints."""
        return self.run("sh", "-euc", script)

    def on_its_network(self, script: str) -> str:
        """The same with the process ids and files of the machine we are on."""
        return printed(["nsenter", f"--target={self.init}", "--net", "--", "sh", "-euc", script])


def boot_machine(instance: Instance, name: str, address: str) -> Machine:
    """Make the namespaces; the disk is that of an earlier machine of this name if there was one.

    Raises `NotPossibleHereError` where the kernel or a missing privilege refuses them.
    """
    disk = instance.home / name
    disk.mkdir(exist_ok=True)
    holder = instance.start(
        name,
        [
            *("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"),
            *(sys.executable, "-c", INIT),
        ],
    )
    machine = Machine(name, address, disk, _first_child(instance, holder, name))
    instance.state.processes.append(Process.of(machine.init, name))
    instance.state.write(instance.home)
    machine.shell("mount --make-rshared / && ip link set lo up && echo 1 >/proc/sys/net/ipv4/ip_forward")
    return machine


def _first_child(instance: Instance, holder: subprocess.Popen[bytes], name: str) -> int:
    """The process that unshare has become the parent of, once it is the program.

    Before that it makes its mounts private, and would take back what we say of them:

        unshare   fork
        child           make mounts private, mount /proc, exec INIT
        we                                                          make mounts shared
    """
    children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children")
    descriptor = os.pidfd_open(holder.pid)
    try:
        for _ in range(SECONDS_TO_START * ROUNDS):
            if found := children.read_text().split():
                command = Path(f"/proc/{found[0]}/cmdline").read_bytes()
                if command.split(b"\0")[1:3] == [b"-c", INIT.encode()]:  # unshare's own words end in them too
                    return int(found[0])
            if select.select([descriptor], [], [], 1 / ROUNDS)[0]:
                break
    finally:
        os.close(descriptor)
    reason = instance.log(name).read_text().strip()
    raise NotPossibleHereError(f"this machine lets us make no namespaces of network, mounts and process ids: {reason}")


def boot_hub(instance: Instance) -> Machine:
    """The machine that has the control plane, and routes between the nodes."""
    hub = boot_machine(instance, "hub", HUB)
    hub.shell(f"ip link add lan0 type bridge && ip address add {HUB}/24 dev lan0 && ip link set lan0 up")
    return hub


def wire(hub: Machine, node: Machine, number: int) -> None:
    """Connect a node to the hub, which is its way to everybody else; the hub knows where its pods are."""
    port = f"port{number}"
    hub.on_its_network(
        f"ip link delete {port} 2>/dev/null || true; "  # of an earlier machine of this name
        f"ip link add {port} type veth peer name node0 netns {node.init} && "
        f"ip link set {port} master lan0 up"
    )
    node.on_its_network(
        f"ip address add {node.address}/24 dev node0 && ip link set node0 up && ip route add default via {HUB}"
    )
    hub.on_its_network(f"ip route replace 10.244.{number}.0/24 via {node.address}")
