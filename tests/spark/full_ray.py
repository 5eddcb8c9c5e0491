"""The example with Ray Data, run as people run it. `make spark-full` names this module, and nothing else collects it:
Ray is 600 MB, which CI has no minutes for.
"""

import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Final

from bench.serving import node
from tests.cluster.cache import cache_root, locked
from ullage.client.socket import SocketClient

ROOT: Final = Path(__file__).parents[2]
RAY: Final = "ray[data]==2.60.0"
COUNT: Final = 5_000
SIZE: Final = 1_000
SECONDS_MAX: Final = 600.0


def environment() -> Path:
    """A Python with Ullage's packages and Ray, kept by Ray's version."""
    place = cache_root() / RAY.replace("[data]==", "-")
    with locked(place.with_suffix(".lock")):
        python = place / "bin" / "python"
        if not (place / "made").exists():
            venv.create(place, with_pip=True, clear=True)
            subprocess.run([python, "-m", "pip", "install", "--quiet", RAY, f"{ROOT}[agent]"], check=True)
            (place / "made").touch()
    return python


def test_ray_reads_each_content_once(tmp_path: Path) -> None:
    """Its workers, each over a connection of its own."""
    python = environment()
    with node(tmp_path / "repository") as (there, _):
        assert there.socket is not None
        with SocketClient(there.socket) as local:
            for _ in range(COUNT // 1_000):
                local.put_many([os.urandom(SIZE) for _ in range(1_000)])
        command: list[str | Path] = [python, ROOT / "examples" / "ray_contents.py", there.url, there.socket]
        paths = os.pathsep.join((str(ROOT / "agent"), str(ROOT)))
        done = subprocess.run(
            command,
            check=False,
            env=os.environ | {"PYTHONPATH": paths},
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
        )

    sys.stderr.write(done.stderr[-4_000:])
    assert f"{COUNT} contents, {COUNT * SIZE} bytes, {COUNT} of them different" in done.stdout
