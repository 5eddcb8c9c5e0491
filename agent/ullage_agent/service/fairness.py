"""Turns: how much of one principal is at work at a time while somebody else wants something too.

A node is one process, in which one thread at a time runs Python. Whoever has hundreds of requests under way would have
every thread of it, and a single request of somebody else would wait behind all of them at each of its steps. So:

    nobody else for SHARED_SECONDS   all of a principal is at work at once, as far as there are threads
    somebody else meanwhile          `shared_turns_each` of each, which still share the syncs of their commits
    somebody with little to do is    of each who has much to do `turns_each`, and after each piece of work the next one,
    there within RECENT_SECONDS      of either kind, waits for PAUSE_TIMES as long as that took

Of each so many pieces that create are at work, and as many others; what else is wanted waits, the first to come first.
The pauses leave the interpreter free for most of the time: without them whoever has little to do met a piece of work at
each of the ten times at which a call wants it, and took four to seven times as long as alone. With pauses of twice the
work, and of both kinds apart, the slowest hundredth of calls still took up to 3.6 times as long.

A turn is for work. Nobody has one while they wait for their client, who may be slow on purpose.

Nobody waits for a lock here, least of all the event loop: hundreds of threads that want the same one pass it on slower
than requests come. What happens is put on a list, and whoever finds nobody at it works the list off.
"""

import asyncio
import sys
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import takewhile
from typing import Final

from ullage.clock import Clock
from ullage_agent.service.access import Principal
from ullage_agent.service.limits import Limits

RECENT_SECONDS: Final = 0.1
"""How long after a piece of work somebody counts as being there. Longer than the time between two requests of a client
that waits for each; much shorter than the time between two looks of one that polls, which would keep a busy one at a
few turns all the time.
"""

SHARED_SECONDS: Final = 60.0
"""How long after several have asked for something at a time the process counts as shared: what a first request after a
while waits for must be short already.
"""

LITTLE: Final = 2
"""Pieces of work of which a principal may have so many, at work or waiting, and has little to do."""

PAUSE_TIMES: Final = 10.0
PAUSE_SECONDS_MIN: Final = 0.001
PAUSE_SECONDS_MAX: Final = 0.05
"""How long the next piece of work waits after one of a principal who has much to do: so many times as long as that one
took, and at least what a request costs before and after its turn.
"""

LONG_MAX: Final = 4
"""Of one principal's pieces of work that take longer than `turn_seconds` so many keep no others waiting. Some that wait
for something, and not any number: forty that worked for a minute each had every thread, one after the other.
"""

Wake = Callable[[], object]

Queue = tuple[str, bool]
"""Whose work, and whether it creates: what creates may wait for room on the disk, which only other work can make."""


class Stint:
    """A piece of work that has its turn, or waits for it. Whoever works the list off changes it, and nobody else."""

    __slots__ = ("queue", "since", "wake")

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.since: float | None = None
        """When its turn came (monotonic, in seconds)."""

        self.wake: Wake | None = None


class Turn:
    """Of one request, stream or connection: it has a turn from `take` to `rest`, again and again. Each of both does
    nothing if it is so already. Used by one thread, or by an event loop.
    """

    def __init__(self, turns: "FairTurns", queue: Queue | None) -> None:
        self._turns = turns
        self._queue = queue
        self._piece: Stint | None = None

    def take(self) -> None:
        """Return when it is this one's turn."""
        if (piece := self._wanted()) is None:
            return
        given = threading.Lock()
        given.acquire()
        try:
            self._turns.tell(piece, given.release)
            given.acquire()
            if (seconds := self._turns.pause_of(piece)) > 0:
                time.sleep(seconds)
        except BaseException:
            self.rest()
            raise

    async def take_soon(self) -> None:
        """The same for an event loop, without a thread."""
        if (piece := self._wanted()) is None:
            return
        loop = asyncio.get_running_loop()
        given = asyncio.Event()
        try:
            self._turns.tell(piece, lambda: loop.call_soon_threadsafe(given.set))
            await given.wait()
            if (seconds := self._turns.pause_of(piece)) > 0:
                await asyncio.sleep(seconds)
        except BaseException:
            self.rest()
            raise

    def rest(self) -> None:
        """Let others work: for as long as there is nothing to do, or somebody else has to do something first."""
        piece, self._piece = self._piece, None
        if piece is not None:
            self._turns.give_back(piece)

    def _wanted(self) -> Stint | None:
        """What is to be waited for, if anything."""
        if self._piece is not None or self._queue is None:
            return None
        piece = self._piece = Stint(self._queue)
        self._turns.want(piece)
        return piece if piece.since is None or self._turns.pause_of(piece) > 0 else None


class _Principal:
    """What is known of one. Whoever works the list off changes it, and nobody else."""

    __slots__ = ("at_work", "busy", "rested", "seen", "waiting")

    def __init__(self) -> None:
        self.seen = self.busy = float("-inf")
        """When something of it began or ended last, and when it last had much to do (monotonic, in seconds)."""

        self.at_work: tuple[dict[Stint, None], dict[Stint, None]] = ({}, {})
        """Of what does not create, and of what does, the piece that has had its turn for longest first."""

        self.waiting: tuple[dict[Stint, None], dict[Stint, None]] = ({}, {})
        self.rested = float("-inf")
        """Until when the last pause was, of either kind."""

    @property
    def count(self) -> int:
        """Pieces of work, at work or waiting."""
        return sum(map(len, (*self.at_work, *self.waiting)))


