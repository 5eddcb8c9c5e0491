"""Reading content through descriptors that the node has passed: `pread`, then the checksum.

What is read counts only if the connection still stood after the read: `SocketClient` looks, then hands it out.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from struct import unpack_from
from typing import Final, NamedTuple

from crc32c import crc32c

from ullage.errors import ContentCorrupt, ContentMissing, RangeNotSatisfiable
from ullage.wire.frames import BLOCK_BYTES, ClaimKey, Place

SMALL_BYTES: Final = 16 << 10
"""Claims up to this size are read with their neighbours: cutting them out costs less than a system call each."""

WINDOW_BYTES: Final = 256 << 10
"""Small claims read together: so many that the processor still has them when they are verified."""

GAP_BYTES: Final = 8 << 10
"""What may lie between two small claims that are read with one call: to copy so much costs half of what a call does."""

PIECE_BLOCKS: Final = 4
"""Blocks of a large claim that are read with one call."""

PIECE_BYTES: Final = PIECE_BLOCKS * BLOCK_BYTES

Address = tuple[int, int, int, int, int, int]
"""Resource claim, offset, length and CRC-32C of a base claim; start and size of a content in it."""

Question = int | ClaimKey
"""A resource claim, for all its claims of one checksum; or a claim of several, which come with the answer."""


ApartClaim = tuple[int, int, int, int]
"""Resource claim, offset, length and CRC-32C of a claim with one checksum that has a call of its own: to copy it would
cost more.
"""


class Neighbours(NamedTuple):
    """Whole small claims that lie near each other in a file: `span` bytes from `offset` on have all of them, and of
    these bytes each has those from its begin to its end.
    """

    resource: int
    offset: int
    span: int
    begins: list[int]
    ends: list[int]
    crcs: list[int]


def read_neighbours(
    descriptors: Mapping[int, int], runs: Sequence[Neighbours], apart: Sequence[ApartClaim]
) -> list[bytes]:
    """All of them, in order, each verified; none if one does not read back."""
    contents: list[bytes] = []
    for resource, offset, span, begins, ends, crcs in runs:
        data = os.pread(descriptors[resource], span, offset)
        found = [data[begin:end] for begin, end in zip(begins, ends, strict=True)]
        if len(data) != span or list(map(crc32c, found)) != crcs:
            return []
        contents += found
    for resource, offset, length, crc in apart:
        data = os.pread(descriptors[resource], length, offset)
        if crc32c(data) != crc or len(data) != length:
            return []
        contents.append(data)
    return contents


def read_places(descriptors: Mapping[int, int], places: Sequence[Place]) -> list[bytes]:
    """The contents, in order, each verified. Neighbours are read with one call."""
    contents: list[bytes] = []
    for run, count in _runs([place[2:8] for place in places]):
        # Alone a large one is not copied, and of one that does not read back it says why.
        found = _read_run(descriptors, run, count) if len(run) > 1 else (None,)
        for content in found:
            contents.append(_one(descriptors, places[len(contents)]) if content is None else content)
    return contents


def question_of(address: Address) -> Question:
    """What the node has to have answered before this is read."""
    return address[0] if address[2] <= BLOCK_BYTES else ClaimKey(*address[:4])


def questions(addresses: Iterable[Address]) -> dict[Question, ClaimKey]:
    """All that it has to have answered before these are read, in their order, each with the claim to ask for.

    An address never changes, and a rewrite takes along everything that lives of a resource claim. So where one claim of
    it lies at its own address, all of them do: of those that one checksum covers, one of each resource claim is enough.
    """
    asked: dict[Question, ClaimKey] = {}
    for address in addresses:
        asked.setdefault(question_of(address), ClaimKey(*address[:4]))
    return asked


def answered(key: ClaimKey, place: Place) -> Place | None:
    """What a question about this claim has shown; None for one that moved with all its neighbours, or that is gone."""
    is_home = key.length > BLOCK_BYTES or (place.file, place.offset) == (key.resource, key.offset)
    return place if is_home and not place.slug else None


def read_born(
    descriptors: Mapping[int, int], addresses: Sequence[Address], known: Mapping[Question, Place | None]
) -> list[bytes | None]:
    """The contents, in order, once all questions about them are answered: small claims where they were born, large ones
    where they lie. None for what moved, and for a small one that does not read back: it is left to be asked for by
    itself.
    """
    contents: list[bytes | None] = []
    for run, count in _runs(addresses):
        place = known[question_of(run[0])]
        if place is None:
            contents += [None] * len(run)
        elif run[0][2] <= BLOCK_BYTES:
            contents += _read_run(descriptors, run, count)
        else:
            contents.append(_one(descriptors, place._replace(start=run[0][4], size=run[0][5])))
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
        data = _exactly(descriptor, place.length, place.offset)
        if crc32c(data) != place.crc:
            raise _damaged(place, 0, place.length)
        yield data[begin:end]
    elif not place.blocks:
        _verify_whole(descriptor, place)
        yield from _plain(descriptor, place, begin, end)
    else:
        yield from _by_blocks(descriptor, place, begin, end)


def _runs(addresses: Sequence[Address]) -> Iterator[tuple[Sequence[Address], int]]:
    """What is read with one call, and how many bytes that is: neighbours, or a larger or empty claim alone."""
    first = 0
    resource = begin = end = -1
    for number, (index, offset, length, _, _, _) in enumerate(addresses):
        if offset != end or index != resource or not 0 < length <= SMALL_BYTES or end - begin >= WINDOW_BYTES:
            if number > first:
                yield addresses[first:number], end - begin
            first, resource, begin = number, index, offset
        end = offset + length
    if addresses:
        yield addresses[first:], end - begin


def _read_run(descriptors: Mapping[int, int], run: Sequence[Address], count: int) -> list[bytes | None]:
    """The contents of neighbours, each verified; None for what does not read back."""
    data = os.pread(descriptors[run[0][0]], count, run[0][1])
    contents: list[bytes | None] = []
    at = 0
    for _, _, length, crc, start, size in run:
        content = data[at : at + length]
        at += length
        if crc32c(content) != crc or len(content) != length:
            contents.append(None)
        else:
            contents.append(content if size == length else content[start : start + size])
    return contents


def _one(descriptors: Mapping[int, int], place: Place) -> bytes:
    if BLOCK_BYTES < place.length == place.size and place.blocks:
        # As a whole, because putting pieces together would copy them once more.
        data = _exactly(descriptors[place.file], place.length, place.offset)
        _verify_blocks(memoryview(data), place, 0)
        return data
    return b"".join(pieces(descriptors, place, 0, place.size))


def _by_blocks(descriptor: int, place: Place, begin: int, end: int) -> Iterator[bytes]:
    last = min(-(-end // BLOCK_BYTES) * BLOCK_BYTES, place.length)
    while begin < end:
        first = begin // BLOCK_BYTES
        at = first * BLOCK_BYTES
        stop = min(at + PIECE_BYTES, last)
        data = _exactly(descriptor, stop - at, place.offset + at)
        _verify_blocks(memoryview(data), place, first)
        wanted = min(end, stop)
        yield data[begin - at : wanted - at]
        begin = wanted


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


def _damaged(place: Place, start: int, count: int) -> ContentCorrupt:
    """Bytes that are not what their checksum says."""
    return ContentCorrupt(
        f"resource claim {place.file}: {count} bytes at offset {place.offset + start} do not match their checksum"
    )
