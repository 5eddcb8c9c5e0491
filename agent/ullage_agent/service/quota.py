"""How much of one kind each principal has at a time, so that nobody has all of it."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from ullage.errors import QuotaReached
from ullage_agent.service.access import Principal


class Quota:
    """What principals have of one kind. Thread-safe."""

    def __init__(self, name: str, what: str, each_max: int) -> None:
        """`name` is that of the limit, `what` how people call what is counted."""
        self._name = name
        self._what = what
        self._each_max = each_max
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def take(self, owner: Principal) -> None:
        """One more, until `give_back`. QuotaReached if that is more than their share."""
        with self._lock:
            share = owner.share(self._each_max)
            if share is not None and self._counts[owner.name] >= share:
                raise QuotaReached.of(owner.name, f"{share} {self._what}", self._name, "wait until some have ended")
            self._counts[owner.name] += 1

    def give_back(self, owner: Principal) -> None:
        """One less."""
        with self._lock:
            self._counts[owner.name] -= 1
            if not self._counts[owner.name]:
                del self._counts[owner.name]  # else everybody who ever came would be remembered

    @contextmanager
    def counted(self, owner: Principal) -> Iterator[None]:
        """One more meanwhile."""
        self.take(owner)
        try:
            yield
        finally:
            self.give_back(owner)
