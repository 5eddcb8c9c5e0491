"""What this node may reclaim now, in a cluster: the ticket of its own object, held against clock and settings.

Without a valid ticket nothing is truncated, punched or rewritten, whatever the windows say and whoever cannot be
reached; the emergency floor stays. Delete follows the windows as everywhere.
"""

import threading
from collections.abc import Callable

from ullage.contract import (
    TICKETED,
    Calendar,
    MaintenanceOperation,
    MaintenanceSettings,
    Permission,
    PermissionFor,
    Ticket,
    millis_of,
)


def void_reason(ticket: Ticket | None, generation: int, millis: int) -> str:
    """Why a ticket permits nothing; empty if it does."""
    if ticket is None:
        return "this node has no ticket"
    if ticket.generation != generation:
        return f"ticket {ticket.id} is for generation {ticket.generation} of the settings, {generation} is in force"
    if millis < millis_of(ticket.not_before):
        return f"ticket {ticket.id} begins at {ticket.not_before}"
    if millis >= millis_of(ticket.not_after):
        return f"ticket {ticket.id} ended at {ticket.not_after}"
    if ticket.stop_after is not None and millis >= millis_of(ticket.stop_after):
        return f"ticket {ticket.id} stopped at {ticket.stop_after}"
    return ""


class TicketHolder:
    """Thread-safe. `on_revoked` is called when what was granted is taken back, so that runs under way stop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.ticket: Ticket | None = None
        """The last one that was heard of, valid or not."""

        self.is_cordoned = False
        self.generation = 0
        """Of the settings in force."""

        self.on_revoked: Callable[[], None] = lambda: None

    def take_over(self, ticket: Ticket | None, *, is_cordoned: bool) -> None:
        """What the object says now."""
        with self._lock:
            is_revoked = (self.ticket is not None and ticket != self.ticket) or (is_cordoned and not self.is_cordoned)
            self.ticket, self.is_cordoned = ticket, is_cordoned
        if is_revoked:
            self.on_revoked()

    def settings_are(self, generation: int) -> None:
        """Of this generation; a ticket for another one is void from now on."""
        with self._lock:
            is_new, self.generation = generation != self.generation, generation
        if is_new:
            self.on_revoked()

    def permission_of(self, maintenance: MaintenanceSettings) -> PermissionFor:
        """For `Host`: what the engine asks. A fresh function each time, which takes back what the last one granted."""
        calendar = Calendar(maintenance)

        def permission(operation: MaintenanceOperation, millis: int) -> Permission:
            answer = calendar.permission(operation, millis)
            if maintenance.paused:
                return answer
            with self._lock:
                ticket, is_cordoned, generation = self.ticket, self.is_cordoned, self.generation
            if is_cordoned:
                return answer._replace(is_granted=False, reason="the node is cordoned")
            is_about = ticket is not None and operation in ticket.operations
            if operation not in TICKETED and (answer.is_granted or not is_about):
                return answer
            reason = void_reason(ticket, generation, millis)
            if ticket is None or reason or not is_about:
                return answer._replace(is_granted=False, reason=reason or f"the ticket is not about {operation}")
            stop = None if ticket.stop_after is None else millis_of(ticket.stop_after)
            return answer._replace(is_granted=True, until_millis=stop, reason=ticket.reason)

        return permission