class FairTurns:
    """All of a service. Thread-safe."""

    def __init__(self, limits: Limits, clock: Clock, on_shared: Callable[[bool], None] = lambda _: None) -> None:
        """`on_shared` is told when several principals begin to share the process, and when one has it for itself."""
        self._few, self._several, self._turn_seconds = limits.turns_each, limits.shared_turns_each, limits.turn_seconds
        self._clock = clock
        self._on_shared = on_shared
        self.is_shared = False
        """Whether several were there within SHARED_SECONDS, as far as work that was wanted or has ended tells."""

        self._met = float("-inf")
        """When two of them were last there at a time."""

        self._events: deque[Callable[[float], None]] = deque()
        self._busy = threading.Lock()
        self._there: OrderedDict[str, _Principal] = OrderedDict()
        """Those who have work, or were seen a moment ago: the last one seen last."""

    def of(self, principal: Principal, *, creates: bool) -> Turn:
        """One that this principal takes; the anonymous, who may be anybody, are not limited."""
        return Turn(self, (principal.name, creates) if principal.holder else None)

    def want(self, piece: Stint) -> None:
        """Its turn comes when `since` is there."""
        self._happened(partial(self._wanted, piece))

    def tell(self, piece: Stint, wake: Wake) -> None:
        """Call this, in any thread, when its turn comes, or has come already."""
        self._happened(partial(self._told, piece, wake))

    def give_back(self, piece: Stint) -> None:
        """It is not at work any more, and waits for nothing."""
        self._happened(partial(self._given_back, piece))

    def look(self) -> None:
        """Give turns to those who may have one by now: time may have made room."""
        self._happened(self._looked)

    def pause_of(self, piece: Stint) -> float:
        """For how many seconds somebody whose turn has come still waits, 0 or less for not at all."""
        return 0.0 if piece.since is None else piece.since - self._clock.monotonic()

    @property
    def counts(self) -> dict[str, tuple[int, int]]:
        """Of each who is there how many pieces of work have a turn and how many wait, for whoever looks in."""
        found = list(self._there.items())
        return {name: (sum(map(len, one.at_work)), sum(map(len, one.waiting))) for name, one in found}

    def _happened(self, what: Callable[[float], None]) -> None:
        self._events.append(what)
        while self._events and self._busy.acquire(blocking=False):
            try:
                while self._events:
                    self._events.popleft()(self._clock.monotonic())
            finally:
                self._busy.release()

    def _wanted(self, piece: Stint, now: float) -> None:
        name, creates = piece.queue
        one = self._there.setdefault(name, _Principal())
        one.waiting[creates][piece] = None
        self._see(name, one, now)
        self._admit(name, one, creates, now)

    def _told(self, piece: Stint, wake: Wake, now: float) -> None:
        if piece.since is None:
            piece.wake = wake
        else:
            wake()

    def _given_back(self, piece: Stint, now: float) -> None:
        name, creates = piece.queue
        one = self._there[name]
        if piece.since is None:
            del one.waiting[creates][piece]
            return
        del one.at_work[creates][piece]
        took = PAUSE_TIMES * max(0.0, now - piece.since)
        one.rested = max(one.rested, now + min(max(took, PAUSE_SECONDS_MIN), PAUSE_SECONDS_MAX))
        self._see(name, one, now)
        self._admit(name, one, creates, now)
        self._admit(name, one, not creates, now)

    def _looked(self, now: float) -> None:
        for name, one in self._there.items():
            for creates in (False, True):
                self._admit(name, one, creates, now)

    def _admit(self, name: str, one: _Principal, creates: bool, now: float) -> None:
        """Give those of one who waits their turns, as many as there are."""
        waiting, at_work = one.waiting[creates], one.at_work[creates]
        if not waiting:
            return
        is_paced = self._is_paced(name, one, now)
        room = self._few if is_paced else self._several if self.is_shared else sys.maxsize
        over = sum(1 for _ in takewhile(lambda piece: not self._is_counted(piece, now), at_work))
        for piece in list(waiting)[: max(0, room - len(at_work) + min(over, LONG_MAX))]:
            del waiting[piece]
            at_work[piece] = None
            piece.since = max(now, one.rested) if is_paced else now
            if piece.wake is not None:
                piece.wake()

    def _is_paced(self, name: str, one: _Principal, now: float) -> bool:
        """Whether this one has much to do, and somebody is there who has not."""
        if now - one.busy >= RECENT_SECONDS:
            return False
        return any(now - other.busy >= RECENT_SECONDS for other in self._others(name, now))

    def _others(self, name: str, now: float) -> Iterator[_Principal]:
        """Who else is there."""
        for other, one in self._there.items():
            if other != name and (now - one.seen < RECENT_SECONDS or self._is_at_work(one, now)):
                yield one

    def _is_at_work(self, one: _Principal, now: float) -> bool:
        return any(pieces and self._is_counted(next(reversed(pieces)), now) for pieces in one.at_work)

    def _is_counted(self, piece: Stint, now: float) -> bool:
        """Whether what is at work still has its turn."""
        return piece.since is not None and now - piece.since < self._turn_seconds

    def _see(self, name: str, one: _Principal, now: float) -> None:
        one.seen = now
        if one.count > LITTLE:
            one.busy = now
        self._there.move_to_end(name)
        while (oldest := next(iter(self._there.values()))).seen < now - RECENT_SECONDS and not oldest.count:
            self._there.popitem(last=False)
        if any(True for _ in self._others(name, now)):
            self._met = now
        if self.is_shared != (now - self._met < SHARED_SECONDS):
            self.is_shared = not self.is_shared
            self._on_shared(self.is_shared)
