"""When dead bytes come back, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ullage.enums import GivenBack
from ullage_agent.cli.output import moment, print_rows, size, tell

if TYPE_CHECKING:
    from ullage.wire.space import SpaceComing, SpaceForecast

WORDS: Final = {
    GivenBack.NOW: "now",
    GivenBack.NEXT_RUN: "at the next run",
    GivenBack.WINDOW_OPENS: "when a window opens",
    GivenBack.RETENTION_ENDS: "when its retention ends",
    GivenBack.HOLDER_LETS_GO: "when it is let go",
    GivenBack.NOT_BY_ITSELF: "not by itself",
}
"""What people read of when bytes come back."""

UNLOOKED: Final = (
    "what a killed process may have left is not known yet: directories are read for it a minute after a repository "
    "begins to be served, and by `ullage clean --orphans`"
)

COLUMNS: Final = ("dead bytes come back", ">bytes", "by", "earliest", "latest", "why", "what helps")


def show_forecast(forecast: SpaceForecast) -> None:
    """For people: one line for all that comes back together."""
    if forecast.coming:
        print_rows(COLUMNS, [_row(each) for each in forecast.coming])
        tell(f"{size(forecast.dead_bytes)} dead or kept in all")
    else:
        tell("no bytes are dead" if forecast.orphans_known else "no bytes are dead that the ledger knows of")
    if not forecast.orphans_known:
        tell(UNLOOKED)


def _row(each: SpaceComing) -> tuple[str, ...]:
    return (
        WORDS[each.when],
        size(each.bytes),
        "-" if each.operation is None else each.operation,
        "-" if each.earliest_millis is None else moment(each.earliest_millis),
        "-" if each.latest_millis is None else moment(each.latest_millis),
        each.reason or str(each.use),
        each.helps or "-",
    )
