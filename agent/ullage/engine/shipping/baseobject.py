"""A base: all of a repository but its content, as of one transaction.

    header   magic "ULLAGEBA", as in sections.py (BaseHeader)
    chunk    kind u8 | length u32 | CRC of its bytes u32 | bytes: kind 1 the name of a member, in UTF-8; kind 2 a piece
             of the member that was named last
    end      kind 3 u8 | length 12 u32 | CRC u32 | chunks before it u64, CRC of their heads u32

Members are files: the snapshot, packs that it needs, event files. A base is written and read in pieces. It is proved
once its end was read: what was made of it before counts from then on.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from crc32c import crc32c

from ullage.engine.model import Whole
from ullage.engine.shipping.sections import ObjectHeader, pack_header, unpack_header
from ullage.engine.shipping.sharedocs import Number
from ullage.engine.shipping.shareplace import base_of
from ullage.engine.wal.format import HEADER_BYTES_MAX
from ullage.errors import RepositoryDamaged

BASE_MAGIC: Final = b"ULLAGEBA"
CHUNK_BYTES_MAX: Final = 8 << 20
MEMBER_NAME_BYTES_MAX: Final = 255

_CHUNK = struct.Struct("<BII")
_END = struct.Struct("<QI")
_NAME, _PIECE, _LAST = 1, 2, 3

Members = Iterable[tuple[str, Iterable[bytes]]]


class BaseHeader(ObjectHeader, frozen=True, kw_only=True):
    """What a base says of itself: as of which transaction it is, when it was made, and the log object behind it."""

    transaction: Whole
    millis: Whole
    next_log: Number


def base_pieces(header: BaseHeader, members: Members) -> Iterator[bytes]:
    """The bytes of a base."""
    yield pack_header(BASE_MAGIC, header)
    chunks = heads = 0
    for kind, data in _chunks(members):
        head = _CHUNK.pack(kind, len(data), crc32c(data))
        chunks, heads = chunks + 1, crc32c(head, heads)
        yield head + data
    end = _END.pack(chunks, heads)
    yield _CHUNK.pack(_LAST, len(end), crc32c(end)) + end


def _chunks(members: Members) -> Iterator[tuple[int, bytes]]:
    for name, pieces in members:
        yield _NAME, name.encode()
        for piece in pieces:
            for start in range(0, len(piece), CHUNK_BYTES_MAX):
                yield _PIECE, piece[start : start + CHUNK_BYTES_MAX]


class BasePosition(NamedTuple):
    """How far a base was read: up to which of its bytes, how many chunks those are, the CRC of their heads, and the
    member that goes on there, empty before the first.
    """

    offset: int
    chunks: int
    heads: int
    member: str


class BaseReader:
    """Reads a base from pieces of any length. RepositoryDamaged; FormatTooNew."""

    def __init__(self, pieces: Iterable[bytes], name: str, share: str, path: str) -> None:
        self._pieces = iter(pieces)
        self._path = path
        self._data = bytearray()
        self._fill(HEADER_BYTES_MAX)
        self.header, end = unpack_header(BASE_MAGIC, bytes(self._data), BaseHeader, share, path)
        named = base_of(name)
        if named is None or (named.transaction, named.writer) != (self.header.transaction, self.header.writer):
            raise RepositoryDamaged(f"{path} says that it is another base")
        del self._data[:end]
        self.position = BasePosition(end, 0, 0, "")
        """What was given so far."""

    def go_on(self, position: BasePosition, pieces: Iterable[bytes]) -> None:
        """From where an earlier reader of the same base was; `pieces` are what lies there and behind."""
        self.position, self._pieces, self._data = position, iter(pieces), bytearray()

    def members(self) -> Iterator[tuple[str, bytes]]:
        """The pieces of all members, each with its member's name; one that is empty comes with an empty piece."""
        while True:
            offset, chunks, heads, name = self.position
            head = self._take(_CHUNK.size)
            kind, length, crc = _CHUNK.unpack(head)
            data = self._take(length) if length <= CHUNK_BYTES_MAX else b""
            if len(data) != length or crc32c(data) != crc or kind not in (_NAME, _PIECE, _LAST):
                raise RepositoryDamaged(f"{self._path} is damaged behind {chunks} chunks")
            if kind == _LAST:
                self._require_end(data, chunks, heads)
                return
            if kind == _NAME:
                name, data = self._member(data), b""
            elif not name:
                raise RepositoryDamaged(f"{self._path} begins with bytes of no member")
            self.position = BasePosition(offset + len(head) + length, chunks + 1, crc32c(head, heads), name)
            yield name, data

    def _member(self, data: bytes) -> str:
        try:
            name = data.decode()
        except UnicodeDecodeError:
            name = ""
        parts = name.split("/")
        if len(data) > MEMBER_NAME_BYTES_MAX or not name.isprintable() or not {"", ".", ".."}.isdisjoint(parts):
            raise RepositoryDamaged(f"{self._path} has a member {name[:80]!r}, which is no name of a file")
        return name

    def _require_end(self, data: bytes, chunks: int, heads: int) -> None:
        self._fill(1)
        if data != _END.pack(chunks, heads) or self._data:
            raise RepositoryDamaged(f"{self._path}: its end does not match its {chunks} chunks")

    def _take(self, count: int) -> bytes:
        self._fill(count)
        if len(self._data) < count:
            raise RepositoryDamaged(f"{self._path} is cut short")
        data = bytes(self._data[:count])
        del self._data[:count]
        return data

    def _fill(self, count: int) -> None:
        while len(self._data) < count and (piece := next(self._pieces, b"")):
            self._data += piece
