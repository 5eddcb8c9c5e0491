"""The base claims in use of one resource claim, in columns: 12 bytes each, where a map of them takes 117.

offsets, in order | lengths | CRCs    packed: never changed, a removal makes other columns
the same, as they come, some twice    while a snapshot is read
"""

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from operator import add
from typing import Final

from ullage.engine.model import ContentClaim
from ullage.engine.packs import ClaimRow

PACKED_MIN: Final = 8
"""Base claims from which on columns take less than a map."""

_WIDE: Final = "Q"
_NARROW: Final = "I"

_FIELDS: Final = 4
"""Of a base claim, its resource claim first."""

Row = tuple[int, int, int]
"""Offset, length and CRC."""


class PackedClaims:
    """Base claims by offset; see the module's text."""

    __slots__ = ("_crcs", "_lengths", "_offsets", "_resource")

    def __init__(self, resource: int, offsets: "array[int]", lengths: "array[int]", crcs: "array[int]") -> None:
        """Use `packed`."""
        self._resource = resource
        self._offsets, self._lengths, self._crcs = offsets, lengths, crcs

    def __len__(self) -> int:
        return len(self._offsets)

    def __contains__(self, offset: int) -> bool:
        return self._place(offset) < len(self._offsets)

    def __iter__(self) -> Iterator[ContentClaim]:
        resource = self._resource
        for offset, length, crc in zip(self._offsets, self._lengths, self._crcs, strict=True):
            yield ContentClaim(resource, offset, length, crc)

    def without(self, offset: int) -> "PackedClaims":
        """The others. KeyError if there is none at this offset."""
        place = self._place(offset)
        if place == len(self._offsets):
            raise KeyError(offset)
        parts = [column[:place] + column[place + 1 :] for column in (self._offsets, self._lengths, self._crcs)]
        return PackedClaims(self._resource, *parts)

    def _place(self, offset: int) -> int:
        place = bisect_left(self._offsets, offset)
        is_there = place < len(self._offsets) and self._offsets[place] == offset
        return place if is_there else len(self._offsets)


def packed(resource: int, rows: Sequence[Row]) -> PackedClaims:
    """Rows in the order of their offsets, each offset once."""
    fields = array(_WIDE, chain.from_iterable(rows))
    return PackedClaims(resource, *(_column(fields[place::3]) for place in range(3)))


def _column(values: "array[int]") -> "array[int]":
    try:
        return array(_NARROW, values)
    except OverflowError:
        return values


class LoadingClaims:
    """Base claims as a snapshot's records name them, once for each record."""

    __slots__ = ("_fields", "take")

    def __init__(self) -> None:
        self._fields = array(_WIDE)
        self.take: Callable[[ClaimRow], None] = self._fields.extend
        """One more record names this one. Each record of a snapshot comes by here."""

    def __len__(self) -> int:
        """How many records have named one."""
        return len(self._fields) // _FIELDS

    def totals_behind(self, count: int) -> list[int]:
        """Of those that came after so many: how many there are, their bytes, and where the last one ends."""
        at = _FIELDS * count
        offsets, lengths = self._fields[at + 1 :: _FIELDS], self._fields[at + 2 :: _FIELDS]
        return [len(offsets), sum(lengths), max(map(add, offsets, lengths), default=0)]

    def rows(self) -> list[Row]:
        """In the order of their offsets."""
        fields = self._fields
        return sorted(zip(fields[1::_FIELDS], fields[2::_FIELDS], fields[3::_FIELDS], strict=True))


def rows_of(claims: Iterable[ContentClaim]) -> list[Row]:
    """In the order of their offsets."""
    return sorted([(claim.offset, claim.length, claim.crc) for claim in claims])
