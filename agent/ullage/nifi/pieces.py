"""What is read a piece at a time: a file, from its beginning to a position that was fixed before, or a stream."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import IO, Final, TypeVar

from ullage.nifi.fields import OUT_OF_BYTES
from ullage.nifi.trouble import TornFile, Unparsable

PIECE_BYTES: Final = 1 << 20

LONGEST_BYTES: Final = 64 << 20
"""Of one record, or one transaction of a journal, which holds at most 5 MB and one record more: memory stays bounded
whatever length a damaged file states.
"""

Value = TypeVar("Value")


class PieceBuffer(ABC):
    """Holds a piece, and never more than the longest record."""

    def __init__(self, start: int = 0) -> None:
        self._data = b""
        self._at = 0
        self._base = start

    @property
    def position(self) -> int:
        """Of what is taken next."""
        return self._base + self._at

    @property
    @abstractmethod
    def is_at_end(self) -> bool:
        """Whether nothing is left to be taken."""

    def take(self, decode: Callable[[bytes, int], tuple[Value, int]]) -> Value:
        """What `decode` makes of the bytes at the position it is given; it returns the position behind as well.

        TornFile if the file ends before that. Unparsable as `decode` raises it, or beyond the longest record.
        """
        while True:
            try:
                value, self._at = decode(self._data, self._at)
            except OUT_OF_BYTES:
                self._fill()
            else:
                return value

    def _fill(self) -> None:
        rest = self._data[self._at :]
        if len(rest) >= LONGEST_BYTES:
            raise Unparsable(f"a record at byte {self.position:,} longer than {LONGEST_BYTES >> 20} MiB")
        piece = self._read(min(max(PIECE_BYTES, len(rest)), LONGEST_BYTES - len(rest)))
        if not piece:
            raise TornFile(self.position)
        self._base += self._at
        self._data = rest + piece
        self._at = 0

    @abstractmethod
    def _read(self, count: int) -> bytes:
        """So many bytes behind those that are held, or fewer; none: it ends there."""


class PieceReader(PieceBuffer):
    """What lies in an open file up to `end`."""

    def __init__(self, descriptor: int, end: int, start: int = 0) -> None:
        super().__init__(start)
        self._descriptor = descriptor
        self._end = end

    @property
    def is_at_end(self) -> bool:
        return self.position >= self._end

    def reach(self, end: int) -> None:
        """The file has grown, and may be read to here."""
        self._end = max(self._end, end)

    def _read(self, count: int) -> bytes:
        begin = self._base + len(self._data)
        return os.pread(self._descriptor, min(count, self._end - begin), begin)


class StreamPieces(PieceBuffer):
    """What comes of a stream, to its end."""

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__()
        self._stream = stream

    @property
    def is_at_end(self) -> bool:
        if self._at < len(self._data):
            return False
        self._base += self._at
        self._data, self._at = self._read(PIECE_BYTES), 0
        return not self._data

    def _read(self, count: int) -> bytes:
        return self._stream.read(count)


def read_span(descriptor: int, begin: int, end: int, name: str) -> Iterator[bytes]:
    """These bytes of an open file; OSError with this name if it ends before."""
    at = begin
    while at < end:
        piece = os.pread(descriptor, min(PIECE_BYTES, end - at), at)
        if not piece:
            raise OSError(0, "it became shorter while it was read", name)
        yield piece
        at += len(piece)
