"""Which connections over Flight have to go so that who has a token gets in: some of those that have shown none.

A stranger is a connection without an admitted call, whatever else it has sent. Nothing here does anything.
"""

import heapq
from collections import deque
from collections.abc import Container, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from ullage_agent.service.addresses import client_of

STRANGERS_SHARE: Final = 8
"""Of what those who are known leave, so small a part is strangers': each can make a node hold half a MiB of headers and
refused calls. Who has a token is a stranger for as long as a review of it takes.
"""

_client_of = lru_cache(1_024)(client_of)


class FarEnd(NamedTuple):
    """The other end of a connection: its address as `bare` has it, and its port."""

    address: str
    port: str


class Stander(msgspec.Struct):
    """One connection, with the descriptor that it has in this process."""

    descriptor: int
    peer: FarEnd
    since: float
    """When it was seen first: monotonic, in seconds."""

    is_ending: bool = False
    """It was told to go, and gRPC has not closed it yet."""


class Leaving(NamedTuple):
    """Who has to go: who said nothing for too long, and who is one of too many."""

    overdue: list[Stander]
    crowded: list[Stander]
    new: int
    """How many connections were seen for the first time."""


class Strangers:
    """What is known of one listener's connections. Used by one thread."""

    def __init__(self, places: int, seconds: float) -> None:
        """How many connections there may be, and how long one may have no admitted call."""
        self._places = places
        self._seconds = seconds
        self._standing: dict[int, Stander] = {}

    def leaving(self, found: Mapping[int, FarEnd], known: Container[FarEnd], now: float) -> Leaving:
        """By the connections that there are now, of which those that are known stay; `now` is monotonic, in seconds."""
        before = self._standing
        new = {
            descriptor: Stander(descriptor, peer, now)
            for descriptor, peer in found.items()
            if (stander := before.get(descriptor)) is None or stander.peer != peer
        }
        self._standing = {descriptor: new.get(descriptor) or before[descriptor] for descriptor in found}
        strangers = [each for each in self._standing.values() if not each.is_ending and each.peer not in known]
        overdue = [each for each in strangers if now - each.since >= self._seconds]
        others = [each for each in strangers if now - each.since < self._seconds] if overdue else strangers
        room = self._places - sum(peer in known for peer in found.values())
        return Leaving(overdue, crowding(others, room), len(new))


def crowding(strangers: Sequence[Stander], room: int) -> list[Stander]:
    """Of more than an eighth of what there is room for, those that are too many: each of the client that has most then,
    and of its the one that came first, which has had the most time to make a call.
    """
    if len(strangers) <= room // STRANGERS_SHARE:
        return []
    lines: dict[str, deque[Stander]] = {}
    for each in sorted(strangers, key=_age):
        lines.setdefault(_client_of(each.peer.address), deque()).append(each)
    longest = [(-len(line), _age(line[0]), client) for client, line in lines.items()]
    heapq.heapify(longest)
    going: list[Stander] = []
    too_many = len(strangers) - max(0, room // STRANGERS_SHARE)
    while len(going) < too_many:
        length, _, client = heapq.heappop(longest)
        line = lines[client]
        lead = (longest[0][0] if longest else 0) - length
        going += (line.popleft() for _ in range(min(max(1, lead), too_many - len(going))))
        if line:
            heapq.heappush(longest, (-len(line), _age(line[0]), client))
    return going


def _age(stander: Stander) -> tuple[float, int]:
    # Descriptors are given out from the lowest on: of those seen first at once, the lower ones came before.
    return stander.since, stander.descriptor
