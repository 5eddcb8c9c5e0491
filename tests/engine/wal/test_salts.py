"""What only looks like a frame is none: frames are bound to their file by its salt, and to their place in it.

Without that, a start takes such bytes for proof that more of the file was synced than is left, and refuses; or for
transactions.
"""

import struct
from itertools import count
from pathlib import Path

import msgspec
import pytest
from crc32c import crc32c

from tests.engine.wal.logbook import Logbook, blank, frames, log_header, note, trim
from tests.support import cut, flip
from ullage.engine.model import Answer, FlowFileRecord
from ullage.engine.wal.serde import SerDe, encode_transaction
from ullage.errors import RepositoryDamaged


def killed_with(logbook: Logbook, frame: bytes) -> tuple[Path, int]:
    """A process that was killed, its last transaction holding these bytes, of which the log has all but the last."""
    logbook.log.append([Answer(bytes(16), bytes(16), frame, 0)], 0)
    logbook.append_written(99)
    logbook.crash()
    path = logbook.logs()[-1]
    *_, (torn, _, _), (behind, _, _) = frames(path)
    assert frame in path.read_bytes()[torn:behind]
    blank(path, torn, path.read_bytes().index(frame, torn))
    cut(path, behind)
    return path, torn


def frame_bytes(path: Path, number: int) -> bytes:
    """A frame as it lies in its file."""
    offset, length, _ = frames(path)[number]
    return path.read_bytes()[offset : offset + length]


def test_a_frame_of_an_older_file_inside_a_record_proves_nothing(logbook: Logbook) -> None:
    """Copied whole out of the same log: it says that a longer file was synced further than this one reaches."""
    logbook.open()
    logbook.commit_each(1, 30)
    copied = frame_bytes(logbook.logs()[0], -1)
    logbook.log.checkpoint()
    logbook.commit(31)
    path, torn = killed_with(logbook, copied)

    report = logbook.open()

    assert [(tail.path, tail.offset) for tail in report.torn] == [(str(path), torn)]
    assert logbook.state.numbers == set(range(1, 32))


def test_a_frame_that_was_made_up_inside_an_attribute_proves_nothing(logbook: Logbook) -> None:
    """Whoever writes attributes knows this format, and where in the file they will stand, but not the salt."""
    logbook.open()
    logbook.commit_each(1, 3)
    end = sum(frames(logbook.logs()[0])[-1][:2])
    place = end + 40 + encode_transaction(SerDe(), [with_attribute("?" * 40)], 0).index(b"?" * 40)
    forged = next(text for synced in count(1 << 40) if is_text(text := forged_header(synced, place)))
    logbook.log.append([with_attribute(forged.decode())], 0)
    logbook.append_written(5)
    logbook.crash()
    path = logbook.logs()[0]
    (torn, length, _) = frames(path)[3]
    assert (torn, path.read_bytes().index(forged)) == (end, place)
    blank(path, torn, torn + 40)
    cut(path, torn + length)

    report = logbook.open()

    assert [tail.offset for tail in report.torn] == [torn]
    assert logbook.state.numbers == {1, 2, 3}


def with_attribute(value: str) -> FlowFileRecord:
    return note(4, msgspec.msgpack.encode({"a": value}))


def forged_header(synced: int, place: int) -> bytes:
    """A frame's header as it would be there in a file without a salt."""
    head = struct.pack("<4sIQQQI", b"ULLt", 0, 9, 8, synced, 0)
    return head + struct.pack("<I", crc32c(head) ^ place)


def is_text(data: bytes) -> bool:
    try:
        return bool(data.decode())
    except UnicodeDecodeError:
        return False


@pytest.mark.parametrize("moved", [False, True], ids=["at its place", "at the end"])
def test_blocks_of_another_file_behind_the_last_frame_are_no_transactions(logbook: Logbook, moved: bool) -> None:
    """A crash may leave, where bytes never reached the disk, what its blocks held before: an older log file."""
    logbook.open()
    logbook.commit_each(1, 30)
    older = logbook.logs()[0].read_bytes()
    starts = [offset for offset, _, _ in frames(logbook.logs()[0])]
    logbook.log.checkpoint()
    logbook.commit_each(31, 33)
    logbook.crash()
    path = logbook.logs()[0]
    trim(path)
    end = path.stat().st_size
    # Frames of equal records are equally long: each begins where one of the other file does.
    assert end in starts
    path.write_bytes(path.read_bytes() + older[starts[3] if moved else end :])

    report = logbook.open()

    assert [tail.offset for tail in report.torn] == [end]
    assert (report.last_id, logbook.state.numbers) == (33, set(range(1, 34)))


def test_a_frame_that_stands_elsewhere_in_its_own_file_is_none(logbook: Logbook) -> None:
    """A copy of the last one behind it is no second one, whose number would be there twice."""
    logbook.killed(3)
    path = logbook.logs()[0]
    copied = frame_bytes(path, -1)
    trim(path)
    end = path.stat().st_size
    path.write_bytes(path.read_bytes() + copied)

    report = logbook.open()

    assert [tail.offset for tail in report.torn] == [end]
    assert logbook.state.numbers == {1, 2, 3}


def test_files_of_one_log_have_salts_of_their_own(logbook: Logbook) -> None:
    """And so have logs: nobody knows one from another."""
    other = Logbook(logbook.path.parent / "other")
    salts = []
    for log in (logbook, other):
        log.open(partitions=2)
        log.commit_each(1, 4)
        log.log.checkpoint()
        log.commit_each(5, 6)
        salts += [log_header(path).salt for number in range(2) for path in log.logs(number)]
    other.close()

    assert len(set(salts)) == len(salts) == 4


def test_a_damaged_file_header_is_told_without_a_snapshot(logbook: Logbook) -> None:
    """Its salt is gone with it, and the snapshot that would say it is gone too: nothing is taken for a torn tail."""
    logbook.killed(2)
    (logbook.path / "snapshot").unlink()
    whole = logbook.copy_to(logbook.path.parent / "whole")
    flip(logbook.logs()[0], 20)

    with pytest.raises(RepositoryDamaged, match="file header at offset 0 is damaged, and without a snapshot"):
        logbook.open()

    whole.open()
    assert whole.state.numbers == {1, 2}
    whole.discard()
