"""A sorted run: rows in the order of their keys, in one file that is written once and never changed.

    blocks of section 1 | blocks of section 2 | … | head: msgpack | length u32 | CRC u32 of the head | magic 8s

A section is a sequence of keys, u64 little-endian each, in blocks of 1,024. The head has each block's first key and its
CRC-32C, so that a search reads one block of a section, and no flipped bit makes an answer. What the run is of, and
whether it has to be durable, is its owner's: nothing here is synced.

The structure is that of a sorted string table (O'Neil and others, The Log-Structured Merge-Tree, 1996).
"""

from __future__ import annotations

import struct
import weakref
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import count
from typing import Generic, NamedTuple, Protocol, TypeVar

import msgspec
from crc32c import crc32c

from ullage.engine.arrow import pa
from ullage.engine.files import File, Files, FileSize
from ullage.engine.runs.blockcache import BlockCache

BLOCK_KEYS = 1_024
"""Keys read and verified together: 8 KiB cost a search some microseconds, and the head 12 bytes."""

KEY_BYTES = 8
BLOCK_BYTES = BLOCK_KEYS * KEY_BYTES

SCANNED_BLOCKS = 32
"""Blocks that whoever reads a whole section gets at a time: what a merge holds of each run."""

_TAIL = struct.Struct("<II8s")
TAIL_BYTES = _TAIL.size
_CRC_BYTES = 4

_numbers = count()

About = TypeVar("About")


class ReadableRun(Protocol):
    """A run's file, as far as it is read."""

    def read(self, count: int, offset: int, /) -> bytes: ...

    def size(self) -> FileSize: ...


class RunDamaged(Exception):
    """A run cannot be read, or not as it was written."""


class RunSection(msgspec.Struct, frozen=True, array_like=True):
    """The keys of one section: their number, and of each block the first key (u64) and the CRC (u32)."""

    name: str
    keys: int
    fences: bytes
    crcs: bytes


class RunHead(msgspec.Struct, Generic[About], frozen=True):
    """What a run says of itself; `about` is what its owner says of it."""

    about: About
    sections: tuple[RunSection, ...]


class _Place(NamedTuple):
    """Where a section's keys lie."""

    offset: int
    keys: int
    fences: memoryview
    crcs: memoryview


