"""Every open, write, sync, rename, unlink, truncate, punch and directory sync of the engine.

This is the only module that makes things durable; everything above it speaks of `Files` and `File`, so that a test
can hand in files that forget, tear and fail (`ullage.testing`). The interface is positional: a shared file
position once overwrote another engine's data.

What callers may rely on, and no more:
- `File.sync` returned: the file's bytes and size survive a crash; its *name* only after `sync_directory`.
- `rename`, `unlink`, `make_directory`, `create` are atomic, and durable only after `sync_directory` of the parent.
- After a failed sync the page cache lies (ext4, XFS and btrfs mark the pages clean), so nobody may retry a sync.
"""

import copy
import errno
import fcntl
import os
import stat
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import NamedTuple, Protocol, Self

from ullage.beneath import LeadsOut, without_links
from ullage.engine.byteranges import scatter
from ullage.engine.forking import lose, refuse_in_child, steady
from ullage.engine.kernel import is_mount_point, overwrites_in_place, start_writeback
from ullage.engine.oserrors import TOO_MANY, NotAFile, SyncNotTried, of_opening
from ullage.holes import can_punch, punch_hole

IOV_MAX = 1024
"""Buffers one vectored write may carry on Linux."""

COPY_BYTES = 1 << 20
"""Bytes moved at a time where a whole file passes through memory."""


class DiskUsage(NamedTuple):
    """A filesystem's size and what an unprivileged writer can still take, in bytes."""

    total_bytes: int
    free_bytes: int
    is_read_only: bool = False


class FileSize(NamedTuple):
    """A file's length and the bytes of disk it occupies (allocated blocks); how many names it has."""

    length: int
    allocated_bytes: int
    is_file: bool = True
    links: int = 1


class FileMark(NamedTuple):
    """Which file a path names, and in which state: two that are equal are of one file that was not changed between."""

    device: int
    """What tells the filesystem on which it lies from others."""

    inode: int
    changed_nanos: int


