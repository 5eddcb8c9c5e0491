"""A run of rows: keys of two words, each with a value, in one file that is written once, synced, and never changed.

    block | block | … | head: msgpack | length u32 | CRC u32 of the head | magic 8s

    block   magic 4s "ULLb" | rows u32 | length u32 of the columns | CRC u32 | columns
    columns high words, u64 each | low words, u64 each | ends of the values, u32 each | the values

A block belongs to its place: its CRC begins with the repository, the key space, the run's number and the block's
offset, so that no block that was meant for another place passes for this one, and one behind damage proves itself. The
head has each block's first key and its end, and the last 16 bits of every key: where keys are random, a search for one
that is not there reads a block in one of 1,600 cases.
"""

from __future__ import annotations

import struct
import weakref
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import accumulate, chain, pairwise
from typing import NamedTuple

import msgspec
from crc32c import crc32c

from ullage.engine.files import File
from ullage.engine.runs.sorted_run import TAIL_BYTES, ReadableRun, RunDamaged, packed_head, read_head
from ullage.wire.firstuse import prepare

RUN_MAGIC = b"ULLAGERN"
BLOCK_MAGIC = b"ULLb"

BLOCK_BYTES_WANTED = 4_096
"""A block ends with the row that fills it: a search reads and verifies so much, and the head has 28 bytes of it."""

BLOCK_BYTES_MAX = 64 << 20
"""What a reader allocates for a block that it finds without the head; a row is never longer than a transaction."""

WRITTEN_BYTES = 1 << 20
"""Blocks are handed to the disk in pieces of this length, each with the hint to begin writing it."""

SEARCHED_BYTES = 1 << 20
"""How much of a damaged run is searched at a time."""

_BLOCK = struct.Struct("<4sIII")
_WORD = struct.Struct("<Q")
_FILTER = struct.Struct("<H")
_CRC_AT = 12
_OBJECT_BYTES = 1_000
_KEY_BYTES, _END_BYTES = 16, 4
_FILTER_MASK = 0xFFFF

Key = tuple[int, int]
"""The high and the low word, u64 each, compared as numbers."""


class RunRow(NamedTuple):
    """One row of a run."""

    key: Key
    value: bytes


class RowsHead(msgspec.Struct, frozen=True, kw_only=True):
    """What a run says of itself: whose it is, and columns of what is known of its blocks, little-endian.

    `counts`: rows, u32; `fences`: the first key, u64, the high words of all blocks and then the low ones; `ends`: where
    it ends in the file, u64. `filter`: the last 16 bits of the key of each row, u16. `columns_crc` is over the columns
    of all blocks, so that runs of other values have other heads: a number may have been given twice, where a volume was
    put back as it once was, and a head tells one run from the other.
    """

    format: int
    serde: str
    serde_version: int
    repository: str
    number: int
    space: str
    counts: bytes = b""
    fences: bytes = b""
    ends: bytes = b""
    filter: bytes = b""
    columns_crc: int = 0


prepare(RowsHead)


class WrittenRows(NamedTuple):
    """What the record that lists a run says of it."""

    rows: int
    length: int
    crc: int
    first: bytes
    last: bytes


class BlockDamaged(RunDamaged):
    """A block that cannot be read, or not as it was written; None: the head, and with it every block."""

    def __init__(self, message: str, block: int | None = None) -> None:
        super().__init__(message)
        self.block = block


