"""Holds on provenance events: a reader that follows them, and has not read those after a sequence yet.

They last as long as somebody renews them, and are not logged: a reader that is still there renews its own soon after a
restart, and until then the service holds everything (`embedded/bulk.py`).
"""

import threading
from typing import NamedTuple

HOLDS_MAX = 1_000
"""Readers that follow events at a time: more are a program that forgets its own."""

BYTES_SHARE_MAX = 2
"""A hold keeps event files until they have this many times the bytes of spec.provenance.maxStorageSize: a reader that
lags must not fill the disk."""


class Hold(NamedTuple):
    """Events after this sequence are wanted still, until then."""

    after: int
    expires_millis: int


class Holds:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holds: dict[str, Hold] = {}

    def set(self, holder: str, hold: Hold, now_millis: int) -> bool:
        """Hold, or hold anew; False if too many do."""
        with self._lock:
            self._forget(now_millis)
            if holder not in self._holds and len(self._holds) >= HOLDS_MAX:
                return False
            self._holds[holder] = hold
            return True

    def end(self, holder: str) -> None:
        """The holder wants nothing any more."""
        with self._lock:
            self._holds.pop(holder, None)

    def wanted_after(self, now_millis: int) -> int | None:
        """The least sequence after which events are held; None: nobody holds any."""
        with self._lock:
            self._forget(now_millis)
            return min((hold.after for hold in self._holds.values()), default=None)

    def _forget(self, now_millis: int) -> None:
        self._holds = {name: hold for name, hold in self._holds.items() if hold.expires_millis > now_millis}
