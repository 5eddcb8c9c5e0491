"""Reading content through descriptors that the node has passed: `pread`, then the checksum.

What is read counts only if the connection still stood after the read: `SocketClient` looks, then hands it out.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from struct import unpack_from
from typing import Final

from crc32c import crc32c

from ullage_agent.client.errors import ContentDamaged, Misuse, Refused
from ullage_agent.service.socket.frames import BLOCK_BYTES, Place

RUN_BYTES: Final = 1 << 20
"""Small claims that lie side by side are read with one call up to this size."""

WINDOW_BLOCKS: Final = 4
"""Blocks of a large claim that are read with one call."""


def require_found(place: Place, name: str) -> None:
    """Refused if the place says why there is none."""
    if place.slug:
        raise Refused(place.status, place.slug, name)


def read_places(descriptors: Mapping[int, int], places: Sequence[Place]) -> list[bytes]:
    """The contents, in order, each verified. Neighbours are read together."""
    contents: list[bytes] = []
    at = 0
    while at < len(places):
        first = places[at]
        end, run_end = _run_from(places, at)
        if end - at > 1:
            contents += _run(descriptors[first.file], places[at:end], run_end - first.offset)
        else:
            contents.append(_one(descriptors, first))
        at = end
    return contents


def pieces(descriptors: Mapping[int, int], place: Place, start: int, size: int) -> Iterator[bytes]:
    """A range of one content in pieces of up to a MiB, each verified by itself if the claim has block checksums.

    Without them the whole claim is read first: nothing is handed out unverified.
    """
    if not 0 <= start <= start + size <= place.size:
        raise Misuse(f"range {start}+{size} lies outside a content of {place.size} bytes")
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


def _run_from(places: Sequence[Place], at: int) -> tuple[int, int]:
    """How many places from here on lie side by side: the index after the last one, and where it ends in the file."""
    first = places[at]
    end, run_end = at + 1, first.offset + first.length
    if not 0 < first.length <= BLOCK_BYTES:
        return end, run_end
    most = first.offset + RUN_BYTES
    while end < len(places) and run_end < most:
        place = places[end]
        if place.offset != run_end or place.file != first.file or not 0 < place.length <= BLOCK_BYTES:
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
    return b"".join(pieces(descriptors, place, 0, place.size))


def _run(descriptor: int, places: Sequence[Place], count: int) -> Iterator[bytes]:
    data = _exactly(descriptor, count, places[0].offset)
    at = 0
    for place in places:
        content = data[at : at + place.length]
        at += place.length
        if crc32c(content) != place.crc:
            raise _damaged(place, 0, place.length)
        yield content if place.size == place.length else content[place.start : place.start + place.size]


def _by_blocks(descriptor: int, place: Place, begin: int, end: int) -> Iterator[bytes]:
    last = min(-(-end // BLOCK_BYTES) * BLOCK_BYTES, place.length)
    while begin < end:
        first = begin // BLOCK_BYTES
        at = first * BLOCK_BYTES
        stop = min(at + WINDOW_BLOCKS * BLOCK_BYTES, last)
        data = _exactly(descriptor, stop - at, place.offset + at)
        _verify_blocks(memoryview(data), place, first)
        wanted = min(end, stop)
        yield data if (begin, wanted) == (at, stop) else data[begin - at : wanted - at]
        begin = wanted


def _verified(descriptor: int, place: Place) -> bytes:
    data = _exactly(descriptor, place.length, place.offset)
    if crc32c(data) != place.crc:
        raise _damaged(place, 0, place.length)
    return data


def _verify_blocks(data: memoryview, place: Place, first: int) -> None:
    for number, at in enumerate(range(0, len(data), BLOCK_BYTES), start=first):
        (expected,) = unpack_from("<I", place.blocks, 4 * number)
        if crc32c(data[at : at + BLOCK_BYTES]) != expected:
            raise _damaged(place, number * BLOCK_BYTES, BLOCK_BYTES)


def _verify_whole(descriptor: int, place: Place) -> None:
    crc = 0
    for data in _plain(descriptor, place, 0, place.length):
        crc = crc32c(data, crc)
    if crc != place.crc:
        raise _damaged(place, 0, place.length)


def _plain(descriptor: int, place: Place, begin: int, end: int) -> Iterator[bytes]:
    for at in range(begin, end, RUN_BYTES):
        yield _exactly(descriptor, min(RUN_BYTES, end - at), place.offset + at)


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
        raise ContentDamaged(f"the file ends at offset {offset + got}, {count - got} bytes before the end of the claim")
    return b"".join(parts)


def _damaged(place: Place, start: int, count: int) -> ContentDamaged:
    return ContentDamaged(
        f"resource claim {place.file}: {count} bytes at offset {place.offset + start} do not match their checksum"
    )
