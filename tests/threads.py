"""Work beside a test, whose errors fail it."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

JOIN_SECONDS = 60
"""Longer than any healthy test waits."""


def begin(work: Callable[[], T]) -> Future[T]:
    """Work that goes on in a thread of its own; `done()` says whether it is over, `result(60)` how it ended."""
    return ThreadPoolExecutor(1).submit(work)


@contextmanager
def in_thread(*works: Callable[[], object]) -> Iterator[None]:
    """Run the works, a thread each, beside the body; wait for them at its end and raise what they raised."""
    begun = [begin(work) for work in works]
    yield
    for each in begun:
        each.result(JOIN_SECONDS)


def together(*works: Callable[[], object]) -> None:
    """Run the works at the same time, a thread each, and raise what they raised."""
    with in_thread(*works):
        pass
