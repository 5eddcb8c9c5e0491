import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.control_plane import ControlPlane, control_plane_running
from tests.cluster.errors import ClusterError
from tests.cluster.instance import Process, State, homes, sweep
from tests.cluster.tools import TOOLS

KILLED_OWNER = """
import os, signal
from tests.cluster.{module} import {running}
with {running}() as cluster:
    print(cluster.instance.home, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(module: str, running: str) -> Path:
    """The folder of a cluster whose owner was killed, and which goes on."""
    program = KILLED_OWNER.format(module=module, running=running)
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == -signal.SIGKILL, result.stderr
    return Path(result.stdout.strip())


def test_the_api_server_is_the_version_we_pinned(control_plane: ControlPlane) -> None:
    """Server and client both name the version of the wrapper module."""
    version = control_plane.kubectl("version")

    assert version.count(TOOLS["kube-apiserver"].version) == 2


def test_two_clusters_stand_beside_each_other(control_plane: ControlPlane) -> None:
    """A second control plane shares no port, folder or authority with the first, and leaves nothing when it ends."""
    with control_plane_running() as second:
        recorded = State.read(second.instance.home)
        assert not set(recorded.ports) & set(control_plane.instance.state.ports)
        with pytest.raises(ClusterError, match="certificate"):
            control_plane.kubectl("--server", second.url, "get", "namespaces")

    assert not any(process.lives for process in recorded.processes)
    assert second.instance.home not in list(homes())
    assert "default" in control_plane.kubectl("get", "namespaces")


def test_a_killed_owner_leaves_nothing_after_the_next_start() -> None:
    """After SIGKILL the processes still run; a sweep ends them and removes their folder, and spares other clusters."""
    spared = list(homes())
    home = killed("control_plane", "control_plane_running")
    recorded = State.read(home)
    assert {process.name for process in recorded.processes if process.lives} >= {"etcd", "kube-apiserver"}

    sweep()

    assert not any(process.lives for process in recorded.processes)
    assert not home.exists()
    assert [path for path in spared if not path.exists()] == []


def test_an_id_that_came_back_is_not_ours() -> None:
    """A process with a recorded id but another start time is left alone: here it would be this test."""
    ours = Process.of(os.getpid())
    other = Process(ours.pid, ours.started - 1)

    other.kill()

    assert ours.lives
    assert not other.lives
