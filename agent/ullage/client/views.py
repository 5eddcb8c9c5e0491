"""Reading content into one buffer that is used again and again: no memory is asked for, none is touched first.

For whoever looks at bytes and keeps few of them: fresh memory may cost more than reading and verifying.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from struct import unpack_from

from crc32c import crc32c

from ullage.client.descriptors import PIECE_BYTES, damaged, run_from, windows
from ullage.errors import ContentMissing
from ullage.wire.frames import BLOCK_BYTES, Place

Found = tuple[int, memoryview]
"""The number of a place, and a piece of its content."""


def view_batches(descriptors: Mapping[int, int], places: Sequence[Place]) -> Iterator[list[Found]]:
    """Pieces of up to a MiB of all contents, in order, each verified; those of one batch were read between two looks.

    What a batch shows is overwritten when the next one is asked for.
    """
    buffer = memoryview(bytearray(PIECE_BYTES))
    number = 0
    for window in windows(places, BLOCK_BYTES, PIECE_BYTES):
        first = window[0]
        if first.length > BLOCK_BYTES and first.size:
            for piece in _pieces(descriptors, first, buffer):
                yield [(number, piece)]
        else:
            yield _window(descriptors, window, number, buffer)
        number += len(window)


def _window(descriptors: Mapping[int, int], window: Sequence[Place], number: int, buffer: memoryview) -> list[Found]:
    found: list[Found] = []
    at = begin = 0
    while at < len(window):
        first = window[at]
        if not first.size:
            found.append((number + at, buffer[:0]))
            at += 1
            continue
        end, run_end = run_from(window, at)
        count = run_end - first.offset
        fill(descriptors[first.file], buffer[begin : begin + count], first.offset)
        for place in window[at:end]:
            view = buffer[begin : begin + place.length]
            begin += place.length
            if crc32c(view) != place.crc:
                raise damaged(place, 0, place.length)
            found.append((number + at, view if place.size == place.length else _part(view, place)))
            at += 1
    return found


def _pieces(descriptors: Mapping[int, int], place: Place, buffer: memoryview) -> Iterator[memoryview]:
    """A large content. Without block checksums the whole claim is read first: nothing is handed out unverified.

    The descriptor is looked up for each piece: it may be given back in between, and its number be another file's.
    """
    if not place.blocks:
        crc = 0
        for at in range(0, place.length, PIECE_BYTES):
            view = buffer[: min(PIECE_BYTES, place.length - at)]
            fill(descriptors[place.file], view, place.offset + at)
            crc = crc32c(view, crc)
        if crc != place.crc:
            raise damaged(place, 0, place.length)
    begin, end = place.start, place.start + place.size
    while begin < end:
        at = begin - begin % BLOCK_BYTES
        stop = min(at + PIECE_BYTES, place.length, -(-end // BLOCK_BYTES) * BLOCK_BYTES)
        for block in range(at, stop, BLOCK_BYTES):
            # One by one: the processor's cache still has it for the checksum.
            view = buffer[block - at : min(block + BLOCK_BYTES, stop) - at]
            fill(descriptors[place.file], view, place.offset + block)
            if place.blocks and crc32c(view) != unpack_from("<I", place.blocks, 4 * (block // BLOCK_BYTES))[0]:
                raise damaged(place, block, len(view))
        wanted = min(end, stop)
        yield buffer[begin - at : wanted - at]
        begin = wanted


def fill(descriptor: int, view: memoryview, offset: int) -> None:
    """Exactly as much as there is room for. ContentMissing if the file ends before."""
    got = os.preadv(descriptor, [view], offset)
    while got < len(view):
        more = os.preadv(descriptor, [view[got:]], offset + got)
        if not more:
            raise ContentMissing(
                f"the file ends at offset {offset + got}, {len(view) - got} bytes before the end of the claim"
            )
        got += more


def _part(view: memoryview, place: Place) -> memoryview:
    return view[place.start : place.start + place.size]
