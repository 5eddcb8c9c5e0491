import pytest

from tests.operator.support import HOUR, MINUTE, NOW, ticket
from ullage.contract import (
    Duration,
    EmergencySettings,
    MaintenanceOperation,
    MaintenanceSettings,
    Ticket,
    Window,
    time_of,
)
from ullage_agent.node.tickets import TicketHolder, void_reason

REWRITE, DELETE = MaintenanceOperation.REWRITE, MaintenanceOperation.DELETE


def tickets(given: Ticket | None, generation: int = 1, *, is_cordoned: bool = False) -> TicketHolder:
    made = TicketHolder()
    made.settings_are(generation)
    made.take_over(given, is_cordoned=is_cordoned)
    return made


@pytest.mark.parametrize(
    ("why", "given", "generation"),
    [
        ("none", None, 1),
        ("older settings", ticket(), 2),
        ("settings that did not arrive yet", ticket(generation=2), 1),
        ("not yet", ticket(not_before=time_of(NOW + MINUTE)), 1),
        ("no longer", ticket(not_after=time_of(NOW)), 1),
        ("stopped", ticket(stop_after=time_of(NOW - MINUTE)), 1),
        ("about something else", ticket(operations=(MaintenanceOperation.TRUNCATE,)), 1),
    ],
)
def test_without_a_valid_ticket_nothing_is_rewritten(why: str, given: Ticket | None, generation: int) -> None:
    """No window says otherwise, because none is asked; whole dead files may go all the same."""
    permission = tickets(given, generation).permission_of(MaintenanceSettings())

    assert not permission(REWRITE, NOW).is_granted, why
    assert permission(DELETE, NOW).is_granted


def test_a_valid_ticket_permits_until_it_stops() -> None:
    """The engine is told when to stop; without such a time a run may finish."""
    stop = ticket(stop_after=time_of(NOW + HOUR))

    assert tickets(stop).permission_of(MaintenanceSettings())(REWRITE, NOW).until_millis == NOW + HOUR
    assert tickets(ticket()).permission_of(MaintenanceSettings())(REWRITE, NOW).until_millis is None


def test_a_ticket_about_whole_dead_files_opens_a_closed_window_for_them() -> None:
    """That of a run which passes over the windows; without it the agent reads them itself."""
    closed = MaintenanceSettings(
        windows=(Window(name="w", schedule="0 1 * * *", duration=Duration(3_600_000), operations=(DELETE,)),)
    )

    assert tickets(ticket(operations=(DELETE, REWRITE))).permission_of(closed)(DELETE, NOW).is_granted
    assert not tickets(ticket()).permission_of(closed)(DELETE, NOW).is_granted
    assert not tickets(ticket(operations=(DELETE,)), 2).permission_of(closed)(DELETE, NOW).is_granted


def test_the_emergency_floor_needs_no_ticket() -> None:
    """A full disk is cleared of what moves no bytes, whoever cannot be reached."""
    permission = tickets(None).permission_of(MaintenanceSettings(emergency=EmergencySettings(min_free_percentage=7)))

    assert permission(MaintenanceOperation.TRUNCATE, NOW).emergency_free_percentage == 7


def test_a_cordoned_node_reclaims_nothing() -> None:
    """Not with a ticket, and not even whole dead files."""
    permission = tickets(ticket(), is_cordoned=True).permission_of(MaintenanceSettings())

    assert not permission(REWRITE, NOW).is_granted
    assert not permission(DELETE, NOW).is_granted


def test_pausing_beats_a_ticket() -> None:
    """spec.maintenance.paused is obeyed at once, before the operator has taken the ticket back."""
    assert not tickets(ticket()).permission_of(MaintenanceSettings(paused=True))(REWRITE, NOW).is_granted


def test_what_is_taken_back_is_told() -> None:
    """A run under way hears of it; the same ticket again changes nothing."""
    told: list[int] = []
    made = tickets(ticket())
    made.on_revoked = lambda: told.append(1)

    made.take_over(ticket(), is_cordoned=False)
    assert told == []
    made.take_over(None, is_cordoned=False)
    assert told == [1]


def test_a_void_ticket_says_why() -> None:
    """In words that name the ticket and both generations."""
    assert void_reason(ticket(), 2, NOW) == "ticket t1 is for generation 1 of the settings, 2 is in force"
