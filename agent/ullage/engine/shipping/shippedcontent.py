"""Which content is in a share, and in which of its packs: runs of bytes by resource claim, in memory.

Contents of one file that were shipped together are one run: memory grows with files and packs, not with contents.
"""

from bisect import bisect_right
from collections.abc import Collection
from typing import Final, NamedTuple

from ullage.engine.model import ContentClaim

IN_LOG: Final = 0
"""In place of a pack: it rides in a log object."""


class ShippedRun(NamedTuple):
    """Bytes [start, end) of a resource claim, and the number of their pack."""

    start: int
    end: int
    pack: int


class ShippedContent:
    """For one thread. Packs are numbered in the order in which they were told; `names` has them, with their lengths."""

    def __init__(self) -> None:
        self.names: dict[int, tuple[str, int]] = {}
        self._runs: dict[int, list[ShippedRun]] = {}
        self._numbers = 0

    def add_pack(self, name: str, length: int) -> int:
        """One more pack; its number."""
        self._numbers += 1
        self.names[self._numbers] = (name, length)
        return self._numbers

    def add(self, claim: ContentClaim, pack: int) -> None:
        """A content is in a pack."""
        runs = self._runs.setdefault(claim.resource, [])
        start, end = claim.offset, claim.end
        at = bisect_right(runs, start, key=lambda run: run.start)
        if at and runs[at - 1].pack == pack and runs[at - 1].end == start:
            at -= 1
            start = runs.pop(at).start
        if at < len(runs) and runs[at].pack == pack and runs[at].start == end:
            end = runs.pop(at).end
        runs.insert(at, ShippedRun(start, end, pack))

    def pack_of(self, claim: ContentClaim) -> int | None:
        """The number of the pack that has a content; None if none has all of it."""
        runs = self._runs.get(claim.resource, ())
        at = bisect_right(runs, claim.offset, key=lambda run: run.start)
        run = runs[at - 1] if at else None
        return run.pack if run is not None and run.end >= claim.end else None

    def forget(self, resource: int) -> None:
        """A resource claim is gone: its number is never used again."""
        self._runs.pop(resource, None)

    def forget_packs(self, packs: Collection[int]) -> None:
        """What is in these counts no more."""
        for pack in packs:
            self.names.pop(pack, None)
        for resource, runs in list(self._runs.items()):
            kept = [run for run in runs if run.pack not in packs]
            if not kept:
                del self._runs[resource]
            elif len(kept) < len(runs):
                self._runs[resource] = kept
