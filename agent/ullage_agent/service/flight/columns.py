"""Columns of a snapshot's FlowFiles that are kept for its next reader: programs read a table again, action by action.

To decode a swapped FlowFile costs an agent ten times what it costs to send one. What is kept is bounded, for all
snapshots together. What finds no room is decoded again, and nothing makes room for it: tables are read from end to end,
so that the last pieces would drive out the first, each time.
"""

import threading
from collections.abc import Hashable

import pyarrow as pa


class Room:
    """So many bytes, for everybody."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self.lock = threading.Lock()

    def take(self, count: int) -> bool:
        """Whether there is so much; with `lock` held."""
        is_there = self._bytes + count <= self._bytes_max
        self._bytes += count if is_there else 0
        return is_there

    def give_back(self, count: int) -> None:
        """With `lock` held."""
        self._bytes -= count


class KeptColumns:
    """Those of one snapshot, by piece and name. Thread-safe."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._bytes = 0
        self._is_over = False
        self._columns: dict[tuple[Hashable, str], pa.Array] = {}

    def find(self, place: Hashable, name: str) -> pa.Array | None:
        """None if it has to be made."""
        return self._columns.get((place, name))

    def keep(self, place: Hashable, name: str, column: pa.Array) -> None:
        """If there is room."""
        with self._room.lock:
            if not self._is_over and (place, name) not in self._columns and self._room.take(column.nbytes):
                self._columns[place, name] = column
                self._bytes += column.nbytes

    def end(self) -> None:
        """Give the room back; what is still read from goes with its reader."""
        with self._room.lock:
            self._is_over = True
            self._columns = {}
            self._room.give_back(self._bytes)
            self._bytes = 0


def keeps_nothing() -> KeptColumns:
    """For a moment that nobody comes back to."""
    return KeptColumns(Room(0))
