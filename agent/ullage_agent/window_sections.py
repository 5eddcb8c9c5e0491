"""The contract's section `maintenance`: when space may be given back. What it means at a given moment: windows.py."""

import enum
from collections.abc import Iterator
from typing import Annotated, Final

from msgspec import Meta

from ullage_agent.fleet_sections import Blockers, Share
from ullage_agent.sections import DNS_LABEL, Percentage, Section
from ullage_agent.units import Duration

WINDOW_MILLIS_MIN: Final = 60_000
"""A window is looked for minute by minute, as cron is."""

WINDOW_MILLIS_MAX: Final = 168 * 3_600_000
"""A longer one says nothing that a schedule and a Deny window do not say more clearly."""


class MaintenanceOperation(enum.StrEnum):
    """What reclamation does to content files, as far as windows govern it. Archiving goes with Delete."""

    DELETE = "Delete"
    TRUNCATE = "Truncate"
    PUNCH = "Punch"
    REWRITE = "Rewrite"


class WindowKind(enum.StrEnum):
    """What a window does while it is open."""

    ALLOW = "Allow"
    DENY = "Deny"


class Overrun(enum.StrEnum):
    """What becomes of a run that is not done when its time is over."""

    FINISH = "Finish"
    STOP = "Stop"


class Window(Section, frozen=True, kw_only=True):
    """A time that comes again, in which operations are allowed or denied."""

    name: Annotated[str, Meta(pattern=DNS_LABEL, max_length=63)]
    """Stands in every reason that is given."""

    kind: WindowKind = WindowKind.ALLOW
    """Allow: its operations run only inside it or another Allow window. Deny: they do not run, whatever any
    Allow window says."""

    schedule: Annotated[str, Meta(min_length=1, max_length=256)]
    """When it opens: five fields of cron, in spec.maintenance.timeZone. What cannot be read keeps closed."""

    duration: Duration
    """How long it stays open, in elapsed time: a clock change makes it neither shorter nor longer. From 1m to
    168h; longer than the schedule's period, openings merge."""

    operations: Annotated[tuple[MaintenanceOperation, ...], Meta(min_length=1, max_length=4)] = (
        MaintenanceOperation.TRUNCATE,
        MaintenanceOperation.PUNCH,
        MaintenanceOperation.REWRITE,
    )
    """What it governs. An operation that no window names is always allowed: by default Delete, so that what is
    dead as a whole never waits for the night."""

    start_cutoff: Duration = Duration(0)
    """Nothing starts in the last so much before the operation closes. Below the duration; of an Allow window
    only."""

    overrun: Overrun = Overrun.FINISH
    """When the time is over (a Deny window: when it begins), a run that is under way finishes its plan, or
    stops after its present action."""


class Emergency(Section, frozen=True, kw_only=True):
    """When space matters more than the hour."""

    min_free_percentage: Percentage = 5
    """Per cent free below which Delete and Truncate, which move no bytes, ignore windows. Half of what
    back-pressure's default leaves, so that a disk is cleared before it is full. 0: never."""


class Maintenance(Section, frozen=True, kw_only=True):
    """When space may be given back."""

    paused: bool = False
    """Give nothing back, not even in an emergency: for looking into something."""

    time_zone: Annotated[str, Meta(min_length=1, max_length=64)] = "UTC"
    """The IANA zone of all schedules. An unknown one keeps every window closed."""

    windows: Annotated[tuple[Window, ...], Meta(max_length=64)] = ()
    """None: always allowed."""

    max_concurrent_nodes: Annotated[int, Meta(ge=1)] | Share = "10%"
    """Nodes, or per cent of them, that truncate, punch or rewrite at the same time (NiFi, Ambry: none)."""

    emergency: Emergency = Emergency()
    """When windows are ignored."""

    blockers: Blockers = Blockers()
    """What else a cluster waits for (NiFi, Ambry: none)."""


def window_problems(maintenance: Maintenance) -> Iterator[str]:
    """The rules that join fields, or that a bare type cannot say."""
    names: set[str] = set()
    for index, window in enumerate(maintenance.windows):
        field = f"spec.maintenance.windows[{index}]"
        if window.name in names:
            yield f"{field}.name: {window.name!r} is used twice"
        if not WINDOW_MILLIS_MIN <= window.duration <= WINDOW_MILLIS_MAX:
            yield f"{field}.duration: {window.duration} is not between 1m and 168h"
        if len(set(window.operations)) < len(window.operations):
            yield f"{field}.operations: one is listed twice"
        if window.kind == WindowKind.DENY and window.start_cutoff:
            yield f"{field}.startCutoff: a Deny window has none: make it begin earlier"
        elif 0 < window.duration <= window.start_cutoff:
            yield f"{field}.startCutoff: {window.start_cutoff} must be below the duration ({window.duration})"
        names.add(window.name)
