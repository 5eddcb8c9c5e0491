"""Blocks of runs that were read lately, in bounded memory."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class Sized(Protocol):
    """A block as its run has it."""

    @property
    def nbytes(self) -> int:
        """What it takes in memory."""
        ...


Block = TypeVar("Block", bound=Sized)

BlockKey = tuple[int, str, int]
"""A run's number in this process, a section, a block."""


class BlockCache(Generic[Block]):
    """Verified blocks, the least recently used of which make room. Thread-safe; what is kept is not changed.

    Blocks of a run that is gone are asked for no more, so they make room before others.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._blocks: OrderedDict[BlockKey, Block] = OrderedDict()
        self._bytes = 0

    @property
    def bytes(self) -> int:
        """Bytes of all blocks."""
        return self._bytes

    def get(self, key: BlockKey, read: Callable[[], Block]) -> Block:
        """A block, which is read and kept where it is not there yet; two threads may both read it."""
        found = self.find(key)
        if found is None:
            found = read()
            self.keep(key, found)
        return found

    def find(self, key: BlockKey) -> Block | None:
        """A block that is kept."""
        with self._lock:
            found = self._blocks.get(key)
            if found is not None:
                self._blocks.move_to_end(key)
            return found

    def keep(self, key: BlockKey, block: Block) -> None:
        """Keep a block, if it is not larger than all that may be kept."""
        with self._lock:
            if key in self._blocks:  # another thread has read it meanwhile
                return
            self._blocks[key] = block
            self._bytes += block.nbytes
            while self._bytes > self._bytes_max:
                _, dropped = self._blocks.popitem(last=False)
                self._bytes -= dropped.nbytes
