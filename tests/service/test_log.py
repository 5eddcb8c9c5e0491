"""What is logged, and how often."""

import errno

from tests.support import ManualClock
from ullage_agent.service.log import TOLD_AGAIN_SECONDS, Sparing

FULL = OSError(errno.ENOSPC, "No space left on device")


def test_a_failure_of_every_second_is_told_once_a_minute() -> None:
    """The first at once, then one for each minute that it lasts."""
    clock = ManualClock()
    sparing = Sparing(clock)
    told = 0
    for _ in range(3 * round(TOLD_AGAIN_SECONDS)):
        told += sparing.is_due("provenance", OSError(*FULL.args))
        clock.advance(1)

    assert told == 3


def test_a_failure_that_is_new_is_told_at_once() -> None:
    """Another task's, and another one of the same task, also when the first comes back."""
    sparing = Sparing(ManualClock())

    assert sparing.is_due("provenance", FULL)
    assert sparing.is_due("index", FULL)
    assert not sparing.is_due("index", FULL)
    assert sparing.is_due("provenance", ValueError("a record that cannot be read"))
    assert sparing.is_due("provenance", FULL)
