"""Who syncs for whom, and that nobody is answered early."""

import threading
from functools import partial

import pytest

from tests.engine.wal.logbook import Logbook
from tests.failing_files import FailingFiles
from tests.support import ManualClock
from tests.threads import together


class GatedClock(ManualClock):
    """A clock whose sleeper waits until the test lets time pass."""

    def __init__(self) -> None:
        super().__init__()
        self.asleep = threading.Event()
        self.wake = threading.Event()

    def sleep(self, seconds: float) -> None:
        self.asleep.set()
        assert self.wake.wait(60), "nobody let time pass"
        super().sleep(seconds)


@pytest.mark.parametrize("partitions", [1, 2])
def test_all_that_came_during_a_sync_share_the_next_one(logbook: Logbook, files: FailingFiles, partitions: int) -> None:
    """While the leader syncs, eight more commits are written; one more sync covers all of them."""
    logbook.open(files, partitions=partitions)
    before = logbook.log.sync_count
    gate = files.hold("sync", "*.wal")
    leader = logbook.start(0)
    gate.wait_until_reached()
    ids = [logbook.append(number) for number in range(1, 9)]
    gate.open()
    leader.result(60)
    together(*(partial(logbook.log.wait_durable, id) for id in ids))

    assert logbook.log.sync_count == before + 2
    assert logbook.log.durable == 9


def test_nobody_is_answered_before_the_sync_returns(logbook: Logbook, files: FailingFiles) -> None:
    """The frame is written and applied, and still nothing is acknowledged while the disk works."""
    logbook.open(files)
    gate = files.hold("sync", "*.wal")
    commit = logbook.start(1)
    gate.wait_until_reached()

    assert not commit.done()
    assert logbook.log.durable == 0
    gate.open()
    assert commit.result(60) == 1
    assert logbook.log.durable == 1


def test_durable_never_passes_a_frame_of_another_partition(logbook: Logbook, files: FailingFiles) -> None:
    """One partition is synced, the other is not yet: neither transaction counts."""
    logbook.open(files, partitions=2)
    before = files.count("sync", "*partition-0/*")
    gate = files.hold("sync", "*partition-1/*")
    logbook.append(1)
    commit = logbook.start(2)
    gate.wait_until_reached()

    assert files.count("sync", "*partition-0/*") == before + 1
    assert logbook.log.durable == 0
    gate.open()
    commit.result(60)
    assert logbook.log.durable == 2


def test_a_frame_written_during_a_sync_is_not_covered_by_it(logbook: Logbook, files: FailingFiles) -> None:
    """What is appended after a sync began waits for the next one, also when the first has returned."""
    logbook.open(files)
    gate = files.hold("sync", "*.wal")
    leader = logbook.start(1)
    gate.wait_until_reached()
    id = logbook.append(2)
    gate.open()
    leader.result(60)

    assert logbook.log.durable == 1
    logbook.log.wait_durable(id)
    assert logbook.log.durable == 2


def test_in_interval_mode_syncs_are_an_interval_apart(logbook: Logbook, files: FailingFiles) -> None:
    """Five commits one after the other take five syncs, each an interval after the one before."""
    logbook.open(files, interval_seconds=0.5)
    start, before = logbook.clock.millis, files.count("sync", "*.wal")
    logbook.commit_each(1, 5)

    assert files.count("sync", "*.wal") == before + 5
    assert logbook.clock.millis - start == 4 * 500


def test_in_interval_mode_nobody_is_answered_early(logbook: Logbook, files: FailingFiles) -> None:
    """Commits that come within an interval wait for its end, and share its one sync."""
    clock = GatedClock()
    logbook.open(files, interval_seconds=1.0, clock=clock)
    logbook.commit(0)
    syncs = files.count("sync", "*.wal")
    commits = [logbook.start(number) for number in range(1, 5)]
    assert clock.asleep.wait(60)
    while logbook.log.last_id < 5:
        assert files.count("sync", "*.wal") == syncs

    assert not any(commit.done() for commit in commits)
    assert logbook.log.durable == 1
    clock.wake.set()
    assert sorted(commit.result(60) for commit in commits) == [2, 3, 4, 5]
    assert files.count("sync", "*.wal") == syncs + 1


def test_many_threads_lose_nothing(logbook: Logbook) -> None:
    """Eight threads over three partitions with checkpoints in between: every acknowledged number comes back."""
    logbook.open(partitions=3)

    def commit_some(thread: int) -> None:
        for number in range(40):
            logbook.commit(thread * 1_000 + number)

    def checkpoint_some() -> None:
        for _ in range(5):
            logbook.log.checkpoint()

    together(*(partial(commit_some, thread) for thread in range(8)), checkpoint_some)
    expected = {thread * 1_000 + number for thread in range(8) for number in range(40)}
    assert logbook.log.durable == 320
    logbook.crash()

    logbook.open(partitions=3)

    assert logbook.state.numbers == expected
