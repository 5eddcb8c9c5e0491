"""Calls whose client neither sends nor takes anything are ended: each holds one of few places.

gRPC's own waits have no end while the connection stands. So each call says what it waits for, and a thread looks.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from ullage.clock import Clock
from ullage_agent.service.flight.calls import FlightCall

LOOK_SECONDS: Final = 1.0


class Stalls:
    """The calls under way. Thread-safe."""

    def __init__(self, clock: Clock, at_each_look: Callable[[], None]) -> None:
        """`at_each_look`: what else time brings; it does not wait, and raises nothing."""
        self._clock = clock
        self._at_each_look = at_each_look
        self._lock = threading.Lock()
        self._calls: set[FlightCall] = set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="flight-stalls", daemon=True)
        self._thread.start()

    @contextmanager
    def watched(self, call: FlightCall) -> Iterator[None]:
        """End the call if it stands still meanwhile."""
        with self._lock:
            self._calls.add(call)
        try:
            yield
        finally:
            with self._lock:
                self._calls.discard(call)

    def look(self) -> None:
        """End those that have waited too long."""
        with self._lock:
            calls = list(self._calls)
        for call in calls:
            call.end_if_stalled(self._clock.monotonic())
        self._at_each_look()

    def close(self) -> None:
        """Look no more."""
        self._stopping.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stopping.wait(LOOK_SECONDS):
            self.look()
