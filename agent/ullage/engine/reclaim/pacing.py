"""How fast reclamation may move bytes, and how long it may go on."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ullage.clock import Clock
from ullage.contract import MaintenanceOperation, Permission
from ullage.engine.model import Action

BURST_SECONDS = 0.25
"""What may be moved at once after a pause: enough that sleeps are few, little enough that nobody waits behind it."""

SLEEP_SECONDS_MAX = 1.0
"""A pause is cut into such pieces, so that a run that is to stop does."""

OPERATIONS: Final = {
    Action.ARCHIVE: MaintenanceOperation.DELETE,
    Action.DELETE: MaintenanceOperation.DELETE,
    Action.TRUNCATE: MaintenanceOperation.TRUNCATE,
    Action.PUNCH: MaintenanceOperation.PUNCH,
    Action.REWRITE: MaintenanceOperation.REWRITE,
}
"""Which operation of the contract each action on a file counts as: windows and tickets are about operations."""

GRANTED = Permission()

ENDED: Final = "the ticket ended"
"""Why a step is left that was permitted when its run began."""


class TokenBucket:
    """At most `bytes_per_second` on average, for one disk; 0: no limit. Used by one thread at a time.

    A debt may be run up by one piece and is then slept off: the average holds whatever the size of the pieces.
    """

    def __init__(self, bytes_per_second: int, clock: Clock) -> None:
        self._rate = bytes_per_second
        self._clock = clock
        self._tokens = bytes_per_second * BURST_SECONDS
        self._filled = clock.monotonic()

    def take(self, count: int, should_stop: Callable[[], bool] = lambda: False) -> None:
        """Return when so many bytes more are within the rate; at once if the run is to stop."""
        if self._rate == 0:
            return
        self._fill()
        self._tokens -= count
        while self._tokens < 0 and not should_stop():
            self._clock.sleep(min(SLEEP_SECONDS_MAX, -self._tokens / self._rate))
            self._fill()

    def _fill(self) -> None:
        now = self._clock.monotonic()
        burst = self._rate * BURST_SECONDS
        self._tokens = min(burst, self._tokens + (now - self._filled) * self._rate)
        self._filled = now


@dataclass(frozen=True, slots=True)
class RunTicket:
    """Leave for one run: what was permitted of each action when it began (everything, where nothing is said), and for
    the whole run an end (monotonic seconds) and a way to take it back.
    """

    permissions: Mapping[Action, Permission] = field(default_factory=dict)
    until_monotonic: float | None = None
    is_revoked: Callable[[], bool] = field(default=lambda: False)

    def refusal(self, action: Action, clock: Clock) -> str:
        """Why this action may not begin now; empty if it may."""
        permission = self.permissions.get(action, GRANTED)
        if not permission.is_granted:
            return permission.reason
        until_millis = permission.until_millis
        is_over = (
            self.is_revoked()
            or (self.until_monotonic is not None and clock.monotonic() >= self.until_monotonic)
            or (until_millis is not None and clock.now_millis() >= until_millis)
        )
        return ENDED if is_over else ""

    def is_refused(self, action: Action) -> bool:
        """Whether it was not permitted from the beginning on."""
        return not self.permissions.get(action, GRANTED).is_granted

    def is_emergency(self, action: Action, free_percentage: float) -> bool:
        """Whether so little is free that the action may be taken all the same."""
        floor = self.permissions.get(action, GRANTED).emergency_free_percentage
        return free_percentage < floor and not self.is_revoked()
