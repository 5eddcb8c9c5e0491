"""Which run each node is due for, and how far each run is. Pure."""

from ullage.contract import ENDED, RunNode, RunPhase, RunStatus, time_of
from ullage_operator.objects import rounded
from ullage_operator.observation import Observation, RunObject


def runs_due(seen: Observation, hosts: tuple[str, ...]) -> tuple[dict[str, RunObject], dict[str, RunStatus]]:
    """For each node the oldest run that still waits for it; and the statuses that changed."""
    due: dict[str, RunObject] = {}
    statuses: dict[str, RunStatus] = {}
    for run in sorted(seen.runs, key=lambda run: (run.created, run.name)):
        if run.status.phase in (RunPhase.COMPLETED, RunPhase.FAILED):
            continue
        status, waiting = _run_status(seen, run, hosts)
        for node in waiting:
            due.setdefault(node, run)
        if status != run.status:
            statuses[run.name] = status
    return due, statuses


def _run_status(seen: Observation, run: RunObject, hosts: tuple[str, ...]) -> tuple[RunStatus, tuple[str, ...]]:
    known = {result.node for result in run.status.results}
    scope = [node for node in hosts if not run.spec.nodes or node in run.spec.nodes]
    absent = [node for node in run.spec.nodes if node not in hosts]
    results = list(run.status.results)
    has_begun = run.status.started
    for node in scope:
        found = seen.objects.get(node)
        report = None if found is None else found.status.ticket
        if found is not None and found.spec.ticket is not None and found.spec.ticket.run == run.name:
            has_begun = has_begun or found.spec.ticket.not_before
        if node not in known and report is not None and report.run == run.name and report.state in ENDED:
            results.append(RunNode(node=node, report=report))
    results.sort(key=lambda result: result.node)
    waiting = tuple(node for node in scope if node not in {result.node for result in results})
    failed = sum(result.report.state != "Completed" for result in results) + len(absent)
    is_done = not waiting
    phase = RunPhase.RUNNING if has_begun or results else RunPhase.PENDING
    if is_done:
        phase = RunPhase.FAILED if failed else RunPhase.COMPLETED
    message = f"There is no agent on {', '.join(absent[:3])}." if absent else ""
    if not is_done and not message:
        message = f"The run waits for {waiting[0]}" + (f" and {len(waiting) - 1} more." if len(waiting) > 1 else ".")
    status = RunStatus(
        observed_generation=run.generation,
        phase=phase,
        started=has_begun,
        ended=time_of(seen.now_millis) if is_done else None,
        nodes=len(scope) + len(absent),
        nodes_done=len(results) + len(absent),
        nodes_failed=failed,
        freed=rounded(sum(result.report.freed_bytes for result in results)),
        copied=rounded(sum(result.report.copied_bytes for result in results)),
        message=message,
        results=tuple(results[:1000]),
    )
    return status, waiting
