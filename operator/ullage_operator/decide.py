"""From what was observed to what shall be: node objects, tickets, runs and the status. Pure."""

from collections.abc import Iterable
from typing import Final

import msgspec

from ullage_agent.contract import ContentRepositorySpec, DeletionPolicy, TlsMode
from ullage_agent.fleet import (
    HEARTBEAT_SECONDS,
    TICKETED,
    Condition,
    ConditionStatus,
    NextWindow,
    NodeSpec,
    RepositoryStatus,
    RunNode,
    RunPhase,
    RunStatus,
)
from ullage_agent.windows import Calendar
from ullage_operator.observe import NodeObject, Observation, Run
from ullage_operator.placement import conflict, places
from ullage_operator.planning import PlanningDecision, plan, timetable
from ullage_operator.rollout import Rollout, rollout
from ullage_operator.settings import Settings
from ullage_operator.tickets import ENDED, Lottery, Round
from ullage_operator.times import millis_of, rounded, text_of

SILENCE_MILLIS: Final = 3 * HEARTBEAT_SECONDS * 1000
"""After three missed heartbeats nobody vouches for a node."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a wish can be granted, and if not, why."""

    reason: str
    message: str

    @property
    def is_accepted(self) -> bool:
        return self.reason == "Valid"


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What shall be. `nodes`: the specs of the node objects, by node; `released`: objects that shall go.

    `runs`: statuses that changed, by the run's name; `news`: what people should be told, as (type, reason, message).
    """

    verdict: Verdict
    status: RepositoryStatus
    hosts: tuple[str, ...] = ()
    nodes: dict[str, NodeSpec] = msgspec.field(default_factory=dict)
    released: tuple[NodeObject, ...] = ()
    runs: dict[str, RunStatus] = msgspec.field(default_factory=dict)
    news: tuple[tuple[str, str, str], ...] = ()
    planning: PlanningDecision = PlanningDecision()
    rollout: Rollout = Rollout()
    next_millis: int | None = None
    keeps_hands_off: bool = False


def decide(seen: Observation, settings: Settings) -> Decision:
    """The one answer to an observation."""
    verdict = judge(seen)
    wish = seen.wish
    if wish.is_paused or not verdict.is_accepted or wish.document is None:
        # Nothing is started, stopped or taken back; tickets end by themselves.
        is_blind = wish.is_paused and verdict.is_accepted
        figures = _figures(seen, frozenset(), None)
        conditions = _conditions(seen, verdict, figures, frozenset())
        status = msgspec.structs.replace(
            figures,
            conditions=conditions,
            next_window="Paused" if is_blind else "",
            planning=wish.status.planning,
        )
        return Decision(verdict=verdict, status=status, news=_news(seen, status), keeps_hands_off=True)
    spec = wish.document.spec
    hosts = tuple(machine.name for machine in seen.machines if places(spec, machine))
    ready = frozenset(node for node in seen.objects if is_ready(seen, node))
    due, runs = _runs(seen, hosts)
    drawn = Lottery(seen, spec, settings, ready).draw(due)
    cordoned = {machine.name for machine in seen.machines if machine.is_cordoned}
    nodes: dict[str, NodeSpec] = {}
    released = []
    for node in sorted({*hosts, *seen.objects}):
        found = seen.objects.get(node)
        if found is not None and node not in hosts and (found.is_released or not found.status.repository_uuid):
            released.append(found)
            continue
        grant = drawn.grants.get(node)
        nodes[node] = NodeSpec(
            repository=wish.name,
            node_name=node,
            cordoned=node in cordoned,
            ticket=None if grant is None else grant.ticket,
            deferral=None if grant is None else grant.deferral,
        )
    figures = _figures(seen, frozenset(hosts), drawn, nodes)
    figures = msgspec.structs.replace(figures, **_windows(spec, drawn, seen.now_millis))
    rolls = rollout(seen, settings, hosts)
    conditions = _conditions(seen, verdict, figures, frozenset(hosts), rolls)
    planned = plan(seen)
    status = msgspec.structs.replace(figures, conditions=conditions, planning=planned.status)
    wakes = (drawn.next_millis, planned.next_millis, rolls.next_millis)
    return Decision(
        verdict=verdict,
        status=status,
        hosts=hosts,
        nodes=nodes,
        released=tuple(released),
        runs=runs,
        news=_news(seen, status),
        planning=planned,
        rollout=rolls,
        next_millis=min((each for each in wakes if each is not None), default=None),
    )


def judge(seen: Observation) -> Verdict:
    """Whether the wish can be granted: fields, cron and zones, who signs certificates, and directories of others."""
    wish = seen.wish
    if wish.document is None:
        return Verdict(reason="Invalid", message=wish.problem)
    if problem := conflict(wish, seen.others, seen.machines):
        return Verdict(reason="PathConflict", message=problem)
    if wish.document.spec.tls.mode == TlsMode.CERT_MANAGER and not seen.has_cert_manager:
        return Verdict(
            reason="NoCertManager",
            message="spec.tls.mode is CertManager, and the cluster does not serve cert-manager.io/v1: "
            "install cert-manager, or choose Operator or Secret",
        )
    if problems := Calendar(wish.document.spec.maintenance).problems:
        return Verdict(reason="InvalidWindow", message="; ".join(problems))
    if wish.document.spec.planning.schedule and (problem := timetable(wish.document.spec).problem):
        return Verdict(reason="InvalidSchedule", message=problem)
    return Verdict(reason="Valid", message="every field can be obeyed")


def is_ready(seen: Observation, node: str) -> bool:
    """Whether the node's agent says that it serves, and said so lately."""
    found = seen.objects[node]
    if found.status.heartbeat is None or seen.now_millis - millis_of(found.status.heartbeat) > SILENCE_MILLIS:
        return False
    return any(c.type == "Ready" and c.status == ConditionStatus.TRUE for c in found.status.conditions)


