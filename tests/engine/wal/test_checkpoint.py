"""Snapshots taken while commits go on."""

from functools import partial

import pytest

from tests.engine.wal.logbook import Logbook
from tests.failing_files import FailingFiles
from tests.support import cut
from tests.threads import begin, together
from ullage.engine.wal.format import FILE_MAGIC, unpack_file_header
from ullage.errors import NotRestored


def snapshot_alone(logbook: Logbook) -> set[int]:
    """What the snapshot holds without the logs."""
    copy = logbook.copy_to(logbook.path.with_name("snapshot-alone"))
    for path in copy.path.rglob("*.wal"):
        found = unpack_file_header(FILE_MAGIC, path.read_bytes())
        assert found is not None
        cut(path, found[1])
    copy.open(partitions=len(list(copy.path.glob("partition-*"))))
    copy.close()
    return copy.state.numbers


@pytest.mark.parametrize("partitions", [1, 2])
def test_commits_go_through_while_the_snapshot_is_written(
    logbook: Logbook, files: FailingFiles, partitions: int
) -> None:
    """They are durable at once, are not in that snapshot, and come back from the log."""
    logbook.open(files, partitions=partitions)
    logbook.commit_each(1, 4)
    gate = files.hold("write", "*.partial")
    checkpoint = begin(logbook.log.checkpoint)
    gate.wait_until_reached()

    logbook.commit_each(5, 7)
    assert logbook.log.durable == 7
    assert not checkpoint.done()

    gate.open()
    assert checkpoint.result(60) == 4
    logbook.crash()
    assert snapshot_alone(logbook) == {1, 2, 3, 4}
    report = logbook.open(partitions=partitions)
    assert (report.snapshot_records, report.transactions) == (4, 3)
    assert logbook.state.numbers == set(range(1, 8))


def test_old_logs_are_deleted_only_after_the_publication(logbook: Logbook, files: FailingFiles) -> None:
    """While the rename waits, and while its directory is being synced, all old logs are there."""
    logbook.open(files, partitions=2)
    logbook.commit_each(1, 4)
    old = logbook.logs(0) + logbook.logs(1)
    rename = files.hold("rename", "*/snapshot")
    sync = files.hold("sync_directory", str(logbook.path))
    checkpoint = begin(logbook.log.checkpoint)
    for gate in (rename, sync):
        gate.wait_until_reached()
        assert all(path.exists() for path in old)
        assert files.count("unlink", "*.wal") == 0
        gate.open()
    checkpoint.result(60)

    assert not any(path.exists() for path in old)
    assert [len(logbook.logs(number)) for number in (0, 1)] == [1, 1]


def test_a_snapshot_is_published_only_when_all_of_it_is_durable(logbook: Logbook, files: FailingFiles) -> None:
    """A transaction that is applied and not yet synced is synced before the snapshot that holds it gets its name."""
    logbook.open(files)
    logbook.append(1)
    gate = files.hold("sync", "*.wal")
    checkpoint = begin(logbook.log.checkpoint)
    gate.wait_until_reached()
    assert files.count("rename", "*/snapshot") == 2
    gate.open()

    assert checkpoint.result(60) == 1
    assert logbook.log.durable == 1


def test_names_of_log_files_never_collide(logbook: Logbook, files: FailingFiles) -> None:
    """Checkpoints beside commits, some of which fail after their file was prepared, never reuse a file's name."""
    logbook.open(files, partitions=2)
    for number in range(0, 45, 3):
        if number % 2:
            files.fail("sync_directory", "*/partition-?")
            with pytest.raises(OSError, match="Input/output error"):
                logbook.log.checkpoint()
        together(logbook.log.checkpoint, partial(logbook.commit, number), partial(logbook.commit, number + 1))
        logbook.commit(number + 2)
    logbook.crash()

    logbook.open(partitions=2)

    assert logbook.state.numbers == set(range(45))
    assert sum(kind == "create" and path.endswith(".wal") for kind, path in files.calls) > 20


def test_a_checkpoint_that_waited_for_a_close_does_nothing(logbook: Logbook, files: FailingFiles) -> None:
    """The directory may belong to another process by then."""
    logbook.open(files)
    logbook.commit(1)
    gate = files.hold("sync", "*.wal")
    closing = begin(logbook.log.close)
    gate.wait_until_reached()
    before = logbook.files()
    late = begin(logbook.log.checkpoint)
    gate.open()
    closing.result(60)

    with pytest.raises(NotRestored):
        late.result(60)
    assert logbook.files() == before


def test_checkpoints_without_traffic_leave_no_pile_of_files(logbook: Logbook) -> None:
    """Twenty checkpoints of an idle log leave a snapshot and one log file a partition."""
    logbook.open(partitions=2)
    logbook.commit_each(1, 4)
    for _ in range(20):
        logbook.log.checkpoint()

    assert len(logbook.files()) == 3
    logbook.log.close()
    assert logbook.open(partitions=2).clean


def test_idle_opens_leave_no_pile_of_files_and_stay_clean(logbook: Logbook) -> None:
    """Eight opens and closes without a commit add one file at most, and need no new snapshot."""
    logbook.closed(4, partitions=2)
    snapshot = (logbook.path / "snapshot").stat().st_mtime_ns
    for _ in range(8):
        assert logbook.open(partitions=2).clean
        logbook.log.close()

    assert [len(logbook.logs(number)) for number in (0, 1)] == [2, 2]
    assert (logbook.path / "snapshot").stat().st_mtime_ns == snapshot
    logbook.open(partitions=2)
    assert logbook.state.numbers == {1, 2, 3, 4}


def test_killed_idle_opens_leave_no_pile_of_files(logbook: Logbook) -> None:
    """Eight starts that are killed leave what one leaves."""
    for _ in range(8):
        logbook.open(partitions=2)
        logbook.crash()

    assert len(logbook.files()) == 3
