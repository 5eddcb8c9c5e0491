"""Content files of which clients have descriptors, and what those take that are gone from their directories.

    passed | rewritten, or dead: unlinked | its last holder closes it, and says so: now its blocks are free
             readers read on; nobody can open it anew          ^ a crash of ours changes nothing about that

So what a reader has open keeps nothing from being given back for longer than it reads. What it takes meanwhile is told,
with who has it, and counts as disk. Memory only: descriptors do not outlive the connection over which they were passed,
or a process is gone that would have counted them.

A file that is changed in place, cut or punched, is in nobody's hands meanwhile, and the other way round. Leases are no
help there: what a client reads may die, and its record go, while the file has other contents, which nothing ties to it.
"""

import threading
from collections.abc import Iterable
from typing import NamedTuple

from ullage.clock import Clock
from ullage.engine.model import ResourceClaim
from ullage.engine.repositories import ContentStore


class KeptOpen(NamedTuple):
    """A file that is gone from its directory: what it takes, since when it is gone, and who has it open."""

    resource: int
    container: str
    bytes: int
    since_millis: int
    holders: tuple[str, ...]


class _Gone(NamedTuple):
    """What is given back with the last descriptor: allocated bytes, and those that its container is charged."""

    claim: ResourceClaim
    allocated: int
    charged: int
    since_millis: int


class PassedFiles:
    """Thread-safe."""

    def __init__(self, content: ContentStore, clock: Clock) -> None:
        self._content = content
        self._clock = clock
        self._lock = threading.Lock()
        self._holders: dict[int, list[str]] = {}
        self._gone: dict[int, _Gone] = {}
        self._changing: set[int] = set()

    def passed(self, index: int, holder: str) -> bool:
        """Somebody is about to be given a descriptor of a file: said before it is opened. False, and they must not be,
        while it is changed in place.
        """
        with self._lock:
            if index in self._changing:
                return False
            self._holders.setdefault(index, []).append(holder)
            return True

    def indexes(self) -> set[int]:
        """Those of which somebody has a descriptor."""
        with self._lock:
            return set(self._holders)

    def begin_change(self, index: int) -> bool:
        """Whether a file may be changed in place: nobody has it, nor is given it until `end_change`."""
        with self._lock:
            if index in self._holders:
                return False
            self._changing.add(index)
            return True

    def end_change(self, indexes: Iterable[int]) -> None:
        """These are not changed any more, whatever has become of it."""
        with self._lock:
            self._changing.difference_update(indexes)

    def given_back(self, indexes: Iterable[int], holder: str) -> None:
        """Somebody has closed their descriptors of these, or was never given them."""
        for index in indexes:
            with self._lock:
                holders = self._holders.get(index, [])
                if holder in holders:
                    holders.remove(holder)
                if holders:
                    continue
                self._holders.pop(index, None)
                gone = self._gone.pop(index, None)
            if gone is not None:
                self._content.container_of(gone.claim).add_bytes(-gone.charged)

    def keeps(self, claim: ResourceClaim, allocated: int, charged: int) -> bool:
        """Whether somebody still has a file that was just unlinked: then it is told of until they let go."""
        with self._lock:
            if claim.index not in self._holders:
                return False
            self._gone[claim.index] = _Gone(claim, allocated, charged, self._clock.now_millis())
            return True

    def kept(self) -> list[KeptOpen]:
        """Those that are gone and still take their room."""
        with self._lock:
            return [
                KeptOpen(
                    index,
                    gone.claim.container,
                    gone.allocated,
                    gone.since_millis,
                    tuple(sorted(set(self._holders.get(index, ())))),
                )
                for index, gone in self._gone.items()
            ]
