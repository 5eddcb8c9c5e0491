"""Stretches of a file, each from a byte up to another one: pure computation."""

from collections.abc import Iterable, Sequence

Span = tuple[int, int]
"""Where it begins, and where it ends: the byte there is not in it."""


def merged(spans: Iterable[Span]) -> list[Span]:
    """All bytes that are in some span, in order; what touches is one span.

    >>> merged([(5, 9), (1, 3), (3, 4), (8, 10), (7, 7)])
    [(1, 4), (5, 10)]
    """
    found: list[Span] = []
    for begin, end in sorted(spans):
        if begin >= end:
            continue
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def between(spans: Sequence[Span], end: int) -> list[Span]:
    """What is in none of these, which are in order and apart, up to a byte.

    >>> between([(2, 4), (6, 9)], 8)
    [(0, 2), (4, 6)]
    """
    found: list[Span] = []
    at = 0
    for begin, behind in spans:
        if begin >= end:
            break
        if begin > at:
            found.append((at, begin))
        at = behind
    if at < end:
        found.append((at, end))
    return found


def common(some: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """What is in both; each has its spans in order and apart.

    >>> common([(0, 4), (6, 9)], [(2, 7), (8, 20)])
    [(2, 4), (6, 7), (8, 9)]
    """
    found: list[Span] = []
    one = other = 0
    while one < len(some) and other < len(others):
        begin = max(some[one][0], others[other][0])
        end = min(some[one][1], others[other][1])
        if begin < end:
            found.append((begin, end))
        if some[one][1] < others[other][1]:
            one += 1
        else:
            other += 1
    return found


def whole_blocks(spans: Iterable[Span], block: int) -> list[Span]:
    """Of each span the blocks that are in it from their first byte to their last one.

    >>> whole_blocks([(1, 12), (12, 15), (15, 17)], 4)
    [(4, 12)]
    """
    found = []
    for begin, end in spans:
        first, behind = -(-begin // block) * block, end // block * block
        if first < behind:
            found.append((first, behind))
    return found


def total(spans: Iterable[Span]) -> int:
    """The bytes in spans that are apart."""
    return sum(end - begin for begin, end in spans)
