"""`ullage status`: a repository on one screen, and when its dead bytes come back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ullage.contract import Duration
from ullage_agent.cli.choice import ChosenRepository
from ullage_agent.cli.forecast import show_forecast
from ullage_agent.cli.interrupts import interrupts
from ullage_agent.cli.options import command, on_repository
from ullage_agent.cli.output import console, many, moment, print_json, size, tell
from ullage_agent.cli.space import survey_document, survey_table

if TYPE_CHECKING:
    from ullage.wire.service import ReplicationStatus, ServiceStatus
    from ullage.wire.space import GoalStatus


@command()
@on_repository
def status(where: ChosenRepository, as_json: bool) -> None:
    """Show what a repository holds, what is wrong with it, its windows, and when its dead bytes come back.

    Each line about dead bytes says by what operation they come back, not before when and, where that can be told, when
    at the latest, if nothing else changes. What does not come back by itself names the limit or threshold that keeps
    it, and what would help.
    """
    with where.opened() as repository, interrupts.allowed():
        state, forecast = repository.state(), repository.reclamation.forecast()
        goal = repository.reclamation.goal()
    unfinished = where.unfinished_erasure(state.unfinished_erasure)
    if as_json:
        print_json(msgspec.to_builtins({"state": state, "forecast": forecast, "goal": goal}) | unfinished)
        return
    for line in (*_lines(state), *unfinished.values()):
        tell(line)
    tell("")
    console().print(survey_table(survey_document(state.containers)))
    tell("")
    show_forecast(forecast)
    for line in goal_lines(goal, forecast.millis):
        tell(line)
    for each in state.windows:
        if not each.may_start:
            tell(f"{each.operation} may not begin now: {each.reason}")


def goal_lines(goal: GoalStatus, millis: int) -> list[str]:
    """How a goal of compaction is held, and what is to be expected; nothing where there is none."""
    found = []
    if goal.disk_to_live is not None:
        now = "unknown" if goal.disk_to_live_now is None else f"{goal.disk_to_live_now:.2f}"
        found.append(f"goal: disk / live at most {goal.disk_to_live:g}, now {now}")
    if goal.max_dead_age_millis is not None:
        age = 0 if goal.oldest_dead_millis is None else max(0, millis - goal.oldest_dead_millis)
        found.append(f"goal: nothing dead for longer than {Duration(goal.max_dead_age_millis)}, now {age // 60_000}m")
    if found and goal.chosen_files:
        found.append(f"goal: {many(goal.chosen_files, 'file')} taken, at {size(goal.bytes_per_second)} a second")
    if goal.will_miss is not None and goal.will_miss_millis is not None:
        since = (
            "is missed now" if goal.will_miss_millis <= millis else f"will be missed at {moment(goal.will_miss_millis)}"
        )
        found.append(f"goal: {goal.will_miss} {since}: {goal.reason}; what helps: {goal.helps}")
    return found


def _replication(found: ReplicationStatus | None) -> list[str]:
    """How far a bucket is behind."""
    if found is None:
        return []
    said = {
        "starting": "begins",
        "shipping": f"up to transaction {found.shipped_transaction:,}",
        "failing": f"fails: {found.problem}",
        "fenced": f"has ended: {found.problem}",
    }[found.state]
    lag = f", {many(found.lag_transactions, 'transaction')} and {size(found.lag_bytes)} behind"
    if found.state == "fenced":
        # Of what was committed since it was fenced nobody counts the bytes.
        lag = f"; only this node has {many(found.lag_transactions, 'transaction')}"
        lag = "; how much only this node has is not known" if found.awaits_base else lag
    missing = f"; {many(found.unreadable_contents, 'content')} could not be read" if found.unreadable_contents else ""
    fenced = "; nothing is changed here any more" if found.state == "fenced" else ""
    lapsed = "; nothing is served, as its lease has lapsed" if found.has_lapsed else ""
    return [f"replication to {found.url}: {said}{lag if found.lag_transactions else ''}{missing}{fenced}{lapsed}"]


def _lines(state: ServiceStatus) -> list[str]:
    """What there is, and what is not as it should be."""
    where = f" of node {state.node}" if state.node else ""
    ready = "ready" if state.is_ready else "not ready"
    ready += ", drained: it takes nothing new" if state.drains else ""
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
    found += _replication(state.replication)
    return [*found, *(f"{what}: {value}" for value, what in troubles if value)]
