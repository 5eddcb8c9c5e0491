"""What a share had when this repository last looked, noted in its root now and then: after a start figures are told by
it until the share was read. Nothing is decided by it.
"""

import os
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

import msgspec

from ullage.clock import Clock
from ullage.engine.files import Files, read_file, replace_file
from ullage.engine.wal.format import UNDECODABLE

KNOWN: Final = "shipped-through.json"
"""In the root of a repository that ships, always."""

KNOWN_MILLIS: Final = 10_000
"""So long at least lies between two notes."""


class LastKnown(NamedTuple):
    """Up to which transaction a share had all; that was as of another, and so many bytes of those behind the first
    waited then.
    """

    place: str
    through: int
    as_of: int
    waiting_bytes: int


class WaitingOne(Protocol):
    """A transaction that waits to be shipped."""

    id: int

    @property
    def bytes(self) -> int:
        """What is held for it."""
        ...


class LastLook:
    """For one thread. `known` is what is known before the share was read, None if nothing is."""

    def __init__(self, files: Files, root: str, clock: Clock, place: str) -> None:
        self._files = files
        self._path = os.path.join(root, KNOWN)
        self._clock = clock
        self._place = place
        self._noted_millis = 0
        self._noted = self._read()
        self.known = self._noted

    def add(self, waiting: Sequence[WaitingOne], durable: int) -> None:
        """What was committed since waits as well."""
        if self.known is not None:
            behind = waiting[bisect_right(waiting, self.known.as_of, key=lambda each: each.id) :]
            waiting_bytes = self.known.waiting_bytes + sum(each.bytes for each in behind)
            is_all = len(behind) == durable - self.known.as_of  # unless a checkpoint came between
            self.known = self.known._replace(as_of=durable, waiting_bytes=waiting_bytes) if is_all else None

    def look(self, through: int, as_of: int, waiting_bytes: int, *, is_known: bool) -> None:
        """What the share has now, where that is known."""
        self.known = LastKnown(self._place, through, as_of, waiting_bytes) if is_known else None

    def forget(self) -> None:
        """It is not known any more what waits."""
        self.known = None

    def note(self, *, is_last: bool = False) -> None:
        """For the next start, which can't ask the bucket yet: now and then, if it has changed."""
        now = self._clock.now_millis()
        is_due = is_last or abs(now - self._noted_millis) >= KNOWN_MILLIS
        if self.known is not None and self.known != self._noted and is_due:
            self._noted, self._noted_millis = self.known, now
            with suppress(OSError):  # the disk may be full, when shipping must go on: a start knows less then, no more
                replace_file(self._files, self._path, msgspec.json.encode(self.known))

    def _read(self) -> LastKnown | None:
        try:
            if not self._files.exists(self._path):
                return None
            found = msgspec.json.decode(read_file(self._files, self._path), type=LastKnown)
        except (OSError, *UNDECODABLE):  # then nothing is known, as if it were not there
            return None
        return found if found.place == self._place else None