class RowBlock:
    """The rows of one verified block. `nbytes` is what it takes in memory, about."""

    def __init__(self, columns: bytes, rows: int) -> None:
        """ValueError if they are not so many rows."""
        data = memoryview(columns)
        self.nbytes = len(data) + _OBJECT_BYTES
        words, start = 8 * rows, (_KEY_BYTES + _END_BYTES) * rows
        if not 0 < start <= len(data):
            raise ValueError("no rows, or not as many as are said")
        self._high, self._low = data[:words].cast("Q"), data[words : 2 * words].cast("Q")
        self._ends, self._values = data[2 * words : start].cast("I"), data[start:]
        ends = self._ends.tolist()
        if ends[-1] != len(self._values) or ends != sorted(ends):  # pair by pair it was half of what a block costs
            raise ValueError("values that do not fill it")

    def find(self, key: Key) -> bytes | None:
        """The value of a key."""
        at = self.place_of(key)
        return None if at is None else self.value(at)

    def place_of(self, key: Key) -> int | None:
        """Which of the rows has this key."""
        high, low = key
        start = bisect_left(self._high, high)
        end = bisect_right(self._high, high, start)
        at = bisect_left(self._low, low, start, end)
        return at if at < end and self._low[at] == low else None

    def between(self, first: Key, last: Key) -> Iterator[RunRow]:
        """The rows whose keys are neither before one nor behind another."""
        at = self._place_behind(first, bisect_left)
        end = self._place_behind(last, bisect_right)
        return (RunRow((self._high[each], self._low[each]), self.value(each)) for each in range(at, end))

    def _place_behind(self, key: Key, bisect: Callable[[memoryview, int, int, int], int]) -> int:
        high, low = key
        start = bisect_left(self._high, high)
        return bisect(self._low, low, start, bisect_right(self._high, high, start))

    @property
    def keys(self) -> Iterator[Key]:
        """All of them."""
        return zip(self._high, self._low, strict=True)

    @property
    def packed_keys(self) -> bytes:
        """All of them as `packed_key` has each, back to back: in one call, which takes a fourth of the time."""
        return struct.pack(f">{2 * len(self)}Q", *chain.from_iterable(self.keys))

    @property
    def ends(self) -> list[int]:
        """Where each value ends among `values`."""
        return list(self._ends)

    @property
    def values(self) -> bytes:
        """All values, back to back."""
        return bytes(self._values)

    def __len__(self) -> int:
        return len(self._high)

    def __iter__(self) -> Iterator[RunRow]:
        for at, key in enumerate(zip(self._high, self._low, strict=True)):
            yield RunRow(key, self.value(at))

    def value(self, at: int) -> bytes:
        """That of one row."""
        return bytes(self._values[self._ends[at - 1] if at else 0 : self._ends[at]])


class RowRun:
    """A run that is open for reading. Thread-safe. The file is closed when nobody knows the run any more."""

    def __init__(self, path: str, file: File, crc: int, head: RowsHead) -> None:
        """Use `RowRun.open`."""
        self.path, self.crc, self.head = path, crc, head
        self._file = file
        self._seed = _seed(head.repository, head.space, head.number)
        self._counts, self._ends = memoryview(head.counts).cast("I"), memoryview(head.ends).cast("Q")
        fences = memoryview(head.fences).cast("Q")
        self._high, self._low = fences[: len(self._counts)], fences[len(self._counts) :]
        self._starts = array("Q", accumulate(self._counts, initial=0))
        """The number of each block's first row, and of all rows."""
        self.close = weakref.finalize(self, file.close)

    @classmethod
    def open(cls, path: str, file: File) -> RowRun:
        """BlockDamaged for a file that is not whole, or of another kind; it is closed then."""
        try:
            body, end = read_head(file, RUN_MAGIC)
            head = msgspec.msgpack.decode(body, type=RowsHead)
            _require_columns(head, end)
            return cls(path, file, crc32c(body), head)
        except (OSError, ValueError, struct.error, msgspec.MsgspecError) as error:
            file.close()
            raise BlockDamaged(f"{path}: {error}") from error

    def __len__(self) -> int:
        """How many blocks there are."""
        return len(self._counts)

    @property
    def rows(self) -> int:
        return self._starts[-1]

    def first_row(self, block: int) -> int:
        """The number of a block's first row among all; of the block behind the last one how many there are."""
        return self._starts[block]

    def block_with(self, row: int) -> int:
        """The block that has a row of this number."""
        return bisect_right(self._starts, row) - 1

    def block_of(self, key: Key) -> int | None:
        """The block in which a key may be, as far as the head tells."""
        block = self._block_before(key)
        return block if block >= 0 and self._may_have(block, key[1] & _FILTER_MASK) else None

    def block_before(self, key: Key) -> int:
        """The last block that begins with this key or before it, or the first one."""
        return max(0, self._block_before(key))

    def _block_before(self, key: Key) -> int:
        high, low = key
        start = bisect_left(self._high, high)
        return bisect_right(self._low, low, start, bisect_right(self._high, high, start)) - 1

    def _may_have(self, block: int, bits: int) -> bool:
        filter, sought = self.head.filter, _FILTER.pack(bits)
        at, end = _FILTER.size * self._starts[block] - 1, _FILTER.size * self._starts[block + 1]
        while (at := filter.find(sought, at + 1, end)) > 0 and at % _FILTER.size:
            continue  # halves of two neighbours look like it
        return at >= 0

    def block(self, number: int) -> RowBlock:
        """One block, verified. BlockDamaged."""
        start, end = self._ends[number - 1] if number else 0, self._ends[number]
        reason = "is not what was written"
        for _ in range(2):
            try:
                data = self._file.read(end - start, start)
                found = _unpacked(data, start, self._seed)
                if len(found) == self._counts[number]:
                    return found
            except OSError as error:
                reason = f"cannot be read: {error}"
            except (ValueError, struct.error):
                # What damaged a page in memory may have left the disk alone: the second look asks the disk.
                self._file.drop_cache(start, end - start)
        raise BlockDamaged(f"{self.path}: block {number} at offset {start} {reason}", number)


