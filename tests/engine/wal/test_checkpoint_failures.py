"""An automatic checkpoint that fails is no reason to stop: updates succeed, and the next checkpoint may."""

import errno

import pytest

from tests.engine.wal.logbook import Logbook
from tests.failing_files import FailingFiles
from ullage.errors import DiskFull

STEPS = [
    ("create", "*.wal"),
    ("allocate", "*.wal"),
    ("sync_directory", "*partition-*"),
    ("write", "*.wal"),
    ("create", "*.partial"),
    ("write", "*.partial"),
    ("sync", "*.partial"),
    ("rename", "*/snapshot"),
    ("sync_directory", "*/flowfile"),
    ("unlink", "*.wal"),
]

TWICE = [
    ("create", "*.wal", 2),
    ("allocate", "*.wal", 2),
    ("sync_directory", "*partition-*", 2),
    ("write", "*.wal", 2),
    ("write", "*.partial", 2),
    ("unlink", "*.wal", 2),
]
"""Steps that a checkpoint of two partitions does twice."""


@pytest.mark.parametrize(("kind", "path", "at"), [*((*step, 1) for step in STEPS), *TWICE])
def test_an_update_succeeds_when_a_checkpoint_fails(
    logbook: Logbook, files: FailingFiles, kind: str, path: str, at: int
) -> None:
    """Whichever step meets an I/O error: commits go on, a crash right then loses nothing, the next checkpoint works."""
    logbook.open(files, partitions=2)
    logbook.commit_each(1, 4)
    fault = files.fail(kind, path, at=at)
    with pytest.raises(OSError, match="Input/output error"):
        logbook.log.checkpoint()
    assert fault.seen >= at

    logbook.commit(5)
    copy = logbook.copy_to(logbook.path.with_name("copy"))
    copy.open(partitions=2)
    assert copy.state.numbers == {1, 2, 3, 4, 5}
    copy.close()
    assert logbook.log.checkpoint() == 5
    assert logbook.state.views == 0
    assert len(logbook.files()) == 3
    logbook.log.close()
    assert logbook.open(partitions=2).clean
    assert logbook.state.numbers == {1, 2, 3, 4, 5}


@pytest.mark.parametrize(("kind", "path"), [("allocate", "*.wal"), ("write", "*.partial"), ("create", "*.partial")])
def test_a_full_disk_is_told_apart(logbook: Logbook, files: FailingFiles, kind: str, path: str) -> None:
    """DiskFull lets the owner spend its reserve and try again."""
    logbook.open(files)
    logbook.commit(1)
    files.fail(kind, path, error=errno.ENOSPC)
    with pytest.raises(DiskFull, match="the old snapshot and all logs are kept"):
        logbook.log.checkpoint()

    assert logbook.log.checkpoint() == 1


def test_a_snapshot_that_failed_leaves_its_room_to_others(logbook: Logbook, files: FailingFiles) -> None:
    """What a full disk kept of a snapshot is removed at once, not at the next checkpoint."""
    logbook.open(files)
    logbook.commit_each(1, 10)
    files.fail("write", "*.partial", at=3, error=errno.ENOSPC)
    with pytest.raises(DiskFull):
        logbook.log.checkpoint()

    assert not (logbook.path / "snapshot.partial").exists()


def test_checkpoints_that_keep_failing_keep_one_file_each_at_most(logbook: Logbook, files: FailingFiles) -> None:
    """Without traffic in between, a failing checkpoint is repeated without another log file."""
    logbook.open(files)
    logbook.commit(1)
    files.fail("sync", "*.partial", times=20)
    for _ in range(20):
        with pytest.raises(OSError, match="Input/output error"):
            logbook.log.checkpoint()

    assert len(logbook.logs()) == 2


def test_every_descriptor_of_a_failed_checkpoint_is_closed(logbook: Logbook, files: FailingFiles) -> None:
    """A failure at each step, then a close: no file is left open."""
    logbook.open(files, partitions=2)
    for kind, path in STEPS:
        for number in range(2):
            logbook.log.wait_durable(logbook.log.append([], number))
        files.fail(kind, path)
        with pytest.raises(OSError, match="Input/output error"):
            logbook.log.checkpoint()
    logbook.log.close()

    assert files.held == 0
