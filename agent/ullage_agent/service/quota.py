"""How much of one kind each principal has at a time, so that neither one has all of it nor a few together.

Of what the others leave each may have the same part. Of 32 places of which one may have 24:

    who came first     24    three quarters of 32
    the second          6    of the 8 that are left
    the third           1    of 2; one in any case, as long as any is free
"""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from ullage.errors import QuotaReached, ServiceBusy
from ullage_agent.service.access import Principal
from ullage_agent.service.limits import Limits


class Quota:
    """What principals have of one kind. Thread-safe."""

    def __init__(self, name: str, what: str, each_max: int, most: int) -> None:
        """`name` is that of the limit, `what` how people call what is counted; of `most` one that is alone may have
        `each_max`.
        """
        self._name = name
        self._what = what
        self._each_max = each_max
        self._most = most
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def take(self, owner: Principal) -> None:
        """One more, until `give_back`. QuotaReached if that is more than their share."""
        with self._lock:
            count = self._counts[owner.name]
            others = self._counts.total() - count
            share = owner.share(max(1, (self._most - others) * self._each_max // self._most))
            if share is not None and count >= share:
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


class Lane:
    """So many calls at a time, which calls of another lane take no place of. Thread-safe."""

    def __init__(self, limit: str, what: str, most: int, each_max: int) -> None:
        self._what = what
        self._most = most
        self._slots = threading.BoundedSemaphore(most)
        self._quota = Quota(limit, what, each_max, most)

    @contextmanager
    def counted(self, principal: Principal) -> Iterator[None]:
        """One of them; ServiceBusy beyond, QuotaReached for too many of one principal."""
        if not self._slots.acquire(blocking=False):
            raise ServiceBusy(f"{self._most} {self._what} are under way already")
        try:
            with self._quota.counted(principal):
                yield
        finally:
            self._slots.release()


def streams_of(limits: Limits) -> Lane:
    """What moves much and lasts as long as its client likes: streams of Flight, and tables over the Unix socket."""
    return Lane("flight_calls_each", "streams", limits.flight_calls, limits.flight_calls_each)
