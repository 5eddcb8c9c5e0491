"""Scans: who reads which share of a snapshot, settled when a reader asks, so that it may be one that lies near it.

    slot 7, near b  ->  a share of b's that nobody has      written down: whoever runs slot 7 again gets the same
                        none of b's is left: wait, or one of a home whose own readers stay away

It is the delay scheduling of Zaharia et al. (EuroSys 2010), turned around: there a scheduler that knows the places of
tasks waits with offering; here readers whose scheduler does not know them wait with taking.

A reader goes away with nothing only once no share is left. So with as many slots as shares, or more, each share is
read, and by one slot.
"""

import enum
import threading
from collections.abc import Collection, Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta

HOMES_MAX: Final = 10_000
SCANS_MAX: Final = 1_000
"""Scans of one snapshot: tables that a program reads in turn, each some hundred bytes for each home."""

Name = Annotated[str, Meta(max_length=255)]


class Home(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A node of which shares are read. `where` is for whoever reads one: the scan does not look into it."""

    shares: Annotated[int, Meta(ge=1, le=100_000)]
    where: Annotated[str, Meta(max_length=4_096)] = ""


class BoundState(enum.StrEnum):
    """What a slot is to do."""

    READ = "read"
    WAIT = "wait"
    NONE = "none"


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a slot; with `read` the share: number `share` of the `shares` of its home."""

    state: BoundState
    home: str = ""
    share: int = 0
    shares: int = 0
    where: str = ""


class Scan:
    """One reading of a snapshot. Thread-safe."""

    def __init__(self, homes: Mapping[str, Home], patience_seconds: float) -> None:
        self._homes = dict(homes)
        self._patience_seconds = patience_seconds
        self._lock = threading.Lock()
        self._given = dict.fromkeys(homes, 0)
        self._bound: dict[int, tuple[str, int]] = {}
        self._seen: dict[str, float] = {}
        self._began: float | None = None

    def bind(self, slot: int, near: Collection[str], now: float) -> Bound:
        """The slot's share: the one it got before, else the next of a home that is `near`, else of one whose own
        readers have not asked for a while. `now` is monotonic, in seconds.
        """
        with self._lock:
            if self._began is None:
                self._began = now
            self._seen.update((name, now) for name in near if name in self._homes)
            if slot not in self._bound:
                home = self._choose(near, now)
                if home is None:
                    return Bound(state=BoundState.WAIT if self._left() else BoundState.NONE)
                self._bound[slot] = (home, self._given[home])
                self._given[home] += 1
            home, share = self._bound[slot]
        found = self._homes[home]
        return Bound(state=BoundState.READ, home=home, share=share, shares=found.shares, where=found.where)

    def _left(self) -> dict[str, int]:
        """Homes of which shares are left, and how many."""
        left = {name: home.shares - self._given[name] for name, home in self._homes.items()}
        return {name: count for name, count in left.items() if count}

    def _choose(self, near: Collection[str], now: float) -> str | None:
        """Of several homes the one that has most left. A reader that is near none of them waits for nobody."""
        left = self._left()
        mine = [name for name in left if name in near]
        if not mine:
            is_anywhere = not any(name in self._homes for name in near)
            began = now if self._began is None else self._began
            mine = [n for n in left if is_anywhere or now - self._seen.get(n, began) >= self._patience_seconds]
        return max(mine, key=lambda name: (left[name], name)) if mine else None
