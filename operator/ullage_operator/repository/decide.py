"""From what was observed to what shall be: node objects, tickets, runs and the status. Pure."""

from collections.abc import Collection, Iterable
from typing import Final

import msgspec

from ullage.contract import (
    HEARTBEAT_SECONDS,
    TICKETED,
    Calendar,
    Condition,
    ConditionStatus,
    ContentRepositorySpec,
    DeletionPolicy,
    NextWindow,
    NodeSpec,
    RepositoryStatus,
    RunStatus,
    conditions_of,
    millis_of,
    time_of,
)
from ullage_operator.agents.rollout import Rollout, rollout
from ullage_operator.node.runs import runs_due
from ullage_operator.node.tickets import TicketSchedule, TicketScheduler
from ullage_operator.objects import rounded
from ullage_operator.observation import NodeObject, Observation
from ullage_operator.planning.decide import PlanningDecision, plan
from ullage_operator.repository.acceptance import VALID, acceptance_of
from ullage_operator.repository.placement import places
from ullage_operator.settings import OperatorSettings

SILENCE_MILLIS: Final = 3 * HEARTBEAT_SECONDS * 1000
"""After three missed heartbeats nobody vouches for a node."""


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What shall be. `nodes`: the specs of the node objects, by node; `released`: objects that shall go.

    `runs`: statuses that changed, by the run's name; `events`: what people should be told, as (type, reason, message).
    """

    status: RepositoryStatus
    nodes: dict[str, NodeSpec] = msgspec.field(default_factory=dict)
    released: tuple[NodeObject, ...] = ()
    runs: dict[str, RunStatus] = msgspec.field(default_factory=dict)
    events: tuple[tuple[str, str, str], ...] = ()
    planning: PlanningDecision = PlanningDecision()
    rollout: Rollout = Rollout()
    next_millis: int | None = None
    keeps_hands_off: bool = False


def decide(seen: Observation, settings: OperatorSettings) -> Decision:
    """The one answer to an observation."""
    acceptance = acceptance_of(seen, settings)
    is_accepted = acceptance[0] == VALID
    repository = seen.repository
    if repository.is_paused or not is_accepted or repository.document is None:
        # Nothing is started, stopped or taken back; tickets end by themselves.
        figures = _figures(seen, len(seen.objects), [found.spec for found in seen.objects.values()])
        status = msgspec.structs.replace(
            figures,
            conditions=_conditions(seen, acceptance, figures, (), Rollout()),
            next_window="Paused" if repository.is_paused and is_accepted else "",
            planning=repository.status.planning,
        )
        return Decision(status=status, events=_news(seen, status), keeps_hands_off=True)
    spec = repository.spec
    hosts = tuple(cluster_node.name for cluster_node in seen.cluster_nodes if places(spec, cluster_node))
    ready = frozenset(node for node in seen.objects if is_ready(seen, node))
    due, runs = runs_due(seen, hosts)
    schedule = TicketScheduler(seen, settings, ready).schedule(due)
    cordoned = {cluster_node.name for cluster_node in seen.cluster_nodes if cluster_node.is_cordoned}
    nodes: dict[str, NodeSpec] = {}
    released = []
    for node in sorted({*hosts, *seen.objects}):
        found = seen.objects.get(node)
        if found is not None and node not in hosts and (found.is_released or not found.status.repository_uuid):
            released.append(found)
            continue
        nodes[node] = NodeSpec(
            repository=repository.name,
            node_name=node,
            cordoned=node in cordoned,
            ticket=schedule.tickets.get(node),
            deferral=schedule.deferrals.get(node),
            certificate=seen.certificates.get(node),
        )
    figures = _figures(seen, len(hosts), nodes.values())
    figures = msgspec.structs.replace(figures, **_windows(spec, schedule, seen.now_millis))
    rolls = rollout(seen, settings, hosts)
    conditions = _conditions(seen, acceptance, figures, hosts, rolls)
    planned = plan(seen)
    status = msgspec.structs.replace(figures, conditions=conditions, planning=planned.status)
    wakes = (schedule.next_millis, planned.next_millis, rolls.next_millis)
    return Decision(
        status=status,
        nodes=nodes,
        released=tuple(released),
        runs=runs,
        events=_news(seen, status),
        planning=planned,
        rollout=rolls,
        next_millis=min((each for each in wakes if each is not None), default=None),
    )


def is_ready(seen: Observation, node: str) -> bool:
    """Whether the node's agent says that it serves, and said so lately."""
    found = seen.objects[node]
    if found.status.heartbeat is None or seen.now_millis - millis_of(found.status.heartbeat) > SILENCE_MILLIS:
        return False
    return _says(found, "Ready")


def _says(found: NodeObject, type: str) -> bool:
    return any(each.type == type and each.status == ConditionStatus.TRUE for each in found.status.conditions)


