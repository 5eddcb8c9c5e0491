"""Large objects, put in parts while their bytes come: never whole in memory."""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

from crc32c import crc32c

from ullage.errors import BucketRefused, BucketUnavailable
from ullage.remote.objects import Objects

PART_BYTES: Final = 8 << 20
"""What is sent at a time, while `PARALLEL` others are under way."""

PARTS_MAX: Final = 9_000
"""Fewer than the 10,000 that S3 takes: an object whose length is only guessed may be longer."""

PARALLEL: Final = 4
"""Parts of one object that are under way."""

IN_FLIGHT_BYTES: Final = PARALLEL * PART_BYTES


class Measured:
    """Pieces whose length and CRC-32C are taken as they pass."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self.length = 0
        self.crc = 0
        self.is_over = False

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            piece = next(self._pieces)
        except StopIteration:
            self.is_over = True
            raise
        self.length += len(piece)
        self.crc = crc32c(piece, self.crc)
        return piece


def put_measured(objects: Objects, key: str, pieces: Iterable[bytes], length: int) -> Measured:
    """Put an object that nobody else puts, in one request if it is small; what was put. `length` is about how long it
    will be.
    """
    measured = Measured(pieces)
    part_bytes = max(PART_BYTES, -(-length // PARTS_MAX))
    first: list[bytes] = []
    for piece in measured:
        first.append(piece)
        if measured.length > part_bytes:
            _put_parts(objects, key, first, measured, part_bytes)
            break
    else:
        objects.put(key, b"".join(first))
    return measured


def _put_parts(objects: Objects, key: str, first: list[bytes], rest: Measured, part_bytes: int) -> None:
    parallel, taken = max(1, IN_FLIGHT_BYTES // part_bytes), rest.length
    try:
        # While no more was taken than is here, all of it can be sent again.
        objects.put_parts(key, lambda: chain(first, rest), part_bytes, parallel, lambda: rest.length == taken)
    except (BucketRefused, BucketUnavailable):
        # The request that made one object of the parts may have been carried out, and its answer lost.
        if not rest.is_over or objects.length(key) != rest.length:
            raise
