"""Time, passed in: the engine never asks the system for it anywhere else, so that tests own it."""

import time


class Clock:
    """The machine's own: wall time in milliseconds for records, monotonic seconds for intervals, and a way to wait."""

    def now_millis(self) -> int:
        """Milliseconds since the Unix epoch; may jump, so nothing is ordered by it."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)
