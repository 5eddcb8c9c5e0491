"""Reading content through descriptors that the node has passed: `pread`, then the checksum.

What is read counts only if the connection still stood after the read: `SocketClient` looks, then hands it out.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from struct import unpack_from
from typing import Final

from crc32c import crc32c

from ullage.errors import ContentCorrupt, ContentMissing, RangeNotSatisfiable
from ullage.wire.frames import BLOCK_BYTES, Place
from ullage.wire.problems import error_of_slug

SMALL_BYTES: Final = 16 << 10
"""Claims up to this size are read with their neighbours: cutting them out costs less than a system call each."""

WINDOW_BYTES: Final = 256 << 10
"""Small claims read, and looked after, together: so many that the processor still has them when they are verified."""

PIECE_BLOCKS: Final = 4
"""Blocks of a large claim that are read with one call."""

PIECE_BYTES: Final = PIECE_BLOCKS * BLOCK_BYTES


def require_found(place: Place, name: str) -> None:
    """The error that the place has instead of a content."""
    if place.slug:
        raise error_of_slug(place.slug, name)


def windows(
    places: Sequence[Place], small_bytes: int = SMALL_BYTES, window_bytes: int = WINDOW_BYTES
) -> Iterator[Sequence[Place]]:
    """The places in order, cut into what is read between two looks: some small ones, or a single larger one."""
    begin = total = 0
    for at, place in enumerate(places):
        length = place.length
        if at > begin and (length > small_bytes or total + length > window_bytes):
            yield places[begin:at]
            begin, total = at, 0
        # Nothing goes along with a large one.
        total += length if length <= small_bytes else window_bytes
    if begin < len(places):
        yield places[begin:]


def read_places(descriptors: Mapping[int, int], places: Sequence[Place]) -> list[bytes]:
    """The contents, in order, each verified."""
    return [content for window in windows(places) for content in read_window(descriptors, window)]


def read_window(descriptors: Mapping[int, int], window: Sequence[Place]) -> list[bytes]:
    """The contents of a window, in order, each verified. Neighbours are read with one call."""
    if len(window) == 1:
        return [_one(descriptors, window[0])]
    contents: list[bytes] = []
    at = 0
    while at < len(window):
        end, run_end = run_from(window, at)
        first = window[at]
        if end - at > 1:
            contents += _run(descriptors[first.file], window[at:end], run_end - first.offset)
        else:
            contents.append(_one(descriptors, first))
        at = end
    return contents


def pieces(descriptors: Mapping[int, int], place: Place, start: int, size: int) -> Iterator[bytes]:
    """A range of one content in pieces of up to a MiB, each verified by itself if the claim has block checksums.

    Without them the whole claim is read first: nothing is handed out unverified.
    """
    if not 0 <= start <= start + size <= place.size:
        raise RangeNotSatisfiable(f"range {start}+{size} lies outside a content of {place.size} bytes", place.size)
    if size == 0:
        return
    begin, end = place.start + start, place.start + start + size
    descriptor = descriptors[place.file]
    if place.length <= BLOCK_BYTES:
        yield _verified(descriptor, place)[begin:end]
    elif not place.blocks:
        _verify_whole(descriptor, place)
        yield from _plain(descriptor, place, begin, end)
    else:
        yield from _by_blocks(descriptor, place, begin, end)


def run_from(window: Sequence[Place], at: int) -> tuple[int, int]:
    """How many places from here on lie side by side: the index after the last one, and where it ends in the file."""
    first = window[at]
    file, run_end = first.file, first.offset + first.length
    end = at + 1
    while first.length and end < len(window):
        place = window[end]
        if place.offset != run_end or place.file != file or run_end - first.offset >= WINDOW_BYTES:
            break
        run_end += place.length
        end += 1
    return end, run_end


def _one(descriptors: Mapping[int, int], place: Place) -> bytes:
    if place.size == 0:
        return b""
    if place.length <= BLOCK_BYTES:
        data = _verified(descriptors[place.file], place)
        return data if place.size == place.length else data[place.start : place.start + place.size]
    if place.size == place.length and place.blocks:
        # As a whole, because putting pieces together would copy them once more.
        data = _exactly(descriptors[place.file], place.length, place.offset)
        _verify_blocks(memoryview(data), place, 0)
        return data
    return b"".join(pieces(descriptors, place, 0, place.size))


def _run(descriptor: int, places: Sequence[Place], count: int) -> Iterator[bytes]:
    data = _exactly(descriptor, count, places[0].offset)
    at = 0
    for place in places:
        length = place.length
        content = data[at : at + length]
        at += length
        if crc32c(content) != place.crc:
            raise damaged(place, 0, length)
        yield content if place.size == length else content[place.start : place.start + place.size]


def _by_blocks(descriptor: int, place: Place, begin: int, end: int) -> Iterator[bytes]:
    last = min(-(-end // BLOCK_BYTES) * BLOCK_BYTES, place.length)
    while begin < end:
        first = begin // BLOCK_BYTES
        at = first * BLOCK_BYTES
        stop = min(at + PIECE_BYTES, last)
        data = _exactly(descriptor, stop - at, place.offset + at)
        _verify_blocks(memoryview(data), place, first)
        wanted = min(end, stop)
        yield data if (begin, wanted) == (at, stop) else data[begin - at : wanted - at]
        begin = wanted


def _verified(descriptor: int, place: Place) -> bytes:
    data = _exactly(descriptor, place.length, place.offset)
    if crc32c(data) != place.crc:
        raise damaged(place, 0, place.length)
    return data


def _verify_blocks(data: memoryview, place: Place, first: int) -> None:
    for number, at in enumerate(range(0, len(data), BLOCK_BYTES), start=first):
        (expected,) = unpack_from("<I", place.blocks, 4 * number)
        if crc32c(data[at : at + BLOCK_BYTES]) != expected:
            raise damaged(place, number * BLOCK_BYTES, BLOCK_BYTES)


def _verify_whole(descriptor: int, place: Place) -> None:
    crc = 0
    for data in _plain(descriptor, place, 0, place.length):
        crc = crc32c(data, crc)
    if crc != place.crc:
        raise damaged(place, 0, place.length)


def _plain(descriptor: int, place: Place, begin: int, end: int) -> Iterator[bytes]:
    for at in range(begin, end, PIECE_BYTES):
        yield _exactly(descriptor, min(PIECE_BYTES, end - at), place.offset + at)


def _exactly(descriptor: int, count: int, offset: int) -> bytes:
    data = os.pread(descriptor, count, offset)
    if len(data) == count:
        return data
    parts = [data]  # one call reads at most 2 GiB, and may be interrupted
    got = len(data)
    while data and got < count:
        data = os.pread(descriptor, count - got, offset + got)
        parts.append(data)
        got += len(data)
    if got < count:
        raise ContentMissing(f"the file ends at offset {offset + got}, {count - got} bytes before the end of the claim")
    return b"".join(parts)


def damaged(place: Place, start: int, count: int) -> ContentCorrupt:
    """Bytes that are not what their checksum says."""
    return ContentCorrupt(
        f"resource claim {place.file}: {count} bytes at offset {place.offset + start} do not match their checksum"
    )
