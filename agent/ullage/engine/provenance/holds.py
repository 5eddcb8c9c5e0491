"""Holds on provenance events: a reader that follows them, and has not read those after a sequence yet.

They last as long as somebody renews them, and are not logged: a reader that is still there renews its own soon after a
restart, and until then the service holds everything (`embedded/bulk.py`).
"""

import threading
from collections.abc import Iterable
from typing import NamedTuple

from ullage.contract import ProvenanceSettings

HOLDS_MAX = 1_000
"""Readers that follow events at a time: more are a program that forgets its own."""

BYTES_SHARE_MAX = 2
"""A hold keeps events until all together take this many times spec.provenance.maxStorageSize: a reader that lags must
not fill the disk."""


class Hold(NamedTuple):
    """Events after this sequence are wanted still, until then. `began_millis` is when its holder held events first."""

    after: int
    expires_millis: int
    began_millis: int = 0


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
            known = self._holds.get(holder)
            self._holds[holder] = hold._replace(began_millis=now_millis if known is None else known.began_millis)
            return True

    def all(self, now_millis: int) -> dict[str, Hold]:
        """Those that last, by their holders."""
        with self._lock:
            self._forget(now_millis)
            return dict(self._holds)

    def count(self, prefix: str, *, but: str = "") -> int:
        """How many holders' names begin so, one name apart."""
        with self._lock:
            return sum(name.startswith(prefix) and name != but for name in self._holds)

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


class Retained(NamedTuple):
    """Events that go together: when the newest of them was, how much room they take, and their last sequence."""

    millis: int
    bytes: int
    last_sequence: int


def expired(
    kept: Iterable[Retained], total: int, settings: ProvenanceSettings, now_millis: int, wanted_after: int | None
) -> int:
    """How many of the oldest have to go, of `total` bytes. Counted once from figures, so it ends whatever can be
    removed.

    Some go by age when their newest event is too old, and by bytes while all together are too many; the last may go.
    What a reader wants still, the events after `wanted_after`, stays in either case, until all together are
    `BYTES_SHARE_MAX` times too many.
    """
    bytes_max = settings.max_storage_size
    count = 0
    for each in kept:
        if each.millis > now_millis - settings.max_storage_time and total <= bytes_max:
            break
        if wanted_after is not None and each.last_sequence > wanted_after and total <= BYTES_SHARE_MAX * bytes_max:
            break
        total -= each.bytes
        count += 1
    return count
