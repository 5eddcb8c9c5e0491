"""A real registry, Debian's docker-registry, on this machine's own address and without TLS."""

import urllib.error
import urllib.request
from pathlib import Path

import yaml

from tests.cluster.control_plane import LOOPBACK, ControlPlane
from tests.cluster.debian import program

SECONDS_MAX = 30


def registry_of(cluster: ControlPlane) -> str:
    """The address of a registry that ends with the cluster, empty at first."""
    address = f"{LOOPBACK}:{cluster.instance.free_port()}"
    home: Path = cluster.instance.home
    config = {
        "version": "0.1",
        "log": {"accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(home / "registry")}},
        "http": {"addr": address},
    }
    (home / "registry.yaml").write_text(yaml.safe_dump(config))
    cluster.instance.start("registry", [program("docker-registry", "docker-registry"), "serve", home / "registry.yaml"])
    cluster.wait_until("the registry answers", lambda: _answers(address), seconds_max=SECONDS_MAX)
    return address


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/v2/", timeout=5) as answer:
            return bool(answer.status == 200)
    except urllib.error.URLError:  # it does not listen yet
        return False
