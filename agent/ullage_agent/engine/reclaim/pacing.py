"""How fast reclamation may move bytes, and how long it may go on."""

from collections.abc import Callable
from dataclasses import dataclass, field

from ullage_agent.engine.clock import Clock
from ullage_agent.engine.model import Action

BURST_SECONDS = 0.25
"""What may be moved at once after a pause: enough that sleeps are few, little enough that nobody waits behind it."""

SLEEP_SECONDS_MAX = 1.0
"""A pause is cut into such pieces, so that a run that is to stop does."""

ALL_ACTIONS = frozenset(Action) - {Action.NONE}
ALWAYS = frozenset({Action.TRUNCATE, Action.DELETE, Action.ARCHIVE})
"""What moves no bytes, and so may run without a ticket where a container is nearly full."""


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
class Ticket:
    """Permission for one run: which actions, until when (monotonic seconds), unless it is taken back before.

    `reason` says why what it does not allow is not allowed. The default permits everything.
    """

    actions: frozenset[Action] = ALL_ACTIONS
    until_monotonic: float | None = None
    is_revoked: Callable[[], bool] = field(default=lambda: False)
    reason: str = "the ticket does not allow it"

    def refusal(self, action: Action, clock: Clock) -> str:
        """Why this action may not begin now; empty if it may."""
        if action not in self.actions:
            return self.reason
        return "the ticket ended" if self.is_over(clock) else ""

    def is_over(self, clock: Clock) -> bool:
        """Whether the run must stop."""
        return self.is_revoked() or (self.until_monotonic is not None and clock.monotonic() >= self.until_monotonic)


NO_TICKET = Ticket(frozenset(), reason="no window is open")
