"""How a read of the table `provenance` is split: each task reads a bounded stretch of a node's sequence."""

import math
from collections.abc import Sequence
from typing import Final

from ullage.wire.predicates import Column, Predicate, asked_of_any, bounds

PART_EVENTS: Final = 100_000
"""Events of one task, at least: seconds of an agent's time."""

PARTS_MAX: Final = 1_000
"""Tasks a node, however much history it has."""

BY_INDEX: Final = frozenset({Column("uuid"), Column("parents"), Column("children")})

Stretch = tuple[int, int | None]
"""The sequence after which it begins, and the last one; None: as far as there are any when the task runs."""


def stretches(first: int, last: int, rest: Predicate, after: int, through: int | None) -> Sequence[Stretch]:
    """Where a node has events from `first` to `last`, and those are wanted that `rest` chooses, `after` a sequence and
    `through` another one. What an index finds is one stretch, since it takes no longer for many.
    """
    found = bounds(rest, "sequence")
    begin = max(first - 1, after, _whole(found.first - 1, 0))
    end = min(last, last if through is None else through, _whole(found.last, last))
    is_open = through is None and math.isinf(found.last)
    if begin >= end and not is_open:
        return []
    step = max(PART_EVENTS, -(-(end - begin) // PARTS_MAX))
    starts = [begin] if asked_of_any(rest, BY_INDEX) is not None else [*range(begin, end, step)] or [begin]
    ends: list[int | None] = [*starts[1:], None if is_open else end]
    return list(zip(starts, ends, strict=True))


def _whole(number: float, otherwise: int) -> int:
    return otherwise if math.isinf(number) else int(number)
