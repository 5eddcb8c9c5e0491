"""Bytes of what clients sent that are decoded, and worked on, at a time, and of answers that wait for who asked: of
all, and of each principal.

What comes is small beside what becomes of it: 4 bytes of JSON are a text of 50, two letters of an Arrow batch an
attribute of 300. So room is taken before anything is decoded, and given back when the work is done. What goes out stays
as long as its client likes: room for it is taken before it is made, and given back when it has been sent.

Nobody waits for room who has some: those who wait for each other would all be refused.

Who asks gets room in turn; whoever waits for their own share alone keeps nobody else waiting.
"""

import asyncio
import threading
from collections import Counter
from concurrent.futures import Future
from typing import Self

from ullage.errors import QuotaReached, ServiceBusy
from ullage_agent.service.access import Principal
from ullage_agent.service.limits import MIB, Limits


class Grant:
    """Room that somebody has, or waits for. `release` gives it back, safe to call twice; so does leaving it."""

    def __init__(self, budget: "ByteBudget", owner: Principal, size: int) -> None:
        self.owner = owner
        self.size = size
        self.given: Future[None] = Future()
        self._budget = budget

    def release(self) -> None:
        """Somebody else may have it."""
        self._budget.give_back(self)

    def resize(self, size: int) -> None:
        """What has been made of it takes so much: less, or more than there is."""
        self._budget.resize(self, size)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


class ByteBudget:
    """All room of a service. Thread-safe."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._held: set[Grant] = set()
        self._bytes: Counter[str] = Counter()
        self._total = 0
        self._waiting: dict[Grant, None] = {}

    def take(self, owner: Principal, size: int) -> Grant:
        """Room for so many bytes; of more than the share of one principal all of that. QuotaReached or ServiceBusy if
        there was none for `decoded_seconds`.
        """
        room = self._ask(owner, size)
        try:
            room.given.result(self._limits.decoded_seconds)
        except TimeoutError as error:
            self._refuse(room, error)
        return room

    async def take_soon(self, owner: Principal, size: int) -> Grant:
        """The same for an event loop."""
        room = self._ask(owner, size)
        try:
            if not room.given.done():
                async with asyncio.timeout(self._limits.decoded_seconds):
                    await asyncio.wrap_future(room.given)
        except TimeoutError as error:
            self._refuse(room, error)
        except BaseException:
            room.release()
            raise
        return room

    def take_beside(self, owner: Principal, size: int) -> Grant:
        """Room for who has some that cannot be given back yet: without waiting. QuotaReached or ServiceBusy."""
        room = self._ask(owner, size)
        if not room.given.done():
            self._refuse(room, None)
        return room

    def take_now(self, owner: Principal, size: int) -> Grant | None:
        """The same without waiting; None if it is nobody's turn."""
        room = self._ask(owner, size)
        if room.given.done():
            return room
        room.release()
        return None

    def count(self, owner: Principal, size: int) -> Grant:
        """Room for what is there already, beyond all bounds: others wait until it is given back."""
        room = Grant(self, owner, size)
        with self._lock:
            self._give(room)
        return room

    def resize(self, room: Grant, size: int) -> None:
        """Of room that is given: nothing happens to other room."""
        with self._lock:
            if room in self._held:
                self._total += size - room.size
                self._bytes[room.owner.name] += size - room.size
                room.size = size
                self._admit()

    def give_back(self, room: Grant) -> None:
        """Room that is not needed any more, or not waited for."""
        with self._lock:
            self._waiting.pop(room, None)
            if room in self._held:
                self._held.discard(room)
                self._total -= room.size
                self._bytes[room.owner.name] -= room.size
                if not self._bytes[room.owner.name]:
                    del self._bytes[room.owner.name]
            self._admit()

    def _ask(self, owner: Principal, size: int) -> Grant:
        room = Grant(self, owner, min(size, self._limits.decoded_bytes_each))
        with self._lock:
            self._waiting[room] = None
            self._admit()
        return room

    def _admit(self) -> None:
        """Give room to those whose turn it is."""
        for room in list(self._waiting):
            if self._is_beyond_share(room):
                continue
            if self._total + room.size > self._limits.decoded_bytes:
                return  # a small one that came later must not take what a large one waits for
            del self._waiting[room]
            self._give(room)

    def _give(self, room: Grant) -> None:
        self._held.add(room)
        self._total += room.size
        self._bytes[room.owner.name] += room.size
        if room.given.set_running_or_notify_cancel():  # else nobody waits any more: whoever asked gives it back
            room.given.set_result(None)

    def _is_beyond_share(self, room: Grant) -> bool:
        share = room.owner.share(self._limits.decoded_bytes_each)
        return share is not None and self._bytes[room.owner.name] + room.size > share

    def _refuse(self, room: Grant, cause: Exception | None) -> None:
        """Unless it was given in the meantime."""
        with self._lock:
            if room in self._held:
                return
            del self._waiting[room]
            is_own = self._is_beyond_share(room)
        limits = self._limits
        if is_own:
            held = f"messages and answers that take {limits.decoded_bytes_each / MIB:,.0f} MiB under way"
            then = "wait until some are stored or taken, or make them smaller"
            raise QuotaReached.of(room.owner.name, held, "decoded_bytes_each", then) from cause
        raise ServiceBusy(
            f"messages and answers that take {limits.decoded_bytes / MIB:,.0f} MiB are under way already "
            "(decoded_bytes): wait, or make them smaller"
        ) from cause
