"""Where something acknowledged is gone, the start stops and says where."""

import pytest

from tests.engine.wal.logbook import Logbook, frames, trim
from tests.support import cut, flip
from ullage.errors import RepositoryDamaged


@pytest.mark.parametrize("at", [0, 4, 8, 16, 24, 32, 36, 40, 60], ids=lambda at: f"byte-{at}")
def test_a_frame_before_a_synced_one_is_corruption_not_a_tail(logbook: Logbook, at: int) -> None:
    """The later frame says up to where the file was synced: the start stops with path, offset and that proof."""
    logbook.killed(4)
    path = logbook.logs()[0]
    offset = frames(path)[1][0]
    synced = frames(path)[3][0]
    flip(path, offset + at)

    with pytest.raises(RepositoryDamaged) as caught:
        logbook.open()

    assert f"{path}: the frame at offset {offset} is damaged" in str(caught.value)
    assert f"transaction 4 behind it proves that the file was synced up to offset {synced}" in str(caught.value)


def test_a_frame_of_another_partition_proves_the_loss(logbook: Logbook) -> None:
    """The `durable` of a frame in partition 1 tells that a damaged last frame of partition 0 was acknowledged."""
    logbook.killed(4, partitions=2)
    path = logbook.logs(0)[0]
    offset, _, id = frames(path)[-1]
    flip(path, offset + 50)

    with pytest.raises(RepositoryDamaged) as caught:
        logbook.open(partitions=2)

    assert id == 3
    assert "transaction 3 is missing" in str(caught.value)
    assert f"{path} at offset {offset}" in str(caught.value)


def test_a_damaged_file_header_with_synced_frames_behind_it(logbook: Logbook) -> None:
    """Each bit of a log file's header is covered by a checksum, and a frame behind it proves that it was synced."""
    logbook.killed(2)
    path = logbook.logs()[0]
    trim(path)
    whole = path.read_bytes()

    for offset in range(frames(path)[0][0]):
        path.write_bytes(whole)
        flip(path, offset, bit=offset % 8)
        with pytest.raises(RepositoryDamaged, match=f"{path}: the file header at offset 0 is damaged"):
            logbook.open()


def test_a_closed_log_proves_its_very_last_frame(logbook: Logbook) -> None:
    """The close frame behind it tells that even the last transaction was synced."""
    logbook.closed(2)
    offset = frames(logbook.logs()[0])[1][0]
    flip(logbook.logs()[0], offset + 50)

    with pytest.raises(RepositoryDamaged, match=f"the frame at offset {offset} is damaged"):
        logbook.open()


def test_a_close_frame_proves_the_end_of_another_partition(logbook: Logbook) -> None:
    """A closed file of a partition that was shortened is missed by the close frame of the other."""
    logbook.closed(4, partitions=2)
    path = logbook.logs(1)[0]
    cut(path, frames(path)[1][0])

    with pytest.raises(RepositoryDamaged, match="transaction 4 is missing"):
        logbook.open(partitions=2)


def test_a_close_frame_lists_the_length_of_each_file(logbook: Logbook) -> None:
    """A file of another length than its close frame says was exchanged or edited: the start stops."""
    logbook.closed(2, partitions=2)
    other = logbook.copy_to(logbook.path.parent / "other")
    other.open(partitions=2)
    other.close()
    longer = Logbook(logbook.path.parent / "longer")
    longer.open(partitions=2)
    longer.commit(1)
    longer.commit(2, 3)
    longer.log.close()
    logbook.logs(1)[0].write_bytes(longer.logs(1)[0].read_bytes())

    with pytest.raises(RepositoryDamaged, match=r"partition-1/0+1.wal had \d+ bytes when the repository was closed"):
        logbook.open(partitions=2)


@pytest.mark.parametrize("partitions", [2, 3])
def test_a_gap_below_what_was_acknowledged_is_loss(logbook: Logbook, partitions: int) -> None:
    """An id that is missing below some frame's `durable` stops the start, however much lies above it."""
    logbook.killed(3 * partitions + 1, partitions=partitions)
    path = logbook.logs(1)[0]
    offset, _, id = frames(path)[-1]
    cut(path, offset)

    with pytest.raises(RepositoryDamaged, match=f"transaction {id} is missing"):
        logbook.open(partitions=partitions)


def test_an_id_in_two_partitions_stops_the_start(logbook: Logbook) -> None:
    """Two frames of one id contradict each other; neither is chosen."""
    logbook.killed(1)
    first = Logbook(logbook.path.parent / "first")
    first.open(partitions=2)
    first.append_written(1)
    first.crash()
    second = first.copy_to(logbook.path.parent / "second")
    donor = Logbook(logbook.path.parent / "donor")
    donor.open(partitions=2)
    with pytest.raises(ZeroDivisionError):
        donor.log.append([], 0, lambda: print(1 // 0))
    donor.append_written(2)
    donor.crash()
    second.logs(1)[0].write_bytes(donor.logs(1)[0].read_bytes())

    with pytest.raises(RepositoryDamaged, match="transaction 1 is in the log twice"):
        second.open(partitions=2)


def test_a_copy_of_a_log_file_beside_it_changes_nothing(logbook: Logbook) -> None:
    """A file and its copy have one sequence number: the transactions are applied once."""
    logbook.killed(3)
    path = logbook.logs()[0]
    path.with_name("00000000000000000099.wal").write_bytes(path.read_bytes())

    logbook.open()

    assert logbook.state.numbers == {1, 2, 3}


def test_a_log_file_of_another_repository_is_refused(logbook: Logbook) -> None:
    """A file of another partition or repository is named, not replayed."""
    logbook.killed(2, partitions=2)
    logbook.logs(1)[0].write_bytes(logbook.logs(0)[0].read_bytes())

    with pytest.raises(RepositoryDamaged, match=r"belongs to partition 0 .* not to partition 1"):
        logbook.open(partitions=2)