def serves(seen: Observation, node: str) -> bool:
    """Whether who asks the node gets an answer: its agent says so, and Services lead to its pod. An agent that died
    vouches for itself until its silence is noticed; the kubelet knows at once.
    """
    return node in seen.objects and not seen.is_away(node) and is_ready(seen, node)


def deletes_data(spec: ContentRepositorySpec) -> bool:
    """Whether the data goes with the object."""
    return spec.deletion_policy == DeletionPolicy.DELETE


def _runs(seen: Observation, hosts: tuple[str, ...]) -> tuple[dict[str, Run], dict[str, RunStatus]]:
    """For each node the oldest run that still waits for it; and the statuses that changed."""
    due: dict[str, Run] = {}
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


def _run_status(seen: Observation, run: Run, hosts: tuple[str, ...]) -> tuple[RunStatus, tuple[str, ...]]:
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
    message = f"no agent on {', '.join(absent[:3])}" if absent else ""
    if not is_done and not message:
        message = f"waits for {waiting[0]}" + (f" and {len(waiting) - 1} more" if len(waiting) > 1 else "")
    status = RunStatus(
        observed_generation=run.generation,
        phase=phase,
        started=has_begun,
        ended=text_of(seen.now_millis) if is_done else None,
        nodes=len(scope) + len(absent),
        nodes_done=len(results) + len(absent),
        nodes_failed=failed,
        freed=rounded(sum(result.report.freed_bytes for result in results)),
        copied=rounded(sum(result.report.copied_bytes for result in results)),
        message=message,
        results=tuple(results[:1000]),
    )
    return status, waiting


def _figures(
    seen: Observation, hosts: frozenset[str], drawn: Round | None, nodes: dict[str, NodeSpec] | None = None
) -> RepositoryStatus:
    """Sums over the nodes."""
    objects = seen.objects
    machines = {machine.name for machine in seen.machines}
    spaces = [found.status.space for found in objects.values()]
    specs = list((nodes or {node: found.spec for node, found in objects.items()}).values())
    return RepositoryStatus(
        observed_generation=seen.wish.generation,
        nodes=len(hosts) if drawn is not None else len(objects),
        nodes_ready=sum(serves(seen, node) for node in objects),
        nodes_reclaiming=sum(spec.ticket is not None for spec in specs),
        nodes_deferred=sum(spec.deferral is not None for spec in specs),
        nodes_lost=sum(node not in machines for node in objects),
        live=rounded(sum(space.live_bytes for space in spaces)),
        dead=rounded(sum(space.dead_bytes for space in spaces)),
        free=rounded(sum(space.free_bytes for space in spaces)),
        reclaimed=rounded(sum(found.status.reclaimed_bytes for found in objects.values())),
    )


