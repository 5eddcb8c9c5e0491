"""Turns: how much of one principal is at work at a time while somebody else wants something too.

A node is one process, in which one thread at a time runs Python. Whoever has hundreds of requests under way would have
every thread of it, and a single request of somebody else would wait behind all of them at each of its steps. So:

    one principal alone            all of it is at work at once, as far as there are threads; commits share their syncs
    several within RECENT_SECONDS  of each so many are at work, and the others of it wait, the first to come first

A turn is for work. Nobody has one while they wait for their client, who may be slow on purpose.

Nobody waits for a lock here, least of all the event loop: hundreds of threads that want the same one pass it on slower
than requests come. What happens is put on a list, and whoever finds nobody at it works the list off.
"""

import asyncio
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
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
        return piece if piece.since is None else None


class FairTurns:
    """All of a service. Thread-safe."""

    def __init__(self, limits: Limits, clock: Clock, on_shared: Callable[[bool], None] = lambda _: None) -> None:
        """`on_shared` is told when several principals begin to share the process, and when one has it for itself."""
        self._each_max, self._turn_seconds = limits.turns_each, limits.turn_seconds
        self._clock = clock
        self._on_shared = on_shared
        self._is_shared = False
        self._met = float("-inf")
        """When two of them were last there at a time."""

        self._events: deque[Callable[[float], None]] = deque()
        self._busy = threading.Lock()
        self._at_work: dict[Queue, dict[Stint, None]] = {}
        """The one that has had its turn for longest first."""

        self._waiting: dict[Queue, dict[Stint, None]] = {}
        self._seen: OrderedDict[str, float] = OrderedDict()
        """When somebody last had a turn, or wanted one: the latest last."""

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

    def _happened(self, what: Callable[[float], None]) -> None:
        self._events.append(what)
        while self._events and self._busy.acquire(blocking=False):
            try:
                while self._events:
                    self._events.popleft()(self._clock.monotonic())
            finally:
                self._busy.release()

    def _wanted(self, piece: Stint, now: float) -> None:
        self._see(piece.queue[0], now)
        if not self._waiting.get(piece.queue) and self._may(piece.queue, now):
            self._give(piece, now)
        else:
            self._waiting.setdefault(piece.queue, {})[piece] = None

    def _told(self, piece: Stint, wake: Wake, now: float) -> None:
        if piece.since is None:
            piece.wake = wake
        else:
            wake()

    def _given_back(self, piece: Stint, now: float) -> None:
        if piece.since is None:
            _forget(self._waiting, piece)
            return
        _forget(self._at_work, piece)
        owner, creates = piece.queue
        self._see(owner, now)
        self._admit(piece.queue, now)
        if not self._is_contended(owner, now):
            self._admit((owner, not creates), now)

    def _looked(self, now: float) -> None:
        for queue in list(self._waiting):
            self._admit(queue, now)

    def _admit(self, queue: Queue, now: float) -> None:
        while (waiting := self._waiting.get(queue)) and self._may(queue, now):
            piece = next(iter(waiting))
            _forget(self._waiting, piece)
            self._give(piece, now)

    def _may(self, queue: Queue, now: float) -> bool:
        if not self._is_contended(queue[0], now):
            return True
        at_work = self._at_work.get(queue, {})
        over = sum(1 for _ in takewhile(lambda piece: not self._is_counted(piece, now), at_work))
        return len(at_work) - over < self._each_max

    def _is_contended(self, owner: str, now: float) -> bool:
        """Whether somebody else is there."""
        for (other, _), pieces in self._at_work.items():
            if other != owner and self._is_counted(next(reversed(pieces)), now):
                return True
        latest = next((other for other in reversed(self._seen) if other != owner), None)
        return latest is not None and now - self._seen[latest] < RECENT_SECONDS

    def _is_counted(self, piece: Stint, now: float) -> bool:
        """Whether what is at work still has its turn."""
        return piece.since is not None and now - piece.since < self._turn_seconds

    def _see(self, owner: str, now: float) -> None:
        self._seen[owner] = now
        self._seen.move_to_end(owner)
        while now - next(iter(self._seen.values())) > RECENT_SECONDS:
            self._seen.popitem(last=False)
        if len(self._seen) > 1:
            self._met = now
        if self._is_shared != (now - self._met < SHARED_SECONDS):
            self._is_shared = not self._is_shared
            self._on_shared(self._is_shared)

    def _give(self, piece: Stint, now: float) -> None:
        piece.since = now
        self._at_work.setdefault(piece.queue, {})[piece] = None
        if piece.wake is not None:
            piece.wake()


def _forget(where: dict[Queue, dict[Stint, None]], piece: Stint) -> None:
    found = where[piece.queue]
    del found[piece]
    if not found:
        del where[piece.queue]
