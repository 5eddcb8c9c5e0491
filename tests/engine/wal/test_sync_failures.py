"""A sync that fails leaves everything open, and the log stops."""

import pytest

from tests.engine.wal.logbook import Logbook
from tests.failing_files import FailingFiles
from tests.threads import begin
from ullage.errors import CommitOutcomeUnknown, RepositoryStopped


def test_a_failed_sync_leaves_the_outcome_unknown_and_stops_the_log(logbook: Logbook, files: FailingFiles) -> None:
    """The caller is never told that it failed, and all after it is refused; for what was synced before it answers."""
    logbook.open(files)
    durable = logbook.commit(1)
    files.fail("sync", "*.wal")
    with pytest.raises(CommitOutcomeUnknown, match="transaction 2"):
        logbook.commit(2)

    assert not logbook.log.is_running
    with pytest.raises(RepositoryStopped, match="reopen it"):
        logbook.append(3)
    with pytest.raises(RepositoryStopped):
        logbook.log.checkpoint()
    logbook.log.wait_durable(durable)


def test_all_that_wait_for_a_failed_sync_get_the_same_answer(logbook: Logbook, files: FailingFiles) -> None:
    """Leader and followers alike: a follower's own sync afterwards would succeed and prove nothing."""
    logbook.open(files)
    gate = files.hold("sync", "*.wal")
    files.fail("sync", "*.wal")
    leader = logbook.start(1)
    gate.wait_until_reached()
    followers = [logbook.append(number) for number in (2, 3, 4)]
    syncs = files.count("sync", "*.wal")
    gate.open()

    with pytest.raises(CommitOutcomeUnknown, match="transaction 1"):
        leader.result(60)
    for id in followers:
        with pytest.raises(CommitOutcomeUnknown, match=f"transaction {id}"):
            logbook.log.wait_durable(id)
    assert files.count("sync", "*.wal") == syncs
    assert logbook.log.durable == 0


def test_a_new_open_shows_what_the_disk_has(logbook: Logbook, files: FailingFiles) -> None:
    """The frame whose sync failed may be there: then it is applied, once, and proved by a snapshot."""
    logbook.open(files)
    logbook.commit(1)
    files.fail("sync", "*.wal")
    with pytest.raises(CommitOutcomeUnknown):
        logbook.commit(2)
    logbook.log.close()

    report = logbook.open()

    assert logbook.state.numbers == {1, 2}
    assert not report.clean
    assert logbook.log.snapshot_id == 2


def test_one_partition_that_fails_stops_them_all(logbook: Logbook, files: FailingFiles) -> None:
    """`durable` is one number over all partitions: it does not pass a frame that another partition lost."""
    logbook.open(files, partitions=2)
    files.fail("sync", "*partition-1/*")
    first, second = logbook.append(1), logbook.append(2)

    for id in (first, second):
        with pytest.raises(CommitOutcomeUnknown):
            logbook.log.wait_durable(id)
    assert logbook.log.durable == 0


def test_an_interrupted_wait_says_nothing_about_the_transaction(logbook: Logbook, files: FailingFiles) -> None:
    """A signal that ends a wait leaves the outcome as unknown as a failed sync does."""
    logbook.open(files)
    files.fail("sync", "*.wal", error=KeyboardInterrupt())
    with pytest.raises(CommitOutcomeUnknown):
        logbook.commit(1)


def test_a_close_that_cannot_sync_is_no_clean_end(logbook: Logbook, files: FailingFiles) -> None:
    """The error comes out, the files are released, and the next restore takes nothing for granted."""
    logbook.open(files)
    logbook.commit(1)
    files.fail("sync", "*.wal")
    with pytest.raises(OSError, match="Input/output error"):
        logbook.log.close()

    assert files.held == 0
    logbook.open()
    assert logbook.state.numbers == {1}


def test_nothing_is_acknowledged_once_the_files_are_released(logbook: Logbook) -> None:
    """A commit that was written, but not synced when the log was abandoned, has an unknown outcome."""
    logbook.open()
    id = logbook.append(1)
    logbook.log.abandon()

    with pytest.raises(CommitOutcomeUnknown):
        logbook.log.wait_durable(id)


def test_a_commit_that_waits_during_a_close_is_covered_by_it(logbook: Logbook, files: FailingFiles) -> None:
    """What was appended before the close is synced by it, and the log ends clean."""
    logbook.open(files)
    logbook.commit(1)
    id = logbook.append(2)
    logbook.log.close()

    logbook.log.wait_durable(id)
    assert logbook.open().clean
    assert logbook.state.numbers == {1, 2}


def test_all_that_wait_while_the_log_closes_are_answered(logbook: Logbook, files: FailingFiles) -> None:
    """A leader and those behind it learn that the close has synced their transactions; nobody sleeps for ever."""
    logbook.open(files)
    gate = files.hold("sync", "*.wal")
    commits = [logbook.start(1)]
    gate.wait_until_reached()
    commits += [logbook.start(number) for number in range(2, 7)]
    while logbook.log.last_id < 6:
        assert not any(commit.done() for commit in commits)
    closing = begin(logbook.log.close)
    gate.open()
    closing.result(60)

    assert sorted(commit.result(60) for commit in commits) == [1, 2, 3, 4, 5, 6]
