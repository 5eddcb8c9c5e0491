"""A shard of the index: the terms of a run of events, sorted, in one file (see `runs/sorted_run.py`).

A section is a field, and a key a u64: the term's number above, the row below, which is the event's sequence number less
the shard's first. Nothing here is synced: what a crash leaves does not fit its checksums, and the index is made anew
from the event files.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from ullage.engine.arrow import pa, pc
from ullage.engine.files import Files
from ullage.engine.provenance.terms import ROW_BITS, Term
from ullage.engine.runs.blockcache import BlockCache
from ullage.engine.runs.merging import merged
from ullage.engine.runs.sorted_run import RunDamaged, RunHead, SortedRun, write_run
from ullage.wire.firstuse import prepare

SUFFIX = ".terms"
MAGIC = b"ULLAGEPI"
_ROW_MASK = (1 << ROW_BITS) - 1

Condition = Sequence[Term]
"""One of the terms has to be there."""


class Span(msgspec.Struct, frozen=True, array_like=True):
    """What a shard covers: the event files with sequence numbers in [`first`, `last`], and how much they hold."""

    first: int
    last: int
    events: int
    bytes: int


class ShardHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What a shard says of itself: whose it is, what it was made with, and what it covers."""

    repository: str
    fields: tuple[str, ...]
    attributes: tuple[str, ...]
    span: Span


prepare(RunHead[ShardHeader])


class Shard:
    """A shard that is open for reading. Thread-safe."""

    def __init__(self, run: SortedRun[ShardHeader]) -> None:
        self.run = run

    @classmethod
    def open(cls, files: Files, path: str, cache: BlockCache[memoryview]) -> Shard | None:
        """None for a file that is not whole."""
        try:
            return cls(SortedRun.open(files, path, MAGIC, ShardHeader, cache))
        except RunDamaged:
            return None

    @property
    def path(self) -> str:
        return self.run.path

    @property
    def head(self) -> ShardHeader:
        return self.run.about

    @property
    def span(self) -> Span:
        return self.run.about.span

    def search(self, conditions: Sequence[Condition], low: int, high: int, *, newest_first: bool) -> Iterator[int]:
        """The rows in [low, high] that meet all conditions, in order. RunDamaged, at the latest while they come.

        The condition with the fewest keys leads; of the others each row is looked up.
        """
        reader = _Reader(self.run)
        leading = min(conditions, key=lambda condition: sum(len(reader.range(term, low, high)) for term in condition))
        others = [condition for condition in conditions if condition is not leading]
        runs = [reader.rows(term, low, high, newest_first=newest_first) for term in leading]
        last = None
        for row in runs[0] if len(runs) == 1 else heapq.merge(*runs, reverse=newest_first):
            if row != last and all(any(reader.has(term, row) for term in condition) for condition in others):
                yield row
            last = row


class _Reader:
    """One search: it remembers the last block of each field, since rows come in order."""

    def __init__(self, run: SortedRun[ShardHeader]) -> None:
        self._run = run
        self._last: dict[str, tuple[int, memoryview]] = {}

    def range(self, term: Term, low: int, high: int) -> range:
        """The blocks that hold the keys of a term with rows in [low, high], if there are any."""
        base = term.number << ROW_BITS
        return self._run.blocks(term.field, base | low, base | high)

    def rows(self, term: Term, low: int, high: int, *, newest_first: bool) -> Iterator[int]:
        """The rows of a term in [low, high], in order."""
        base = term.number << ROW_BITS
        blocks = self.range(term, low, high)
        for number in reversed(blocks) if newest_first else blocks:
            block = self._block(term.field, number)
            found = block[bisect_left(block, base | low) : bisect_right(block, base | high)]
            for key in reversed(found) if newest_first else found:
                if base | low <= key <= base | high:  # always, but for keys that somebody forged
                    yield key & _ROW_MASK

    def has(self, term: Term, row: int) -> bool:
        """Whether a row has a term."""
        return next(self.rows(term, row, row, newest_first=False), None) is not None

    def _block(self, field: str, number: int) -> memoryview:
        last = self._last.get(field)
        if last is None or last[0] != number:
            last = self._last[field] = number, self._run.block(field, number)
        return last[1]


def write_shard(files: Files, path: str, head: ShardHeader, fields: Iterable[tuple[str, Iterable[pa.Array]]]) -> None:
    """Write a shard of keys that come in order, a field at a time."""
    if files.exists(path):  # a shard that was forgotten for its damage
        files.unlink(path)
    write_run(files, path, MAGIC, head, fields)


def merged_keys(shards: Sequence[Shard]) -> Iterator[tuple[str, Iterator[pa.Array]]]:
    """The keys of neighbours as those of one shard, a field at a time. RunDamaged."""
    fields = dict.fromkeys(section.name for shard in shards for section in shard.run.sections)
    first = shards[0].span.first
    for field in fields:
        yield field, merged([_moved(shard.run.scan(field), shard.span.first - first) for shard in shards])


def _moved(keys: Iterator[pa.Array], rows: int) -> Iterator[pa.Array]:
    """The keys with rows so many higher, which changes nothing in their order."""
    return (pc.add(some, pa.scalar(rows, pa.uint64())) for some in keys)


def name_of(span: Span) -> str:
    """The name of a shard's file: two that cover different events have different ones."""
    return f"{span.first:020d}-{span.last:020d}{SUFFIX}"
