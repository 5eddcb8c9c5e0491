"""A frame that cannot be written: what the caller learns, and what a restart finds."""

import errno

import pytest

from tests.engine.wal.logbook import Logbook, frames, note
from tests.failing_files import FailingFiles
from ullage_agent.engine.errors import CommitOutcomeUnknown, DiskFull, RepositoryStopped

ROOM = 5 << 20
"""More than a log file reserves at a time."""


def test_no_room_for_the_next_blocks_takes_nothing(logbook: Logbook, files: FailingFiles) -> None:
    """A disk that is full when room is reserved is a definite failure: no id is used, nothing is applied."""
    logbook.open(files)
    logbook.commit(1)
    files.fail("allocate", "*.wal", error=errno.ENOSPC)
    with pytest.raises(DiskFull, match="no room for"):
        logbook.log.append([note(99, bytes(ROOM))], 0)

    assert logbook.state.numbers == {1}
    assert logbook.log.last_id == 1
    assert logbook.commit(2) == 2


@pytest.mark.parametrize("kept", [0, 1, 39, 40, 60])
def test_a_frame_that_fails_is_cut_back_and_its_id_is_voided(logbook: Logbook, files: FailingFiles, kept: int) -> None:
    """However much of it was written, the frame leaves no trace; the log goes on, and a restart counts the id."""
    logbook.open(files)
    logbook.commit(1)
    files.fail("write", "*.wal", keeps=kept)
    with pytest.raises(OSError, match="Input/output error"):
        logbook.append(2)

    assert logbook.state.numbers == {1}
    assert logbook.commit(3) == 3
    logbook.crash()
    report = logbook.open()
    assert (logbook.state.numbers, report.last_id, report.torn) == ({1, 3}, 3, ())


def test_a_frame_that_meets_a_full_disk_is_a_definite_failure(logbook: Logbook, files: FailingFiles) -> None:
    """Where blocks cannot be reserved, the write itself finds the disk full: DiskFull, and the log goes on."""
    logbook.open(files, partitions=2)
    files.fail("write", "*.wal", error=errno.ENOSPC, keeps=20)
    with pytest.raises(DiskFull):
        logbook.append(1)

    assert logbook.commit(2) == 2
    logbook.crash()
    logbook.open(partitions=2)
    assert logbook.state.numbers == {2}


@pytest.mark.parametrize("before", [0, 1, 2], ids=lambda count: f"{count}-frames-before")
@pytest.mark.parametrize("kept", [30, 10_000], ids=["half-a-frame", "a-whole-frame"])
def test_a_frame_that_stays_behind_is_disowned(logbook: Logbook, files: FailingFiles, before: int, kept: int) -> None:
    """When cutting back fails, the log goes on in a new file, and a restart ignores the failed frame, even a whole one.

    Nothing else is committed: the failure that the caller was told must be final by itself.
    """
    logbook.open(files)
    for number in range(before):
        logbook.append(number)
    files.fail("write", "*.wal", keeps=kept)
    files.fail("truncate", "*.wal")
    with pytest.raises(OSError, match="Input/output error"):
        logbook.append(99)
    assert len(logbook.logs()) == 2
    logbook.crash()

    report = logbook.open()

    assert logbook.state.numbers == set(range(before))
    assert report.last_id == before + 1


def test_a_log_that_left_a_file_behind_goes_on_and_checkpoints(logbook: Logbook, files: FailingFiles) -> None:
    """After such a rotation commits, checkpoints and restarts are as ever."""
    logbook.open(files, partitions=2)
    logbook.commit_each(1, 2)
    files.fail("write", "*.wal", keeps=10_000)
    files.fail("truncate", "*.wal")
    with pytest.raises(OSError, match="Input/output error"):
        logbook.append(99)
    logbook.commit_each(4, 6)
    copy = logbook.copy_to(logbook.path.with_name("copy"))
    logbook.log.checkpoint()
    logbook.commit(7)
    logbook.log.close()

    copy.open(partitions=2)
    assert copy.state.numbers == {1, 2, 4, 5, 6}
    copy.close()
    assert logbook.open(partitions=2).clean
    assert logbook.state.numbers == {1, 2, 4, 5, 6, 7}


