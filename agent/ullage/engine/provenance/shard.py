"""A shard of the index: sorted keys of the terms of a run of events, in one file that is never changed.

    keys of field 1 | keys of field 2 | … | head: msgpack | length u32 | CRC u32 of the head | magic 8s "ULLAGEPI"

A key is a u64, little-endian: the term's number above, the row below, which is the event's sequence number less the
shard's first. Keys stand in blocks of 1,024. The head has each block's first key and its CRC-32C, so that a search
reads one block of a field, and no flipped bit makes an answer. Nothing here is synced: what a crash leaves does not fit
its checksums, and the index is made anew from the event files.

The structure is that of a sorted string table (O'Neil and others, The Log-Structured Merge-Tree, 1996).
"""

from __future__ import annotations

import heapq
import struct
import weakref
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec
from crc32c import crc32c

from ullage.engine.files import File, Files
from ullage.engine.provenance.arrow import pa, pc
from ullage.engine.provenance.terms import ROW_BITS, Term

BLOCK_KEYS = 1_024
"""Keys read and verified together: 8 KiB cost a search some microseconds, and the head 12 bytes."""

KEY_BYTES = 8
SUFFIX = ".terms"
MAGIC = b"ULLAGEPI"
_TAIL = struct.Struct("<II8s")
_ROW_MASK = (1 << ROW_BITS) - 1

Condition = Sequence[Term]
"""One of the terms has to be there."""


class ShardDamaged(Exception):
    """A shard cannot be read, or not as it was written; whoever asks turns to the event files."""


class ShardSection(msgspec.Struct, frozen=True, array_like=True):
    """The keys of one field: their number, and of each block the first key (u64) and the CRC (u32)."""

    field: str
    keys: int
    fences: bytes
    crcs: bytes


class Span(msgspec.Struct, frozen=True, array_like=True):
    """What a shard covers: the event files with sequence numbers in [`first`, `last`], and how much they hold."""

    first: int
    last: int
    events: int
    bytes: int


class ShardHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What a shard says of itself: whose it is, what it was made with, and what it covers."""

    repository: str
    fields: tuple[str, ...]
    attributes: tuple[str, ...]
    span: Span
    sections: tuple[ShardSection, ...] = ()


class _Keys(NamedTuple):
    """Where a field's keys lie."""

    offset: int
    number: int
    fences: memoryview
    crcs: memoryview


class Shard:
    """A shard that is open for reading. Thread-safe. The file is closed when nobody knows the shard any more."""

    def __init__(self, path: str, file: File, head: ShardHeader) -> None:
        self.path = path
        self.head = head
        self._file = file
        self._keys: dict[str, _Keys] = {}
        offset = 0
        for section in head.sections:
            fences, crcs = memoryview(section.fences).cast("Q"), memoryview(section.crcs).cast("I")
            self._keys[section.field] = _Keys(offset, section.keys, fences, crcs)
            offset += section.keys * KEY_BYTES
        # A search may go on reading a shard that was merged away: unlinked, it lasts as long as it is open.
        weakref.finalize(self, file.close)

    @classmethod
    def open(cls, files: Files, path: str) -> Shard | None:
        """None for a file that is not whole."""
        try:
            file = files.open(path)
        except OSError:
            return None
        try:
            head = _read_head(file)
        except (OSError, ValueError, struct.error, msgspec.MsgspecError):
            file.close()
            return None
        return cls(path, file, head)

    @property
    def span(self) -> Span:
        return self.head.span

    def search(self, conditions: Sequence[Condition], low: int, high: int, *, newest_first: bool) -> Iterator[int]:
        """The rows in [low, high] that meet all conditions, in order. ShardDamaged, at the latest while they come.

        The condition with the fewest keys leads; of the others each row is looked up.
        """
        reader = _Reader(self)
        leading = min(conditions, key=lambda condition: sum(len(self.range(term, low, high)) for term in condition))
        others = [condition for condition in conditions if condition is not leading]
        runs = [reader.rows(term, low, high, newest_first=newest_first) for term in leading]
        last = None
        for row in runs[0] if len(runs) == 1 else heapq.merge(*runs, reverse=newest_first):
            if row != last and all(any(reader.has(term, row) for term in condition) for condition in others):
                yield row
            last = row

    def keys(self, field: str) -> pa.Array:
        """All keys of a field, in order. ShardDamaged."""
        found = self._keys.get(field)
        blocks = [] if found is None else [self.block(field, number) for number in range(len(found.fences))]
        return pa.concat_arrays(
            [pa.Array.from_buffers(pa.uint64(), len(block), [None, pa.py_buffer(block)]) for block in blocks]
            or [pa.array([], pa.uint64())]
        )

    def block(self, field: str, number: int) -> memoryview:
        """One block of keys. ShardDamaged."""
        keys = self._keys[field]
        count = min(BLOCK_KEYS, keys.number - number * BLOCK_KEYS)
        try:
            data = self._file.read(count * KEY_BYTES, keys.offset + number * BLOCK_KEYS * KEY_BYTES)
        except (OSError, ValueError) as error:
            raise ShardDamaged(f"{self.path}: block {number} of {field} cannot be read: {error}") from error
        if len(data) != count * KEY_BYTES or crc32c(data) != keys.crcs[number]:
            raise ShardDamaged(f"{self.path}: block {number} of {field} is not what was written")
        return memoryview(data).cast("Q")

    def range(self, term: Term, low: int, high: int) -> range:
        """The blocks that hold the keys of a term with rows in [low, high], if there are any."""
        keys = self._keys.get(term.field)
        if keys is None:
            return range(0)
        base = term.number << ROW_BITS
        first = max(0, bisect_right(keys.fences, base | low) - 1)
        return range(first, bisect_right(keys.fences, base | high))


