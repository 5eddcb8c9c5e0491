"""Sees to it that strangers do not take all connections that gRPC allows: they lose theirs to who comes next.

gRPC accepts by itself, in C, tells of no connection before its first call, and closes whoever comes when there are too
many. So a thread looks at the process's descriptors. Nothing of what a connection carries passes through here.
"""

import ctypes
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from ipaddress import IPv6Address
from typing import Final

from ullage.clock import Clock
from ullage_agent.service.access import Principal
from ullage_agent.service.addresses import bare
from ullage_agent.service.flight.strangers import FarEnd, Stander, Strangers
from ullage_agent.service.limits import Limits
from ullage_agent.service.log import TOLD_AGAIN_SECONDS, Sparing, logger
from ullage_agent.service.quota import Quota

LOOK_SECONDS: Final = 0.1
"""Between two looks, at least: gRPC lets in some hundreds of connections meanwhile."""

QUIET_SECONDS: Final = 0.25
"""The same while few connections come: a look of an idle process takes half a millisecond."""

LOOK_SHARE: Final = 0.02
CROWD_SHARE: Final = 0.25
"""Of a processor, looking takes so much at most: the next look waits for as much longer as the last one took. The
latter while so many come that half of the free places would be taken before the next look.
"""

OVERDUE_LOOK_SECONDS: Final = 1.0
"""Between two looks for those that are overdue, where the process has too few descriptors for a crowd."""

_DESCRIPTORS: Final = "/proc/self/fd"
_NAME_BYTES: Final = 128
"""Room for a `struct sockaddr` of any kind."""

# With Python's lock held: a thread that gives it up for each of 4,096 calls waits as often for all others.
_libc = ctypes.PyDLL(None)
for _call in (_libc.getpeername, _libc.getsockname):
    _call.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]


class KnownPeers:
    """Whose connections have made an admitted call: each is its first caller's. Thread-safe."""

    def __init__(self, limits: Limits) -> None:
        self._lock = threading.Lock()
        self._peers: dict[FarEnd, Principal] = {}
        self._quota = Quota(
            "flight_connections_each",
            "connections of Arrow Flight",
            limits.flight_connections_each,
            limits.flight_connections,
        )

    def add(self, peer: FarEnd, principal: Principal) -> None:
        """Its connection stays. QuotaReached if the principal has too many: then it is a stranger's, and goes."""
        if peer not in self._peers:
            with self._lock:
                if peer not in self._peers:
                    self._quota.take(principal)
                    self._peers[peer] = principal

    def all(self) -> set[FarEnd]:
        """Those of now."""
        with self._lock:
            return set(self._peers)

    def forget(self, peers: Iterable[FarEnd]) -> None:
        """Their connections are gone."""
        with self._lock:
            for peer in peers:
                principal = self._peers.pop(peer, None)
                if principal is not None:
                    self._quota.give_back(principal)

    def if_stranger(self, peer: FarEnd, act: Callable[[], bool]) -> bool:
        """What `act` says, unless this one is known; it does not become known meanwhile."""
        with self._lock:
            return peer not in self._peers and act()


class AcceptedSockets:
    """The connections that this process has accepted on a port. Used by one thread."""

    def __init__(self, port: int) -> None:
        self._port = port.to_bytes(2, "big")
        self._seen: dict[int, tuple[bytes, FarEnd]] = {}
        self._name, self._length = ctypes.create_string_buffer(_NAME_BYTES), ctypes.c_uint32()
        self._name_at, self._length_at = ctypes.addressof(self._name), ctypes.addressof(self._length)

    def look(self, descriptors: Iterable[int]) -> dict[int, FarEnd]:
        """By their descriptors, of these."""
        before, self._seen = self._seen, {}
        for descriptor in descriptors:
            name = self._named(_libc.getpeername, descriptor)
            if not name:
                continue
            known = before.get(descriptor)
            if known is None or known[0] != name:
                known = self._known(descriptor, name)
            if known is not None:
                self._seen[descriptor] = known
        return {descriptor: peer for descriptor, (_, peer) in self._seen.items()}

    def end(self, descriptor: int, peer: FarEnd) -> bool:
        """Shut a connection down, of which gRPC then closes the descriptor. False if there is none of this peer: gRPC's
        threads may have closed it, and the number may be a file's by now.
        """
        try:
            own = os.dup(descriptor)  # nobody else closes this one between the look at it and the end
        except OSError:  # closed, or there is no descriptor left: then the next look tries again
            return False
        try:
            found = self._known(own, self._named(_libc.getpeername, own))
            return found is not None and found[1] == peer and _libc.shutdown(own, socket.SHUT_RDWR) == 0
        finally:
            os.close(own)

    def _known(self, descriptor: int, name: bytes) -> tuple[bytes, FarEnd] | None:
        if int.from_bytes(name[:2], sys.byteorder) not in (socket.AF_INET, socket.AF_INET6):
            return None
        if self._named(_libc.getsockname, descriptor)[2:4] != self._port:
            return None
        return name, _peer_of(name)

    def _named(self, call: Callable[[int, int, int], int], descriptor: int) -> bytes:
        """The address of one end of a socket as the kernel has it; nothing for what has none."""
        self._length.value = _NAME_BYTES
        if call(descriptor, self._name_at, self._length_at) != 0:
            return b""
        return ctypes.string_at(self._name_at, self._length.value)


