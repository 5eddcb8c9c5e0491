"""When to try again, and when not: the one policy of all transports."""

import random
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec

from ullage_agent.client.errors import NotReachable, Refused

T = TypeVar("T")

DICE = random.SystemRandom()
"""Without a seed, and not the program's own: one that seeds `random` gets the same numbers, however often it waits."""


class Retries(msgspec.Struct, frozen=True, kw_only=True):
    """Transient refusals and broken connections are tried again, after waits that double and never meet."""

    attempts: int = 5
    first_seconds: float = 0.1
    longest_seconds: float = 10.0
    sleep: Callable[[float], None] = time.sleep
    """Passed in, so that tests wait for nothing."""

    def run(self, work: Callable[[], T]) -> T:
        """The result, or what the last attempt raised. `work` is safe to repeat: it only reads, or has a key."""
        for attempt in range(1, self.attempts):
            try:
                return work()
            except Refused as refused:
                if not refused.is_transient:
                    raise
                self._wait(attempt, refused.retry_after_seconds or 0.0)
            except NotReachable:
                self._wait(attempt, 0.0)
        return work()

    def _wait(self, attempt: int, at_least_seconds: float) -> None:
        longest = min(self.longest_seconds, self.first_seconds * 2 ** (attempt - 1))
        self.sleep(min(self.longest_seconds, at_least_seconds) + DICE.uniform(longest / 2, longest))


NEVER = Retries(attempts=1)
"""For work that cannot be repeated."""