def serves(seen: Observation, node: str) -> bool:
    """Whether who asks the node gets an answer: its agent says so, and Services lead to its pod. An agent that died
    vouches for itself until its silence is noticed; the kubelet knows at once.
    """
    return node in seen.objects and not seen.is_away(node) and is_ready(seen, node)


def deletes_data(spec: ContentRepositorySpec) -> bool:
    """Whether the data goes with the object."""
    return spec.deletion_policy == DeletionPolicy.DELETE


def _figures(seen: Observation, count: int, specs: Collection[NodeSpec]) -> RepositoryStatus:
    """Sums over the nodes; `specs`: what their objects say, or shall."""
    objects = seen.objects
    spaces = [found.status.space for found in objects.values()]
    return RepositoryStatus(
        observed_generation=seen.repository.generation,
        nodes=count,
        nodes_ready=sum(serves(seen, node) for node in objects),
        nodes_reclaiming=sum(spec.ticket is not None for spec in specs),
        nodes_deferred=sum(spec.deferral is not None for spec in specs),
        nodes_lost=len(_lost(seen)),
        live=rounded(sum(space.live_bytes for space in spaces)),
        dead=rounded(sum(space.dead_bytes for space in spaces)),
        free=rounded(sum(space.free_bytes for space in spaces)),
        reclaimed=rounded(sum(found.status.reclaimed_bytes for found in objects.values())),
    )


def _lost(seen: Observation) -> set[str]:
    """Nodes that have gone without their data."""
    return set(seen.objects) - {cluster_node.name for cluster_node in seen.cluster_nodes}


def _windows(spec: ContentRepositorySpec, schedule: TicketSchedule, now_millis: int) -> dict[str, object]:
    if spec.maintenance.paused:
        return {"next_window": "Paused"}
    if schedule.is_open:
        closes = schedule.window_closes_millis
        return {"next_window": "Open", "window": NextWindow(closes=None if closes is None else time_of(closes))}
    opens = Calendar(spec.maintenance).status(TICKETED[0], now_millis).opens_millis
    if opens is None or opens <= now_millis:
        opens = schedule.next_millis
    text = None if opens is None else time_of(opens)
    return {"next_window": text or "None in sight", "window": NextWindow(opens=text)}


def _conditions(
    seen: Observation, acceptance: tuple[str, str], figures: RepositoryStatus, hosts: Collection[str], rolls: Rollout
) -> tuple[Condition, ...]:
    repository, objects = seen.repository, seen.objects
    full = _named(node for node, found in objects.items() if _says(found, "DiskPressure"))
    lost = _named(_lost(seen))
    lacking = _named(node for node, found in objects.items() if _says(found, "DataUnavailable"))
    unready = _named(node for node in hosts if not serves(seen, node))
    waits = sorted({app for found in objects.values() if found.spec.deferral for app in found.spec.deferral.waits_for})
    rolling = _named(node for node in hosts if seen.is_away(node))
    progress = rolling, "Settled", "Rolling", "No pod is ready on"
    if rolls.waiting and not rolls.may_go:
        words = "The change of the format on disk waits for a window on"
        progress = _named(rolls.waiting), "Settled", "WaitsForWindow", words
    deferred = figures.nodes_deferred
    deferral = f"Reclamation waits on {deferred} nodes for {', '.join(waits[:3]) or 'pods'}."
    facts = [
        ("Accepted", acceptance[0] == VALID, *acceptance),
        ("Ready", bool(hosts) and not unready, *_why(unready, "AllServe", "NotServing", "No agent serves on")),
        ("Progressing", bool(progress[0]), *_why(*progress)),
        ("Degraded", bool(lost), *_why(lost, "AllThere", "NodeLost", "These nodes are gone with their data:")),
        ("DataUnavailable", bool(lacking), *_why(lacking, "AllThere", "OnNodes", "What was stored can't be read on")),
        ("DiskPressure", bool(full), *_why(full, "RoomLeft", "AboveBackpressure", "Writers wait, or fail, on")),
        ("MaintenanceDeferred", deferred > 0, *(("PodsRun", deferral) if deferred else ("NothingInTheWay", ""))),
        ("Paused", repository.is_paused, "Annotation" if repository.is_paused else "NotPaused", ""),
    ]
    return conditions_of(facts, repository.status.conditions, repository.generation, time_of(seen.now_millis))


def _why(nodes: str, good: str, bad: str, words: str) -> tuple[str, str]:
    return (bad, f"{words} {nodes}.") if nodes else (good, "")


def _named(nodes: Iterable[str]) -> str:
    """The first three, and how many more."""
    names = sorted(nodes)
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _news(seen: Observation, status: RepositoryStatus) -> tuple[tuple[str, str, str], ...]:
    """Conditions that turned, for `kubectl describe`."""
    before = {condition.type: condition.status for condition in seen.repository.status.conditions}
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
