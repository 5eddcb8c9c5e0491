"""From what was observed to what shall be: node objects, tickets, runs and the status. Pure."""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

import msgspec

from ullage.contract import (
    OUT_OF_REACH_MAX,
    TICKETED,
    BackupStatus,
    Calendar,
    ContentRepositorySpec,
    DeletionPolicy,
    NextWindow,
    NodeSpec,
    RepositoryStatus,
    RestoreStatus,
    RunStatus,
    millis_of,
    time_of,
)
from ullage_operator.agents.rollout import Rollout, rollout
from ullage_operator.backup.decide import BackupDecision, decide_backups
from ullage_operator.backup.restore import RestoreDecision, decide_restores
from ullage_operator.node.draining import drains
from ullage_operator.node.runs import expired, finished_on, is_called_off, next_millis, runs_due
from ullage_operator.node.tickets import TicketSchedule, TicketScheduler
from ullage_operator.objects import rounded, soonest
from ullage_operator.observation import NodeObject, Observation, RunObject
from ullage_operator.planning.decide import PlanningDecision, plan
from ullage_operator.repository.acceptance import PENDING, VALID, acceptance_of
from ullage_operator.repository.conditions import conditions
from ullage_operator.repository.placement import places
from ullage_operator.repository.reach import Placement, holds, is_let_go, is_ready, out_of_reach, serves
from ullage_operator.settings import OperatorSettings

REFUSED_MILLIS: Final = 10_000
"""How often it is asked why pods were refused: nothing tells when a quota has room again."""


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What shall be. `nodes`: the specs of the node objects, by node; `released`: objects that shall go, and be made
    anew where `nodes` has them too. Where hands are kept off, `nodes` has only those whose tickets are void, and
    `released` only those of nodes that hold nothing, which somebody has deleted.

    `runs`: statuses that changed, by the run's name; `expired`: runs that shall go.
    """

    status: RepositoryStatus
    nodes: dict[str, NodeSpec] = msgspec.field(default_factory=dict)
    released: tuple[NodeObject, ...] = ()
    runs: dict[str, RunStatus] = msgspec.field(default_factory=dict)
    expired: tuple[RunObject, ...] = ()
    backups: dict[str, BackupStatus] = msgspec.field(default_factory=dict)
    """Statuses that changed, by the backup's name."""

    restores: dict[str, RestoreStatus] = msgspec.field(default_factory=dict)
    """The same of restorations."""

    planning: PlanningDecision = PlanningDecision()
    rollout: Rollout = Rollout()
    next_millis: int | None = None
    nodes_overdue: int = 0
    keeps_hands_off: bool = False
    is_pending: bool = False


def decide(seen: Observation, settings: OperatorSettings) -> Decision:
    """The one answer to an observation."""
    acceptance = acceptance_of(seen, settings)
    is_accepted = acceptance[0] in (VALID, PENDING)
    repository = seen.repository
    hosts = _hosts(seen, is_accepted=is_accepted)
    placement = Placement.of(seen, hosts)
    if repository.is_paused or not is_accepted or repository.document is None:
        # Nothing is started, stopped or taken back; tickets end by themselves.
        figures = _figures(seen, placement, [found.spec for found in seen.objects.values()])
        _, runs = runs_due(seen, hosts, is_held=True)
        backups = decide_backups(seen, hosts, is_held=True)
        restores = decide_restores(seen, hosts, is_held=True)
        status = msgspec.structs.replace(
            figures,
            conditions=conditions(seen, acceptance, figures, placement, Rollout()),
            next_window="Paused" if repository.is_paused and is_accepted else "",
            planning=repository.status.planning,
        )
        after = _as_told(seen, runs)
        return Decision(
            status=status,
            nodes=_revoked(after),
            runs=runs,
            backups=backups.statuses,
            restores=restores.statuses,
            released=tuple(found for found in seen.objects.values() if found.is_going and not holds(found)),
            expired=expired(after.runs, seen.now_millis),
            next_millis=next_millis(after.runs, seen.now_millis),
            keeps_hands_off=True,
        )
    spec = repository.spec
    ready = frozenset(node for node in seen.objects if is_ready(seen, node))
    due, runs = runs_due(seen, hosts)
    backups = decide_backups(seen, hosts)
    restores = decide_restores(seen, hosts)
    after = _as_told(seen, runs)
    schedule = TicketScheduler(after, settings, ready).schedule(due)
    nodes, released = _nodes(seen, hosts, placement, schedule, backups, restores)
    figures = _figures(seen, placement, nodes.values())
    figures = msgspec.structs.replace(figures, **_windows(spec, schedule, seen.now_millis))
    rolls = rollout(seen, settings, hosts)
    planned = plan(seen)
    told = conditions(seen, acceptance, figures, placement, rolls)
    status = msgspec.structs.replace(figures, conditions=told, planning=planned.status)
    runs_wake = next_millis(after.runs, seen.now_millis)
    timed = (schedule.next_millis, planned.next_millis, rolls.next_millis, backups.next_millis)
    return Decision(
        status=status,
        nodes=nodes,
        released=tuple(released),
        runs=runs,
        backups=backups.statuses,
        restores=restores.statuses,
        expired=expired(after.runs, seen.now_millis),
        planning=planned,
        rollout=rolls,
        nodes_overdue=schedule.overdue,
        is_pending=acceptance[0] == PENDING,
        next_millis=soonest(*timed, runs_wake, _quota_wakes(seen)),
    )


