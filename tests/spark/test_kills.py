"""Executors and drivers killed in the middle of a write: they leave nothing, and what is written is there once."""

import os
import random
import signal
from pathlib import Path

import pytest

from tests.service.running import until
from tests.spark.cluster import SECONDS_MAX, ended, program
from tests.spark.fleet import Fleet

pytestmark = pytest.mark.timeout(2 * SECONDS_MAX)

CONTENTS = [random.Random(number).randbytes(100_000) for number in range(48)]

WRITE = """
import random
from pathlib import Path

master, endpoint, folder, name = sys.argv[1:]
spark = session(master, spark__sql__execution__arrow__maxRecordsPerBatch="4")


def contents(batches):
    # The first attempt of each task writes down in which JVM it runs, and goes on only when it is told to.
    import os, random, time
    from pathlib import Path
    import psutil, pyarrow
    from pyspark import TaskContext

    folder_ = Path(folder)
    mark = folder_ / f"task-{TaskContext.get().partitionId()}"
    waits = not mark.exists()
    for number, batch in enumerate(batches):
        made = [random.Random(seed).randbytes(100_000) for seed in batch.column("id").to_pylist()]
        yield pyarrow.RecordBatch.from_arrays([pyarrow.array(made, pyarrow.binary())], names=["content"])
        if number == 3 and waits:
            jvm = next(parent for parent in psutil.Process().parents() if "java" in parent.name())
            fresh = mark.with_suffix(".new")
            fresh.write_text(str(jvm.pid))
            fresh.rename(mark)
            while not (folder_ / "go").exists():
                time.sleep(0.05)


print(spark.sparkContext._gateway.proc.pid, flush=True)
rows = spark.range(0, 48, 1, 2).mapInArrow(contents, "content binary")
rows.write.format("ullage").mode("append").options(
    endpoint=endpoint, queue="in", stageBytes=300_000, write=name
).save()
spark.stop()
"""


def wait_for_both(fleet: Fleet, folder: Path) -> list[int]:
    """Both tasks have staged some of their contents and wait; the processes in which they run."""
    until(lambda: len(list(folder.glob("task-[01]"))) == 2, "both tasks to begin", SECONDS_MAX)
    until(lambda: staged_attempts(fleet) == 2, "both tasks to stage", SECONDS_MAX)
    return [int((folder / f"task-{number}").read_text()) for number in (0, 1)]


def staged_attempts(fleet: Fleet) -> int:
    """Attempts of which something is staged."""
    writes = [write for a in fleet.agents.values() for write in list(a.repository.ledger.writes.pending.values())]
    return sum(len(write.attempts) for write in writes)


def require_once(fleet: Fleet) -> None:
    """Each content is there, no content is there twice, and nothing is staged or remembered as open."""
    assert fleet.drained("in") == sorted(CONTENTS)
    assert fleet.hidden() == 0
    assert all(agent.repository.staging.pending() == [] for agent in fleet.agents.values())
    assert fleet.records() == {}


def test_a_killed_executors_tasks_are_done_by_another(fleet: Fleet, tmp_path: Path) -> None:
    """It dies with part of its contents staged, unheard by the sink; the write goes on and is whole."""
    with program(WRITE, "local-cluster[2,1,512]", fleet.endpoint, str(tmp_path), "w", cwd=tmp_path) as driver:
        victim, other = wait_for_both(fleet, tmp_path)
        assert victim != other
        os.kill(victim, signal.SIGKILL)
        until(lambda: staged_attempts(fleet) == 3, "another attempt", SECONDS_MAX)
        (tmp_path / "go").touch()
        ended(driver)

    require_once(fleet)


def test_a_killed_drivers_write_is_done_by_whoever_repeats_it(fleet: Fleet, tmp_path: Path) -> None:
    """Driver and JVM die with contents staged on both nodes: nothing of it shows, and the repeat leaves nothing."""
    with program(WRITE, "local-cluster[2,1,512]", fleet.endpoint, str(tmp_path), "w", cwd=tmp_path) as driver:
        assert driver.stdout is not None
        jvm = int(driver.stdout.readline())
        wait_for_both(fleet, tmp_path)
        os.kill(jvm, signal.SIGKILL)
        driver.kill()
        assert fleet.records() == {}
        assert fleet.hidden() > 0

    with program(WRITE, "local[2]", fleet.endpoint, str(tmp_path), "w", cwd=tmp_path) as driver:
        ended(driver)

    require_once(fleet)
