"""A file read a piece at a time, from its beginning to a position that was fixed before."""

import os
from collections.abc import Callable
from typing import Final, TypeVar

from ullage.nifi.fields import OUT_OF_BYTES
from ullage.nifi.trouble import TornFile, Unparsable

PIECE_BYTES: Final = 1 << 20

LONGEST_BYTES: Final = 64 << 20
"""Of one record, or one transaction of a journal, which holds at most 5 MB and one record more: memory stays bounded
whatever length a damaged file states.
"""

Value = TypeVar("Value")


class PieceReader:
    """What lies in an open file up to `end`. Holds a piece, and never more than the longest record."""

    def __init__(self, descriptor: int, end: int, start: int = 0) -> None:
        self._descriptor = descriptor
        self._end = end
        self._data = b""
        self._at = 0
        self._base = start

    @property
    def position(self) -> int:
        """In the file, of what is taken next."""
        return self._base + self._at

    @property
    def is_at_end(self) -> bool:
        return self.position >= self._end

    def reach(self, end: int) -> None:
        """The file has grown, and may be read to here."""
        self._end = max(self._end, end)

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
        begin = self._base + len(self._data)
        more = min(self._end - begin, max(PIECE_BYTES, len(rest)), LONGEST_BYTES - len(rest))
        piece = os.pread(self._descriptor, more, begin)
        if not piece:
            raise TornFile(self.position)
        self._base += self._at
        self._data = rest + piece
        self._at = 0