class File(Protocol):
    """One open file."""

    def write(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        """Write all of it at `offset`; on error any part of it may be there."""

    def write_vector(self, buffers: Sequence[bytes | memoryview], offset: int) -> None:
        """Write the buffers back to back at `offset`; on error any part may be there."""

    def read(self, count: int, offset: int) -> bytes:
        """Up to `count` bytes; fewer only at the end of the file."""

    def read_into(self, buffers: Sequence[memoryview], offset: int) -> int:
        """Fill the buffers with what lies back to back at `offset`; how many bytes: fewer only at the end of the file.

        Where much is read, memory that is used again is worth more than the reading costs.
        """

    def sync(self) -> None:
        """Make bytes and size durable. After an error the file must never be trusted or synced again."""

    def truncate(self, length: int) -> None:
        """Set the file's length; not durable before `sync`."""

    def allocate(self, offset: int, count: int) -> None:
        """Reserve blocks, so that later writes there need no new ones; the file grows with zeros.

        A filesystem that cannot reserve is no error: later writes find out by themselves whether there is room.
        """

    def start_writeback(self, offset: int, count: int) -> None:
        """Ask the kernel to begin writing these bytes: a hint with no promise, errors are left to `sync`."""

    def punch(self, offset: int, count: int) -> None:
        """Give the blocks of [offset, offset + count) back; they read as zeros. Not durable before `sync`.

        OSError with EOPNOTSUPP where the filesystem cannot (see `Files.can_punch`).
        """

    def is_cached(self, offset: int) -> bool:
        """Whether the byte there can be read without waiting for the disk, if the filesystem can tell: a hint."""

    def expect_reads(self, offset: int, count: int) -> None:
        """Ask the kernel to read these bytes ahead: a hint."""

    def drop_cache(self, offset: int, count: int) -> None:
        """Let the page cache forget these bytes once they are clean: a hint, so that copying evicts nobody's pages."""

    def size(self) -> FileSize:
        """Length and allocated bytes now."""

    def is_at(self, path: str) -> bool:
        """Whether the path leads to this very file."""

    def close(self) -> None:
        """Release the descriptor. Not a sync."""


class Files(Protocol):
    """A filesystem, by absolute path."""

    def without_links_below(self, folder: str) -> "Files":
        """The same filesystem, but LeadsOut where the path of something below `folder` leads through a link."""
        ...

    def create(self, path: str) -> File:
        """A new, empty file for reading and writing; FileExistsError if there is one."""

    def open(self, path: str, *, writable: bool = False) -> File:
        """An existing file."""

    def open_descriptor(self, path: str) -> int:
        """A descriptor for reading only, for the caller to pass to another process and to close. It is not shared with
        anybody: whoever holds it can neither change the file nor disturb other readers.
        """

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> FileSize: ...

    def list_directory(self, path: str) -> list[str]:
        """Names in the directory, sorted; FileNotFoundError, NotADirectoryError."""

    def make_directory(self, path: str) -> None:
        """Create one directory; an existing one is fine."""

    def rename(self, source: str, target: str) -> None: ...

    def unlink(self, path: str) -> None: ...

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable: creations, renames and unlinks that came before.

        SyncNotTried where the process has too many files open to try; any other error is a failed sync.
        """

    def usage(self, path: str) -> DiskUsage:
        """The filesystem's figures at this moment."""

    def mark(self, path: str) -> FileMark:
        """Which file or directory is there. Not of `usage`, which each writer asks for."""

    def is_mount_point(self, path: str) -> bool:
        """Whether something is mounted there, also of the same filesystem, which `device` does not tell."""

    def overwrites_in_place(self, path: str) -> bool:
        """Whether bytes that are written again keep their blocks: not so on a copy-on-write filesystem."""

    def can_punch(self, directory: str) -> bool:
        """Whether files in this directory can have holes punched. Tried on a file without a name."""

    def lock(self, directory: str, *, is_shared: bool = False) -> File:
        """An exclusive lock on a directory that lives as long as what is returned, which is no file to read or write;
        BlockingIOError if somebody holds it. A shared one is waited for, and keeps away only exclusive ones.
        """


class OsFile:
    """A descriptor of the operating system."""

    __slots__ = ("__weakref__", "_descriptor", "path")

    def __init__(self, descriptor: int, path: str) -> None:
        self._descriptor = descriptor
        self.path = path
        refuse_in_child(self)

    def write(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        written = os.pwrite(self._descriptor, data, offset)
        if written == len(data):
            return
        # A signal, a quota or a disk that is nearly full cuts a write short; why, the kernel says at the next one.
        rest = memoryview(data)[written:]
        while rest:
            offset += written
            written = os.pwrite(self._descriptor, rest, offset)
            if written == 0:
                # Else a filesystem that answers 0 would hold a commit for ever.
                raise OSError(errno.EIO, "write made no progress", self.path)
            rest = rest[written:]

    def write_vector(self, buffers: Sequence[bytes | memoryview], offset: int) -> None:
        for first in range(0, len(buffers), IOV_MAX):
            part = buffers[first : first + IOV_MAX]
            expected = sum(map(len, part))
            written = os.pwritev(self._descriptor, part, offset)
            if written != expected:
                self.write(memoryview(b"".join(part))[written:], offset + written)
            offset += expected

    def read(self, count: int, offset: int) -> bytes:
        data = os.pread(self._descriptor, count, offset)
        if len(data) == count or not data:
            return data
        # Linux gives at most 2 GiB at a time, and a signal less: only 0 bytes mean the end of the file.
        parts = [data]
        got = len(data)
        while got < count:
            data = os.pread(self._descriptor, count - got, offset + got)
            if not data:
                break
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def read_into(self, buffers: Sequence[memoryview], offset: int) -> int:
        if len(buffers) == 1 and (count := os.preadv(self._descriptor, buffers, offset)) == len(buffers[0]):
            return count  # the usual case, without the steps of the others
        got = 0
        for first in range(0, len(buffers), IOV_MAX):
            part = buffers[first : first + IOV_MAX]
            expected = sum(map(len, part))
            count = os.preadv(self._descriptor, part, offset + got)
            while count < expected:
                data = self.read(expected - count, offset + got + count)
                if not data:
                    return got + count
                scatter(data, part, count)
                count += len(data)
            got += expected
        return got

    def sync(self) -> None:
        # Not fsync: dates are nobody's promise, and where the size stays the filesystem spares its journal a commit.
        os.fdatasync(self._descriptor)

    def truncate(self, length: int) -> None:
        os.ftruncate(self._descriptor, length)

    def allocate(self, offset: int, count: int) -> None:
        try:
            os.posix_fallocate(self._descriptor, offset, count)
        except OSError as error:
            # Some filesystems cannot; they may still take the bytes when they come.
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise

    def start_writeback(self, offset: int, count: int) -> None:
        start_writeback(self._descriptor, offset, count)

    def punch(self, offset: int, count: int) -> None:
        punch_hole(self._descriptor, offset, count)

    def is_cached(self, offset: int) -> bool:
        try:
            return os.preadv(self._descriptor, [bytearray(1)], offset, os.RWF_NOWAIT) == 1
        # No such question on this filesystem: read ahead in vain rather than wait for the disk at each read.
        except OSError:
            return False

    def expect_reads(self, offset: int, count: int) -> None:
        os.posix_fadvise(self._descriptor, offset, count, os.POSIX_FADV_WILLNEED)

    def drop_cache(self, offset: int, count: int) -> None:
        os.posix_fadvise(self._descriptor, offset, count, os.POSIX_FADV_DONTNEED)

    def size(self) -> FileSize:
        status = os.fstat(self._descriptor)
        return FileSize(status.st_size, status.st_blocks * 512, links=status.st_nlink)

    def is_at(self, path: str) -> bool:
        try:
            found = os.stat(path, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return os.path.samestat(found, os.fstat(self._descriptor))

    def close(self) -> None:
        with steady:  # or a child would close a number that is somebody else's by now
            os.close(self._descriptor)
            self._descriptor = -1

    def forked(self) -> None:
        """The child's copy goes; a lock stays the parent's."""
        with suppress(OSError):  # closed before
            os.close(self._descriptor)
        self._descriptor = -1
        lose(self)


class OsFiles:
    """The operating system's filesystem. In a forked child it opens and changes nothing any more: ForkedRepository."""

    _linkless = ""

    def __init__(self) -> None:
        refuse_in_child(self)

    def forked(self) -> None:
        lose(self)

    def without_links_below(self, folder: str) -> Self:
        made = copy.copy(self)
        made._linkless = folder  # noqa: SLF001 - of its own kind
        refuse_in_child(made)
        return made

    def create(self, path: str) -> File:
        # O_EXCL: a name that is there already holds somebody's bytes, and names are never used twice.
        with without_links(path, self._linkless) as (name, at, _):
            return OsFile(os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640, dir_fd=at), path)

    def open(self, path: str, *, writable: bool = False) -> File:
        return OsFile(self._open_regular(path, os.O_RDWR if writable else os.O_RDONLY), path)

    def open_descriptor(self, path: str) -> int:
        return self._open_regular(path, os.O_RDONLY)

    def exists(self, path: str) -> bool:
        try:
            with without_links(path, self._linkless) as (name, at, _):
                os.stat(name, dir_fd=at, follow_symlinks=False)
        except LeadsOut:
            raise
        except (OSError, ValueError):  # as os.path.lexists has it
            return False
        return True

    def size(self, path: str) -> FileSize:
        try:
            with without_links(path, self._linkless) as (name, at, no_link):
                status = os.stat(name, dir_fd=at, follow_symlinks=not no_link)
        except OSError as error:
            raise of_opening(error) from error
        return FileSize(status.st_size, status.st_blocks * 512, stat.S_ISREG(status.st_mode))

    def list_directory(self, path: str) -> list[str]:
        try:
            descriptor = self._open_directory(path)
            try:
                return sorted(os.listdir(descriptor))
            finally:
                os.close(descriptor)
        except OSError as error:
            if error.errno == errno.ELOOP and not isinstance(error, LeadsOut):
                raise NotADirectoryError(errno.ENOTDIR, "what lies there is no directory", path) from error
            raise

    def make_directory(self, path: str) -> None:
        with without_links(path, self._linkless) as (name, at, no_link):
            try:
                os.mkdir(name, 0o750, dir_fd=at)
            except FileExistsError:
                if not stat.S_ISDIR(os.stat(name, dir_fd=at, follow_symlinks=not no_link).st_mode):
                    raise

    def rename(self, source: str, target: str) -> None:
        below = self._linkless
        with without_links(source, below) as (name, at, _), without_links(target, below) as (new_name, new_at, _):
            os.rename(name, new_name, src_dir_fd=at, dst_dir_fd=new_at)

    def unlink(self, path: str) -> None:
        with without_links(path, self._linkless) as (name, at, _):
            os.unlink(name, dir_fd=at)

    def sync_directory(self, path: str) -> None:
        try:
            descriptor = self._open_directory(path)
        except OSError as error:
            # Taken for a failed sync it stopped the writing of every container, also when the limit was lifted again.
            if error.errno in TOO_MANY:
                raise SyncNotTried(error.errno, error.strerror, path) from error
            raise
        try:
            os.fsync(descriptor)
        except OSError as error:
            # Some filesystems cannot sync a directory and say EINVAL; they order names by themselves. EIO is real.
            if error.errno != errno.EINVAL:
                raise
        finally:
            os.close(descriptor)

    def usage(self, path: str) -> DiskUsage:
        figures = os.statvfs(path)
        block = figures.f_frsize
        # As df does: blocks kept back for root are neither used nor ours, or an empty disk would look used.
        total = (figures.f_blocks - figures.f_bfree + figures.f_bavail) * block
        return DiskUsage(total, figures.f_bavail * block, bool(figures.f_flag & os.ST_RDONLY))

    def mark(self, path: str) -> FileMark:
        found = os.stat(path)
        return FileMark(found.st_dev, found.st_ino, found.st_ctime_ns)

    def is_mount_point(self, path: str) -> bool:
        with open("/proc/self/mountinfo", "rb") as mounts:
            return is_mount_point(mounts, path)

    def overwrites_in_place(self, path: str) -> bool:
        return overwrites_in_place(path)

    def can_punch(self, directory: str) -> bool:
        return can_punch(directory)

    def lock(self, directory: str, *, is_shared: bool = False) -> File:
        # The directory itself, and no file in it: a lock file can be removed, and whoever then made it anew got in.
        with steady:  # a child that got the descriptor alone would hold the lock for as long as it lives
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            how = fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX | fcntl.LOCK_NB
            try:
                fcntl.flock(descriptor, how)  # ends with the process: O_CLOEXEC above
            except OSError:
                os.close(descriptor)
                raise
            return OsFile(descriptor, directory)

    def _open_regular(self, path: str, flags: int) -> int:
        try:
            with without_links(path, self._linkless) as (name, at, no_link):
                # Without O_NONBLOCK the open of a pipe waits for a writer, for ever; files take no notice of it.
                descriptor = os.open(name, flags | os.O_CLOEXEC | os.O_NONBLOCK | no_link, dir_fd=at)
        except OSError as error:
            raise of_opening(error) from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise NotAFile(errno.ENOENT, "what lies there is no file", path)
        return descriptor

    def _open_directory(self, path: str) -> int:
        with without_links(path, self._linkless) as (name, at, no_link):
            return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | no_link, dir_fd=at)


def make_directories(files: Files, path: str) -> None:
    """Create a directory and its missing parents, each durable in its parent before the next is made."""
    missing: list[str] = []
    current = os.path.abspath(path)
    while not files.exists(current):
        missing.append(current)
        current = os.path.dirname(current)
    # The deepest one that is there may be what an earlier process made and did not live to sync.
    with suppress(PermissionError):  # in a parent that we may not read, nothing of ours was made
        files.sync_directory(os.path.dirname(current))
    for directory in reversed(missing):
        files.make_directory(directory)
        files.sync_directory(os.path.dirname(directory))


PARTIAL_SUFFIX = ".partial"
"""Follows the name of a file whose new content is being written beside it."""


def replace_file(files: Files, path: str, data: bytes) -> None:
    """Put `data` at `path` atomically and durably: after a crash the old content or the new, never a part.

    write <path>.partial | sync | rename over <path> | sync directory
                                  ^ commit point of the content, durable after the last step
    """
    discard_partial(files, path)
    # What a kill left is gone by now: `create` refuses a name that is there.
    partial = path + PARTIAL_SUFFIX
    with closing(files.create(partial)) as file:
        file.write(data, 0)
        # Before the rename: a filesystem may keep the new name and not the bytes, an empty file where a good one was.
        file.sync()
    files.rename(partial, path)
    # Else whoever builds on the new content may find the old one after a loss of power.
    files.sync_directory(os.path.dirname(path))


def discard_partial(files: Files, path: str) -> None:
    """Remove what a `replace_file` that failed or was killed left behind. A crash may bring it back."""
    if files.exists(path + PARTIAL_SUFFIX):
        files.unlink(path + PARTIAL_SUFFIX)


def length_of(files: Files, path: str) -> int | None:
    """The length of a file; None if there is none, or something else lies in its place."""
    try:
        size = files.size(path)
    except FileNotFoundError:
        return None
    return size.length if size.is_file else None


def read_file(files: Files, path: str) -> bytes:
    """A small file, whole."""
    with closing(files.open(path)) as file:
        return file.read(file.size().length, 0)
