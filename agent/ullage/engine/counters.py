"""Counters that sessions adjust at their commits; a restart begins them anew."""

import threading

from ullage.errors import QuotaReached
from ullage.wire.documents import COUNT_MAX


class Counters:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, int] = {}
        self._owners: dict[str, str] = {}
        """Who named each first, of those who may name only so many."""

    def reserve(self, name: str, owner: str, each_max: int) -> None:
        """A name that somebody is going to use; QuotaReached if it would be one more than they may have. Whether it is
        used or not: a session that is rolled back could be followed by any number of others.
        """
        with self._lock:
            if name in self._values or name in self._owners:
                return
            if sum(each == owner for each in self._owners.values()) >= each_max:
                raise QuotaReached.of(owner, f"named {each_max} counters", "counters_each", "use some of those")
            self._owners[name] = owner

    def add(self, deltas: dict[str, int]) -> None:
        """What one session's commit adds."""
        with self._lock:
            for name, delta in deltas.items():
                # Within its bounds, because a number beyond 64 bits would fail whoever asks for the state, for ever.
                self._values[name] = max(-COUNT_MAX, min(COUNT_MAX, self._values.get(name, 0) + delta))

    def all(self) -> dict[str, int]:
        """Every counter by its name."""
        with self._lock:
            return dict(self._values)
