"""`ullage status`: a repository on one screen, and when its dead bytes come back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from ullage.enums import GivenBack
from ullage_agent.cli.choice import ChosenRepository
from ullage_agent.cli.interrupts import interrupts
from ullage_agent.cli.options import command, on_repository
from ullage_agent.cli.output import console, many, moment, print_json, print_rows, size, tell

if TYPE_CHECKING:
    from ullage.wire.service import ServiceStatus
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

COLUMNS: Final = ("dead bytes come back", ">bytes", "by", "earliest", "latest", "why", "what helps")


@command()
@on_repository
def status(where: ChosenRepository, as_json: bool) -> None:
    """Show what a repository holds, what is wrong with it, its windows, and when its dead bytes come back.

    Each line about dead bytes says by what operation they come back, not before when and, where that can be told, when
    at the latest, if nothing else changes. What does not come back by itself names the limit or threshold that keeps
    it, and what would help.
    """
    from ullage_agent.cli.space import survey_document, survey_table

    with where.opened() as repository, interrupts.allowed():
        state, forecast = repository.state(), repository.reclamation.forecast()
    if as_json:
        print_json({"state": msgspec.to_builtins(state), "forecast": msgspec.to_builtins(forecast)})
        return
    for line in _lines(state):
        tell(line)
    tell("")
    console().print(survey_table(survey_document(state.containers)))
    tell("")
    show_forecast(forecast)
    for each in state.windows:
        if not each.may_start:
            tell(f"{each.operation} may not begin now: {each.reason}")


def show_forecast(forecast: SpaceForecast) -> None:
    """For people: one line for all that comes back together."""
    if not forecast.coming:
        tell("no bytes are dead")
        return
    print_rows(COLUMNS, [_row(each) for each in forecast.coming])
    tell(f"{size(forecast.dead_bytes)} dead or kept in all")


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


def _lines(state: ServiceStatus) -> list[str]:
    """What there is, and what is not as it should be."""
    where = f" of node {state.node}" if state.node else ""
    ready = "ready" if state.is_ready else "not ready"
    found = [
        f"repository {state.name or state.repository}{where}: {ready}",
        f"{many(state.flow_files, 'FlowFile')} in {many(state.queues, 'queue')}, {many(state.leases, 'lease')}",
    ]
    troubles = (
        (", ".join(state.full_queues), "full queues"),
        (", ".join(state.poisoned), "containers that can't be written"),
        (state.unavailable_contents, "contents that can't be read"),
        (state.records_set_aside, "records set aside"),
        (state.clock.reason, "clock not believed"),
    )
    return [*found, *(f"{what}: {value}" for value, what in troubles if value)]
