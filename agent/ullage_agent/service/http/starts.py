"""When requests over HTTP are begun: of each who asks one at a time, and not while enough of theirs wait for a turn.

Beginning one takes the event loop half a millisecond, also if it is refused. Whoever sends hundreds at once, or sends
the next as soon as one is answered, would have everybody else's wait behind all of them at each step. A request that
has been begun and waits for its turn is no nearer to its end than one that has not been begun, so while several are
there no more are begun than what keeps a principal's turns busy.

What is held until then is a head, and what has come of a body. Its connection may be had by others, as that of one who
has not said anything yet, and when that ends nothing is left of the request.
"""

import asyncio
import select
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context
from typing import Final, Protocol

from ullage_agent.service.fairness import FairTurns
from ullage_agent.service.limits import Limits

AHEAD_MAX: Final = 16
"""Requests of one principal that wait for a turn while others are not begun. It shares its turns with what it asks over
Flight and the Unix socket, of which it may have a hundred waiting: with fewer over HTTP these would starve.
"""

STRANGERS: Final = 8
"""Requests of an address that are begun at a time with tokens that nobody has seen yet, each with another one: behind a
Service hundreds of clients have the same address.
"""

KNOWN_MAX: Final = 10_000
"""Tokens of which it is remembered whose they are."""

Whose = tuple[bool, str]
"""Whether it is known who asks, and the name or else the address."""


LOOK_SECONDS: Final = 0.5
"""How often it is asked whether clients of requests that are not begun are gone. Nobody reads a connection of which
much has come already, so nobody would hear of its end.
"""

GONE: Final = select.POLLERR | select.POLLHUP | select.POLLRDHUP | select.POLLNVAL


class Waiting(Protocol):
    """A connection whose request is not begun."""

    @property
    def peer(self) -> str:
        """Who it is, as addresses tell."""
        ...

    def fileno(self) -> int:
        """Its descriptor; -1 if it has none any more."""
        ...

    def cut_off(self) -> None:
        """End it at once."""
        ...


class HeldRequest:
    """A request that is not begun."""

    __slots__ = ("bytes", "connection", "start", "token", "whose")

    def __init__(self, whose: Whose, token: int, connection: Waiting, start: Callable[[], None]) -> None:
        self.whose = whose
        self.token = token
        self.connection = connection
        self.start = start
        self.bytes = 0
        """What has come of its body."""


class Starts:
    """Those of one event loop, which makes all calls."""

    def __init__(self, turns: FairTurns, limits: Limits) -> None:
        self._turns = turns
        self._bytes_max, self._bytes_each_max = limits.held_bytes, limits.held_bytes_each
        self._known: dict[int, str] = {}
        self._begun: Counter[Whose] = Counter()
        """How many requests of each were begun since the loop last looked at what has come."""

        self._held: dict[Whose, dict[int, dict[HeldRequest, None]]] = {}
        """Those of each, by their tokens: in the order in which these have their turns, and they came."""

        self._bytes: Counter[Whose] = Counter()
        self.held = (0, 0)
        """How many requests are not begun, and the bytes of their bodies; any thread may look."""

        self._ahead: Counter[str] = Counter()
        """How many of each principal's wait for a turn."""

        self._is_coming = self._is_watching = self._is_ending = False
        """Whether the loop will call `_next` as soon as it has looked at what has come, and `_watch` in a while; and
        whether nothing is held.
        """

    def begin(self, token: int, connection: Waiting, start: Callable[[], None]) -> HeldRequest | None:
        """Call `start` now, or when it is this one's turn: then what is held until it is called, or dropped."""
        name = self._known.get(token)
        whose = (False, connection.peer) if name is None else (True, name)
        if whose not in self._held and self._room(whose):
            self._begun[whose] += 1
            self._look()
            start()
            return None
        held = HeldRequest(whose, token, connection, start)
        self._held.setdefault(whose, {}).setdefault(token, {})[held] = None
        self._count(1, 0)
        self._look()
        self._watch_later()
        return held

    def grow(self, held: HeldRequest, count: int) -> bool:
        """So many bytes of its body have come; False if nobody may have that many, and they are to be thrown away."""
        of_each, of_all = self._bytes[held.whose] + count, self.held[1] + count
        fits = of_each <= self._bytes_each_max and of_all <= self._bytes_max
        more = count if fits else -held.bytes
        held.bytes += more
        self._bytes[held.whose] += more
        self._count(0, more)
        return fits

    def drop(self, held: HeldRequest) -> None:
        """Nobody waits for it any more, or it is begun."""
        lines = self._held[held.whose]
        del lines[held.token][held]
        if not lines[held.token]:
            del lines[held.token]
        if not lines:
            del self._held[held.whose]
        self._count(-1, -held.bytes)
        self._bytes[held.whose] -= held.bytes
        if not self._bytes[held.whose]:
            del self._bytes[held.whose]

    def know(self, token: int, name: str) -> None:
        """Whose a token is, from the next request on."""
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        self._known[token] = name

    def end(self) -> None:
        """Hold nothing any more: all of it is refused."""
        self._is_ending = True
        self._look()

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
            if (True, whose) in self._held:
                self._look()

    def _room(self, whose: Whose) -> int:
        """How many more of these may be begun before the loop looks at what has come."""
        is_known, name = whose
        if is_known and not self._is_ending and self._ahead[name] >= AHEAD_MAX and self._turns.is_shared:
            return 0
        return (1 if is_known else STRANGERS) - self._begun[whose]

    def _count(self, requests: int, count: int) -> None:
        self.held = self.held[0] + requests, self.held[1] + count

    def _look(self) -> None:
        if not self._is_coming:
            self._is_coming = True
            # With a context of its own: what is begun must not take itself for that of whose end it was told.
            asyncio.get_running_loop().call_soon(self._next, context=Context())

    def _next(self) -> None:
        self._is_coming = False
        self._begun.clear()
        for whose in list(self._held):
            for held in self._due(whose):
                self._begun[whose] += 1
                self.drop(held)
                held.start()
        if self._begun:
            self._look()

    def _watch_later(self) -> None:
        if not self._is_watching:
            self._is_watching = True
            asyncio.get_running_loop().call_later(LOOK_SECONDS, self._watch, context=Context())

    def _watch(self) -> None:
        """End the connections whose clients are gone: of each, what it holds goes with it."""
        places = select.poll()
        there: dict[int, Waiting] = {}
        for lines in self._held.values():
            for held in (held for line in lines.values() for held in line):
                if (place := held.connection.fileno()) >= 0:
                    there[place] = held.connection
                    places.register(place, select.POLLRDHUP)
        for place, seen in places.poll(0) if there else ():
            if seen & GONE:
                there[place].cut_off()
        self._is_watching = False
        if self._held:
            self._watch_later()

    def _due(self, whose: Whose) -> Sequence[HeldRequest]:
        """The next to be begun, each with another token; these come last the next time."""
        lines = self._held[whose]
        found = list(lines)[: self._room(whose)]
        for token in found:
            lines[token] = lines.pop(token)
        return [next(iter(lines[token])) for token in found]
