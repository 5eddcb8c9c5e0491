"""What the handles of a run claim, as rows of a run beside it, in which a resource claim is found by a few blocks.

    key    segment u16 | resource claim u48 || offset of the first of these claims u64
    value  how many u32 | offsets | lengths | CRCs, u32 each | rows within the segment, u32 each
    ...
    key    all bits || all bits
    value  how many claims there are in the run u64

Offsets and lengths are u32 each, or u64 each where one of them needs it. A segment is 2^20 rows of the run of handles:
so much is sorted at a time. A handle takes 16 bytes and a share of its row's frame, which is 36 bytes where a content
has a file of its own.
"""

import struct
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from ullage.engine.arrow import pa, pc
from ullage.engine.packs import ClaimRow
from ullage.engine.runs.rows import Key, RunRow

CLAIMS_SPACE: Final = "claims"
"""How runs of claims name what they hold."""

SEGMENT_ROWS: Final = 1 << 20
"""Of a run of handles: sorting their claims takes 80 MB for a moment."""

GROUP_CLAIMS: Final = 256
"""That a row holds, and more only of one offset: a row fills a block."""

TAKEN_MAX: Final = 1 << 12
"""Claims that are put into columns at once: one by one it took four times as long. It divides a segment."""

RESOURCE_BITS: Final = 48
"""Of a key. At a hundred thousand new files a second they last for eighty-nine years."""

LAST_KEY: Final = (1 << 64) - 1, (1 << 64) - 1

_COUNT = struct.Struct("<I")
_TOTAL = struct.Struct("<Q")
_ONE = struct.Struct("<IIIII")
_NARROW_MAX: Final = (1 << 32) - 1
_NARROW: Final = "I"
_WIDE: Final = "Q"
_WORD_BYTES: Final = 8
_FIXED_BYTES: Final = 8
"""Of a claim's CRC and row."""


class ClaimedRow(NamedTuple):
    """A row of a run of handles, by its number, and what it claims."""

    row: int
    claim: ClaimRow


class ClaimRowsWriter:
    """Makes the rows: `take` what each handle of a run claims, in the order of its rows, then `finish`."""

    def __init__(self, add: Callable[[RunRow], object]) -> None:
        """`add` is called with each row, in the order of keys."""
        self._add = add
        self._segment = self._row = self._claims = 0
        self._taken: list[ClaimRow | None] = []
        self._taken_max = min(TAKEN_MAX, SEGMENT_ROWS)
        self._columns = _Columns()

    def take(self, claim: ClaimRow | None) -> None:
        """That of the next handle; None: its content is empty."""
        self._taken.append(claim)
        if len(self._taken) == self._taken_max:
            self._keep()

    def finish(self) -> None:
        """There are no more."""
        self._keep()
        self._end_segment()
        self._add(RunRow(LAST_KEY, _TOTAL.pack(self._claims)))

    def _keep(self) -> None:
        self._columns.add(self._taken, self._row)
        self._row += len(self._taken)
        self._taken.clear()
        if self._row == SEGMENT_ROWS:
            self._end_segment()

    def _end_segment(self) -> None:
        columns, self._columns = self._columns, _Columns()
        if columns.rows:
            self._claims += len(columns.rows)
            for row in columns.grouped(self._segment):
                self._add(row)
        self._segment, self._row = self._segment + 1, 0


