"""Real files that fail, tear or wait where a test says so."""

import errno
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch

import pytest

from tests.support import RoomyFiles
from ullage.engine.files import File, OsFile

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


@dataclass
class Fault:
    """What happens to the `first`-th to `last`-th call of a kind on a path."""

    kind: str
    path: str
    first: int
    last: int
    error: BaseException | None = None
    keeps: int = 0
    gate: Gate | None = None
    seen: int = 0

    def strikes(self, kind: str, path: str) -> bool:
        """Count a call; whether it is one of those meant."""
        if not fnmatch(kind, self.kind) or not fnmatch(path, self.path):
            return False
        self.seen += 1
        return self.first <= self.seen <= self.last


class FailingFiles(RoomyFiles):
    """The real disk. Kinds of calls are the names of the methods of `Files` and `File`."""

    def __init__(self, *, syncs: bool = True) -> None:
        """Without `syncs` they are only counted: where a process dies and not the machine, they change nothing."""
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
        if isinstance(error, int):
            error = OSError(error, os.strerror(error))
        return self._add(Fault(kind, path, at, at + times - 1, error, keeps))

    def hold(self, kind: str, path: str = "*", *, at: int = 1) -> Gate:
        """Let the `at`-th matching call from now wait until the gate is opened."""
        gate = Gate()
        self._add(Fault(kind, path, at, at, gate=gate))
        return gate

    def heal(self) -> None:
        """Nothing fails any more."""
        with self._lock:
            self._faults = []

    def count(self, kind: str, path: str = "*") -> int:
        """How many such calls there were."""
        return sum(kind == made and fnmatch(at, path) for made, at in list(self.calls))

    def meet(self, kind: str, path: str, file: OsFile | None = None, data: bytes = b"", offset: int = 0) -> None:
        """What every call goes through first."""
        with self._lock:
            self.calls.append((kind, path))
            struck = [fault for fault in self._faults if fault.strikes(kind, path)]
        for fault in struck:
            if fault.gate is not None:
                fault.gate.pass_through()
            if fault.error is not None:
                if file is not None and fault.keeps:
                    OsFile.write(file, data[: fault.keeps], offset)
                raise fault.error

    def _add(self, fault: Fault) -> Fault:
        with self._lock:
            self._faults.append(fault)
        return fault

    def create(self, path: str) -> File:
        self.meet("create", path)
        return self._failing(super().create(path))

    def open(self, path: str, *, writable: bool = False) -> File:
        self.meet("open", path)
        return self._failing(super().open(path, writable=writable))

    def _failing(self, file: File) -> File:
        assert isinstance(file, OsFile)
        self.held += 1
        return FailingFile(self, file)

    def open_descriptor(self, path: str) -> int:
        self.meet("open_descriptor", path)
        return super().open_descriptor(path)

    def list_directory(self, path: str) -> list[str]:
        self.meet("list_directory", path)
        return super().list_directory(path)

    def make_directory(self, path: str) -> None:
        self.meet("make_directory", path)
        super().make_directory(path)

    def rename(self, source: str, target: str) -> None:
        self.meet("rename", target)
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        self.meet("unlink", path)
        super().unlink(path)

    def sync_directory(self, path: str) -> None:
        self.meet("sync_directory", path)
        if self.syncs:
            super().sync_directory(path)

    def lock(self, directory: str, *, is_shared: bool = False) -> File:
        self.meet("lock", directory)
        return super().lock(directory, is_shared=is_shared)


class FailingFile(OsFile):
    """One open file of `FailingFiles`."""

    def __init__(self, files: FailingFiles, file: OsFile) -> None:
        super().__init__(file._descriptor, file.path)
        self._files = files

    def write(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        self._files.meet("write", self.path, self, bytes(data), offset)
        super().write(data, offset)

    def write_vector(self, buffers: Sequence[bytes | memoryview], offset: int) -> None:
        self._files.meet("write_vector", self.path, self, b"".join(buffers), offset)
        super().write_vector(buffers, offset)

    def read(self, count: int, offset: int) -> bytes:
        self._files.meet("read", self.path)
        return super().read(count, offset)

    def read_into(self, buffers: Sequence[memoryview], offset: int) -> int:
        self._files.meet("read", self.path)
        return super().read_into(buffers, offset)

    def sync(self) -> None:
        self._files.meet("sync", self.path)
        if self._files.syncs:
            super().sync()

    def truncate(self, length: int) -> None:
        self._files.meet("truncate", self.path)
        super().truncate(length)

    def allocate(self, offset: int, count: int) -> None:
        self._files.meet("allocate", self.path)
        super().allocate(offset, count)

    def punch(self, offset: int, count: int) -> None:
        self._files.meet("punch", self.path)
        super().punch(offset, count)

    def close(self) -> None:
        self._files.meet("close", self.path)
        self._files.held -= 1
        super().close()


@pytest.fixture
def files() -> FailingFiles:
    """The real disk, of which nothing fails yet."""
    return FailingFiles()
