"""Time, passed in: the engine never asks the system for it anywhere else, so that tests own it."""

import time
from datetime import UTC, datetime, timedelta
from typing import Final

LATEST_MILLIS: Final = 253_370_764_800_000
"""The beginning of the year 9999: what any calendar, in any zone, and a retention added to it, still has room for."""

_EPOCH: Final = datetime.fromtimestamp(0, UTC)


class Clock:
    """The machine's own: wall time in milliseconds for records, monotonic seconds for intervals, and a way to wait."""

    def now_millis(self) -> int:
        """Milliseconds since the Unix epoch: any number, and it may jump, so nothing is ordered by it."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()

    def boottime(self) -> float:
        """Seconds that never go back, and go on while the machine sleeps: of what others count on meanwhile."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


def moment_of(millis: int) -> datetime:
    """In UTC, of any number: what lies before 1970 or beyond the beginning of the year 9999 is shown as that."""
    return _EPOCH + timedelta(milliseconds=min(max(0, millis), LATEST_MILLIS))
