"""What callers may rely on, on a real disk."""

import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.failing_files import FailingFiles
from ullage.engine.files import (
    IOV_MAX,
    File,
    OsFiles,
    make_directories,
    read_file,
    replace_file,
)
from ullage.engine.oserrors import is_disk_full

DISK = OsFiles()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "file")


@pytest.fixture
def file(path: str) -> Iterator[File]:
    made = DISK.create(path)
    yield made
    made.close()


@pytest.fixture
def limit() -> Iterator[int]:
    """The largest a file may grow for this process; a write across it is cut short by the kernel."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    yield 10_000
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def refusing(code: int) -> Callable[..., None]:
    """A call of the system that fails."""

    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    return refuse


def test_what_is_written_is_read(file: File, path: str) -> None:
    """Writes go where they are told, whatever their order; a gap reads as zeros."""
    file.write(b"world", 7)
    file.write(bytearray(b"hello"), 0)
    file.write(memoryview(b"!!")[1:], 12)

    assert file.read(100, 0) == b"hello\0\0world!"
    assert file.read(5, 7) == b"world"
    assert file.read(5, 13) == b""
    assert Path(path).read_bytes() == b"hello\0\0world!"


@pytest.mark.parametrize("count", [0, 1, IOV_MAX, IOV_MAX + 1, 2 * IOV_MAX + 3])
def test_vectors_of_any_length_are_written(file: File, count: int) -> None:
    """More buffers than the kernel takes at once, empty ones among them, arrive back to back."""
    buffers = [b"x" * (number % 3) + bytes([number % 251]) * (number % 2) for number in range(count)]
    file.write_vector(buffers, 5)

    assert file.read(1 << 20, 5) == b"".join(buffers)


def test_a_short_write_is_continued_until_it_fails(file: File, limit: int) -> None:
    """The kernel takes a part: what it took is there, and the rest is an error, not a silence."""
    with pytest.raises(OSError, match="File too large") as caught:
        file.write(bytes(range(256)) * 64, 100)

    assert caught.value.errno == errno.EFBIG
    assert file.size().length == limit
    assert file.read(256, 100) == bytes(range(256))


def test_a_short_vector_is_continued_until_it_fails(file: File, limit: int) -> None:
    """The kernel may stop in the middle of a buffer."""
    buffers = [bytes([number]) * 1_000 for number in range(12)]
    with pytest.raises(OSError, match="File too large"):
        file.write_vector(buffers, 0)

    assert file.read(limit, 0) == b"".join(buffers)[:limit]


def test_a_short_write_that_can_be_continued_is(file: File, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that takes seven bytes at a time gets everything in the end, each byte in its place."""
    real, real_vector = os.pwrite, os.pwritev
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, offset: real(descriptor, bytes(data)[:7], offset))
    monkeypatch.setattr(
        os,
        "pwritev",
        lambda descriptor, parts, offset: real_vector(descriptor, [b"".join(parts)[:7]], offset),
    )
    file.write(bytes(range(100)), 3)
    file.write_vector([b"ab", b"cdefghijklmn", b"", b"op"], 200)

    assert file.read(100, 3) == bytes(range(100))
    assert file.read(100, 200) == b"abcdefghijklmnop"


def test_a_write_that_makes_no_progress_is_an_error(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zero bytes written over and over would otherwise never end."""
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, offset: 0)

    with pytest.raises(OSError, match="no progress"):
        file.write(b"data", 0)


def test_a_short_read_is_continued(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer bytes than asked for mean the end of the file and nothing else."""
    file.write(bytes(range(100)), 0)
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda descriptor, count, offset: real(descriptor, min(count, 7), offset))

    assert file.read(50, 10) == bytes(range(10, 60))
    assert file.read(50, 90) == bytes(range(90, 100))


