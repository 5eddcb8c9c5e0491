"""Which runs are merged, and when: so that there are few, and nothing is written again often."""

from collections.abc import Callable, Sequence

GROWTH = 4
"""Runs are merged where none of them is more than a fourth of the whole: so a row is written again only when its run
grows fourfold, and a search looks at a few runs for each time that can happen.
"""


def mergeable(sizes: Sequence[int], fits: Callable[[int, int], bool] = lambda _start, _end: True) -> slice | None:
    """Which neighbours should be one, as many as can be; None: none. `fits` says of places from a start to an end
    whether what they would make is not too large.
    """
    best: slice | None = None
    for start in range(len(sizes)):
        whole = largest = 0
        for end, size in enumerate(sizes[start:], start=start + 1):
            whole += size
            largest = max(largest, size)
            if not fits(start, end):
                break
            if largest * GROWTH <= whole and (best is None or end - start > best.stop - best.start):
                best = slice(start, end)
    return best