class SortedRun(Generic[About]):
    """A run that is open for reading. Thread-safe. The file is closed when nobody knows the run any more."""

    def __init__(self, path: str, file: File, head: RunHead[About], cache: BlockCache[memoryview]) -> None:
        self.path = path
        self.about = head.about
        self.sections = head.sections
        self._file = file
        self._cache = cache
        self._number = next(_numbers)
        self._places: dict[str, _Place] = {}
        offset = 0
        for section in head.sections:
            fences, crcs = memoryview(section.fences).cast("Q"), memoryview(section.crcs).cast("I")
            self._places[section.name] = _Place(offset, section.keys, fences, crcs)
            offset += section.keys * KEY_BYTES
        # Somebody may go on reading a run that was merged away: unlinked, it lasts as long as it is open.
        weakref.finalize(self, file.close)

    @classmethod
    def open(
        cls, files: Files, path: str, magic: bytes, about: type[About], cache: BlockCache[memoryview]
    ) -> SortedRun[About]:
        """RunDamaged for a file that is not there, not whole, or of another kind."""
        try:
            file = files.open(path)
        except OSError as error:
            raise RunDamaged(f"{path} cannot be opened: {error}") from error
        try:
            return cls(path, file, _read_head(file, magic, about), cache)
        except (OSError, ValueError, struct.error, msgspec.MsgspecError) as error:
            file.close()
            raise RunDamaged(f"{path}: {error}") from error

    def block(self, section: str, number: int) -> memoryview:
        """One block of keys, from memory if it was read lately. RunDamaged."""
        key = self._number, section, number
        return self._cache.get(key, lambda: self._read(section, number, 1)).cast("Q")

    def blocks(self, section: str, low: int, high: int) -> range:
        """The blocks that may hold keys in [low, high]."""
        place = self._places.get(section)
        if place is None:
            return range(0)
        first = max(0, bisect_left(place.fences, low) - 1)  # the one before a fence may end with the same key
        return range(first, bisect_right(place.fences, high))

    def scan(self, section: str) -> Iterator[pa.Array]:
        """All keys of a section in order, some blocks at a time, past the cache. RunDamaged while they come."""
        place = self._places.get(section)
        for number in range(0, 0 if place is None else len(place.fences), SCANNED_BLOCKS):
            data = self._read(section, number, SCANNED_BLOCKS)
            yield pa.Array.from_buffers(pa.uint64(), len(data) // KEY_BYTES, [None, pa.py_buffer(data)])

    def _read(self, section: str, first: int, blocks: int) -> memoryview:
        """So many blocks, or as many as there are, each verified."""
        place = self._places[section]
        size = min(blocks * BLOCK_KEYS, place.keys - first * BLOCK_KEYS) * KEY_BYTES
        try:
            data = memoryview(self._file.read(size, place.offset + first * BLOCK_BYTES))
        except (OSError, ValueError) as error:
            raise RunDamaged(f"{self.path}: block {first} of {section} cannot be read: {error}") from error
        found = [crc32c(data[at : at + BLOCK_BYTES]) for at in range(0, len(data), BLOCK_BYTES)]
        if len(data) != size or found != place.crcs[first : first + len(found)].tolist():
            raise RunDamaged(f"{self.path}: block {first} of {section}, or one behind it, is not what was written")
        return data


def write_run(
    files: Files, path: str, magic: bytes, about: object, sections: Iterable[tuple[str, Iterable[pa.Array]]]
) -> None:
    """Write a run, section by section, of keys (uint64) that come in order, as many at a time as the caller likes.
    What a failure leaves is removed, now or by its owner at the next start.
    """
    file = files.create(path)
    try:
        offset = 0
        written: list[RunSection] = []
        for name, keys in sections:
            section = _write_section(file, offset, name, keys)
            if section.keys:
                written.append(section)
                offset += section.keys * KEY_BYTES
        file.write(packed_head(RunHead(about, tuple(written)), magic), offset)
    except BaseException:
        with suppress(OSError):  # the error that led here counts
            files.unlink(path)
        raise
    finally:
        file.close()


def _write_section(file: File, offset: int, name: str, keys: Iterable[pa.Array]) -> RunSection:
    fences, crcs = bytearray(), bytearray()
    end = offset
    for data in _whole_blocks(keys):
        file.write(data, end)
        end += len(data)
        for at in range(0, len(data), BLOCK_BYTES):
            fences += data[at : at + KEY_BYTES]
            crcs += struct.pack("<I", crc32c(data[at : at + BLOCK_BYTES]))
    return RunSection(name, (end - offset) // KEY_BYTES, bytes(fences), bytes(crcs))


def _whole_blocks(keys: Iterable[pa.Array]) -> Iterator[memoryview]:
    """The bytes of keys, cut where a block ends."""
    rest = b""
    for some in keys:
        data = memoryview(rest + _bytes_of(some))
        whole = len(data) - len(data) % BLOCK_BYTES
        if whole:
            yield data[:whole]
        rest = bytes(data[whole:])
    if rest:
        yield memoryview(rest)


def _bytes_of(keys: pa.Array) -> memoryview:
    start = keys.offset * KEY_BYTES
    return memoryview(keys.buffers()[1] or b"")[start : start + len(keys) * KEY_BYTES]


def packed_head(head: msgspec.Struct, magic: bytes) -> bytes:
    """A run's head as it stands at the file's end."""
    body = msgspec.msgpack.encode(head)
    return body + _TAIL.pack(len(body), crc32c(body), magic)


def read_head(file: ReadableRun, magic: bytes) -> tuple[bytes, int]:
    """The bytes of a run's head, and where they begin. ValueError or struct.error where no run ends."""
    size = file.size().length
    length, crc, found = _TAIL.unpack(file.read(_TAIL.size, max(0, size - _TAIL.size)))
    end = size - _TAIL.size
    if found != magic or length > end:
        raise ValueError("no such run ends here")
    body = file.read(length, end - length)
    if crc32c(body) != crc:
        raise ValueError("the head is not what was written")
    return body, end - length


def _read_head(file: File, magic: bytes, about: type[About]) -> RunHead[About]:
    """ValueError, MsgspecError or struct.error for what is not the whole of a run."""
    body, end = read_head(file, magic)
    head = msgspec.msgpack.decode(body, type=RunHead[about])  # type: ignore[valid-type]
    keys = sum(section.keys for section in head.sections)
    if keys * KEY_BYTES != end:
        raise ValueError(f"{end} bytes of keys, {keys * KEY_BYTES} are wanted")
    for section in head.sections:
        blocks = -(-section.keys // BLOCK_KEYS)
        if (len(section.fences), len(section.crcs)) != (blocks * KEY_BYTES, blocks * _CRC_BYTES):
            raise ValueError(f"{section.name} has not {blocks} blocks")
    return head
