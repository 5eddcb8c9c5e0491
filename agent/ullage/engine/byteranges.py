"""Runs of bytes in a file, as pairs and packed: what is alive, what is dead, and where it moved to.

Packed, because a repository keeps many of them and looks at few: 16 bytes a run, 24 where it moved (little-endian).
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from operator import add, le
from typing import NamedTuple

from ullage.errors import RangeNotSatisfiable

FS_BLOCK_BYTES = 4096
"""What a filesystem allocates at a time (ext4, XFS and btrfs by default): a hole of less gives nothing back."""

_RUN = struct.Struct("<QQ")
_MOVE = struct.Struct("<QQQ")


class ByteRange(NamedTuple):
    """Bytes [offset, offset + length)."""

    offset: int
    length: int

    @property
    def end(self) -> int:
        return self.offset + self.length


class Move(NamedTuple):
    """Bytes [offset, offset + length) that now lie at `target` of another file."""

    offset: int
    length: int
    target: int

    @property
    def end(self) -> int:
        return self.offset + self.length


def require_range(start: int, size: int, length: int) -> None:
    """RangeNotSatisfiable unless these bytes lie inside a content of so many."""
    if not 0 <= start <= start + size <= length:
        what = f"range {start}+{size}" if size >= 0 else f"offset {start}"
        raise RangeNotSatisfiable(f"{what} lies outside the content of {length} bytes", length)


def pack_ranges(runs: Iterable[ByteRange]) -> bytes:
    """16 bytes a run."""
    return b"".join(_RUN.pack(*run) for run in runs)


def unpack_ranges(packed: bytes) -> list[ByteRange]:
    """ValueError unless they are whole."""
    if len(packed) % _RUN.size:
        raise ValueError(f"{len(packed)} bytes are no list of runs")
    return [ByteRange(*pair) for pair in _RUN.iter_unpack(packed)]


def pack_moves(moves: Iterable[tuple[int, int, int]]) -> bytes:
    """24 bytes a move: offset, length, target."""
    numbers = [number for move in moves for number in move]
    return struct.pack(f"<{len(numbers)}Q", *numbers)


def unpack_moves(packed: bytes) -> Iterator[Move]:
    """One by one."""
    return map(Move._make, _MOVE.iter_unpack(packed))


def find_move(packed: bytes, offset: int) -> Move | None:
    """The move whose run holds `offset`, of moves sorted by offset: a binary search that unpacks only what it meets."""
    low, high = 0, len(packed) // _MOVE.size
    while low < high:
        middle = (low + high) // 2
        move = Move._make(_MOVE.unpack_from(packed, middle * _MOVE.size))
        if move.end <= offset:
            low = middle + 1
        elif move.offset > offset:
            high = middle
        else:
            return move
    return None


def end_of_moves(packed: bytes) -> int:
    """Where the last of the moved bytes ends in its new file. ValueError unless moves are whole, sorted and apart."""
    if len(packed) % _MOVE.size:
        raise ValueError(f"{len(packed)} bytes are no list of moves")
    numbers = struct.unpack(f"<{len(packed) // 8}Q", packed)
    offsets, lengths, targets = numbers[::3], numbers[1::3], numbers[2::3]
    if not all(map(le, map(add, offsets, lengths), offsets[1:])):
        raise ValueError("moves overlap or are not sorted")
    return max(map(add, targets, lengths), default=0)


def overlaps(packed: bytes, offset: int, length: int) -> bool:
    """Whether [offset, offset + length) touches one of the packed runs."""
    return any(run.offset < offset + length and offset < run.end for run in unpack_ranges(packed)) if packed else False


def total(packed: bytes) -> int:
    """Bytes in packed runs."""
    return sum(run.length for run in unpack_ranges(packed)) if packed else 0


def gaps(runs: Iterable[ByteRange], end: int) -> Iterator[ByteRange]:
    """What sorted runs leave free of [0, end)."""
    at = 0
    for run in runs:
        if run.offset >= end:
            break
        if run.offset > at:
            yield ByteRange(at, run.offset - at)
        at = max(at, run.end)
    if end > at:
        yield ByteRange(at, end - at)


def merged(runs: Iterable[ByteRange]) -> list[ByteRange]:
    """Sorted runs, those that touch or overlap made one."""
    found: list[ByteRange] = []
    for run in sorted(runs):
        if found and run.offset <= found[-1].end:
            found[-1] = ByteRange(found[-1].offset, max(found[-1].end, run.end) - found[-1].offset)
        else:
            found.append(run)
    return found


def without(run: ByteRange, others: Iterable[ByteRange]) -> Iterator[ByteRange]:
    """What is left of a run without the others, which are sorted."""
    for gap in gaps((ByteRange(o.offset - run.offset, o.length) for o in others if o.end > run.offset), run.length):
        yield ByteRange(run.offset + gap.offset, gap.length)


def whole_blocks(run: ByteRange) -> ByteRange:
    """The filesystem blocks that lie wholly in a run; length 0 if there is none."""
    start = -(-run.offset // FS_BLOCK_BYTES) * FS_BLOCK_BYTES
    end = run.end // FS_BLOCK_BYTES * FS_BLOCK_BYTES
    return ByteRange(start, max(0, end - start))


def allocated_bytes(length: int, holes: bytes = b"") -> int:
    """What a file of this length with these (aligned) holes takes on disk, in whole blocks."""
    return -(-length // FS_BLOCK_BYTES) * FS_BLOCK_BYTES - total(holes)


def scatter(data: bytes, buffers: Sequence[memoryview], skip: int) -> None:
    """Put data into buffers behind the first `skip` bytes of them."""
    at = 0
    for buffer in buffers:
        begin = min(skip, len(buffer))
        skip -= begin
        count = min(len(buffer) - begin, len(data) - at)
        buffer[begin : begin + count] = data[at : at + count]
        at += count
