"""What a restore makes of `snapshot` and `snapshot.partial`: the four cases of NiFi's notes, and damaged ones."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engine.wal.logbook import Logbook
from tests.support import cut, flip
from ullage.errors import RepositoryDamaged


def snapshot_of(logbook: Logbook, numbers: int = 5) -> Path:
    """A closed log with a snapshot of some numbers."""
    logbook.open()
    logbook.commit_each(1, numbers)
    logbook.log.checkpoint()
    logbook.log.close()
    return logbook.path / "snapshot"


@pytest.mark.parametrize("left", [[], ["snapshot.partial"]])
def test_case_1_neither_file_exists(logbook: Logbook, left: list[str]) -> None:
    """A directory that lost everything, but for a torn partial, is not taken for a new log."""
    logbook.path.mkdir()
    for name in left:
        (logbook.path / name).write_bytes(b"ULLAGESN\x40")

    with pytest.raises(RepositoryDamaged, match="neither a snapshot nor a log from the first transaction"):
        logbook.open()


def test_case_1_neither_file_exists_but_all_logs_do(logbook: Logbook) -> None:
    """A lost snapshot is made up for by an unbroken chain of logs from the first transaction on."""
    logbook.closed(3)
    (logbook.path / "snapshot").unlink()

    report = logbook.open()

    assert logbook.state.numbers == {1, 2, 3}
    assert not report.clean
    assert (logbook.path / "snapshot").exists()


def test_case_1_neither_file_exists_and_the_logs_begin_later(logbook: Logbook) -> None:
    """A lost snapshot whose logs were deleted stops the start, even if the log that is left is empty."""
    logbook.open()
    logbook.commit(1)
    logbook.log.checkpoint()
    logbook.crash()
    (logbook.path / "snapshot").unlink()

    with pytest.raises(RepositoryDamaged, match="neither a snapshot nor a log from the first transaction"):
        logbook.open()


def test_case_1_neither_file_exists_and_the_log_was_closed(logbook: Logbook) -> None:
    """The close frames of a log whose snapshot is lost prove that there were transactions."""
    snapshot_of(logbook).unlink()

    with pytest.raises(RepositoryDamaged, match="transaction 1 is missing"):
        logbook.open()


def test_case_1_neither_file_exists_and_the_first_log_is_gone(logbook: Logbook) -> None:
    """Without a snapshot the log file number 1 is needed."""
    logbook.open()
    logbook.commit(1)
    logbook.log.checkpoint()
    logbook.commit(2)
    logbook.log.close()
    (logbook.path / "snapshot").unlink()

    with pytest.raises(RepositoryDamaged, match="log file number 1 is missing"):
        logbook.open()


def test_case_2_only_the_snapshot_exists(logbook: Logbook) -> None:
    """The process did not end in a checkpoint: the snapshot is loaded."""
    snapshot_of(logbook)

    report = logbook.open()

    assert (report.snapshot_last_id, report.snapshot_records) == (5, 5)
    assert logbook.state.numbers == {1, 2, 3, 4, 5}


def test_case_3_both_exist(logbook: Logbook) -> None:
    """The process ended in a checkpoint: the partial is removed unread, even if it is whole."""
    snapshot = snapshot_of(logbook)
    shutil.copy(snapshot, old := logbook.path / "old")
    logbook.open()
    logbook.commit(6)
    logbook.log.checkpoint()
    logbook.log.close()
    old.rename(logbook.path / "snapshot.partial")

    logbook.open()

    assert logbook.state.numbers == {1, 2, 3, 4, 5, 6}
    assert not (logbook.path / "snapshot.partial").exists()


def test_case_4_only_a_whole_partial_exists(logbook: Logbook) -> None:
    """A partial that proves whole becomes the snapshot."""
    snapshot = snapshot_of(logbook)
    snapshot.rename(logbook.path / "snapshot.partial")

    report = logbook.open()

    assert (report.snapshot_last_id, logbook.state.numbers) == (5, {1, 2, 3, 4, 5})
    assert snapshot.exists()
    assert not (logbook.path / "snapshot.partial").exists()


def test_case_4_only_a_damaged_partial_exists(logbook: Logbook) -> None:
    """A partial that does not prove whole is no snapshot; without the old logs the start stops."""
    snapshot = snapshot_of(logbook)
    partial = snapshot.rename(logbook.path / "snapshot.partial")
    flip(partial, partial.stat().st_size - 1)

    with pytest.raises(RepositoryDamaged, match="transaction 1 is missing"):
        logbook.open()


def test_case_4_only_a_damaged_partial_exists_but_all_logs_do(logbook: Logbook) -> None:
    """A partial that does not prove whole is discarded where an unbroken chain of logs holds everything."""
    logbook.closed(3)
    snapshot = logbook.path / "snapshot"
    partial = snapshot.rename(logbook.path / "snapshot.partial")
    cut(partial, partial.stat().st_size - 1)

    logbook.open()

    assert logbook.state.numbers == {1, 2, 3}


def test_a_bit_that_flips_anywhere_in_the_snapshot_stops_the_start(logbook: Logbook, tmp_path: Path) -> None:
    """Header, block heads, payloads and footer: no byte of a snapshot is without a checksum."""
    snapshot = snapshot_of(logbook)
    whole = snapshot.read_bytes()

    for offset in range(len(whole)):
        snapshot.write_bytes(whole)
        flip(snapshot, offset, bit=offset % 8)
        with pytest.raises(RepositoryDamaged, match=r"snapshot: .*offset|snapshot: ends at"):
            logbook.open()


@pytest.mark.parametrize("left", [lambda length: 0, lambda length: length // 2, lambda length: length - 1])
def test_a_shortened_snapshot_stops_the_start(logbook: Logbook, left: Callable[[int], int]) -> None:
    """A snapshot that ends early is never taken for a smaller one."""
    snapshot = snapshot_of(logbook)
    cut(snapshot, left(snapshot.stat().st_size))

    with pytest.raises(RepositoryDamaged, match="snapshot"):
        logbook.open()


def test_a_snapshot_of_another_repository_is_refused(logbook: Logbook, tmp_path: Path) -> None:
    """A snapshot names its repository."""
    snapshot = snapshot_of(logbook)
    snapshot.write_bytes(rename_repository(snapshot.read_bytes()))

    with pytest.raises(RepositoryDamaged, match="belongs to repository"):
        logbook.open()


def rename_repository(data: bytes) -> bytes:
    """The same file under another repository's name, with a right header checksum."""
    from crc32c import crc32c

    length = int.from_bytes(data[8:12], "little")
    body = data[16 : 16 + length].replace(b"6f0c1c3e", b"00000000")
    return data[:12] + crc32c(body).to_bytes(4, "little") + body + data[16 + length :]
