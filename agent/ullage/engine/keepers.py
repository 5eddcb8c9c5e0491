"""Who wants files kept for a while that somebody else would remove: a backup that copies them, for one."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Keepers:
    """How many there are: true while there is one. Whoever removes files asks under the same lock, and so never begins
    while somebody relies on them.
    """

    def __init__(self, lock: "threading.Lock | threading.RLock") -> None:
        self._lock = lock
        self._count = 0

    def __bool__(self) -> bool:
        return self._count > 0

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """One more meanwhile."""
        with self._lock:
            self._count += 1
        try:
            yield
        finally:
            with self._lock:
                self._count -= 1
