"""Small claims read where they were born, without asking the node for each.

An address never changes, and a rewrite takes along everything that lives of a resource claim. So where one claim of it
lies at its own address, all of them do: the node is asked for one of each resource claim. What moved, what is too large
to be covered by one checksum, and what does not read back is left to be asked for one by one.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence

from crc32c import crc32c

from ullage.client.descriptors import SMALL_BYTES, WINDOW_BYTES
from ullage.wire.frames import BLOCK_BYTES, ClaimKey, Place

Address = tuple[int, int, int, int, int, int]
"""Resource claim, offset, length and CRC-32C of a base claim; start and size of a content in it."""


def one_of_each(addresses: Iterable[Address]) -> list[ClaimKey]:
    """A claim of each resource claim of which one is wanted, in the order in which they are."""
    first: dict[int, Address] = {}
    for address in addresses:
        first.setdefault(address[0], address)
    return [ClaimKey(*address[:4]) for address in first.values()]


def at_home(keys: Sequence[ClaimKey], places: Sequence[Place]) -> dict[int, bool]:
    """Of the resource claims that were answered, whether their claims lie at their own addresses."""
    return {
        key.resource: not place.slug and place.file == key.resource and place.offset == key.offset
        for key, place in zip(keys, places, strict=False)
    }


def read_born(
    descriptors: Mapping[int, int], addresses: Sequence[Address], is_home: Mapping[int, bool]
) -> list[bytes | None]:
    """The contents, in order, each verified; None for what is not to be had this way."""
    contents: list[bytes | None] = []
    for run, count in _runs(addresses):
        resource, begin, length = run[0][:3]
        if not is_home[resource] or length > BLOCK_BYTES:
            contents += [None] * len(run)
            continue
        data = os.pread(descriptors[resource], count, begin)
        for _, offset, length, crc, start, size in run:
            content = data[offset - begin : offset - begin + length]
            if crc32c(content) != crc or len(content) != length:
                contents.append(None)
            else:
                contents.append(content if size == length else content[start : start + size])
    return contents


def _runs(addresses: Sequence[Address]) -> Iterator[tuple[Sequence[Address], int]]:
    """What is read with one call, and how many bytes that is: neighbours, or a larger claim alone."""
    first = 0
    resource = begin = end = -1
    for number, (index, offset, length, _, _, _) in enumerate(addresses):
        if offset != end or index != resource or length > SMALL_BYTES or end - begin >= WINDOW_BYTES:
            if number > first:
                yield addresses[first:number], end - begin
            first, resource, begin = number, index, offset
        end = offset + length
    if addresses:
        yield addresses[first:], end - begin