def test_a_void_that_fails_stops_the_log(logbook: Logbook, files: FailingFiles) -> None:
    """An id that can be neither written nor voided leaves the outcome unknown, and nothing may follow it."""
    logbook.open(files)
    logbook.commit(1)
    files.fail("write", "*.wal", times=2, keeps=10_000)
    files.fail("truncate", "*.wal", times=2)
    with pytest.raises(CommitOutcomeUnknown, match="transaction 2"):
        logbook.append(2)

    with pytest.raises(RepositoryStopped):
        logbook.append(3)
    with pytest.raises(RepositoryStopped):
        logbook.log.checkpoint()
    logbook.log.close()
    logbook.open()
    assert logbook.state.numbers in ({1}, {1, 2})
    logbook.commit(4)


def test_a_cut_that_does_not_reach_the_disk_stops_the_log(logbook: Logbook, files: FailingFiles) -> None:
    """The error of that sync may have been meant for earlier frames, and the kernel reports it once."""
    logbook.open(files)
    waiting = logbook.append(1)
    files.fail("write", "*.wal", keeps=10)
    files.fail("sync", "*.wal")
    with pytest.raises(CommitOutcomeUnknown):
        logbook.append(2)
    syncs = files.count("sync", "*.wal")

    with pytest.raises(CommitOutcomeUnknown):
        logbook.log.wait_durable(waiting)
    assert files.count("sync", "*.wal") == syncs
    assert logbook.log.durable == 0


def test_nothing_is_acknowledged_above_an_id_without_a_frame(logbook: Logbook, files: FailingFiles) -> None:
    """A commit in another partition that follows a stopped id would be lost at the restart: it is not acknowledged."""
    logbook.open(files, partitions=2)
    logbook.commit_each(1, 2)
    gate = files.hold("write", "*partition-0/*", at=1)
    files.fail("write", "*partition-0/*", times=2)
    failing = logbook.start(3)
    gate.wait_until_reached()
    following = logbook.start(4)
    gate.open()

    with pytest.raises(CommitOutcomeUnknown):
        failing.result()
    with pytest.raises((CommitOutcomeUnknown, RepositoryStopped)):
        following.result()
    assert logbook.log.durable == 2


def test_a_short_write_is_as_good_as_a_failed_one(logbook: Logbook, files: FailingFiles) -> None:
    """Half a frame followed by a healthy one: the half is gone, the healthy one stands where it began."""
    logbook.open(files)
    logbook.commit(1)
    end = sum(frames(logbook.logs()[0])[0][:2])
    files.fail("write", "*.wal", keeps=50)
    with pytest.raises(OSError, match="Input/output error"):
        logbook.append(2)

    logbook.commit(3)

    assert [(offset, id) for offset, _, id in frames(logbook.logs()[0])][1:] == [(end, 2), (end + 40, 3)]


@pytest.mark.parametrize("error", [MemoryError(), KeyboardInterrupt()])
def test_an_interruption_between_an_id_and_its_effect_stops_the_log(
    logbook: Logbook, files: FailingFiles, error: BaseException
) -> None:
    """No memory, or a signal, in the middle of an append: nobody can say what became of it but a restart."""
    logbook.open(files)
    logbook.commit(1)
    files.fail("write", "*.wal", error=error)
    with pytest.raises(CommitOutcomeUnknown):
        logbook.append(2)

    with pytest.raises(RepositoryStopped):
        logbook.append(3)
    logbook.log.close()
    logbook.open()
    assert logbook.state.numbers == {1}


def test_a_transaction_that_cannot_be_applied_stops_the_log(logbook: Logbook) -> None:
    """Its frame stands while memory lacks it: the caller must not believe that it failed."""
    logbook.open()
    logbook.state.fails_with = MemoryError()
    with pytest.raises(CommitOutcomeUnknown):
        logbook.append(1)

    with pytest.raises(RepositoryStopped):
        logbook.append(2)
    logbook.log.close()
    logbook.open()
    assert logbook.state.numbers == {1}
