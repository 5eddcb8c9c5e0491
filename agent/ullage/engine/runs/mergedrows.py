"""Rows of several runs as those of one: of each key the newest, in the order of keys, a block of each run at a time.

A row with an empty value says that its key is deleted. It hides older rows of the key, and so it may only go where
there is none that it could hide: in a merge that includes the oldest run of the key space.

    runs 1: k   2: -k   3: ...       merge 2, 3: -k stays       merge 1, 2: both go
"""

from collections.abc import Iterable, Iterator, Sequence
from heapq import merge

from ullage.engine.runs.rows import Key, RunRow

_Aged = tuple[Key, int, bytes]


def merged_rows(runs: Sequence[Iterable[RunRow]], *, has_oldest: bool) -> Iterator[RunRow]:
    """The rows of runs, which come oldest first. `has_oldest`: no run of the key space is older than these."""
    last: Key | None = None
    for key, _, value in merge(*(_aged(rows, age) for age, rows in enumerate(runs))):
        if key != last and (value or not has_oldest):
            yield RunRow(key, value)
        last = key


def _aged(rows: Iterable[RunRow], age: int) -> Iterator[_Aged]:
    """Rows such that of one key the newest run's comes first."""
    for key, value in rows:
        yield key, -age, value
