"""When to try again, and when not: the one policy of all transports."""

import random
import time
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from ullage.errors import (
    AccessUnknown,
    KeyInUse,
    NotReachable,
    NotRestored,
    RepositoryLocked,
    ServiceBusy,
    ServiceStopping,
    SessionBusy,
)

T = TypeVar("T")

DICE = random.SystemRandom()
"""Without a seed, and not the program's own: one that seeds `random` gets the same numbers, however often it waits."""


PASSING: Final = (
    AccessUnknown,
    KeyInUse,
    NotReachable,
    NotRestored,
    RepositoryLocked,
    ServiceBusy,
    ServiceStopping,
    SessionBusy,
)
"""What says nothing about the request: a service that is busy, starting or stopping, or not heard."""


DOUBLINGS_MAX: Final = 60
"""Any wait is the longest by then, and a power of thousands of attempts is no float any more."""


class Retries(msgspec.Struct, frozen=True, kw_only=True):
    """Broken connections, and what passes by itself, are tried again, after waits that double and never meet.

    What only passes if somebody does something (a full queue, a full disk) is the program's to wait for. `attempts` are
    all there are, the first one included; the waits between them begin with `first_seconds` and double up to
    `longest_seconds`, or are what the node asked for.

    >>> repository = ullage.connect("http://127.0.0.1:8480", retries=Retries(attempts=3, longest_seconds=1.0))
    """

    attempts: int = 5
    first_seconds: float = 0.1
    longest_seconds: float = 10.0
    within_seconds: float | None = None
    """No attempt begins later than so long after the first; None: only their number counts."""
    passing: tuple[type[Exception], ...] = PASSING
    """What is tried again."""
    sleep: Callable[[float], None] = time.sleep
    monotonic: Callable[[], float] = time.monotonic
    """Both passed in, so that tests wait for nothing."""

    def run(self, work: Callable[[], T]) -> T:
        """The result, or what the last attempt raised. `work` is safe to repeat: it only reads, or has a key.

        >>> Retries(attempts=2).run(lambda: repository.state().queues)
        0
        """
        began = self.monotonic()
        for attempt in range(1, self.attempts):
            try:
                return work()
            except self.passing as error:
                wait = self._wait(attempt, getattr(error, "retry_after_seconds", None) or 0)
                if self.within_seconds is not None and self.monotonic() - began + wait > self.within_seconds:
                    raise
                self.sleep(wait)
        return work()

    def _wait(self, attempt: int, at_least_seconds: float) -> float:
        longest = min(self.longest_seconds, self.first_seconds * 2 ** min(attempt - 1, DOUBLINGS_MAX))
        return min(self.longest_seconds, at_least_seconds) + DICE.uniform(longest / 2, longest)


NEVER = Retries(attempts=1)
"""For work that cannot be repeated."""
