"""A real registry, Debian's docker-registry, without TLS: beside the control plane, and reached from this machine."""

import urllib.request
from pathlib import Path

import yaml

from tests.cluster.control_plane import HERE, LOOPBACK, ControlPlane
from tests.cluster.debian import program
from tests.cluster.node import Cluster
from tests.cluster.node_files import REGISTRIES, registry_hosts

SECONDS_MAX = 30


def registry_of(cluster: ControlPlane) -> str:
    """The address of a registry that ends with the cluster, empty at first. Nodes pull from it by the same address:
    their containerd is told where that is.
    """
    port = cluster.instance.free_port()
    address = f"{LOOPBACK}:{port}"
    home: Path = cluster.instance.home
    config = {
        "version": "0.1",
        "log": {"accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(home / "registry")}},
        "http": {"addr": f"{cluster.place.listen}:{port}"},
    }
    (home / "registry.yaml").write_text(yaml.safe_dump(config))
    serve: list[str | Path] = [program("docker-registry", "docker-registry"), "serve", home / "registry.yaml"]
    cluster.instance.start("registry", [*cluster.place.enter, *serve])
    if cluster.place != HERE:
        cluster.forward(LOOPBACK, port, port)
    if isinstance(cluster, Cluster):
        for machine in cluster.nodes.values():
            told = machine.disk / REGISTRIES / address / "hosts.toml"
            told.parent.mkdir(parents=True)
            told.write_text(registry_hosts(f"http://{cluster.place.address}:{port}"))
    cluster.wait_until("the registry answers", lambda: _answers(address), seconds_max=SECONDS_MAX)
    return address


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/v2/", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:  # it does not listen yet, or who forwards has nobody behind it
        return False
