"""When requests are begun that came together: of each who asks one at a time.

Beginning one takes the event loop half a millisecond, also if it is refused. Whoever sends hundreds at once, or sends
the next as soon as one is refused, would have everybody else's wait behind all of them.
"""

import asyncio
from collections import deque


class Starts:
    """Those of one event loop, which makes all calls."""

    def __init__(self) -> None:
        self._begun: set[str] = set()
        """Whose requests were begun since the loop last looked at what has come."""

        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    async def begin(self, whose: str) -> None:
        """Return when it is this one's turn."""
        loop = asyncio.get_running_loop()
        if not self._begun:
            loop.call_soon(self._next)
        elif whose in self._begun:
            given = loop.create_future()
            self._waiting.setdefault(whose, deque()).append(given)
            await given
            return
        self._begun.add(whose)

    def _next(self) -> None:
        self._begun = set(self._waiting)
        for whose in self._begun:
            queue = self._waiting[whose]
            given = queue.popleft()
            if not queue:
                del self._waiting[whose]
            if not given.done():  # else nobody waits any more
                given.set_result(None)
        if self._begun:
            asyncio.get_running_loop().call_soon(self._next)
