"""One content as a file that can be read anywhere, in constant memory: what libraries want that read archives, images,
Parquet or models. It holds a window of the content, which grows while it is read on and on, and begins small anew where
somebody jumps: of 20 GiB of which only the end is looked at not much more is read.
"""

import errno
import io
from collections.abc import Callable
from typing import Final

FIRST_BYTES: Final = 1 << 20
"""A window after a jump: who reads a header or a directory needs no more, and asking costs as much as reading it."""

WINDOW_BYTES: Final = 8 << 20
"""What a window grows to, doubled each time: a question is nothing beside it, and few machines notice its memory."""

BUFFER_BYTES: Final = 64 << 10
"""Of small reads, which the standard library serves from here."""

Fetch = Callable[[int, int], bytes]
"""So many verified bytes from this place on. It raises what its source does."""


class ContentFile(io.BufferedReader):
    """A content of `size` bytes, from `fetch` or all of it from `first`: `read`, `readinto`, `readline`, `seek`, and
    `range`. Every byte was verified. Errors: whatever `fetch` raises, and what the standard library raises for a file
    that is closed, and OSError for a place before its beginning.
    """

    def __init__(self, size: int, fetch: Fetch, first: bytes = b"") -> None:
        self.size = size
        self._windows = _ReadAhead(size, fetch, first)
        super().__init__(self._windows, BUFFER_BYTES)

    def range(self, start: int, size: int) -> bytes:
        """The bytes from a place on, as many as there are up to `size`; where the file stands stays as it is.

        ValueError for a negative one.
        """
        if start < 0 or size < 0:
            raise ValueError(f"range {start}+{size} of a content: neither is negative")
        if self.closed:
            raise ValueError("range of a closed file")
        stop = min(self.size, start + size)
        parts: list[bytes] = []
        while start < stop:
            parts.append(self._windows.part(start, stop - start))
            start += len(parts[-1])
        return b"".join(parts)


class _ReadAhead(io.RawIOBase):
    """The content itself, a window at a time."""

    def __init__(self, size: int, fetch: Fetch, first: bytes) -> None:
        self._size = size
        self._fetch = fetch
        self._at = 0
        self._begin, self._window = 0, first
        self._next_bytes = FIRST_BYTES

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}.get(whence)
        if base is None:
            raise ValueError(f"whence is 0, 1 or 2, not {whence}")
        if base + offset < 0:
            # As the system says it of a file: zipfile looks for its directory so in whatever may be an archive.
            raise OSError(errno.EINVAL, f"a content has no place {base + offset}")
        self._at = base + offset
        return self._at

    def readinto(self, buffer: "bytearray | memoryview", /) -> int:  # type: ignore[override]
        view = memoryview(buffer).cast("B")
        found = self.part(self._at, len(view)) if self._at < self._size else b""
        view[: len(found)] = found
        self._at += len(found)
        return len(found)

    def close(self) -> None:
        self._window = b""
        super().close()

    def part(self, start: int, count: int) -> bytes:
        """One byte or more from a place within the content, at most `count`."""
        end = self._begin + len(self._window)
        if not self._begin <= start < end:
            # Somebody who reads on asks for what follows the window; from anywhere else it is a jump.
            self._next_bytes = min(2 * self._next_bytes, WINDOW_BYTES) if start == end else FIRST_BYTES
            self._window = b""  # rather than two at a time
            self._window = self._fetch(start, min(self._next_bytes, self._size - start))
            self._begin = start
        at = start - self._begin
        return self._window[at : at + count]