def _require_columns(head: RowsHead, end: int) -> None:
    blocks, rest = divmod(len(head.counts), 4)
    if rest or (len(head.fences), len(head.ends)) != (_KEY_BYTES * blocks, 8 * blocks):
        raise ValueError("the head's columns are not of one length")
    ends = [0, *memoryview(head.ends).cast("Q")]
    if ends[-1] != end or any(stop <= start for start, stop in pairwise(ends)):
        raise ValueError(f"{end} bytes of blocks, and not as the head has them")
    if len(head.filter) != 2 * sum(memoryview(head.counts).cast("I")):
        raise ValueError("the head has not as many rows as its blocks")


def _seed(repository: str, space: str, number: int) -> int:
    return crc32c(_WORD.pack(number), crc32c(space.encode(), crc32c(repository.encode())))


def _block_crc(begin: bytes, columns: bytes, offset: int, seed: int) -> int:
    return crc32c(columns, crc32c(begin, crc32c(_WORD.pack(offset), seed)))


def _unpacked(data: bytes, offset: int, seed: int) -> RowBlock:
    """A whole block. ValueError or struct.error where the bytes are none."""
    magic, rows, length, crc = _BLOCK.unpack_from(data)
    columns = data[_BLOCK.size :]
    if magic != BLOCK_MAGIC or len(columns) != length:
        raise ValueError("no block begins there")
    if _block_crc(data[:_CRC_AT], columns, offset, seed) != crc:
        raise ValueError("its checksum is another one")
    return RowBlock(columns, rows)


class RowsWriter:
    """Writes a run row by row: `add` each in order, each key once and one at least, then `finish`."""

    def __init__(self, file: File, head: RowsHead) -> None:
        self.rows = 0
        self.bytes = 0
        """Of the blocks that are full."""

        self._file, self._head = file, head
        self._seed = _seed(head.repository, head.space, head.number)
        self._counts, self._ends, self._filter = array("I"), array("Q"), array("H")
        self._high, self._low = array("Q"), array("Q")
        self._block: list[RunRow] = []
        self._block_bytes = 0
        self._waiting: list[bytes] = []
        self._columns_crc = 0
        self._written = 0
        self._first: Key | None = None
        self._last: Key = (0, 0)

    def add(self, row: RunRow) -> None:
        """The next row."""
        assert self._first is None or self._last < row.key, "keys that are not in order"
        self._first, self._last = self._first or row.key, row.key
        self.rows += 1
        self._block.append(row)
        self._block_bytes += _KEY_BYTES + _END_BYTES + len(row.value)
        if self._block_bytes >= BLOCK_BYTES_WANTED:
            self._end_block()

    def finish(self) -> WrittenRows:
        """What was written, synced."""
        if self._block:
            self._end_block()
        assert self._first is not None, "a run without a row"
        fences = self._high + self._low
        columns = {"counts": self._counts, "fences": fences, "ends": self._ends, "filter": self._filter}
        packed_columns = {name: column.tobytes() for name, column in columns.items()}
        head = msgspec.structs.replace(self._head, columns_crc=self._columns_crc, **packed_columns)
        packed = packed_head(head, RUN_MAGIC)
        self._waiting.append(packed)
        self._write()
        self._file.sync()
        length, crc = self.bytes + len(packed), crc32c(packed[:-TAIL_BYTES])
        return WrittenRows(self.rows, length, crc, packed_key(self._first), packed_key(self._last))

    def _end_block(self) -> None:
        block, self._block, self._block_bytes = self._block, [], 0
        keys, values = zip(*block, strict=True)
        high_words, low_words = zip(*keys, strict=True)
        high, low, ends = array("Q", high_words), array("Q", low_words), array("I", accumulate(map(len, values)))
        self._filter.extend([word & _FILTER_MASK for word in low_words])
        columns = b"".join((high.tobytes(), low.tobytes(), ends.tobytes(), *values))
        begin = _BLOCK.pack(BLOCK_MAGIC, len(block), len(columns), 0)[:_CRC_AT]
        crc = _block_crc(begin, columns, self.bytes, self._seed)
        self._columns_crc = crc32c(columns, self._columns_crc)
        self._waiting += (_BLOCK.pack(BLOCK_MAGIC, len(block), len(columns), crc), columns)
        self.bytes += _BLOCK.size + len(columns)
        self._counts.append(len(block))
        self._high.append(high[0])
        self._low.append(low[0])
        self._ends.append(self.bytes)
        if self.bytes - self._written >= WRITTEN_BYTES:
            self._write()

    def _write(self) -> None:
        piece = b"".join(self._waiting)
        self._file.write(piece, self._written)
        # Else the sync at the end would write all of it at once, and the commits' syncs would wait behind it.
        self._file.start_writeback(self._written, len(piece))
        self._written += len(piece)
        self._waiting = []


