"""A frame that cannot be written: what the caller learns, and what a restart finds."""

import errno

import pytest

from tests.engine.wal.logbook import Logbook, frames, note
from tests.failing_files import FailingFiles
from ullage.errors import CommitOutcomeUnknown, DiskFull, RepositoryStopped

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


def test_a_log_whose_end_finds_no_room_is_closed_all_the_same(logbook: Logbook, files: FailingFiles) -> None:
    """What was committed is there; the next start finds an end like that of a crash."""
    logbook.open(files)
    logbook.commit(1)
    files.fail("write*", "*.wal", error=errno.ENOSPC, times=1_000)

    logbook.log.close()

    logbook.open()
    assert logbook.state.numbers == {1}


@pytest.mark.parametrize("kept", [0, 1, 39, 40, 60, 10_000])
def test_frames_that_cannot_be_written_stop_the_log(logbook: Logbook, files: FailingFiles, kept: int) -> None:
    """However much of them was written: nobody is told how it ended, and a restart finds whole frames only."""
    logbook.open(files)
    logbook.commit(1)
    waiting = [logbook.append(2), logbook.append(3)]
    files.fail("write", "*.wal", keeps=kept)
    for id in waiting:
        with pytest.raises(CommitOutcomeUnknown):
            logbook.log.wait_durable(id)

    with pytest.raises(RepositoryStopped):
        logbook.append(4)
    with pytest.raises(RepositoryStopped):
        logbook.log.checkpoint()
    logbook.log.close()
    logbook.open()
    assert logbook.state.numbers in ({1}, {1, 2}, {1, 2, 3})
    assert logbook.commit(5) == logbook.log.last_id


def test_a_large_frame_that_cannot_be_written_stops_the_log(logbook: Logbook, files: FailingFiles) -> None:
    """It is written before anybody waits for it; what fails then is as unknown as later."""
    logbook.open(files)
    logbook.commit(1)
    files.fail("write", "*.wal", keeps=100)
    with pytest.raises(CommitOutcomeUnknown, match="transaction 2"):
        logbook.log.append([note(2, bytes(1 << 20))], 0)

    with pytest.raises(RepositoryStopped):
        logbook.append(3)
    logbook.log.close()
    logbook.open()
    assert logbook.state.numbers == {1}


def test_frames_that_meet_a_full_disk_are_written_when_the_reserve_makes_room(
    logbook: Logbook, files: FailingFiles
) -> None:
    """A copy-on-write filesystem takes new blocks for reserved ones: the reserve pays, and nothing is lost."""
    spent: list[int] = []
    logbook.on_full = lambda: spent.append(1)
    logbook.open(files)
    files.fail("write", "*.wal", error=errno.ENOSPC, keeps=20)
    logbook.commit(1)

    assert spent == [1]
    logbook.crash()
    report = logbook.open()
    assert (logbook.state.numbers, report.torn) == ({1}, ())


def test_a_full_disk_without_a_reserve_stops_the_log(logbook: Logbook, files: FailingFiles) -> None:
    """What found no room twice is not tried a third time."""
    logbook.open(files)
    files.fail("write", "*.wal", error=errno.ENOSPC, times=2)
    with pytest.raises(CommitOutcomeUnknown):
        logbook.commit(1)

    logbook.log.close()
    logbook.open()
    assert logbook.state.numbers == set()


def test_a_commit_is_in_no_file_before_somebody_waits_for_it(logbook: Logbook) -> None:
    """Appended frames share the write of the first that waits; a crash before it leaves nothing of them."""
    logbook.open()
    waiting = [logbook.append(number) for number in (1, 2, 3)]
    assert [id for _, _, id in frames(logbook.logs()[0])] == []

    logbook.log.wait_durable(waiting[0])

    assert [id for _, _, id in frames(logbook.logs()[0])] == waiting
    assert logbook.log.durable == waiting[-1]


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
        failing.result(60)
    with pytest.raises((CommitOutcomeUnknown, RepositoryStopped)):
        following.result(60)
    assert logbook.log.durable == 2


@pytest.mark.parametrize("error", [MemoryError(), KeyboardInterrupt()])
def test_an_interruption_between_an_id_and_its_effect_stops_the_log(
    logbook: Logbook, files: FailingFiles, error: BaseException
) -> None:
    """No memory, or a signal, in the middle of a write: nobody can say what became of it but a restart."""
    logbook.open(files)
    logbook.commit(1)
    files.fail("write", "*.wal", error=error)
    with pytest.raises(CommitOutcomeUnknown):
        logbook.commit(2)

    with pytest.raises(RepositoryStopped):
        logbook.append(3)
    logbook.log.close()
    logbook.open()
    assert logbook.state.numbers == {1}


def test_a_transaction_that_cannot_be_applied_stops_the_log(logbook: Logbook) -> None:
    """Its frame waits while memory lacks it: nothing may follow, and a restart finds neither."""
    logbook.open()
    logbook.state.fails_with = MemoryError()
    with pytest.raises(CommitOutcomeUnknown):
        logbook.append(1)

    with pytest.raises(RepositoryStopped):
        logbook.append(2)
    logbook.log.close()
    logbook.open()
    assert logbook.state.numbers == set()