class FlightPlaces:
    """Looks by itself until it is closed; `on_ended` is told how many strangers had to go."""

    def __init__(
        self, port: int, known: KnownPeers, limits: Limits, clock: Clock, on_ended: Callable[[int], None]
    ) -> None:
        self._known = known
        self._clock = clock
        self._on_ended = on_ended
        self._sockets = AcceptedSockets(port)
        self._strangers = Strangers(limits.flight_connections, limits.flight_call_seconds)
        self._places = limits.flight_connections
        self._crowd_min = self._places // 8
        self._looked = float("-inf")
        self._log = logger("flight")
        self._failures = Sparing(clock)
        self._crowded, self._told = 0, float("-inf")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="flight-places", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._stopping.set()
        self._thread.join()

    def _watch(self) -> None:
        pause, looked = QUIET_SECONDS, time.monotonic()
        while not self._stopping.wait(pause):
            before, looked = looked, time.monotonic()
            began = time.thread_time()
            rush = 0.0
            try:
                rush = self._look(looked)
            except OSError as error:  # no descriptor is left to list them with
                if self._failures.is_due("listing", error):
                    self._log.error("the connections of Flight could not be listed", exc_info=error)
            pause = pause_after(looked - before, time.thread_time() - began, rush)

    def _look(self, began: float) -> float:
        """How many came since the last look, as a share of the places that are free now."""
        # Before the listing: a connection that came and made its call behind it would be known and not be found, and
        # so be forgotten, and ended half a minute later amid that call.
        before = self._known.all()
        descriptors = os.listdir(_DESCRIPTORS)
        if len(descriptors) <= self._crowd_min and began - self._looked < OVERDUE_LOOK_SECONDS:
            return 0.0
        self._looked = began
        now = self._clock.monotonic()
        found = self._sockets.look(map(int, descriptors))
        self._known.forget(before.difference(found.values()))
        overdue, crowded, new = self._strangers.leaving(found, self._known.all(), now)
        ended = [self._end(each) for each in (*overdue, *crowded)]
        if any(ended):
            self._on_ended(sum(ended))
        if crowded:
            self._tell(sum(ended[len(overdue) :]), crowded[0], now)
        return new / max(1, self._places - len(found) + sum(ended))

    def _end(self, stander: Stander) -> bool:
        stander.is_ending = self._known.if_stranger(
            stander.peer, lambda: self._sockets.end(stander.descriptor, stander.peer)
        )
        return stander.is_ending

    def _tell(self, count: int, first: Stander, now: float) -> None:
        """Once a minute: it is nothing that one could not have too much of."""
        self._crowded += count
        if now - self._told >= TOLD_AGAIN_SECONDS:
            self._log.warning(
                "connections without a call had to go", connections=self._crowded, one_of_most=first.peer.address
            )
            self._crowded, self._told = 0, now


def _peer_of(name: bytes) -> FarEnd:
    port = str(int.from_bytes(name[2:4], "big"))
    if int.from_bytes(name[:2], sys.byteorder) == socket.AF_INET:
        return FarEnd(socket.inet_ntop(socket.AF_INET, name[4:8]), port)
    return FarEnd(bare(str(IPv6Address(name[8:24]))), port)


def pause_after(elapsed: float, cost: float, rush: float) -> float:
    """Until the next look, in seconds: after so many since the one before, of which this one took the processor for
    `cost`; `rush` is how many came meanwhile, as a share of the places that are free now.
    """
    unhurried = max(QUIET_SECONDS, cost / LOOK_SHARE)
    in_time = max(LOOK_SECONDS, cost / CROWD_SHARE, elapsed / (2 * rush) if rush else unhurried)
    return min(unhurried, in_time)
