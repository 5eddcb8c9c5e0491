"""Numbers for content files: never used twice, whatever the clock and the crashes do.

A block of them is reserved through the log before one is handed out, and a start goes on behind the last block. In a
block they are handed out section by section, since a file's number says in which section's directory it lies:

    of 1,024 sections:   1, 1025, 2049 ... 15361 (section 1) | 2, 1026, 2050 ... (section 2) | 3 ...

Files that are made one after the other then share a directory, and one sync makes the names of many durable.
"""

import threading
from collections.abc import Callable

RUN = 16
"""Numbers in a row of one section: at most so many files are made ahead of need."""

BLOCK_MIN = 4_096
"""Numbers reserved by one transaction: rarely enough to cost nothing, few enough that a crash wastes next to none."""


class Indexes:
    """Hands out resource claim indexes. Thread-safe; the lock is held while a block is reserved."""

    def __init__(self, sections: int, reserve: Callable[[int], None]) -> None:
        self._reserve = reserve
        self._stride = sections * max(1, -(-BLOCK_MIN // (RUN * sections)))
        self._block = RUN * self._stride
        self._lock = threading.Lock()
        self.start_after(0)

    def start_after(self, ceiling: int) -> None:
        """Numbers up to `ceiling` may have been used before."""
        self._base = ceiling + 1 - self._block
        self._taken = self._block

    def take(self, count: int = 1) -> list[int]:
        """One number, or up to `count` of one section."""
        with self._lock:
            if self._taken == self._block:
                base = self._base + self._block
                self._reserve(base + self._block - 1)
                self._base, self._taken = base, 0
            row, first = divmod(self._taken, RUN)
            count = min(count, RUN - first)
            self._taken += count
            return [self._base + row + step * self._stride for step in range(first, first + count)]
