"""The filesystem as an open repository has it: from its close on, nothing is opened or changed through it any more.

    a program keeps a session beyond the close | another process opens the repository | the session's commit

would otherwise make a content file beside those of the new owner, without the lock, and leave it there as an orphan; a
reclamation would remove files that the new owner counts on; and a put that was amid a stream went on to write a file
that the new owner had opened, sealed and cut. Whatever is still at work then is refused at its next step on the disk,
at the one place that all steps pass.
"""

import threading
from collections.abc import Sequence

from ullage.engine.files import DiskUsage, File, FileMark, Files, FileSize
from ullage.engine.forking import lose, refuse_in_child
from ullage.engine.withdrawn import CLOSED
from ullage.errors import NotRestored


class HeldFile:
    """A file that may be written, until it or the repository is closed.

    Each change is made under a lock of the file's own, for which the close waits: what was begun before is on the disk
    when the next owner comes, and its descriptor's number is nobody else's yet. A signal handler may write in the midst
    of a write, so the lock is one that its thread may take again.
    """

    __slots__ = ("__weakref__", "_file", "_files", "_lock")

    def __init__(self, file: File, files: "HeldFiles") -> None:
        self._file: File | None = file
        self._files = files
        self._lock = threading.RLock()
        refuse_in_child(self)

    @property
    def _held(self) -> File:
        if self._file is None:
            raise NotRestored(CLOSED)
        return self._file

    def write(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        with self._lock:
            self._held.write(data, offset)

    def write_vector(self, buffers: Sequence[bytes | memoryview], offset: int) -> None:
        with self._lock:
            self._held.write_vector(buffers, offset)

    def read(self, count: int, offset: int) -> bytes:
        return self._held.read(count, offset)

    def read_into(self, buffers: Sequence[memoryview], offset: int) -> int:
        return self._held.read_into(buffers, offset)

    def sync(self) -> None:
        self._held.sync()

    def truncate(self, length: int) -> None:
        with self._lock:
            self._held.truncate(length)

    def allocate(self, offset: int, count: int) -> None:
        with self._lock:
            self._held.allocate(offset, count)

    def start_writeback(self, offset: int, count: int) -> None:
        self._held.start_writeback(offset, count)

    def punch(self, offset: int, count: int) -> None:
        with self._lock:
            self._held.punch(offset, count)

    def is_cached(self, offset: int) -> bool:
        return self._held.is_cached(offset)

    def expect_reads(self, offset: int, count: int) -> None:
        self._held.expect_reads(offset, count)

    def drop_cache(self, offset: int, count: int) -> None:
        self._held.drop_cache(offset, count)

    def size(self) -> FileSize:
        return self._held.size()

    def is_at(self, path: str) -> bool:
        return self._held.is_at(path)

    def close(self) -> None:
        with self._lock:
            file, self._file = self._file, None
            if file is not None:
                self._files.forget(self)
                file.close()

    def forked(self) -> None:
        """Called in a forked child: the lock may be held by a thread that is not there."""
        lose(self)


class HeldFiles:
    """`files` and the lock on the repository, until `close`; NotRestored afterwards."""

    def __init__(self, files: Files, lock: File | None, whole: "HeldFiles | None" = None) -> None:
        """`whole`: it ends with that one."""
        self._files = files
        self._lock = lock
        self._whole = whole or self
        self._open: set[HeldFile] = set()
        self.is_over = False

    @property
    def _held(self) -> Files:
        if self._whole.is_over:
            raise NotRestored(CLOSED)
        return self._files

    def without_links_below(self, folder: str) -> Files:
        return HeldFiles(self._held.without_links_below(folder), None, self._whole)

    def create(self, path: str) -> File:
        return self._kept(self._held.create(path))

    def open(self, path: str, *, writable: bool = False) -> File:
        file = self._held.open(path, writable=writable)
        return self._kept(file) if writable else file

    def open_descriptor(self, path: str) -> int:
        return self._held.open_descriptor(path)

    def exists(self, path: str) -> bool:
        return self._held.exists(path)

    def size(self, path: str) -> FileSize:
        return self._held.size(path)

    def list_directory(self, path: str) -> list[str]:
        return self._held.list_directory(path)

    def make_directory(self, path: str) -> None:
        self._held.make_directory(path)

    def rename(self, source: str, target: str) -> None:
        self._held.rename(source, target)

    def unlink(self, path: str) -> None:
        self._held.unlink(path)

    def sync_directory(self, path: str) -> None:
        self._held.sync_directory(path)

    def usage(self, path: str) -> DiskUsage:
        return self._held.usage(path)

    def mark(self, path: str) -> FileMark:
        return self._held.mark(path)

    def is_mount_point(self, path: str) -> bool:
        return self._held.is_mount_point(path)

    def overwrites_in_place(self, path: str) -> bool:
        return self._held.overwrites_in_place(path)

    def can_punch(self, directory: str) -> bool:
        return self._held.can_punch(directory)

    def lock(self, directory: str, *, is_shared: bool = False) -> File:
        return self._held.lock(directory, is_shared=is_shared)

    def close(self) -> None:
        """From now on everything is refused, and what is being written is over; only then the lock goes, for which the
        next owner may wait.
        """
        self.is_over = True
        for file in list(self._open):
            file.close()
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.close()

    def forget(self, file: HeldFile) -> None:
        """It is closed."""
        self._open.discard(file)

    def _kept(self, file: File) -> File:
        held = HeldFile(file, self._whole)
        self._whole.remember(held)
        if self._whole.is_over:  # the close came in between, and may have passed it over
            held.close()
            raise NotRestored(CLOSED)
        return held

    def remember(self, file: HeldFile) -> None:
        """It is open, and closed with the repository if nobody does that before."""
        self._open.add(file)
