"""Bodies of JSON that are on their way: how much of them there may be, and which goes when there is no room.

What becomes of a body counts once it is complete (`service/budget.py`): 24 times its bytes. Until then its own bytes
count, as many as it was announced with. Who sends slowly keeps them as long as they like, so a body for which there is
no room takes the place of the one that comes slowest, of a principal that has more:

    two principals announce 16 MiB each, again and again, and send a byte a second: they had the JSON of everybody else
    refused for as long as they did so, when 24 times 16 MiB was taken for each from its first byte on

Used by the event loop alone.
"""

import time
from collections import Counter
from collections.abc import Callable
from typing import Final, Protocol

from ullage.errors import QuotaReached, ServiceBusy
from ullage_agent.service.access import Principal
from ullage_agent.service.limits import MIB, SMALL_BYTES, Limits

GRACE_SECONDS: Final = 1.0
"""How long each body may come before it is held against others: speeds of less time say nothing."""


class Transfer(Protocol):
    """The request that brings a body."""

    received_bytes: int

    def give_up(self) -> None:
        """Refuse it as soon as it waits for more."""
        ...


class Arrival:
    """One body on its way. `release`, safe to call twice, when it is counted otherwise, or gone."""

    def __init__(self, arrivals: "Arrivals", owner: Principal, size: int, transfer: Transfer, began: float) -> None:
        self.owner = owner
        self.size = size
        self.transfer = transfer
        self.is_complete = False
        """It waits for what it becomes: nobody's slowness but the service's."""

        self._began = began
        self._arrivals = arrivals

    def release(self) -> None:
        """Others may have its room."""
        self._arrivals.end(self)

    def age(self, now: float) -> float:
        """Seconds since it was announced."""
        return now - self._began

    def speed(self, now: float) -> float:
        """Bytes a second until now."""
        return self.transfer.received_bytes / max(self.age(now), GRACE_SECONDS)


class Arrivals:
    """All bodies on their way to one service."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._arrivals: set[Arrival] = set()
        self._bytes: Counter[str] = Counter()

    @property
    def bytes(self) -> int:
        """What all of them were announced with; small ones, which are not counted, left out."""
        return self._bytes.total()

    def begin(self, owner: Principal, size: int, transfer: Transfer) -> Arrival:
        """Room for a body of so many bytes. QuotaReached, ServiceBusy if there is none, and none comes too slowly."""
        arrival = Arrival(self, owner, min(size, self._limits.arriving_bytes_each), transfer, self._clock())
        if size < SMALL_BYTES:  # as many as there are requests take no more than a few large ones
            return arrival
        limits, size = self._limits, arrival.size
        share = owner.share(limits.arriving_bytes_each)
        while share is not None and self._bytes[owner.name] + size > share:
            if not self._give_up_slowest(owner.name, GRACE_SECONDS):
                held = f"bodies of {limits.arriving_bytes_each / MIB:,.0f} MiB on their way"
                then = "send fewer at a time, or smaller ones"
                raise QuotaReached.of(owner.name, held, "arriving_bytes_each", then)
        while self.bytes + size > limits.arriving_bytes:
            if not self._makes_room(owner.name, size):
                raise ServiceBusy(
                    f"bodies of {limits.arriving_bytes / MIB:,.0f} MiB are on their way already (arriving_bytes): wait"
                )
        self._arrivals.add(arrival)
        self._bytes[owner.name] += size
        return arrival

    def end(self, arrival: Arrival) -> None:
        """It is on its way no more."""
        if arrival not in self._arrivals:
            return
        self._arrivals.discard(arrival)
        self._bytes[arrival.owner.name] -= arrival.size
        if not self._bytes[arrival.owner.name]:
            del self._bytes[arrival.owner.name]

    def _makes_room(self, asking: str, size: int) -> bool:
        """Whether anybody could make room: who has most first, and nobody who has less than whoever asks would have."""
        wanted = self._bytes[asking] + size
        # Who has more than the others has no time of grace: two that began all their bodies anew each second, and sent
        # nothing of them, had all the room, and none of it could be had.
        return any(
            self._give_up_slowest(name, 0.0 if name != asking and held > wanted else GRACE_SECONDS)
            for name, held in self._bytes.most_common()
            if name == asking or held >= wanted
        )

    def _give_up_slowest(self, owner: str, grace_seconds: float) -> bool:
        """Whether a principal had one that could go."""
        now = self._clock()
        own = [each for each in self._arrivals if each.owner.name == owner and not each.is_complete]
        slow = [each for each in own if each.age(now) >= grace_seconds]
        if not slow:
            return False
        slowest = min(slow, key=lambda each: each.speed(now))
        self.end(slowest)
        slowest.transfer.give_up()
        return True