def _nodes(
    seen: Observation,
    hosts: tuple[str, ...],
    placement: Placement,
    schedule: TicketSchedule,
    backups: BackupDecision,
    restores: RestoreDecision,
) -> tuple[dict[str, NodeSpec], list[NodeObject]]:
    """What the node objects shall say, and which shall go."""
    nodes, released = dict[str, NodeSpec](), list[NodeObject]()
    for node in sorted({*hosts, *seen.objects}):
        found = seen.objects.get(node)
        is_lost = found is not None and found.is_released
        if found is not None and is_let_go(found) and (is_lost or found.is_going or node not in placement.hosts):
            released.append(found)
            if node not in placement.hosts:
                continue
        kept = NodeSpec(repository=seen.repository.name, node_name=node)
        if not is_lost:
            finished = () if found is None else finished_on(found, seen.runs)
            kept = msgspec.structs.replace(
                kept,
                ticket=schedule.tickets.get(node),
                backup=backups.tickets.get(node),
                verification=backups.verifications.get(node),
                finished=finished,
            )
        nodes[node] = msgspec.structs.replace(
            kept,
            cordoned=(host := placement.nodes.get(node)) is not None and host.is_cordoned,
            draining=drains(seen.repository, None if is_lost else found, host, placement.hosts),
            deferral=schedule.deferrals.get(node),
            restoration=restores.tickets.get(node),  # one that was given up is made anew at once
            certificate=seen.certificates.get(node),
            certificate_names=seen.certificate_names.get(node, ()),
        )
    return nodes, released


def _revoked(seen: Observation) -> dict[str, NodeSpec]:
    """Of a repository that is left alone: tickets whose run was deleted or suspended since. Who does so means now."""
    return {
        node: msgspec.structs.replace(found.spec, ticket=None)
        for node, found in seen.objects.items()
        if found.spec.ticket is not None and is_called_off(found.spec.ticket, seen.runs)
    }


def _as_told(seen: Observation, told: Mapping[str, RunStatus]) -> Observation:
    """The same with its runs as they are from now on: nothing wakes us when we have written what is told of them, so
    what follows from it follows at once.
    """
    runs = (msgspec.structs.replace(run, status=told.get(run.name, run.status)) for run in seen.runs)
    return msgspec.structs.replace(seen, runs=tuple(runs))


def _quota_wakes(seen: Observation) -> int | None:
    return None if seen.refused_pods is None else seen.now_millis + REFUSED_MILLIS


def deletes_data(spec: ContentRepositorySpec) -> bool:
    """Whether the data goes with the object."""
    return spec.deletion_policy == DeletionPolicy.DELETE


def _hosts(seen: Observation, *, is_accepted: bool) -> tuple[str, ...]:
    """The nodes that should have an agent. While a repository is not accepted they are those that have one."""
    if seen.repository.document is None or not is_accepted:
        return tuple(sorted(seen.objects))
    spec = seen.repository.spec
    hosts = (cluster_node.name for cluster_node in seen.cluster_nodes if places(spec, cluster_node))
    if seen.repository.is_paused:
        return tuple(node for node in hosts if node in seen.objects)
    return tuple(hosts)


def _figures(seen: Observation, placement: Placement, specs: Collection[NodeSpec]) -> RepositoryStatus:
    """Sums over the nodes; `specs`: what their objects say, or shall."""
    objects = seen.objects
    away = out_of_reach(seen, placement)
    spaces = [found.status.space for found in objects.values()]
    return RepositoryStatus(
        observed_generation=seen.repository.generation,
        nodes=len(placement.hosts | {node for node, found in objects.items() if holds(found)}),
        nodes_ready=sum(serves(seen, node) for node in objects),
        nodes_reclaiming=sum(spec.ticket is not None for spec in specs),
        nodes_deferred=sum(spec.deferral is not None for spec in specs),
        nodes_lost=sum(node not in placement.nodes for node in objects),
        nodes_out_of_reach=len(away),
        out_of_reach=tuple(away[:OUT_OF_REACH_MAX]),
        live=rounded(sum(space.live_bytes for space in spaces)),
        dead=rounded(sum(space.dead_bytes for space in spaces)),
        free=rounded(sum(space.free_bytes for space in spaces)),
        reclaimed=rounded(sum(found.status.reclaimed_bytes for found in objects.values())),
        sole_copy_bytes=sum(found.status.sole_copy_bytes for found in objects.values()),
        disk_to_live=max((each.disk_to_live for each in spaces if each.disk_to_live is not None), default=None),
        oldest_dead=_first(each.oldest_dead for each in spaces),
        goal_missed=_first(each.goal_missed for each in spaces),
    )


def _first(times: Iterable[str | None]) -> str | None:
    return min((time for time in times if time is not None), key=millis_of, default=None)


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
