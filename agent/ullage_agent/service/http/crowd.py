"""Who is connected to one listener, and who has to go when it is full: whoever has waited longest.

A connection waits from its beginning until a request's headers are there, and between two requests. So whoever opens
connections and says nothing, or says it slowly, loses them to those who ask something.
"""

import time
from collections.abc import Callable, Iterator
from typing import Final, Generic, Protocol, TypeVar


class Connected(Protocol):
    """One connection."""

    def cut_off(self) -> None:
        """End it at once."""
        ...


ENDED_MAX: Final = 100
"""For how many new connections of a peer another one has to go in a second. Clients that connect again as soon as they
are cut off, each in the place of the next, would keep the event loop busy with nothing else.
"""

C = TypeVar("C", bound=Connected)


class Crowd(Generic[C]):
    """The connections of one listener, of peers as `client_of` names them. All calls come from its event loop."""

    def __init__(
        self,
        connections_max: int,
        per_peer_max: int,
        monotonic: Callable[[], float] = time.monotonic,
        ended_max: int = ENDED_MAX,
    ) -> None:
        self._monotonic = monotonic
        self._ended_max = ended_max
        self._ended: dict[str, tuple[int, int]] = {}
        """For how many of a peer another one had to go, and in which second."""

        self._connections_max = connections_max
        self._per_peer_max = per_peer_max
        self._peers: dict[C, str] = {}
        self._waiting: dict[str, dict[C, None]] = {}
        self._longest: dict[C, None] = {}
        self._counts: dict[str, int] = {}

    def enter(self, connection: C, peer: str) -> bool:
        """Let it in to wait, in the place of another if need be; False where nobody can go, as all are at work, or too
        many went for its peer's in this second.
        """
        for waiting in self._too_full(peer):
            if not self._may_end(peer) or not self._make_room(waiting):
                return False
        self._peers[connection] = peer
        self._counts[peer] = self._counts.get(peer, 0) + 1
        self.wait(connection)
        return True

    def in_the_way(self, peer: str) -> C | None:
        """Who will have to go first if another one of this peer enters now, if anybody."""
        return next((connection for waiting in self._too_full(peer) for connection in waiting), None)

    def wait(self, connection: C) -> None:
        """It begins to wait for a request."""
        if (peer := self._peers.get(connection)) is not None:
            self.work(connection)
            self._waiting.setdefault(peer, {})[connection] = None
            self._longest[connection] = None

    def work(self, connection: C) -> None:
        """It has a request: nobody else takes its place."""
        self._longest.pop(connection, None)
        if waiting := self._waiting.get(self._peers.get(connection, "")):
            waiting.pop(connection, None)

    def leave(self, connection: C) -> None:
        """It is gone. Safe to call twice."""
        self.work(connection)
        if (peer := self._peers.pop(connection, None)) is None:
            return
        self._counts[peer] -= 1
        if not self._counts[peer]:
            del self._counts[peer]
            self._waiting.pop(peer, None)

    def make_room(self) -> None:
        """End the one that has waited longest, if any waits."""
        self._make_room(self._longest)

    def _too_full(self, peer: str) -> Iterator[dict[C, None]]:
        """Of what there are too many for one more of a peer: those of them who wait."""
        if self._counts.get(peer, 0) >= self._per_peer_max:
            yield self._waiting.get(peer, {})
        if len(self._peers) >= self._connections_max:
            yield self._longest

    def _may_end(self, peer: str) -> bool:
        """Whether one more may have to go for this peer's."""
        second = int(self._monotonic())
        before, count = self._ended.get(peer, (second, 0))
        if before != second:
            count = 0
            self._ended = {other: found for other, found in self._ended.items() if found[0] == second}
        self._ended[peer] = second, count + 1
        return count < self._ended_max

    def _make_room(self, waiting: dict[C, None]) -> bool:
        longest = next(iter(waiting), None)
        if longest is None:
            return False
        self.leave(longest)
        longest.cut_off()
        return True
