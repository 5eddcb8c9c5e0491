"""How much of one kind each principal has at a time, so that nobody has all of it."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from ullage.errors import QuotaReached


class Quota:
    """What principals have of one kind. Thread-safe."""

    def __init__(self, name: str, what: str, each_max: int) -> None:
        """`name` is that of the limit, `what` how people call what is counted."""
        self._name = name
        self._what = what
        self._each_max = each_max
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def take(self, owner: str) -> None:
        """One more, until `give_back`. QuotaReached if that is too many; of no name, which is nobody's own, never."""
        with self._lock:
            if owner and self._counts[owner] >= self._each_max:
                held = f"{self._each_max} {self._what}"
                raise QuotaReached.of(owner, held, self._name, "wait until some have ended")
            self._counts[owner] += 1

    def give_back(self, owner: str) -> None:
        """One less."""
        with self._lock:
            self._counts[owner] -= 1
            if not self._counts[owner]:
                del self._counts[owner]  # else everybody who ever came would be remembered

    @contextmanager
    def counted(self, owner: str) -> Iterator[None]:
        """One more meanwhile."""
        self.take(owner)
        try:
            yield
        finally:
            self.give_back(owner)
