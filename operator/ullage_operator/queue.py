"""What is due when: each key once, never two workers on one key, the earliest first."""

import asyncio
from typing import Final

from ullage_operator.metrics import QUEUE

Key = tuple[str, str]

BACKOFF_SECONDS: Final = 1.0
BACKOFF_SECONDS_MAX: Final = 60.0


class Queue:
    """Times are those of the running event loop."""

    def __init__(self) -> None:
        self._due: dict[Key, float] = {}
        self._busy: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._changed = asyncio.Condition()

    def add(self, key: Key, delay_seconds: float = 0.0) -> None:
        """At the latest then; an earlier time stands. From the event loop's thread."""
        due = asyncio.get_running_loop().time() + delay_seconds
        self._due[key] = min(due, self._due.get(key, due))
        QUEUE.set(len(self._due))
        task = asyncio.ensure_future(self._wake())
        self._waking = task

    async def take(self) -> Key:
        """The next key that is due; `done` gives it back."""
        loop = asyncio.get_running_loop()
        while True:
            async with self._changed:
                free = {key: due for key, due in self._due.items() if key not in self._busy}
                key = min(free, key=free.__getitem__, default=None)
                wait = None if key is None else free[key] - loop.time()
                if key is not None and wait is not None and wait <= 0:
                    del self._due[key]
                    QUEUE.set(len(self._due))
                    self._busy.add(key)
                    return key
                try:
                    async with asyncio.timeout(wait):
                        await self._changed.wait()
                except TimeoutError:
                    continue  # something became due

    def done(self, key: Key) -> None:
        """It went well."""
        self._busy.discard(key)
        self._failures.pop(key, None)
        if key in self._due:
            self.add(key, max(0.0, self._due[key] - asyncio.get_running_loop().time()))

    def failed(self, key: Key) -> None:
        """It did not: again, later and later."""
        self._busy.discard(key)
        count = self._failures[key] = self._failures.get(key, 0) + 1
        self.add(key, min(BACKOFF_SECONDS * 2.0 ** (count - 1), BACKOFF_SECONDS_MAX))

    async def _wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()
