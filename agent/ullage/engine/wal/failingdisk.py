"""Reading files of a disk that fails in places: what it does not give reads as zeros, which no checksum accepts."""

from contextlib import suppress
from typing import Protocol

from ullage.engine.files import FileSize

PAGE_BYTES = 4096


class Readable(Protocol):
    """A file, as far as it is read."""

    def read(self, count: int, offset: int) -> bytes: ...

    def size(self) -> FileSize: ...

    def close(self) -> None: ...


class Openable(Protocol):
    """Files, as far as they are read."""

    def open(self, path: str) -> Readable: ...


class FailingDisk:
    """`unreadable` says of each file where the disk failed, and how."""

    def __init__(self, files: Openable) -> None:
        self._files = files
        self.unreadable: dict[str, dict[int, str]] = {}

    def open(self, path: str) -> Readable:
        """OSError where not even that can be done."""
        return _File(self._files.open(path), self.unreadable.setdefault(path, {}))


class _File:
    def __init__(self, file: Readable, unreadable: dict[int, str]) -> None:
        self._file = file
        self._unreadable = unreadable

    def read(self, count: int, offset: int) -> bytes:
        # One bad page must not hide those around it.
        with suppress(OSError):
            return self._file.read(count, offset)
        end = min(offset + count, self._file.size().length)
        pieces = []
        while offset < end:
            length = min(PAGE_BYTES - offset % PAGE_BYTES, end - offset)
            try:
                pieces.append(self._file.read(length, offset))
            except OSError as error:
                self._unreadable[offset - offset % PAGE_BYTES] = str(error)
                pieces.append(bytes(length))
            offset += length
        return b"".join(pieces)

    def size(self) -> FileSize:
        return self._file.size()

    def close(self) -> None:
        self._file.close()
