"""Whether reclamation may run now. Who embeds the engine says so: the engine itself knows no times of day.

`Reclaimer.permission` is asked once for each operation when a run begins. Where it says nothing else, a run goes on
to its end. `Reclaimer.permit` with another one takes back what was granted by the last: runs under way stop where they
can.

    Repository.open(spec, permission=ullage.contract.Calendar(spec.maintenance).permission)
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from ullage.contract.window_settings import MaintenanceOperation, MaintenanceSettings

EMERGENCY_OPERATIONS: Final = frozenset({MaintenanceOperation.DELETE, MaintenanceOperation.TRUNCATE})
"""They move no bytes, so they need no room and cost next to nothing."""


class Permission(NamedTuple):
    """The answer for one operation at one moment.

    `is_granted`: it may begin; else `reason` says why not. `until_millis`, since 1970: a run under way stops after its
    present action then; None: it may finish. `emergency_free_percentage`: refused or not, it runs on containers of
    which less is free; 0: never.
    """

    is_granted: bool = True
    until_millis: int | None = None
    emergency_free_percentage: float = 0
    reason: str = ""


PermissionFor = Callable[[MaintenanceOperation, int], Permission]
"""Gets the operation and the moment (milliseconds since 1970); called from several threads, never under a lock."""


def without_windows(maintenance: MaintenanceSettings) -> PermissionFor:
    """Always, unless `paused`: what a person may ask for who passes over the windows."""

    def permission(operation: MaintenanceOperation, _: int) -> Permission:
        if maintenance.paused:
            return Permission(is_granted=False, reason="spec.maintenance.paused is true")
        return Permission(emergency_free_percentage=emergency_floor(maintenance, operation))

    return permission


def default_permission(maintenance: MaintenanceSettings) -> PermissionFor:
    """What holds until somebody says more: windows that nobody reads are closed ones."""
    always = without_windows(maintenance)

    def permission(operation: MaintenanceOperation, millis: int) -> Permission:
        answer = always(operation, millis)
        if answer.is_granted and any(operation in window.operations for window in maintenance.windows):
            reason = f"windows are about {operation}, and this program reads none: give `permit` their calendar"
            return answer._replace(is_granted=False, reason=reason)
        return answer

    return permission


def emergency_floor(maintenance: MaintenanceSettings, operation: MaintenanceOperation) -> float:
    """Per cent free below which this operation needs no permission; 0: never, as while paused."""
    if maintenance.paused or operation not in EMERGENCY_OPERATIONS:
        return 0
    return maintenance.emergency.min_free_percentage
