"""Whole files and directories that are gone."""

import shutil

import pytest

from tests.engine.wal.logbook import Logbook
from tests.failing_files import FailingFiles
from ullage_agent.engine.errors import RepositoryDamaged


def three_files(logbook: Logbook) -> None:
    """A chain of three log files behind one snapshot, each with a transaction."""
    logbook.open()
    for number in (1, 2, 3):
        logbook.commit(number)
        logbook.log.close()
        logbook.open()
    logbook.log.close()
    assert len(logbook.logs()) == 4


@pytest.mark.parametrize(("gone", "named"), [(0, 1), (1, 2)])
def test_a_missing_log_file_stops_the_start(logbook: Logbook, gone: int, named: int) -> None:
    """The first file and one in the middle are missed by their sequence number."""
    three_files(logbook)
    logbook.logs()[gone].unlink()

    with pytest.raises(RepositoryDamaged, match=f"log file number {named} is missing"):
        logbook.open()


def test_the_last_log_file_is_missed_by_a_close_frame(logbook: Logbook) -> None:
    """The last file with transactions is missed by the close frame of the empty one behind it."""
    three_files(logbook)
    logbook.logs()[2].unlink()

    with pytest.raises(RepositoryDamaged, match="transaction 3 is missing"):
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


def test_a_missing_partition_directory_stops_the_start(logbook: Logbook) -> None:
    """Each partition that the snapshot knows must be there."""
    logbook.open(partitions=3)
    logbook.commit_each(1, 6)
    logbook.log.close()
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
