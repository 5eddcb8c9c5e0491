"""Where the contents of rows lie, column by column: millions of small ones leave no time for an object each."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ullage.client.descriptors import SMALL_BYTES, WINDOW_BYTES, Address, Neighbours

ADDRESS: Final = ("resource_claim", "claim_offset", "claim_length", "claim_crc32c", "start", "size")
"""Where content lies on its node, as the table `flowfiles` has it."""

NO_CLAIM: Final = -1


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

    def first_rows(self) -> list[int]:
        """The first row of each resource claim, in order; of empty contents no row."""
        resources = self._columns[0].tolist()
        firsts = []
        row = 0
        for number in dict.fromkeys(resources):
            row = resources.index(number, row)
            if number != NO_CLAIM:
                firsts.append(row)
        return firsts

    def groups(self, bytes_max: int, rows_max: int) -> Iterator[tuple[int, int]]:
        """The first row of each group of so many bytes and rows, and how many are in it: one at least."""
        ends = self._columns[-1].cumsum()
        first, before = 0, 0
        while first < len(ends):
            fit = int(ends.searchsorted(before + bytes_max, "right"))
            end = max(min(fit, first + rows_max), first + 1)
            yield first, end - first
            first, before = end, int(ends[end - 1])

    def neighbours(self) -> list[Neighbours]:
        """Runs of what lies side by side, where these are whole small claims, most of them in runs; else none."""
        resources, offsets, lengths, crcs, _, sizes = self._columns
        if not len(self) or (sizes != lengths).any() or lengths.min() < 1 or lengths.max() > SMALL_BYTES:
            return []
        windows = (lengths.cumsum() - 1) // WINDOW_BYTES
        is_next = (resources[1:] == resources[:-1]) & (offsets[1:] == offsets[:-1] + lengths[:-1])
        begins = [0, *((~is_next | (windows[1:] != windows[:-1])).nonzero()[0] + 1).tolist()]
        if 2 * len(begins) > len(self) + 1:
            return []
        ends = [*begins[1:], len(self)]
        known = resources[begins].tolist(), offsets[begins].tolist(), lengths.tolist(), crcs.tolist()
        return [
            Neighbours(resource, offset, known[2][begin:end], known[3][begin:end])
            for resource, offset, begin, end in zip(known[0], known[1], begins, ends, strict=True)
        ]
