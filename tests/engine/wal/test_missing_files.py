"""Whole files and directories that are gone."""

import shutil

import pytest

from tests.engine.wal.logbook import Logbook
from tests.failing_files import FailingFiles
from tests.support import cut
from tests.threads import begin
from ullage.errors import RepositoryDamaged


@pytest.mark.parametrize(("gone", "missed"), [(0, "log file number 1"), (1, "log file number 2"), (2, "transaction 3")])
def test_a_missing_log_file_stops_the_start(logbook: Logbook, gone: int, missed: str) -> None:
    """The first file and one in the middle are missed by their number, the last by the close frame behind it."""
    logbook.open()
    for number in (1, 2, 3):
        logbook.commit(number)
        logbook.log.close()
        logbook.open()
    logbook.log.close()
    assert len(logbook.logs()) == 4
    logbook.logs()[gone].unlink()

    with pytest.raises(RepositoryDamaged, match=f"{missed} is missing"):
        logbook.open()


def test_all_log_files_missing_stops_the_start(logbook: Logbook) -> None:
    """The snapshot knows which file its partition went on in, even when it was still empty."""
    logbook.open()
    logbook.commit(1)
    logbook.log.checkpoint()
    logbook.crash()
    for path in logbook.logs():
        path.unlink()

    with pytest.raises(RepositoryDamaged, match="log file number 2, which the snapshot needs, is missing"):
        logbook.open()


@pytest.mark.parametrize("left", [0, 1, 40])
def test_a_file_that_the_snapshot_needs_and_that_was_cut_to_nothing_stops_the_start(
    logbook: Logbook, left: int
) -> None:
    """Its header was durable before the snapshot was, so it is no file that never came to be: what it held is gone."""
    logbook.open()
    logbook.commit(1)
    logbook.log.checkpoint()
    logbook.commit(2)
    logbook.crash()
    cut(logbook.logs()[0], left)

    with pytest.raises(
        RepositoryDamaged, match="log file number 2, which the snapshot needs, is missing; it may be one"
    ):
        logbook.open()


def test_an_idle_open_removes_the_old_file_once_its_successors_header_is_durable(
    logbook: Logbook, files: FailingFiles
) -> None:
    """| new file made | old one removed, for good | power | the new one without a header: no file that the snapshot
    names.
    """
    logbook.open()
    logbook.log.close()
    gate = files.hold("sync", "*.wal")
    opening = begin(lambda: logbook.open(files))
    gate.wait_until_reached()

    assert len(logbook.logs()) == 2
    gate.open()
    opening.result(60)
    assert len(logbook.logs()) == 1


def test_a_missing_partition_directory_stops_the_start(logbook: Logbook) -> None:
    """Each partition that the snapshot knows must be there."""
    logbook.closed(6, partitions=3)
    shutil.rmtree(logbook.path / "partition-1")

    with pytest.raises(RepositoryDamaged, match=r"log partitions \[1\], which the snapshot needs, are missing"):
        logbook.open(partitions=3)


def test_other_names_in_the_directory_are_left_alone(logbook: Logbook) -> None:
    """A copy that somebody put beside a partition is neither read nor deleted."""
    logbook.open()
    logbook.commit(1)
    copy = shutil.copytree(logbook.path / "partition-0", logbook.path / "partition-0.bak")
    logbook.log.checkpoint()
    logbook.log.close()

    logbook.open()

    assert logbook.state.numbers == {1}
    assert len(list(copy.iterdir())) == 1


def test_a_directory_can_be_moved(logbook: Logbook, files: FailingFiles) -> None:
    """Nothing in the files says where they lie."""
    logbook.open(files, partitions=2)
    logbook.commit_each(1, 5)
    logbook.log.close()
    moved = Logbook(logbook.path.rename(logbook.path.with_name("moved")))

    assert moved.open(partitions=2).clean
    assert moved.state.numbers == {1, 2, 3, 4, 5}
    moved.close()
