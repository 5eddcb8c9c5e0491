"""Programs with executors of their own: Spark's local-cluster mode, a process each, which stand for nodes.

An executor's folder is named after its number, and each number is a node. `python` says which in the variable that pods
get from their template, and links that node's socket to where a mount would show it: no executor sees another one's.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.spark.fleet import Fleet

ROOT = Path(__file__).parents[2]
SECONDS_MAX = 600.0
"""A program takes twenty seconds; beside five others on two cores it has taken five minutes."""

SOCKET = "agent.sock"
"""Where an executor sees its node's socket: in its folder."""

SESSION = """
import sys
from pyspark.sql import SparkSession

def session(master, **more):
    builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.executor.memory", "512m")
    builder = builder.config("spark.sql.shuffle.partitions", "2")
    for name, value in more.items():
        builder = builder.config(name.replace("__", "."), value)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("OFF")
    return made
"""

PYTHON = """#!/bin/sh
case ${PWD##*/} in
%(nodes)s
esac
if [ -n "$ULLAGE_NODE" ]; then ln -sfn "%(sockets)s/$ULLAGE_NODE.sock" agent.sock; fi
exec "%(python)s" "$@"
"""


def python_at(path: Path, fleet: Fleet) -> Path:
    """An interpreter for executors that says where it runs."""
    nodes = "\n".join(f"{number}) export ULLAGE_NODE={name} ;;" for number, name in enumerate(fleet.agents))
    (agent, *_) = fleet.agents.values()
    sockets = Path(agent.document.spec.service.socket_path).parent
    script = path / "python"
    script.write_text(PYTHON % {"nodes": nodes, "sockets": sockets, "python": sys.executable}, encoding="utf-8")
    script.chmod(0o755)
    return script


@contextmanager
def program(text: str, *arguments: str, python: Path | None = None, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """A driver in a process of its own, with all that it starts in its process group, which ends with the block."""
    # Not PYSPARK_DRIVER_PYTHON: executors too would read data sources with it.
    environment = {**os.environ, "PYSPARK_PYTHON": str(python or sys.executable)}
    started = subprocess.Popen(
        [sys.executable, "-c", SESSION + text, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env=environment,
        start_new_session=True,
    )
    try:
        yield started
    finally:
        with suppress(ProcessLookupError):  # it ended by itself, with all that it had started
            os.killpg(started.pid, signal.SIGKILL)
        started.communicate()


def ended(started: subprocess.Popen[str], timeout_seconds: float = SECONDS_MAX) -> str:
    """What it printed; AssertionError with what it complained of if it failed."""
    out, err = started.communicate(timeout=timeout_seconds)
    assert started.returncode == 0, err[-4000:]
    return out


def run(text: str, *arguments: str, python: Path | None = None, cwd: Path) -> Sequence[str]:
    """Run a program to its end; the lines that it printed."""
    with program(text, *arguments, python=python, cwd=cwd) as started:
        return ended(started).splitlines()
