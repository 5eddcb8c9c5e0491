"""Unfinished ends: dropped, reported, and never appended to."""

import pytest

from tests.engine.wal.logbook import Logbook, blank, frames, trim
from tests.support import cut, flip
from ullage.engine.wal.partition import PREALLOCATE_BYTES_MIN


def three_frames(logbook: Logbook) -> tuple[int, int]:
    """A killed log with three transactions; the last frame's offset and length."""
    logbook.killed(3)
    trim(logbook.logs()[0])
    offset, length, id = frames(logbook.logs()[0])[-1]
    assert id == 3
    return offset, length


def test_each_shorter_length_of_the_last_frame_is_a_torn_tail(logbook: Logbook) -> None:
    """However much of the last frame is there, it is dropped whole, and a snapshot follows before any write."""
    offset, length = three_frames(logbook)
    path = logbook.logs()[0]

    for left in range(length):
        torn = logbook.copy_to(logbook.path.parent / f"torn-{left}")
        cut(torn.path / path.relative_to(logbook.path), offset + left)
        report = torn.open()

        assert torn.state.numbers == {1, 2}
        assert [tail.offset for tail in report.torn] == ([offset] if left else [])
        assert (report.clean, torn.log.snapshot_id, len(torn.logs())) == (False, 2, 1)
        assert torn.commit(3) == 3
        torn.discard()


def test_each_part_of_the_last_frame_may_be_missing_under_zeros(logbook: Logbook) -> None:
    """Blocks that were reserved and not written hold zeros where the frame's end should be."""
    offset, length = three_frames(logbook)
    path = logbook.logs()[0]

    for left in range(0, length - 1, 7):
        torn = logbook.copy_to(logbook.path.parent / f"blank-{left}")
        blank(torn.path / path.relative_to(logbook.path), offset + left, offset + length)
        torn.open()

        assert torn.state.numbers == {1, 2}
        torn.discard()


@pytest.mark.parametrize("at", [0, 5, 9, 17, 25, 33, 38, 45], ids=lambda at: f"byte-{at}")
def test_a_bit_that_flips_in_the_last_frame_makes_it_a_torn_tail(logbook: Logbook, at: int) -> None:
    """In the last frame of a log that was not closed, rot in header or payload cannot be told from a torn write."""
    offset, _ = three_frames(logbook)
    flip(logbook.logs()[0], offset + at)

    report = logbook.open()

    assert logbook.state.numbers == {1, 2}
    assert [tail.offset for tail in report.torn] == [offset]


def test_zeros_behind_the_last_frame_are_no_damage(logbook: Logbook) -> None:
    """The room reserved ahead is part of a healthy file."""
    logbook.closed(3)
    assert logbook.logs()[0].stat().st_size == PREALLOCATE_BYTES_MIN

    report = logbook.open()

    assert report.torn == ()
    assert report.clean


def test_a_file_whose_header_never_reached_the_disk_is_no_damage(logbook: Logbook) -> None:
    """Pages are written in any order: frames may be there without the header before them, if nobody synced either."""
    logbook.closed(1)
    logbook.open()
    logbook.append_written(2)
    logbook.crash()
    blank(logbook.logs()[1], 0, 64)

    report = logbook.open()

    assert logbook.state.numbers == {1}
    assert [(tail.path[-8:], tail.offset) for tail in report.torn] == [("0002.wal", 0)]


@pytest.mark.parametrize("kept", [1, 7, 8, 9, 12, 16, 40])
def test_a_file_header_that_is_torn_is_no_damage(logbook: Logbook, kept: int) -> None:
    """Zeros may begin anywhere in the header of a file that nobody synced, right behind the magic too."""
    logbook.closed(1)
    logbook.open()
    logbook.append_written(2)
    logbook.crash()
    blank(logbook.logs()[1], kept, 4 << 20)

    report = logbook.open()

    assert logbook.state.numbers == {1}
    assert [tail.offset for tail in report.torn] == [0]


def test_a_frame_that_was_kept_behind_one_that_was_not_is_no_damage(logbook: Logbook) -> None:
    """Two frames that nobody synced: the disk may keep the second and lose the first."""
    logbook.open()
    logbook.commit(1)
    logbook.append_written(2)
    logbook.append_written(3)
    logbook.crash()
    (_, _, _), (offset, length, _), _ = frames(logbook.logs()[0])
    blank(logbook.logs()[0], offset, offset + length)

    logbook.open()

    assert logbook.state.numbers == {1}


def test_ids_that_were_discarded_are_given_out_again(logbook: Logbook) -> None:
    """A gap that no acknowledgement covers ends the log; the ids above it are reported, and used for other work."""
    logbook.open(partitions=3)
    logbook.commit_each(1, 3)
    for number in (4, 5, 6):
        logbook.append_written(number)
    logbook.crash()
    path = logbook.logs(1)[0]
    cut(path, frames(path)[-1][0])

    report = logbook.open(partitions=3)

    assert (report.last_id, report.discarded) == (4, (6,))
    assert logbook.state.numbers == {1, 2, 3, 4}
    assert logbook.commit(50) == 5
    assert logbook.commit(60) == 6
    logbook.crash()
    logbook.open(partitions=3)
    assert logbook.state.numbers == {1, 2, 3, 4, 50, 60}
