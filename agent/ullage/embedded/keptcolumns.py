"""Columns of FlowFiles that were made once and are kept for the next reader: programs read a table again, action by
action and snapshot by snapshot.

A swap file never changes as long as it is there, so its columns are those of every snapshot that shows it. Those of
resident FlowFiles are of one snapshot, and end with it. What is alike row after row takes no more room than one row.
"""

import threading
from collections import OrderedDict
from collections.abc import Hashable
from itertools import count
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from ullage.clock import Clock

KEPT_SECONDS: Final = 600.0
"""How long a column waits for its next reader: a session at a notebook, or the next run of a job."""

COLUMN_BYTES: Final = 500
"""Of a column beside its values: its place, and objects of Arrow's."""

RUNS_WORTH: Final = 4
"""A column of which like values follow each other is kept as runs where these take no more than the fourth part: they
are made rows again in a hundredth of the time that it took to make them.
"""


class KeptColumns:
    """Those that a snapshot finds in a room, and leaves there; without a room it keeps nothing. Thread-safe."""

    def __init__(self, room: "Room | None" = None) -> None:
        self._room = room
        self.number = 0 if room is None else next(room.snapshots)
        """The later it was taken, the higher."""

        self.is_over = False
        """Set with the room's lock held."""

    def find(self, place: Hashable, name: str, *, is_swapped: bool) -> pa.Array | None:
        """As it is kept, perhaps as runs; None if it has to be made. `place`: a swap file's name, or what tells a piece
        from the snapshot's others.
        """
        return None if self._room is None else self._room.find(self._key(place, name, is_swapped), self)

    def keep(self, place: Hashable, name: str, column: pa.Array, *, is_swapped: bool) -> None:
        """If there is room."""
        if self._room is not None:
            self._room.keep(self._key(place, name, is_swapped), column, self)

    def end(self) -> None:
        """Give back what no other snapshot can read; what is still read from goes with its reader."""
        if self._room is not None:
            self._room.end(self)

    def _key(self, place: Hashable, name: str, is_swapped: bool) -> "Key":
        return (None if is_swapped else self, place, name)


Key = tuple[KeptColumns | None, Hashable, str]
"""Whose column it is, None for any snapshot's; the piece; its name."""


class _KeptColumn:
    """A column, how many bytes it counts, and its last reader: of which snapshot, and when, in monotonic seconds."""

    __slots__ = ("column", "number", "seconds", "size")

    def __init__(self, column: pa.Array) -> None:
        self.column = column
        self.size = column.nbytes + COLUMN_BYTES
        self.number = 0
        self.seconds = 0.0


class Room:
    """So many bytes of columns, for all snapshots together. Thread-safe."""

    def __init__(self, bytes_max: int, clock: Clock) -> None:
        self.snapshots = count(1)
        self._left = bytes_max
        self._clock = clock
        self._lock = threading.Lock()
        self._columns: OrderedDict[Key, _KeptColumn] = OrderedDict()
        """Those first that nobody has read for longest."""

    @property
    def left(self) -> int:
        """Bytes."""
        return self._left

    def find(self, key: Key, reader: KeptColumns) -> pa.Array | None:
        """As it is kept; None if it has to be made."""
        with self._lock:
            kept = self._columns.get(key)
            if kept is not None:
                self._read(key, kept, reader)
        return None if kept is None else kept.column

    def keep(self, key: Key, column: pa.Array, reader: KeptColumns) -> None:
        """If there is room, or columns that only older snapshots have read give it.

        Those of the same snapshot give none: tables are read from end to end, so that the last pieces would drive out
        the first, each time.
        """
        kept = _KeptColumn(_compact(column))
        with self._lock:
            if reader.is_over or key in self._columns:
                return
            while kept.size > self._left:
                oldest = next(iter(self._columns), None)
                if oldest is None or self._columns[oldest].number >= reader.number:
                    return
                self._drop(oldest)
            self._left -= kept.size
            self._columns[key] = kept
            self._read(key, kept, reader)

    def end(self, reader: KeptColumns) -> None:
        """Nobody but this reader could ask for its own ones."""
        with self._lock:
            reader.is_over = True
            for key in [key for key in self._columns if key[0] is reader]:
                self._drop(key)

    def expire(self) -> None:
        """Give up what nobody has read for long: its swap file may be gone."""
        until = self._clock.monotonic() - KEPT_SECONDS
        with self._lock:
            while self._columns and self._columns[oldest := next(iter(self._columns))].seconds <= until:
                self._drop(oldest)

    def _read(self, key: Key, kept: _KeptColumn, reader: KeptColumns) -> None:
        kept.number, kept.seconds = max(kept.number, reader.number), self._clock.monotonic()
        self._columns.move_to_end(key)

    def _drop(self, key: Key) -> None:
        self._left += self._columns.pop(key).size


def in_type(column: pa.Array, type: pa.DataType) -> pa.Array:
    """The same column, with or without runs as the type says."""
    if column.type == type:
        return column
    return pc.run_end_encode(column) if pa.types.is_run_end_encoded(type) else pc.run_end_decode(column)


def _compact(column: pa.Array) -> pa.Array:
    """The same, or its runs."""
    if pa.types.is_nested(column.type):
        return column
    runs = pc.run_end_encode(column)
    return runs if runs.nbytes * RUNS_WORTH <= column.nbytes else column
