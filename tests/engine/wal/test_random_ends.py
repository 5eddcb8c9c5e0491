"""Random traffic, random ends: what comes back is always a prefix that has everything acknowledged."""

import tempfile
from pathlib import Path

from hypothesis import given, settings, strategies as st

from tests.engine.wal.logbook import Logbook, blank
from tests.failing_files import FailingFiles
from tests.support import cut

STEPS = st.lists(st.sampled_from(["append", "append", "write", "write", "commit", "checkpoint"]), max_size=25)


@settings(max_examples=40)
@given(
    partitions=st.integers(1, 3),
    restarts=st.integers(1, 3),
    steps=STEPS,
    ends=st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=9, max_size=9),
)
def test_a_restart_gives_a_prefix_with_everything_acknowledged(
    partitions: int, restarts: int, steps: list[str], ends: list[tuple[float, bool]]
) -> None:
    """Unsynced ends of all partitions are cut or blanked at random: no acknowledged transaction is missing, and no
    transaction is there without all that came before it.
    """
    with tempfile.TemporaryDirectory() as directory:
        logbook = Logbook(Path(directory) / "flowfile")
        written: list[int] = []
        number = 0
        for life in range(restarts):
            logbook.open(FailingFiles(syncs=False), partitions=partitions)
            for step in steps:
                number += 1
                take(logbook, step, number, written)
            certain = set(written[: count_acknowledged(logbook, written)])
            tear_unsynced_ends(logbook, ends[life * 3 :])

            logbook.open(FailingFiles(syncs=False), partitions=partitions)
            found = logbook.state.numbers
            assert certain <= found
            assert found == set(written[: len(found)])
            written = written[: len(found)]
            logbook.log.close()
        logbook.close()


def take(logbook: Logbook, step: str, number: int, written: list[int]) -> None:
    """Do one step; `written` grows by what a restart may show."""
    if step == "checkpoint":
        logbook.log.checkpoint()
        return
    if step == "write":
        logbook.append_written(number)
    else:
        logbook.append(number)
    written.append(number)
    if step == "commit":
        logbook.log.wait_durable(logbook.log.last_id)


def count_acknowledged(logbook: Logbook, written: list[int]) -> int:
    """How many of the written numbers belong to transactions up to `durable`."""
    unsynced = sum(id > logbook.log.durable for id in logbook.state.applied)
    return len(written) - unsynced


def tear_unsynced_ends(logbook: Logbook, ends: list[tuple[float, bool]]) -> None:
    """Crash, and keep of what no sync covered only a random part of each partition's file."""
    unsynced = [(partition.path, partition.synced, partition.offset) for partition in logbook.log._partitions]
    logbook.crash()
    for (path, synced, end), (share, cuts) in zip(unsynced, ends, strict=False):
        kept = synced + round(share * (end - synced))
        if cuts:
            cut(Path(path), kept)
        else:
            blank(Path(path), kept, end)
