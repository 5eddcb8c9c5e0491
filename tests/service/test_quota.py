"""Quotas: what one principal may have leaves room for the others, and what several have together does too."""

import pytest

from ullage.errors import QuotaReached
from ullage_agent.service.access import ANONYMOUS, Principal
from ullage_agent.service.limits import DEFAULTS
from ullage_agent.service.quota import Quota


def had(quota: Quota, owner: Principal, most: int) -> int:
    """How many one gets that takes all it can."""
    for count in range(most):
        try:
            quota.take(owner)
        except QuotaReached:
            return count
    return most


@pytest.mark.parametrize(
    ("most", "each", "expected"),
    [
        (DEFAULTS.flight_calls, DEFAULTS.flight_calls_each, [24, 6, 1, 1]),
        (DEFAULTS.flight_controls, DEFAULTS.flight_controls_each, [12, 3, 1]),
        (DEFAULTS.requests, DEFAULTS.requests_each, [768, 192, 48, 12, 3]),
        (DEFAULTS.socket_connections, DEFAULTS.socket_connections_each, [192, 48, 12, 3]),
    ],
)
def test_greedy_ones_together_leave_room_for_another(most: int, each: int, expected: list[int]) -> None:
    """Each may have the same part of what the others leave: two that stall had all there was."""
    quota = Quota("streams_each", "streams", each, most)
    greedy = [Principal(f"greedy {number}") for number in range(len(expected))]
    assert [had(quota, one, most) for one in greedy] == expected

    for _ in range(expected[0]):
        quota.give_back(greedy[0])
    assert had(quota, Principal("good"), most) == (most - sum(expected[1:])) * each // most


def test_one_is_everybodys() -> None:
    """However little is left; and the anonymous are bounded by what there is alone."""
    quota = Quota("streams_each", "streams", 1, 1_000)
    for number in range(999):
        assert had(quota, Principal(str(number)), 2) == 1
    assert had(Quota("streams_each", "streams", 1, 10), ANONYMOUS, 10) == 10
