"""When requests over HTTP are begun: of each who asks one at a time, and not while enough of theirs wait for a turn.

Beginning one takes the event loop half a millisecond, also if it is refused. Whoever sends hundreds at once, or sends
the next as soon as one is answered, would have everybody else's wait behind all of them at each step. A request that
has been begun and waits for its turn is no nearer to its end than one that has not been begun, so while several are
there no more are begun than what keeps a principal's turns busy.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ullage_agent.service.fairness import FairTurns

AHEAD_MAX: Final = 16
"""Requests of one principal that wait for a turn while others are not begun. It shares its turns with what it asks over
Flight and the Unix socket, of which it may have a hundred waiting: with fewer over HTTP these would starve.
"""

HELD_MAX: Final = 512
"""Requests of one that are not begun: each holds what has come of its body, though its client may be gone. What comes
beyond is begun, and meets the quotas.
"""


class Starts:
    """Those of one event loop, which makes all calls."""

    def __init__(self, turns: FairTurns) -> None:
        self._turns = turns
        self._begun: set[str] = set()
        """Whose requests were begun since the loop last looked at what has come."""

        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """Requests that are not begun, of each."""

        self._ahead: Counter[str] = Counter()
        """How many of each one's wait for a turn."""

        self._is_coming = False
        """Whether the loop will call `_next` as soon as it has looked at what has come."""

    async def begin(self, whose: str) -> None:
        """Return when it is this one's turn."""
        if whose not in self._begun and whose not in self._waiting and self._may(whose):
            self._begun.add(whose)
            self._look()
            return
        held = self._waiting.setdefault(whose, deque())
        if len(held) >= HELD_MAX:
            return
        given = asyncio.get_running_loop().create_future()
        held.append(given)
        self._look()
        await given

    @contextmanager
    def ahead(self, whose: str) -> Iterator[None]:
        """While one of this principal's requests waits for a turn."""
        self._ahead[whose] += 1
        try:
            yield
        finally:
            self._ahead[whose] -= 1
            if not self._ahead[whose]:
                del self._ahead[whose]
            if whose in self._waiting:
                self._look()

    def _may(self, whose: str) -> bool:
        return self._ahead[whose] < AHEAD_MAX or not self._turns.is_shared

    def _look(self) -> None:
        if not self._is_coming:
            self._is_coming = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._is_coming = False
        self._begun = {whose for whose in self._waiting if self._may(whose)}
        for whose in self._begun:
            queue = self._waiting[whose]
            given = queue.popleft()
            if not queue:
                del self._waiting[whose]
            if not given.done():  # else nobody waits any more
                given.set_result(None)
        if self._begun:
            self._look()
