"""Merging runs: their keys as one sequence in order, in memory that does not grow with them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from ullage.engine.arrow import pa


class MergeSource:
    """A sequence in order, and the part of it that is held: what was not handed out of the last one read."""

    def __init__(self, keys: Iterator[pa.Array]) -> None:
        self._keys = keys
        self._part = pa.array([], pa.uint64())

    def refill(self) -> bool:
        """Hold a part that is not empty; False at the end."""
        while not len(self._part):
            part = next(self._keys, None)
            if part is None:
                return False
            self._part = part
        return True

    @property
    def last(self) -> int:
        """The largest key of the part."""
        last: int = self._part[-1].as_py()
        return last

    def take(self, through: int) -> pa.Array:
        """The keys of the part up to this one, which it then holds no more."""
        count = bisect_right(self._part, through, key=lambda key: key.as_py())
        taken, self._part = self._part[:count], self._part[count:]
        return taken


def merged(runs: Sequence[Iterator[pa.Array]]) -> Iterator[pa.Array]:
    """The keys (uint64) of sequences that are in order each, as one that is, some at a time.

    A part of each sequence is held. All keys up to the smallest last one of these parts are at hand, wherever they come
    from: they are sorted and handed out, which uses up one part at least.

        run 1   3 5 9 | ...          cut at 9: 3 4 5 8 9 go out
        run 2   4 8 12 20 | ...      12 20 stay, and the next part of run 1 comes
    """
    sources = [MergeSource(keys) for keys in runs]
    while sources := [source for source in sources if source.refill()]:
        through = min(source.last for source in sources)
        yield pa.concat_arrays([source.take(through) for source in sources]).sort()
