"""When a node's dead bytes come back, as the few sums that its object holds; `ullage status` has the rest."""

from collections import Counter
from typing import Final

from ullage.contract import Returning
from ullage.enums import GivenBack
from ullage.wire.space import SpaceForecast

FIELDS: Final = {
    GivenBack.NOW: "by_itself_bytes",
    GivenBack.NEXT_RUN: "by_itself_bytes",
    GivenBack.WINDOW_OPENS: "window_bytes",
    GivenBack.RETENTION_ENDS: "retention_bytes",
    GivenBack.HOLDER_LETS_GO: "held_bytes",
    GivenBack.NOT_BY_ITSELF: "unasked_bytes",
}
"""Where each is counted."""


def returning_of(forecast: SpaceForecast) -> Returning:
    """Its sums."""
    sums: Counter[str] = Counter()
    for each in forecast.coming:
        sums[FIELDS[each.when]] += each.bytes
    return Returning(**sums)
