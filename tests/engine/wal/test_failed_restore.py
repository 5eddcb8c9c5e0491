"""An open that fails lets go of everything, and the next one works."""

import errno

import pytest

from tests.engine.wal.logbook import Logbook
from tests.failing_files import FailingFiles
from ullage.errors import DiskFull

CHECKPOINT_STEPS = [
    ("allocate", "*.wal"),
    ("write", "*.wal"),
    ("create", "*.partial"),
    ("write", "*.partial"),
    ("sync", "*.partial"),
    ("rename", "*/snapshot"),
    ("unlink", "*.wal"),
]


@pytest.mark.parametrize(("kind", "path"), CHECKPOINT_STEPS)
def test_a_failed_checkpoint_at_the_end_fails_the_restore(
    logbook: Logbook, files: FailingFiles, kind: str, path: str
) -> None:
    """Whatever step fails, the files are closed, nothing can be written, and a second restore has everything."""
    logbook.killed(4, partitions=2)
    files.fail(kind, path)
    with pytest.raises(OSError, match="Input/output error"):
        logbook.open(files, partitions=2)

    assert not logbook.log.is_running
    assert files.held == 0
    logbook.open(partitions=2)
    assert logbook.state.numbers == {1, 2, 3, 4}
    assert logbook.commit(5) == 5


def test_a_full_disk_at_the_end_of_a_restore_is_said(logbook: Logbook, files: FailingFiles) -> None:
    """No room for the snapshot is DiskFull, and logs and old snapshot are kept."""
    logbook.killed(1)
    files.fail("write", "*.partial", error=errno.ENOSPC)
    with pytest.raises(DiskFull, match="the old snapshot and all logs are kept"):
        logbook.open(files)

    logbook.open()
    assert logbook.state.numbers == {1}


def test_failed_opens_leave_no_pile_of_files(logbook: Logbook, files: FailingFiles) -> None:
    """Ten opens that fail, and one that does not, leave one log file."""
    logbook.killed(1)
    files.fail("rename", "*/snapshot", times=10)
    for _ in range(10):
        with pytest.raises(OSError, match="Input/output error"):
            logbook.open(files)
        assert len(logbook.logs()) == 2

    logbook.open(files)

    assert len(logbook.logs()) == 1


def test_a_failed_proof_fails_the_restore(logbook: Logbook) -> None:
    """What the owner raises before serving comes out, and the log is released."""
    logbook.killed(1)
    with pytest.raises(ZeroDivisionError):
        logbook.open(before_serving=lambda _: print(1 // 0))

    assert not logbook.log.is_running
    logbook.open()
    assert logbook.state.numbers == {1}