class _Reader:
    """One search: it remembers the last block of each field, since rows come in order."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._last: dict[str, tuple[int, memoryview]] = {}

    def rows(self, term: Term, low: int, high: int, *, newest_first: bool) -> Iterator[int]:
        """The rows of a term in [low, high], in order."""
        base = term.number << ROW_BITS
        blocks = self._shard.range(term, low, high)
        for number in reversed(blocks) if newest_first else blocks:
            block = self._block(term.field, number)
            found = block[bisect_left(block, base | low) : bisect_right(block, base | high)]
            for key in reversed(found) if newest_first else found:
                if base | low <= key <= base | high:  # always, but for keys that somebody forged
                    yield key & _ROW_MASK

    def has(self, term: Term, row: int) -> bool:
        """Whether a row has a term."""
        return next(self.rows(term, row, row, newest_first=False), None) is not None

    def _block(self, field: str, number: int) -> memoryview:
        last = self._last.get(field)
        if last is None or last[0] != number:
            last = self._last[field] = number, self._shard.block(field, number)
        return last[1]


def write_shard(files: Files, path: str, head: ShardHeader, fields: Iterable[tuple[str, pa.Array]]) -> None:
    """Write a shard of keys in any order, a field at a time. What a failure leaves is removed, now or at the start."""
    if files.exists(path):  # a shard that was forgotten for its damage
        files.unlink(path)
    file = files.create(path)
    try:
        offset = 0
        sections: list[ShardSection] = []
        for field, keys in fields:
            data = memoryview(keys.sort().buffers()[1] or b"")[: len(keys) * KEY_BYTES]
            if len(data):
                file.write(data, offset)
                offset += len(data)
                sections.append(_section(field, data))
        body = msgspec.msgpack.encode(msgspec.structs.replace(head, sections=tuple(sections)))
        file.write(body + _TAIL.pack(len(body), crc32c(body), MAGIC), offset)
    except BaseException:
        with suppress(OSError):  # the error that led here counts
            files.unlink(path)
        raise
    finally:
        file.close()


def merged_keys(shards: Sequence[Shard]) -> Iterator[tuple[str, pa.Array]]:
    """The keys of neighbours as those of one shard, a field at a time. ShardDamaged."""
    fields = dict.fromkeys(section.field for shard in shards for section in shard.head.sections)
    first = shards[0].span.first
    for field in fields:
        yield (
            field,
            pa.concat_arrays(
                [pc.add(shard.keys(field), pa.scalar(shard.span.first - first, pa.uint64())) for shard in shards]
            ),
        )


def _section(field: str, data: memoryview) -> ShardSection:
    block_bytes = BLOCK_KEYS * KEY_BYTES
    starts = range(0, len(data), block_bytes)
    fences = b"".join(data[at : at + KEY_BYTES] for at in starts)
    crcs = b"".join(struct.pack("<I", crc32c(data[at : at + block_bytes])) for at in starts)
    return ShardSection(field, len(data) // KEY_BYTES, fences, crcs)


def _read_head(file: File) -> ShardHeader:
    """ValueError, MsgspecError or struct.error for what is not the whole of a shard."""
    size = file.size().length
    length, crc, magic = _TAIL.unpack(file.read(_TAIL.size, max(0, size - _TAIL.size)))
    end = size - _TAIL.size
    if magic != MAGIC or length > end:
        raise ValueError("no shard ends here")
    body = file.read(length, end - length)
    if crc32c(body) != crc:
        raise ValueError("the head is not what was written")
    head = msgspec.msgpack.decode(body, type=ShardHeader)
    keys = sum(section.keys for section in head.sections)
    if keys * KEY_BYTES != end - length:
        raise ValueError(f"{end - length} bytes of keys, {keys * KEY_BYTES} are wanted")
    for section in head.sections:
        blocks = -(-section.keys // BLOCK_KEYS)
        if (len(section.fences), len(section.crcs)) != (blocks * KEY_BYTES, blocks * struct.calcsize("<I")):
            raise ValueError(f"{section.field} has not {blocks} blocks")
    return head


def name_of(span: Span) -> str:
    """The name of a shard's file: two that cover different events have different ones."""
    return f"{span.first:020d}-{span.last:020d}{SUFFIX}"
