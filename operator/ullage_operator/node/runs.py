"""Which run each node is due for, and how far each run is. Pure."""

from collections.abc import Iterable

import msgspec

from ullage.contract import (
    ENDED,
    FINISHED_MAX,
    RESULTS_MAX,
    FinishedRun,
    RunNode,
    RunPhase,
    RunStatus,
    Ticket,
    TicketReport,
    TicketState,
    conditions_of,
    millis_of,
    time_of,
)
from ullage_operator.objects import rounded
from ullage_operator.observation import NodeObject, Observation, RunObject

FINAL = (RunPhase.COMPLETED, RunPhase.FAILED)


WORDS_MAX = 256
"""Characters that a run repeats of what a node said: sixteen nodes of four bytes a character stay below 20 KB."""


def runs_due(
    seen: Observation, hosts: tuple[str, ...], *, is_held: bool = False
) -> tuple[dict[str, RunObject], dict[str, RunStatus]]:
    """For each node the oldest run that still waits for it; and the statuses that changed. `is_held`: the repository is
    paused or not accepted, and no run goes on.
    """
    due: dict[str, RunObject] = {}
    statuses: dict[str, RunStatus] = {}
    going = [run for run in sorted(seen.runs, key=_age) if run.status.phase not in FINAL]
    for place, run in enumerate(going):
        if is_held:
            status = held(run, seen.now_millis)
        else:
            status, waiting = _run_status(seen, run, hosts)
            # Later ones wait: of so many a node's object keeps what was reported. What is kept of one more would take
            # the place of one that goes on, which would come to the node again, without an end.
            is_next = place < FINISHED_MAX and not run.spec.suspend
            for node in waiting if is_next else ():
                due.setdefault(node, run)
        if status != run.status:
            statuses[run.name] = status
    return due, statuses


def _age(run: RunObject) -> tuple[str, str]:
    return run.created, run.name


def is_called_off(ticket: Ticket, runs: Iterable[RunObject]) -> bool:
    """Whether the run that asked for a ticket was deleted, suspended, or has ended. One of the same name that came
    later is another, and may ask for less.
    """
    return bool(ticket.run) and not any(
        run.uid == ticket.run_uid and not run.spec.suspend and run.status.phase not in FINAL for run in runs
    )


def expired(runs: Iterable[RunObject], now_millis: int) -> tuple[RunObject, ...]:
    """Those that ended so long ago that they shall go."""
    return tuple(run for run in runs if run.status.phase in FINAL and (_due(run) or now_millis + 1) <= now_millis)


def next_millis(runs: Iterable[RunObject], now_millis: int) -> int | None:
    """When time alone ends or deletes a run; None: never."""
    times = (_due(run) for run in runs)
    return min((each for each in times if each is not None and each > now_millis), default=None)


def _due(run: RunObject) -> int | None:
    is_over = run.status.phase in FINAL
    since = run.status.ended if is_over else run.status.started
    seconds = run.spec.ttl_seconds_after_finished if is_over else run.spec.active_deadline_seconds
    return None if since is None or seconds is None else millis_of(since) + seconds * 1000


def held(run: RunObject, now_millis: int) -> RunStatus:
    """Of a run whose repository is paused or not accepted. Its own time goes on, as that of a Job does: who bounded it
    does not want it to begin anew weeks later.
    """
    due = _due(run)
    if due is not None and due <= now_millis:
        message = "The time of spec.activeDeadlineSeconds was over while the repository was paused, or not accepted."
        status = msgspec.structs.replace(run.status, message=message, ended=time_of(now_millis))
        return _told(run, status, "DeadlineExceeded", now_millis)
    status = msgspec.structs.replace(run.status, message="The repository is paused, or not accepted.")
    return _told(run, status, "HandsOff", now_millis)


def orphaned(run: RunObject, now_millis: int) -> RunStatus:
    """Of a run whose repository is not there: one that comes later is reclaimed then."""
    message = f"There is no ContentRepository {run.spec.repository} in this namespace."
    status = msgspec.structs.replace(run.status, message=message)
    return _told(run, status, "NoRepository", now_millis)


def _run_status(seen: Observation, run: RunObject, hosts: tuple[str, ...]) -> tuple[RunStatus, tuple[str, ...]]:
    wanted = set(run.spec.nodes)
    scope = [node for node in hosts if not wanted or node in wanted]
    absent = sorted(wanted.difference(hosts))
    results, has_begun = _results(seen, run, scope)
    done = {result.node for result in results}
    waiting = tuple(node for node in scope if node not in done)
    failed = sum(result.report.state != TicketState.COMPLETED for result in results) + len(absent)
    # Also of a beginning that is told only now. Told to have begun long ago, and not to be over, a run would wait for
    # whatever wakes the operator next: nobody wakes it for what it wrote itself, and `next_millis` is over already.
    due = _due(msgspec.structs.replace(run, status=msgspec.structs.replace(run.status, started=has_begun)))
    late = waiting if due is not None and due <= seen.now_millis else ()
    if late:
        waiting, reason = (), "DeadlineExceeded"
    elif waiting and run.spec.suspend:
        reason = "Suspended"
    elif waiting:
        reason = "Running" if has_begun or results else "Waiting"
    elif not scope and not absent:
        reason = "NoNodes"
    else:
        reason = "Failed" if failed else "Completed"
    status = RunStatus(
        started=has_begun,
        ended=None if waiting else time_of(seen.now_millis),
        nodes=len(scope) + len(absent),
        nodes_done=len(results) + len(absent) + len(late),
        nodes_failed=failed + len(late),
        freed=rounded(sum(result.report.freed_bytes for result in results)),
        copied=rounded(sum(result.report.copied_bytes for result in results)),
        message=_message(late or waiting, absent, results, reason),
        results=_worst(results),
        conditions=run.status.conditions,
    )
    return _told(run, status, reason, seen.now_millis), waiting


