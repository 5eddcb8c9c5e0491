"""Where the contents of rows lie, column by column: millions of small ones leave no time for an object each."""

from collections.abc import Iterator, Sequence
from functools import reduce
from operator import and_, or_
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ullage.client.descriptors import GAP_BYTES, SMALL_BYTES, WINDOW_BYTES, Address, ApartClaim, Neighbours
from ullage.wire.frames import BLOCK_BYTES

ADDRESS: Final = ("resource_claim", "claim_offset", "claim_length", "claim_crc32c", "start", "size")
"""Where content lies on its node, as the table `flowfiles` has it."""

NO_CLAIM: Final = -1

WHOLE_MAX: Final = 2
"""By how much claims may be larger than what is wanted of them, so that they are read together: they are all in memory
at once. Of one that was split all parts are wanted as a rule; a part of each of ten thousand would take gibibytes.
"""


class Nearest(NamedTuple):
    """How claims with one checksum are read, and for which `rows`. `numbers`: of each of these the number of its claim,
    in the order in which they are read; None if each has one of its own.
    """

    runs: list[Neighbours]
    apart: list[ApartClaim]
    rows: Any
    numbers: list[int] | None


class Whereabouts:
    """Of some rows, in their order. An empty content, which has no claim, has NO_CLAIM instead."""

    def __init__(self, columns: Sequence[Any]) -> None:
        """Those of ADDRESS, as NumPy's arrays."""
        self._columns = columns

    @classmethod
    def of(cls, rows: pa.RecordBatch) -> "Whereabouts":
        """All of a batch."""
        columns = (rows.column(name) for name in ADDRESS)
        filled = (pc.fill_null(column, NO_CLAIM) if column.null_count else column for column in columns)
        return cls([column.to_numpy() for column in filled])

    def __len__(self) -> int:
        return len(self._columns[0])

    def part(self, at: int, count: int) -> "Whereabouts":
        """So many rows from one on."""
        return Whereabouts([column[at : at + count] for column in self._columns])

    def addresses(self, rows: list[int] | None = None) -> list[Address]:
        """Of these rows, or of all."""
        columns = self._columns if rows is None else [column[rows] for column in self._columns]
        return list(zip(*(column.tolist() for column in columns), strict=True))

    def asked_rows(self) -> list[int]:
        """Those that stand for all when a node is asked, in order: of claims with one checksum the first of each
        resource claim, and each that is larger.
        """
        resources, _, lengths = self._columns[:3]
        small = ((lengths > 0) & (lengths <= BLOCK_BYTES)).nonzero()[0]
        numbers = resources[small]
        is_begin = numbers[1:] != numbers[:-1]
        begins = small[[0, *(is_begin.nonzero()[0] + 1).tolist()]] if len(small) else small
        firsts: dict[int, int] = {}
        for row, number in zip(begins.tolist(), resources[begins].tolist(), strict=True):
            firsts.setdefault(number, row)
        large = (lengths > BLOCK_BYTES).nonzero()[0].tolist()
        return sorted([*firsts.values(), *large]) if large else list(firsts.values())

    def groups(self, bytes_max: int, rows_max: int) -> Iterator[tuple[int, int]]:
        """The first row of each group of so many bytes and rows, and how many are in it: one at least."""
        ends = self._columns[-1].cumsum()
        first, before = 0, 0
        while first < len(ends):
            fit = int(ends.searchsorted(before + bytes_max, "right"))
            end = max(min(fit, first + rows_max), first + 1)
            yield first, end - first
            first, before = end, int(ends[end - 1])

    def nearest(self) -> Nearest:
        """How claims with one checksum are read with few calls: small ones in the order of their addresses, then others
        in theirs, each once. What is read is the whole claim; see `slices`.
        """
        resources, offsets, lengths, _, _, sizes = self._columns
        rows = ((lengths > 0) & (lengths <= BLOCK_BYTES)).nonzero()[0]
        for column in (offsets, resources, lengths > SMALL_BYTES):
            rows = rows[column[rows].argsort(kind="stable")]
        claims, numbers = self._distinct(rows)
        if lengths[claims].sum() > WHOLE_MAX * sizes[rows].sum():
            rows = rows[lengths[rows] == sizes[rows]]
            claims, numbers = self._distinct(rows)
        small = int((lengths[claims] <= SMALL_BYTES).sum())
        apart = list(zip(*(column[claims[small:]].tolist() for column in self._columns[:4]), strict=True))
        return Nearest(self._runs(claims[:small]) if small else [], apart, rows, numbers)

    def _distinct(self, rows: Any) -> tuple[Any, list[int] | None]:
        """Of these rows, in the order of their addresses, the first of each claim, and of each the number of its claim;
        None where they are all different.
        """
        addresses = [column[rows] for column in self._columns[:2]]
        if not reduce(and_, (each[1:] == each[:-1] for each in addresses)).any():
            return rows, None
        whole = [column[rows] for column in self._columns[:4]]
        is_other = reduce(or_, (each[1:] != each[:-1] for each in whole))
        return rows[[0, *(is_other.nonzero()[0] + 1).tolist()]], [0, *is_other.cumsum().tolist()]

    def _runs(self, rows: Any) -> list[Neighbours]:
        """Of these rows, which are in the order of their addresses."""
        resources, offsets, lengths, crcs = (column[rows] for column in self._columns[:4])
        ends = offsets + lengths
        firsts = _firsts(resources, offsets, ends)
        stops = [*firsts[1:], len(rows)]
        bases = offsets[firsts].repeat([stop - first for first, stop in zip(firsts, stops, strict=True)])
        places = zip(resources[firsts].tolist(), offsets[firsts].tolist(), firsts, stops, strict=True)
        begin, end, crc = (offsets - bases).tolist(), (ends - bases).tolist(), crcs.tolist()
        return [
            Neighbours(resource, offset, end[stop - 1], begin[first:stop], end[first:stop], crc[first:stop])
            for resource, offset, first, stop in places
        ]

    def slices(self, rows: Any) -> Iterator[tuple[int, int, int]]:
        """Those of these rows that have a slice of their claim, and where in it that begins and ends."""
        _, _, lengths, _, starts, sizes = self._columns
        cut = rows[sizes[rows] != lengths[rows]]
        return zip(cut.tolist(), starts[cut].tolist(), (starts[cut] + sizes[cut]).tolist(), strict=True)

    def others(self, rows: Any) -> list[int]:
        """All rows but these."""
        taken = set(rows.tolist())
        return [row for row in range(len(self)) if row not in taken]


def _firsts(resources: Any, offsets: Any, ends: Any) -> list[int]:
    """Of claims in the order of their addresses those with which a call begins. Of claims that overlap, which only made
    up ones do, each has a call of its own.
    """
    gaps = offsets[1:] - ends[:-1]
    is_first = (resources[1:] != resources[:-1]) | (gaps > GAP_BYTES) | (gaps < 0)
    steps = offsets[1:] - offsets[:-1]
    steps[is_first] = 0
    windows = steps.cumsum() // WINDOW_BYTES
    is_first[1:] |= windows[1:] != windows[:-1]
    return [0, *(is_first.nonzero()[0] + 1).tolist()]
