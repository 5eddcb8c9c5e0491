"""Counters that sessions adjust at their commits; a restart begins them anew."""

import threading

from ullage.wire.documents import COUNT_MAX


class Counters:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, int] = {}

    def add(self, deltas: dict[str, int]) -> None:
        with self._lock:
            for name, delta in deltas.items():
                # Within its bounds, because a number beyond 64 bits would fail whoever asks for the state, for ever.
                self._values[name] = max(-COUNT_MAX, min(COUNT_MAX, self._values.get(name, 0) + delta))

    def all(self) -> dict[str, int]:
        """Every counter by its name."""
        with self._lock:
            return dict(self._values)
