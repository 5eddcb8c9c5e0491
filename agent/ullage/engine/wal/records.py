"""A file of records in checked blocks: the form of snapshots and swap files.

    header   magic 8s | body length u32 | body CRC u32 | body: msgpack map (format, SerDe and what the file is of)
    block    payload length u32 (> 0) | records u32 | payload CRC u32 | payload: up to 1,000 operations (SerDe)
    footer   0 u32 | records u64 | CRC of all block heads u32 | footer CRC u32
    copy     the header again | its length u32

Such a file is written once, synced, and never changed. A start demands every byte of it; the copy is for a salvage, to
which a damaged header would say neither what the file is of nor where its first block begins.
"""

import os
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Generic, TypeVar

import msgspec
from crc32c import crc32c

from ullage.engine.files import File, Files
from ullage.engine.model import Operation
from ullage.engine.wal.format import (
    HEADER_BYTES_MAX,
    UNDECODABLE,
    decode_header,
    pack_file_header,
    unpack_file_header,
)
from ullage.engine.wal.serde import SerDe, Undecodable, record_count, require_serde
from ullage.engine.wal.state import RecordUnusable
from ullage.errors import RepositoryDamaged

BLOCK_RECORDS = 1_000
"""Records a block: decoded and inserted in one go; also how long the interpreter is held at a time."""

BLOCK_BYTES_WANTED = 4 << 20
"""Blocks are cut shorter than this where they hold more than one record."""

BLOCK_BYTES_MAX = 64 << 20
"""What a reader may allocate for one block: far more than one transaction's worth, and no damaged length."""

WRITEBACK_BYTES = 8 << 20
"""How often the kernel is asked to start writing, so that the final sync is short."""

_BLOCK = struct.Struct("<III")
_FOOTER = struct.Struct("<IQI")
_CRC = struct.Struct("<I")
_LENGTH = struct.Struct("<I")
FOOTER_BYTES = _FOOTER.size + _CRC.size


class RecordHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What every such file says of itself; snapshots and swap files add to it."""

    format: int
    serde: str
    serde_version: int
    repository: str


Header = TypeVar("Header", bound=RecordHeader)


def write_records(
    files: Files,
    path: str,
    magic: bytes,
    header: RecordHeader,
    blocks: Iterable[Sequence[Operation]],
    serde: SerDe,
    on_progress: Callable[[int], None] | None = None,
) -> int:
    """Write and sync a whole file at `path`; returns its length. An old `path` is replaced, its name is not synced."""
    # What a failed or killed write left; nothing refers to it.
    if files.exists(path):
        files.unlink(path)
    file = files.create(path)
    try:
        length = _write(file, magic, header, blocks, serde, on_progress)
    except BaseException:
        file.close()
        _discard(files, path)
        raise
    file.close()
    return length


def _discard(files: Files, path: str) -> None:
    """Give back the room that a failed write took: on a full disk, others need it."""
    with suppress(OSError):  # the error that led here counts; the next write at this path replaces what is left
        files.unlink(path)


def _write(
    file: File,
    magic: bytes,
    header: RecordHeader,
    blocks: Iterable[Sequence[Operation]],
    serde: SerDe,
    on_progress: Callable[[int], None] | None,
) -> int:
    offset = hinted = 0
    for piece in record_pieces(magic, header, blocks, serde, on_progress):
        file.write(piece, offset)
        offset += len(piece)
        # Else the sync at the end would write all of it at once, and the commits' syncs would wait behind it.
        if offset - hinted >= WRITEBACK_BYTES:
            file.start_writeback(hinted, offset - hinted)
            hinted = offset
    file.sync()
    return offset


def record_pieces(
    magic: bytes,
    header: RecordHeader,
    blocks: Iterable[Sequence[Operation]],
    serde: SerDe,
    on_progress: Callable[[int], None] | None = None,
) -> Iterator[bytes]:
    """The bytes of such a file, to be written one after the other; `on_progress` gets the records so far."""
    begin = pack_file_header(magic, msgspec.msgpack.encode(header))
    yield begin
    records = written = running = 0
    for block, payload in _encoded(blocks, serde):
        head = _BLOCK.pack(len(payload), len(block), crc32c(payload))
        # Ties the blocks to the footer: one that is left out, doubled or moved has a good checksum of its own.
        running = crc32c(head, running)
        yield head + payload
        records += len(block)
        written += record_count(block)
        if on_progress is not None:
            on_progress(written)
    footer = _FOOTER.pack(0, records, running)
    # Without it a file that was cut at the end of a block would look whole.
    yield footer + _CRC.pack(crc32c(footer)) + header_copy(begin)


def header_copy(begin: bytes) -> bytes:
    """What stands behind the footer of a file that begins like this."""
    return begin + _LENGTH.pack(len(begin))


def _encoded(blocks: Iterable[Sequence[Operation]], serde: SerDe) -> Iterator[tuple[Sequence[Operation], bytes]]:
    """Each block with its bytes; one that is too long is halved, because a reader refuses it."""
    for block in blocks:
        payload = serde.encode_block(block)
        if len(payload) > BLOCK_BYTES_WANTED and len(block) > 1:
            middle = len(block) // 2
            yield from _encoded((block[:middle], block[middle:]), serde)
        else:
            yield block, payload


class RecordReader(Generic[Header]):
    """Such a file, read block by block and verified on the way."""

    def __init__(self, files: Files, path: str, magic: bytes, header_type: type[Header], serde: SerDe) -> None:
        """RepositoryDamaged if there is no whole header; FormatTooNew if it names a newer version."""
        self.path = path
        self._serde = serde
        self._file = files.open(path)
        try:
            self.length = self._file.size().length
            found = unpack_file_header(magic, self._file.read(HEADER_BYTES_MAX, 0))
            if found is None:
                raise RepositoryDamaged(f"{path}: no valid file header at offset 0 of {self.length} bytes")
            body, self._start = found
            self._copy = header_copy(pack_file_header(magic, body))
            self.header = decode_header(body, header_type, path)
            require_serde(serde, self.header.serde, self.header.serde_version, path)
        except BaseException:
            self._file.close()
            raise

    def blocks(self) -> Iterator[list[Operation]]:
        """All records in blocks; RepositoryDamaged, with the offset, at the first byte that does not verify."""
        for payload, count, offset in self._payloads():
            try:
                block = self._serde.decode_block(payload, self.header.serde_version)
            except UNDECODABLE as error:
                raise RecordUnusable(f"{self.path}: block at offset {offset} does not decode: {error}") from error
            self._require_count(len(block), count, offset)
            yield block

    def blocks_each(self) -> Iterator[tuple[list[Operation | Undecodable], str]]:
        """The same, record by record, of packs too, each block with its place: what can't be decoded stands there as it
        is.
        """
        for payload, count, offset in self._payloads():
            try:
                block: list[Operation | Undecodable] = [*self._serde.decode_block(payload, self.header.serde_version)]
            except UNDECODABLE:
                block = self._serde.decode_block_each(payload, self.header.serde_version)
            if not (count != 1 and len(block) == 1 and isinstance(block[0], Undecodable)):
                self._require_count(len(block), count, offset)
            yield self._serde.taken_apart(block), f"block at offset {offset} of {os.path.basename(self.path)}"

    def _require_count(self, found: int, said: int, offset: int) -> None:
        if found != said:
            where = f"{self.path}: block at offset {offset}"
            raise RepositoryDamaged(f"{where} holds {found} records, its head says {said}")

    def verify(self) -> int:
        """Read everything, decode nothing; returns the number of records."""
        return sum(count for _, count, _ in self._payloads())

    def close(self) -> None:
        self._file.close()

    def _payloads(self) -> Iterator[tuple[bytes, int, int]]:
        offset = self._start
        records = 0
        running = 0
        while True:
            head = self._file.read(max(_BLOCK.size, FOOTER_BYTES), offset)
            if len(head) < _BLOCK.size:
                raise RepositoryDamaged(f"{self.path}: ends at {self.length}, inside the block head at {offset}")
            length, count, crc = _BLOCK.unpack_from(head)
            if length == 0:
                break
            # A damaged length must not make us allocate more than there is to read.
            is_there = length <= min(BLOCK_BYTES_MAX, self.length - offset - _BLOCK.size)
            payload = self._file.read(length, offset + _BLOCK.size) if is_there else b""
            if len(payload) != length or crc32c(payload) != crc:
                raise RepositoryDamaged(f"{self.path}: block of {length} bytes at offset {offset} is damaged")
            running = crc32c(head[: _BLOCK.size], running)
            yield payload, count, offset
            offset += _BLOCK.size + length
            records += count
        footer = _FOOTER.pack(0, records, running)
        if head != footer + _CRC.pack(crc32c(footer)):
            raise RepositoryDamaged(f"{self.path}: the footer at offset {offset} does not match {records} records")
        behind = offset + FOOTER_BYTES
        if self._file.read(len(self._copy) + 1, behind) != self._copy:
            raise RepositoryDamaged(f"{self.path}: what stands from offset {behind} on is no copy of its header")
