"""A history that is killed before each of its steps, and brought up to date after each kill.

Arguments: the endpoint, where the history is, its folder, the first step, and how many to the next. This process
imports everything once; each run is a fork of it, so a kill costs a tenth of a second. A step is what the operating
system is asked for: a file opened, renamed or removed, a folder made, a sync, a commit of the catalog. For each kill a
line of JSON says the step and which rows there are after the run that follows it.
"""

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sqlalchemy

from tests.spark.histories import Tomorrow, rows
from ullage_spark.history import fed, written
from ullage_spark.rollup import rolled_up

STEPS = frozenset({"open", "os.rename", "os.remove", "os.mkdir"})


class Steps:
    """Kills this process before the step of this number."""

    def __init__(self, below: str, number: int) -> None:
        self._below = below
        self._left = number
        sync = os.fsync

        def counted(handle: Any) -> None:
            self._count()
            sync(handle)

        os.fsync = counted  # type: ignore[assignment]
        sys.addaudithook(self._heard)
        sqlalchemy.event.listen(sqlalchemy.Engine, "commit", self._commits)

    def _heard(self, event: str, arguments: tuple[object, ...]) -> None:
        if event in STEPS and any(isinstance(each, str) and self._below in each for each in arguments):
            self._count()

    def _commits(self, _connection: object) -> None:
        self._count()

    def _count(self) -> None:
        self._left -= 1
        if not self._left:
            os.kill(os.getpid(), signal.SIGKILL)


def run(endpoint: str, where: str) -> None:
    """Both jobs, with commits of few events; all days are over, so that files are merged in each run."""
    clock = Tomorrow()
    with written(where, clock) as tables:
        fed(tables, {"endpoint": endpoint, "maxEvents": "12"}, clock)
        rolled_up(tables)


def orphans(folder: str) -> int:
    """Files that no manifest names; of Iceberg's it says nothing."""
    named = "".join(path.read_text() for path in Path(folder).rglob("manifest.json"))
    return sum(path.name not in named for path in Path(folder).rglob("*.parquet")) if named else 0


def forked(work: Callable[[], None]) -> int:
    """How a fork of this process ended that did it."""
    child = os.fork()
    if not child:
        work()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(endpoint: str, where: str, folder: str, first: str, stride: str) -> None:
    step = int(first)
    while True:
        shutil.rmtree(folder, ignore_errors=True)
        Path(folder).mkdir()

        def killed(step: int = step) -> None:
            Steps(folder, step)
            run(endpoint, where)

        def told(step: int = step) -> None:
            run(endpoint, where)
            print(json.dumps({"step": step, "orphans": orphans(folder), **rows(where)}), flush=True)

        end = forked(killed)
        if forked(told) or end not in (0, -signal.SIGKILL):
            raise SystemExit(f"killed before step {step}: the run after it failed")
        if end == 0:
            return
        step += int(stride)


if __name__ == "__main__":
    main(*sys.argv[1:])