@pytest.mark.parametrize("most", [700, 1 << 20], ids=["short-reads", "whole-reads"])
@pytest.mark.parametrize("count", [0, 1, IOV_MAX, IOV_MAX + 1, 2 * IOV_MAX + 3])
def test_buffers_of_any_number_are_filled(file: File, monkeypatch: pytest.MonkeyPatch, count: int, most: int) -> None:
    """What lies back to back fills buffers, empty ones among them, however little the kernel gives at a time."""
    data = bytes(number % 251 for number in range(4 * count + 10))
    file.write(data, 5)
    real = os.preadv

    def read_some(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        some = memoryview(bytearray(min(most, sum(map(len, buffers)))))
        got = real(descriptor, [some], offset)
        at = 0
        for buffer in buffers:
            part = some[at : min(got, at + len(buffer))]
            buffer[: len(part)] = part
            at += len(part)
        return got

    monkeypatch.setattr(os, "preadv", read_some)
    buffers = [memoryview(bytearray(number % 7)) for number in range(count)]
    length = sum(map(len, buffers))

    assert file.read_into(buffers, 5) == length
    assert b"".join(buffers) == data[:length]


def test_buffers_past_the_end_are_filled_as_far_as_it_goes(file: File) -> None:
    """The number of bytes says where the file ended."""
    file.write(b"0123456789", 0)
    buffers = [memoryview(bytearray(4)) for _ in range(3)]

    assert file.read_into(buffers, 2) == 8
    assert b"".join(buffers) == b"23456789\0\0\0\0"
    assert file.read_into(buffers, 10) == 0


def test_what_is_cached_is_a_hint_and_no_error(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not there is not cached, and a filesystem that cannot tell says no."""
    file.write(b"0123456789", 0)
    assert not file.is_cached(1 << 30)

    monkeypatch.setattr(os, "preadv", refusing(errno.EOPNOTSUPP))
    assert not file.is_cached(3)


def test_reserved_room_is_zeros_and_blocks(file: File) -> None:
    """Allocation makes the file longer, occupies disk, and leaves what is there alone."""
    file.write(b"head", 0)
    file.allocate(4, 1 << 20)

    assert file.size().length == 4 + (1 << 20)
    assert file.size().allocated_bytes >= 1 << 20
    assert file.read(8, 0) == b"head\0\0\0\0"


def test_a_filesystem_that_cannot_reserve_is_no_error(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    """EOPNOTSUPP is passed over; no room is not."""
    monkeypatch.setattr(os, "posix_fallocate", refusing(errno.EOPNOTSUPP))
    file.allocate(0, 10)
    monkeypatch.setattr(os, "posix_fallocate", refusing(errno.ENOSPC))
    with pytest.raises(OSError, match="No space left"):
        file.allocate(0, 10)


def test_a_file_is_cut(file: File) -> None:
    """Truncation drops the end; growing by it adds zeros."""
    file.write(b"0123456789", 0)
    file.truncate(4)
    file.truncate(6)
    file.sync()
    file.start_writeback(0, 6)

    assert file.read(100, 0) == b"0123\0\0"


def test_create_takes_no_name_twice(file: File, path: str) -> None:
    """An existing file is never opened by `create`, nor made by `open`."""
    with pytest.raises(FileExistsError):
        DISK.create(path)
    with pytest.raises(FileNotFoundError):
        DISK.open(path + "2", writable=True)


def test_a_file_opened_for_reading_cannot_be_written(file: File, path: str) -> None:
    """Readers cannot change what they read."""
    reader = DISK.open(path)

    with pytest.raises(OSError, match="Bad file descriptor"):
        reader.write(b"x", 0)
    reader.close()


def test_a_directory_is_listed_in_order(tmp_path: Path) -> None:
    """Names come sorted; a missing directory is an error, not an empty one."""
    for name in ("b", "a", "10", "9"):
        DISK.create(str(tmp_path / name)).close()
    DISK.make_directory(str(tmp_path / "c"))
    DISK.make_directory(str(tmp_path / "c"))

    assert DISK.list_directory(str(tmp_path)) == ["10", "9", "a", "b", "c"]
    with pytest.raises(FileNotFoundError):
        DISK.list_directory(str(tmp_path / "none"))
    with pytest.raises(FileExistsError):
        DISK.make_directory(str(tmp_path / "a"))


def test_names_change(tmp_path: Path, file: File, path: str) -> None:
    """Rename replaces its target, unlink removes, and the directory can be synced."""
    DISK.create(path + "2").close()
    file.write(b"new", 0)
    DISK.rename(path, path + "2")
    DISK.sync_directory(str(tmp_path))

    assert (DISK.exists(path), DISK.exists(path + "2")) == (False, True)
    assert (read_file(DISK, path + "2"), DISK.size(path + "2").length) == (b"new", 3)
    DISK.unlink(path + "2")
    assert DISK.list_directory(str(tmp_path)) == []


def test_a_failed_directory_sync_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only EINVAL, from filesystems that order names by themselves, is passed over."""
    monkeypatch.setattr(os, "fsync", refusing(errno.EINVAL))
    DISK.sync_directory(str(tmp_path))
    monkeypatch.setattr(os, "fsync", refusing(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        DISK.sync_directory(str(tmp_path))


def test_usage_is_of_this_moment(tmp_path: Path) -> None:
    """Total and free are the filesystem's own figures."""
    usage = DISK.usage(str(tmp_path))

    assert 0 < usage.free_bytes <= usage.total_bytes


def test_a_mark_is_of_one_file_in_one_state(tmp_path: Path) -> None:
    """It is the same until the file is written, or another one has its name; the filesystem's number is in it."""
    path = tmp_path / "file"
    path.write_bytes(b"one")
    mark = DISK.mark(str(path))
    assert DISK.mark(str(path)) == mark
    assert (mark.device, DISK.mark(str(tmp_path)).device) == (tmp_path.stat().st_dev,) * 2

    other = tmp_path / "other"
    other.write_bytes(b"one")
    other.rename(path)

    assert DISK.mark(str(path)) != mark


def test_a_lock_is_exclusive_until_it_is_closed(tmp_path: Path) -> None:
    """A second taker is refused at once, also in this process; after the close the next one gets it."""
    path = str(tmp_path)
    lock = DISK.lock(path)
    with pytest.raises(BlockingIOError):
        DISK.lock(path)

    lock.close()
    DISK.lock(path).close()


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    """A killed holder leaves no lock."""
    path = str(tmp_path)
    program = (
        "import sys, os, signal\nfrom ullage.engine.files import OsFiles\n"
        "lock = OsFiles().lock(sys.argv[1]); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(BlockingIOError):
            DISK.lock(path)
        holder.kill()
        holder.wait()

    DISK.lock(path).close()


def test_directories_are_made_from_the_top(tmp_path: Path, files: FailingFiles) -> None:
    """Each missing parent is made and synced in its own parent before the next; one that is there is synced anyway."""
    make_directories(files, str(tmp_path / "a" / "b" / "c"))
    make_directories(files, str(tmp_path / "a" / "b" / "c"))

    assert [(kind, os.path.relpath(path, tmp_path)) for kind, path in files.calls] == [
        ("sync_directory", ".."),
        ("make_directory", "a"),
        ("sync_directory", "."),
        ("make_directory", "a/b"),
        ("sync_directory", "a"),
        ("make_directory", "a/b/c"),
        ("sync_directory", "a/b"),
        ("sync_directory", "a/b"),
    ]


@pytest.mark.parametrize("kind", ["create", "write", "sync", "rename"])
def test_a_replacement_that_fails_leaves_the_old_file(path: str, kind: str) -> None:
    """Until the rename the old content stands, and a leftover does not hinder the next try."""
    replace_file(DISK, path, b"old")
    files = FailingFiles()
    files.fail(kind, keeps=2)
    with pytest.raises(OSError, match="Input/output error"):
        replace_file(files, path, b"new")

    assert read_file(DISK, path) == b"old"
    assert files.held == 0
    replace_file(files, path, b"newer")
    assert read_file(DISK, path) == b"newer"
    assert not DISK.exists(path + ".partial")


def test_a_replacement_is_durable_when_it_returns(path: str, files: FailingFiles) -> None:
    """Bytes are synced before the name moves, and the name after it."""
    replace_file(files, path, b"data")

    assert [kind for kind, _ in files.calls] == ["create", "write", "sync", "close", "rename", "sync_directory"]


def test_no_room_is_told_from_a_broken_disk() -> None:
    """A full disk and a used-up quota are one thing, an I/O error is another."""
    assert is_disk_full(OSError(errno.ENOSPC, ""))
    assert is_disk_full(OSError(errno.EDQUOT, ""))
    assert not is_disk_full(OSError(errno.EIO, ""))


def test_a_parent_that_may_not_be_synced_stops_nobody(tmp_path: Path, files: FailingFiles) -> None:
    """In a directory that we may not read nothing of ours was made; any other error is one."""
    files.fail("sync_directory", str(tmp_path.parent), error=errno.EACCES)
    make_directories(files, str(tmp_path / "a"))
    assert DISK.exists(str(tmp_path / "a"))

    files.fail("sync_directory", str(tmp_path.parent))
    with pytest.raises(OSError, match="Input/output error"):
        make_directories(files, str(tmp_path / "b"))


@pytest.mark.parametrize(("code", "can"), [(errno.EOPNOTSUPP, False), (errno.EIO, True)])
def test_whether_holes_can_be_made_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, can: bool
) -> None:
    """Only a filesystem that says that it can't is taken for one that can't, and the try leaves nothing behind."""
    monkeypatch.setattr("ullage.holes.punch_hole", refusing(code))

    assert DISK.can_punch(str(tmp_path)) is can
    assert DISK.list_directory(str(tmp_path)) == []


def test_where_it_can_not_be_tried_the_first_hole_tells() -> None:
    """A filesystem without files that have no name may make holes all the same."""
    assert DISK.can_punch("/proc")
