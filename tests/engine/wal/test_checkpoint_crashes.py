"""A process that dies at any call of an open, a commit, a checkpoint or a close."""

import pytest

from tests.engine.wal.logbook import Logbook, trim
from tests.failing_files import FailingFiles
from ullage_agent.engine.errors import UllageError


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_death_at_each_call_leaves_what_was_acknowledged(logbook: Logbook, partitions: int) -> None:
    """From the n-th call on nothing reaches the disk any more; the next start has all that was acknowledged, whole."""
    logbook.open(partitions=partitions)
    logbook.commit_each(1, 2)
    logbook.log.close()
    for number in range(partitions):
        trim(logbook.logs(number)[0])
    call = 0
    survived = False
    while not survived:
        call += 1
        victim = logbook.copy_to(logbook.path.with_name(f"victim-{call}"))
        acknowledged, tried, survived = live_and_die(victim, call, partitions)

        victim.open(FailingFiles(syncs=False), partitions=partitions)
        assert acknowledged <= victim.state.numbers <= tried
        victim.log.close()
        assert victim.open(FailingFiles(syncs=False), partitions=partitions).clean
        assert acknowledged <= victim.state.numbers <= tried
        victim.log.checkpoint()
        assert len(victim.files()) == 1 + partitions
        victim.discard()
    assert call > 40


def live_and_die(victim: Logbook, call: int, partitions: int) -> tuple[set[int], set[int], bool]:
    """Open, commit, checkpoint, commit, close, but for the calls from the given one on; what was acknowledged."""
    files = FailingFiles(syncs=False)
    files.fail("*", at=call, times=1_000_000)
    acknowledged, tried = {1, 2}, {1, 2}
    try:
        victim.open(files, partitions=partitions)
        for number in (3, 4, 5):
            tried.add(number)
            victim.commit(number)
            acknowledged.add(number)
            if number == 4:
                victim.log.checkpoint()
        victim.log.close()
        return acknowledged, tried, True
    except (OSError, UllageError):
        return acknowledged, tried, False
    finally:
        files.heal()
        victim.close()


def test_a_death_during_recovery_changes_nothing(logbook: Logbook) -> None:
    """A restore after a kill may itself be killed at each of its calls."""
    partitions = 2
    logbook.open(partitions=partitions)
    logbook.commit_each(1, 3)
    logbook.log.checkpoint()
    logbook.commit_each(4, 5)
    logbook.append_written(6)
    logbook.crash()
    call = 0
    survived = False
    while not survived:
        call += 1
        victim = logbook.copy_to(logbook.path.with_name(f"victim-{call}"))
        files = FailingFiles(syncs=False)
        files.fail("*", at=call, times=1_000_000)
        try:
            victim.open(files, partitions=partitions)
            survived = True
        except (OSError, UllageError):
            survived = False
        files.heal()
        victim.close()

        victim.open(FailingFiles(syncs=False), partitions=partitions)
        assert victim.state.numbers == set(range(1, 7))
        victim.discard()
    assert call > 15
