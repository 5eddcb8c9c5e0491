"""Tickets: the permission to reclaim on one node, and what became of it.

A ticket is written into the spec of a ContentRepositoryNode by the operator, and taken back by it; the agent reports of
it in the status. See fleet.py for how the two talk.
"""

import enum
from typing import Annotated, Final

from msgspec import Meta

from ullage.contract.settings import DNS_LABEL, Bytes, ClusterRecord, Count, Time
from ullage.contract.window_settings import MaintenanceOperation

TICKETED: Final = (MaintenanceOperation.TRUNCATE, MaintenanceOperation.PUNCH, MaintenanceOperation.REWRITE)
"""What needs a ticket in a cluster. Delete takes dead files as a whole: agents read its windows themselves."""

RUNNABLE: Final = (MaintenanceOperation.DELETE, *TICKETED)
"""What a ReclamationRun carries out: whoever asks for space wants that of whole dead files first."""


class TicketState(enum.StrEnum):
    """How far an agent is with its ticket."""

    RUNNING = "Running"
    COMPLETED = "Completed"
    REFUSED = "Refused"
    FAILED = "Failed"


class RunPhase(enum.StrEnum):
    """How far a ReclamationRun or a ContentBackup is."""

    PENDING = "Pending"
    RUNNING = "Running"
    COMPLETED = "Completed"
    FAILED = "Failed"


ENDED: Final = frozenset({TicketState.COMPLETED, TicketState.REFUSED, TicketState.FAILED})
"""States in which a ticket stays."""


class Ticket(ClusterRecord, frozen=True, kw_only=True):
    """Permission to reclaim on one node."""

    id: Annotated[str, Meta(pattern=DNS_LABEL, max_length=63)]
    """The ticket's name, which is never used twice on a node."""

    operations: Annotated[tuple[MaintenanceOperation, ...], Meta(min_length=1, max_length=4)]
    """The operations that the ticket permits."""

    generation: Count
    """The generation of the ContentRepository that the ticket was given under. With other settings it is void."""

    not_before: Time
    """The time from which the ticket is valid."""

    not_after: Time
    """The time from which no run starts under the ticket."""

    stop_after: Time | None = None
    """The time at which a run that is under way stops, after its present action. Null lets it finish."""

    reason: Annotated[str, Meta(max_length=1024)] = ""
    """Why the ticket was given."""

    run: Annotated[str, Meta(max_length=253)] = ""
    """The ReclamationRun that asked for the ticket. Empty if the windows gave it."""

    run_uid: Annotated[str, Meta(max_length=63)] = ""
    """The uid of that ReclamationRun: one that is made again under the same name is another."""

    dry_run: bool = False
    """True plans and reports, and changes nothing."""

    policy: Annotated[str, Meta(max_length=256)] = ""
    """The policy to use instead of spec.compaction.policy. Empty keeps that one."""

    bytes_per_second: Bytes | None = None
    """The rate to use instead of spec.compaction.bytesPerSecond. 0 sets no limit, and null keeps that one."""


class TicketReport(ClusterRecord, frozen=True, kw_only=True):
    """What became of a ticket."""

    id: str
    """The name of the ticket that is reported."""

    run: str = ""
    """The ReclamationRun that asked for the ticket. Empty if the windows gave it."""

    run_uid: str = ""
    """The uid of the ReclamationRun that asked for the ticket."""

    state: TicketState
    """How far the agent is with the ticket."""

    started: Time | None = None
    """When the run under the ticket began."""

    ended: Time | None = None
    """When the run under the ticket ended."""

    actions: Count = 0
    """The number of actions that were carried out, or that a dry run planned."""

    freed_bytes: Bytes = 0
    """The bytes that were given back under the ticket, also by the node's own schedules, or that a dry run planned
    to."""

    copied_bytes: Bytes = 0
    """The bytes that were copied under the ticket, or that a dry run planned to."""

    message: Annotated[str, Meta(max_length=1024)] = ""
    """Why the ticket was refused, or why its run failed or stopped early."""
