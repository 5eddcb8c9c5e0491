"""Real files that fail, tear or wait where a test says so."""

import errno
import os
import threading
from collections.abc import Sequence
from fnmatch import fnmatch

import pytest

from tests.support import RoomyFiles
from ullage.engine.files import DiskUsage, File, Files, FileSize

GATE_SECONDS = 60
"""Longer than any healthy test waits; a gate that nobody opens is a failure, not a hang."""


class Gate:
    """Holds a call until the test opens it."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._opened = threading.Event()

    def wait_until_reached(self) -> None:
        """Return when somebody stands before the gate."""
        assert self._reached.wait(GATE_SECONDS), "nobody came to the gate"

    def open(self) -> None:
        """Let the caller through."""
        self._opened.set()

    def pass_through(self) -> None:
        """What the held call does."""
        self._reached.set()
        assert self._opened.wait(GATE_SECONDS), "nobody opened the gate"


class Fault:
    """What happens to the `first`-th to `last`-th call of a kind on a path."""

    def __init__(self, kind: str, path: str, first: int, last: int) -> None:
        self.kind = kind
        self.path = path
        self.first = first
        self.last = last
        self.seen = 0
        self.error: BaseException | None = None
        self.keeps = 0
        self.gate: Gate | None = None

    def strikes(self, kind: str, path: str) -> bool:
        """Count a call; whether it is one of those meant."""
        if not fnmatch(kind, self.kind) or not fnmatch(path, self.path):
            return False
        self.seen += 1
        return self.first <= self.seen <= self.last


class FailingFiles:
    """`Files` over other files (the real ones). Kinds of calls are the names of the methods of `Files` and `File`."""

    def __init__(self, files: Files | None = None, *, syncs: bool = True) -> None:
        """Without `syncs` they are only counted: where a process dies and not the machine, they change nothing."""
        self.files = files or RoomyFiles()
        self.syncs = syncs
        self.held = 0
        self.calls: list[tuple[str, str]] = []
        self._faults: list[Fault] = []
        self._lock = threading.Lock()

    def fail(
        self,
        kind: str,
        path: str = "*",
        *,
        at: int = 1,
        times: int = 1,
        error: int | BaseException = errno.EIO,
        keeps: int = 0,
    ) -> Fault:
        """Let the `at`-th matching call from now, and the `times` - 1 after it, fail.

        `kind` may be a pattern as well: "*" is how a process dies. A failing write puts its first `keeps` bytes into
        the file, a failing call of any other kind does nothing.
        """
        fault = Fault(kind, path, at, at + times - 1)
        fault.error = OSError(error, os.strerror(error)) if isinstance(error, int) else error
        fault.keeps = keeps
        return self._add(fault)

    def hold(self, kind: str, path: str = "*", *, at: int = 1) -> Gate:
        """Let the `at`-th matching call from now wait until the gate is opened."""
        fault = Fault(kind, path, at, at)
        fault.gate = Gate()
        self._add(fault)
        return fault.gate

    def heal(self) -> None:
        """Nothing fails any more."""
        with self._lock:
            self._faults = []

    def count(self, kind: str, path: str = "*") -> int:
        """How many such calls there were."""
        return sum(kind == made and fnmatch(at, path) for made, at in list(self.calls))

    def meet(self, kind: str, path: str, file: File | None = None, data: bytes = b"", offset: int = 0) -> None:
        """What every call goes through first."""
        with self._lock:
            self.calls.append((kind, path))
            struck = [fault for fault in self._faults if fault.strikes(kind, path)]
        for fault in struck:
            if fault.gate is not None:
                fault.gate.pass_through()
            if fault.error is not None:
                if file is not None and fault.keeps:
                    file.write(data[: fault.keeps], offset)
                raise fault.error

    def _add(self, fault: Fault) -> Fault:
        with self._lock:
            self._faults.append(fault)
        return fault

    def create(self, path: str) -> File:
        self.meet("create", path)
        self.held += 1
        return FailingFile(self, self.files.create(path), path)

    def open(self, path: str, *, writable: bool = False) -> File:
        self.meet("open", path)
        self.held += 1
        return FailingFile(self, self.files.open(path, writable=writable), path)

    def open_descriptor(self, path: str) -> int:
        self.meet("open_descriptor", path)
        return self.files.open_descriptor(path)

    def exists(self, path: str) -> bool:
        return self.files.exists(path)

    def size(self, path: str) -> FileSize:
        return self.files.size(path)

    def list_directory(self, path: str) -> list[str]:
        self.meet("list_directory", path)
        return self.files.list_directory(path)

    def make_directory(self, path: str) -> None:
        self.meet("make_directory", path)
        self.files.make_directory(path)

    def rename(self, source: str, target: str) -> None:
        self.meet("rename", target)
        self.files.rename(source, target)

    def unlink(self, path: str) -> None:
        self.meet("unlink", path)
        self.files.unlink(path)

    def sync_directory(self, path: str) -> None:
        self.meet("sync_directory", path)
        if self.syncs:
            self.files.sync_directory(path)

    def overwrites_in_place(self, path: str) -> bool:
        return self.files.overwrites_in_place(path)

    def usage(self, path: str) -> DiskUsage:
        return self.files.usage(path)

    def can_punch(self, directory: str) -> bool:
        return self.files.can_punch(directory)

    def lock(self, path: str) -> File:
        self.meet("lock", path)
        return self.files.lock(path)


class FailingFile:
    """One open file of `FailingFiles`."""

    def __init__(self, files: FailingFiles, file: File, path: str) -> None:
        self._files = files
        self._file = file
        self._path = path

    def write(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        self._files.meet("write", self._path, self._file, bytes(data), offset)
        self._file.write(data, offset)

    def write_vector(self, buffers: Sequence[bytes | memoryview], offset: int) -> None:
        self._files.meet("write_vector", self._path, self._file, b"".join(buffers), offset)
        self._file.write_vector(buffers, offset)

    def read(self, count: int, offset: int) -> bytes:
        self._files.meet("read", self._path)
        return self._file.read(count, offset)

    def read_into(self, buffers: Sequence[memoryview], offset: int) -> int:
        self._files.meet("read", self._path)
        return self._file.read_into(buffers, offset)

    def sync(self) -> None:
        self._files.meet("sync", self._path)
        if self._files.syncs:
            self._file.sync()

    def truncate(self, length: int) -> None:
        self._files.meet("truncate", self._path)
        self._file.truncate(length)

    def allocate(self, offset: int, count: int) -> None:
        self._files.meet("allocate", self._path)
        self._file.allocate(offset, count)

    def start_writeback(self, offset: int, count: int) -> None:
        self._file.start_writeback(offset, count)

    def punch(self, offset: int, count: int) -> None:
        self._files.meet("punch", self._path)
        self._file.punch(offset, count)

    def is_cached(self, offset: int) -> bool:
        return self._file.is_cached(offset)

    def expect_reads(self, offset: int, count: int) -> None:
        self._file.expect_reads(offset, count)

    def drop_cache(self, offset: int, count: int) -> None:
        self._file.drop_cache(offset, count)

    def size(self) -> FileSize:
        return self._file.size()

    def close(self) -> None:
        self._files.meet("close", self._path)
        self._files.held -= 1
        self._file.close()


@pytest.fixture
def files() -> FailingFiles:
    """The real disk, of which nothing fails yet."""
    return FailingFiles()