def _windows(spec: ContentRepositorySpec, drawn: Round, now_millis: int) -> dict[str, object]:
    if spec.maintenance.paused:
        return {"next_window": "Paused"}
    if drawn.is_open:
        closes = drawn.window_closes_millis
        return {"next_window": "Open", "window": NextWindow(closes=None if closes is None else text_of(closes))}
    opens = Calendar(spec.maintenance).verdict(TICKETED[0], now_millis).opens_millis
    if opens is None or opens <= now_millis:
        opens = drawn.next_millis
    text = None if opens is None else text_of(opens)
    return {"next_window": text or "None in sight", "window": NextWindow(opens=text)}


def _conditions(
    seen: Observation,
    verdict: Verdict,
    figures: RepositoryStatus,
    hosts: frozenset[str],
    rolls: Rollout | None = None,
) -> tuple[Condition, ...]:
    wish, objects = seen.wish, seen.objects
    full = _named(
        node
        for node, found in objects.items()
        if any(c.type == "DiskPressure" and c.status == ConditionStatus.TRUE for c in found.status.conditions)
    )
    machines = {machine.name for machine in seen.machines}
    lost = _named(node for node in objects if node not in machines)
    unready = _named(node for node in hosts if not serves(seen, node))
    waits = sorted({app for found in objects.values() if found.spec.deferral for app in found.spec.deferral.waits_for})
    rolling = _named(node for node in hosts if seen.is_away(node))
    progress = rolling, "Settled", "Rolling", "no ready pod on"
    if rolls is not None and rolls.waiting and not rolls.may_go:
        words = "the change of the engine's format waits for a window on"
        progress = _named(rolls.waiting), "Settled", "WaitsForWindow", words
    facts = [
        ("Accepted", verdict.is_accepted, verdict.reason, verdict.message),
        ("Ready", bool(hosts) and not unready, *_why(unready, "AllServe", "NotServing", "no agent serves on")),
        ("Progressing", bool(progress[0]), *_why(*progress)),
        ("Degraded", bool(lost), *_why(lost, "AllThere", "NodeLost", "gone with data")),
        ("DiskPressure", bool(full), *_why(full, "RoomLeft", "AboveBackpressure", "full")),
        (
            "MaintenanceDeferred",
            figures.nodes_deferred > 0,
            "PodsRun" if figures.nodes_deferred else "NothingInTheWay",
            f"{figures.nodes_deferred} nodes wait for {', '.join(waits[:3]) or 'pods'}"
            if figures.nodes_deferred
            else "",
        ),
        ("Paused", wish.is_paused, "Annotation" if wish.is_paused else "NotPaused", ""),
    ]
    before = {condition.type: condition for condition in wish.status.conditions}
    return tuple(
        _condition(seen, before.get(type), type, holds, reason, message) for type, holds, reason, message in facts
    )


def _why(nodes: str, good: str, bad: str, words: str) -> tuple[str, str]:
    return (bad, f"{words}: {nodes}") if nodes else (good, "")


def _condition(
    seen: Observation, before: Condition | None, type: str, holds: bool, reason: str, message: str
) -> Condition:
    status = ConditionStatus.TRUE if holds else ConditionStatus.FALSE
    since = before.last_transition_time if before is not None and before.status == status else text_of(seen.now_millis)
    return Condition(
        type=type,
        status=status,
        reason=reason,
        message=message[:4096],
        observed_generation=seen.wish.generation,
        last_transition_time=since,
    )


def _named(nodes: Iterable[str]) -> str:
    """The first three, and how many more."""
    names = sorted(nodes)
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _news(seen: Observation, status: RepositoryStatus) -> tuple[tuple[str, str, str], ...]:
    """Conditions that turned, for `kubectl describe`."""
    before = {condition.type: condition.status for condition in seen.wish.status.conditions}
    good = {"Accepted", "Ready"}
    told = []
    for condition in status.conditions:
        is_good = (condition.status == ConditionStatus.TRUE) == (condition.type in good)
        was = before.get(condition.type)
        if (was is None and is_good) or was == condition.status or condition.type == "Progressing":
            continue
        kind = "Normal" if is_good or condition.type in ("Paused", "MaintenanceDeferred") else "Warning"
        words = f"{condition.type} is {condition.status}" + (f": {condition.message}" if condition.message else "")
        told.append((kind, f"{condition.type}{condition.status}", words[:1024]))
    return tuple(told)