def write_rows(file: File, head: RowsHead, rows: Iterable[RunRow]) -> WrittenRows:
    """Write and sync a whole run; `rows` come in order, each key once, and there is one at least."""
    writer = RowsWriter(file, head)
    for row in rows:
        writer.add(row)
    return writer.finish()


def packed_key(key: Key) -> bytes:
    """The 16 bytes of a key, in whose order keys are."""
    return struct.pack(">QQ", *key)


def key_of(data: bytes) -> Key:
    """The key that the first 16 bytes make, or as many as there are."""
    high, low = struct.unpack(">QQ", data[:_KEY_BYTES].ljust(_KEY_BYTES, b"\0"))
    return high, low


class LostRows(NamedTuple):
    """Bytes of a run that prove nothing, and why."""

    offset: int
    length: int
    reason: str


class FoundRows(NamedTuple):
    """A block that proves itself, and where it lies."""

    offset: int
    rows: RowBlock


def salvaged_rows(file: ReadableRun, repository: str, space: str, number: int) -> Iterator[FoundRows | LostRows]:
    """Every block of a run that proves itself, wherever it lies, and what lies between them; the head is not needed."""
    seed = _seed(repository, space, number)
    end = file.size().length
    with suppress(ValueError, struct.error):  # without a head blocks may reach to the end
        _, end = read_head(file, RUN_MAGIC)
    offset = 0
    while offset < end:
        found = _block_at(file, offset, end, seed)
        if found is not None:
            end_of_block, block = found
            yield FoundRows(offset, block)
            offset = end_of_block
            continue
        behind = _next_block(file, offset + 1, end, seed)
        yield LostRows(offset, behind - offset, "no rows can be read here")
        offset = behind


def _block_at(file: ReadableRun, offset: int, end: int, seed: int) -> tuple[int, RowBlock] | None:
    """The block that begins there, and where it ends."""
    begin = file.read(_BLOCK.size, offset)
    if len(begin) < _BLOCK.size or not begin.startswith(BLOCK_MAGIC):
        return None
    length = _BLOCK.size + _BLOCK.unpack(begin)[2]
    if length > min(end - offset, BLOCK_BYTES_MAX):
        return None
    with suppress(ValueError, struct.error):  # whatever else begins like one
        return offset + length, _unpacked(file.read(length, offset), offset, seed)
    return None


def _next_block(file: ReadableRun, start: int, end: int, seed: int) -> int:
    """Where the next block that proves itself begins, or the end."""
    while start < end:
        window = file.read(min(SEARCHED_BYTES, end - start) + len(BLOCK_MAGIC) - 1, start)
        at = window.find(BLOCK_MAGIC)
        while at >= 0:
            if start + at < end and _block_at(file, start + at, end, seed) is not None:
                return start + at
            at = window.find(BLOCK_MAGIC, at + 1)
        start += SEARCHED_BYTES
    return end
