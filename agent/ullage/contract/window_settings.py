"""The contract's section `maintenance`: when space may be given back. What it means at a given moment: windows.py."""

import enum
from collections.abc import Iterator
from typing import Annotated, Final

from msgspec import Meta

from ullage.contract.fleet_settings import BlockerSettings, Share
from ullage.contract.settings import DNS_LABEL, Percentage, Settings
from ullage.contract.units import Duration

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


class Window(Settings, frozen=True, kw_only=True):
    """A time that comes again, in which operations are allowed or denied."""

    name: Annotated[str, Meta(pattern=DNS_LABEL, max_length=63)]
    """The window's name. It stands in every reason that is given."""

    kind: WindowKind = WindowKind.ALLOW
    """The operations of an Allow window run only inside it or inside another Allow window. The operations of a Deny
    window do not run inside it, whatever any Allow window says."""

    schedule: Annotated[str, Meta(min_length=1, max_length=256)]
    """When the window opens, as five fields of cron in spec.maintenance.timeZone. A schedule that cannot be read keeps
    closed what it governs."""

    duration: Duration
    """How long the window stays open, in elapsed time from 1m to 168h: a clock change makes it neither shorter nor
    longer. Openings that touch or overlap are one."""

    operations: Annotated[tuple[MaintenanceOperation, ...], Meta(min_length=1, max_length=4)] = (
        MaintenanceOperation.TRUNCATE,
        MaintenanceOperation.PUNCH,
        MaintenanceOperation.REWRITE,
    )
    """The operations that the window governs. An operation that no window names is always allowed: by default this is
    Delete, so that what is dead as a whole never waits for the night."""

    start_cutoff: Duration = Duration(0)
    """No run starts in the last so much time before the operation closes. It must be below the duration, and only an
    Allow window has one."""

    overrun: Overrun = Overrun.FINISH
    """What happens to a run that is under way when the time is over, or when a Deny window begins. Finish lets it
    finish its plan, Stop ends it after its present action. Where several windows end at once, one Stop is enough."""


class EmergencySettings(Settings, frozen=True, kw_only=True):
    """When space matters more than the hour."""

    min_free_percentage: Percentage = 5
    """When less than this percentage of a container is free, Delete and Truncate, which move no bytes, ignore windows
    there. 0 means never. The default is half of what back-pressure's default leaves, so that a disk is cleared before
    it is full."""


class MaintenanceSettings(Settings, frozen=True, kw_only=True):
    """When space may be given back."""

    paused: bool = False
    """True gives nothing back, not even in an emergency, so that somebody can look into something."""

    time_zone: Annotated[str, Meta(min_length=1, max_length=64)] = "UTC"
    """The IANA time zone of all schedules. An unknown one keeps every window closed."""

    windows: Annotated[tuple[Window, ...], Meta(max_length=64)] = ()
    """When operations are allowed or denied. Without any window everything is always allowed."""

    max_concurrent_nodes: Annotated[int, Meta(ge=1)] | Share = "10%"
    """How many nodes, or which percentage of them, truncate, punch or rewrite at the same time. It is at least one
    node."""

    emergency: EmergencySettings = EmergencySettings()
    """When windows are ignored because space runs out."""

    blockers: BlockerSettings = BlockerSettings()
    """The pods that reclamation waits for in a cluster."""


def window_problems(maintenance: MaintenanceSettings) -> Iterator[str]:
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