class _Columns:
    """The claims of one segment."""

    def __init__(self) -> None:
        self.resources, self.offsets, self.lengths = array(_WIDE), array(_WIDE), array(_WIDE)
        self.crcs, self.rows = array(_NARROW), array(_NARROW)

    def add(self, claims: Sequence[ClaimRow | None], row: int) -> None:
        """Those of the rows from this one on."""
        there = [claim for claim in claims if claim is not None]
        if there:
            columns = self.resources, self.offsets, self.lengths, self.crcs
            for column, values in zip(columns, zip(*there, strict=True), strict=True):
                column.extend(values)
            self.rows.extend([at for at, claim in enumerate(claims, row) if claim is not None])

    def grouped(self, segment: int) -> Iterator[RunRow]:
        resources, offsets, *others = self._sorted()
        start, end = 0, len(resources)
        while start < end:
            resource = resources[start]
            last = bisect_right(resources, resource, start)
            while start < last:
                stop = min(start + GROUP_CLAIMS, last)
                stop = bisect_right(offsets, offsets[stop - 1], stop, last)  # else two rows could have one key
                key = segment << RESOURCE_BITS | resource, offsets[start]
                yield RunRow(key, _packed(offsets[start:stop], *(column[start:stop] for column in others)))
                start = stop

    def _sorted(self) -> list[memoryview]:
        """All columns in the order of resource claims, and of offsets in each."""
        # By Arrow, and not as a list of tuples: a million of those held the interpreter, and all commits, for a second.
        columns = [self.resources, self.offsets, self.lengths, self.crcs, self.rows]
        kept = [_arrow(column) for column in columns]
        keys = pa.table({"resource": kept[0], "offset": kept[1]})
        order = pc.sort_indices(keys, sort_keys=[("resource", "ascending"), ("offset", "ascending")])
        found = [memoryview(values.take(order).buffers()[1]) for values in kept]
        sizes = [column.itemsize * len(column) for column in columns]
        return [
            data[:size].cast(_WIDE if column.itemsize == _WORD_BYTES else _NARROW)
            for column, data, size in zip(columns, found, sizes, strict=True)
        ]


def _arrow(column: "array[int]") -> "pa.Array":
    kind = pa.uint64() if column.itemsize == _WORD_BYTES else pa.uint32()
    return pa.Array.from_buffers(kind, len(column), [None, pa.py_buffer(column)])


def _packed(offsets: memoryview, lengths: memoryview, crcs: memoryview, rows: memoryview) -> bytes:
    if len(offsets) == 1 and offsets[0] <= _NARROW_MAX >= lengths[0]:  # the same in a third of the time
        return _ONE.pack(1, offsets[0], lengths[0], crcs[0], rows[0])
    is_narrow = offsets[-1] <= _NARROW_MAX and max(lengths) <= _NARROW_MAX
    code = _NARROW if is_narrow else _WIDE
    wide = [array(code, column.tolist()).tobytes() for column in (offsets, lengths)]
    return b"".join((_COUNT.pack(len(offsets)), *wide, crcs.tobytes(), rows.tobytes()))


def bounds_of(resource: int, segment: int) -> tuple[Key, Key]:
    """The least and the greatest key that rows of a resource claim can have in a segment."""
    high = segment << RESOURCE_BITS | resource
    return (high, 0), (high, (1 << 64) - 1)


def segments_of(rows: int) -> range:
    """Those of a run of so many handles."""
    return range(-(-rows // SEGMENT_ROWS))


def claims_of(row: RunRow) -> list[ClaimedRow]:
    """What a row holds. ValueError: it is none of these."""
    (high, first), value = row
    segment, resource = high >> RESOURCE_BITS, high & (1 << RESOURCE_BITS) - 1
    offsets, lengths, crcs, rows = _columns_of(value)
    if not offsets or offsets[0] != first or list(offsets) != sorted(offsets):
        raise ValueError("offsets that are not in order behind that of their key")
    before = segment * SEGMENT_ROWS
    fields = zip(rows, offsets, lengths, crcs, strict=True)
    return [ClaimedRow(before + place, (resource, offset, length, crc)) for place, offset, length, crc in fields]


def _columns_of(value: bytes) -> list[Sequence[int]]:
    if len(value) < _COUNT.size:
        raise ValueError("a value without a count")
    (count,), data = _COUNT.unpack_from(value), memoryview(value)[_COUNT.size :]
    width, rest = divmod(len(data) - _FIXED_BYTES * count, 2 * count) if count else (0, 0)
    if rest or width not in (_WORD_BYTES // 2, _WORD_BYTES):
        raise ValueError(f"{len(data)} bytes, which are not {count} claims")
    ends = [*accumulate(count * each for each in (width, width, _WORD_BYTES // 2, _WORD_BYTES // 2))]
    offsets, lengths, crcs, rows = (data[start:end] for start, end in pairwise([0, *ends]))
    wide = [each.cast("Q") if width == _WORD_BYTES else each.cast("I") for each in (offsets, lengths)]
    return [each.tolist() for each in (*wide, crcs.cast("I"), rows.cast("I"))]


def total_of(row: RunRow) -> int:
    """How many claims the last row says there are. ValueError: it does not."""
    if len(row.value) != _TOTAL.size:
        raise ValueError("a last row that does not say how many claims there are")
    total: int = _TOTAL.unpack(row.value)[0]
    return total