def _results(seen: Observation, run: RunObject, scope: Iterable[str]) -> tuple[list[RunNode], str | None]:
    """What nodes have reported, by name, and when the first ticket was given."""
    results = []
    has_begun = run.status.started
    for node in scope:
        found = seen.objects.get(node)
        if found is None:
            continue
        if found.spec.ticket is not None and found.spec.ticket.run_uid == run.uid:
            has_begun = has_begun or found.spec.ticket.not_before
        if (report := _report_of(found, run)) is not None:
            results.append(RunNode(node=node, report=report))
    return sorted(results, key=lambda result: result.node), has_begun


def _report_of(found: NodeObject, run: RunObject) -> TicketReport | None:
    """What the node has reported of the run's end: as it was kept, or as the agent says it until it is."""
    for each in found.spec.finished:
        if each.uid == run.uid:
            return each.report
    report = found.status.ticket
    return report if report is not None and report.run_uid == run.uid and report.state in ENDED else None


def finished_on(found: NodeObject, runs: Iterable[RunObject]) -> tuple[FinishedRun, ...]:
    """What is kept at the node of runs that have ended there: an agent's report lasts until its next ticket only. Also
    of a run that is over: that may have been written, and this not.

    What belongs to runs that are no more goes when something is added: by itself it would be a write to each node.
    """
    report, known = found.status.ticket, {run.uid: run for run in runs}
    run = None if report is None else known.get(report.run_uid)
    if report is None or run is None or report.state not in ENDED:
        return found.spec.finished
    if any(each.uid == run.uid for each in found.spec.finished):
        return found.spec.finished
    kept = [each for each in found.spec.finished if each.uid in known]
    # Those go first that need not be known any more: a run that goes on would come to the node again.
    kept.sort(key=lambda each: known[each.uid].status.phase not in FINAL)
    return (*kept[max(0, len(kept) + 1 - FINISHED_MAX) :], FinishedRun(uid=run.uid, report=_shortened(report)))


def _worst(results: list[RunNode]) -> tuple[RunNode, ...]:
    """Those that refused or failed first: as many as a person reads, since an object has its limits."""
    worst = sorted(results, key=lambda result: (result.report.state == TicketState.COMPLETED, result.node))
    return tuple(RunNode(node=result.node, report=_shortened(result.report)) for result in worst[:RESULTS_MAX])


def _shortened(report: TicketReport) -> TicketReport:
    return msgspec.structs.replace(report, message=report.message[:WORDS_MAX])


def _message(waiting: tuple[str, ...], absent: list[str], results: list[RunNode], reason: str) -> str:
    more = f" and {len(waiting) - 1} more" if len(waiting) > 1 else ""
    if reason == "DeadlineExceeded":
        return f"The time of spec.activeDeadlineSeconds was over before {waiting[0]}{more}."
    if reason == "Suspended":
        return f"The run is suspended before {waiting[0]}{more}: set spec.suspend to false."
    if absent:
        return f"There is no agent on {', '.join(absent[:3])}."
    if waiting:
        return f"The run waits for {waiting[0]}{more}."
    if reason == "NoNodes":
        return "The repository has no node that could be reclaimed."
    failed = [result for result in results if result.report.state != TicketState.COMPLETED]
    return f"{failed[0].node}: {failed[0].report.state}: {failed[0].report.message}" if failed else ""


PHASES = {
    "Completed": RunPhase.COMPLETED,
    "Failed": RunPhase.FAILED,
    "DeadlineExceeded": RunPhase.FAILED,
    "NoNodes": RunPhase.FAILED,
    "Running": RunPhase.RUNNING,
}
"""Of what each reason is; others leave a run where it is."""


def _told(run: RunObject, status: RunStatus, reason: str, now_millis: int) -> RunStatus:
    """The status with phase and conditions for this reason of its condition Ready."""
    phase = PHASES.get(reason, run.status.phase)
    is_going = reason in ("Waiting", "Running")
    is_stuck = not is_going and phase != RunPhase.COMPLETED
    idle = "Ended" if phase in FINAL else "HandsOff"
    message = status.message
    facts = [
        ("Ready", reason, message),
        ("Reconciling", reason if is_going else idle, message if is_going else ""),
        ("Stalled", reason if is_stuck else "Working", message if is_stuck else ""),
    ]
    made = conditions_of("ReclamationRun", facts, run.status.conditions, run.generation, time_of(now_millis))
    return msgspec.structs.replace(status, observed_generation=run.generation, phase=phase, conditions=made)
