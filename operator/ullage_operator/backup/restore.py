"""ContentRestores of a repository: which node is told to bring a backup back instead of beginning empty. Pure.

A node is told with the first version of its object, so that its agent, which asks before it makes a repository, never
makes an empty one. Of a restoration that failed the node stays told: it waits for a person, and holds nothing.
"""

from collections.abc import Collection
from typing import Final, NamedTuple

import msgspec

from ullage.contract import (
    ENDED,
    RestoreStatus,
    RestoreTicket,
    RunPhase,
    TicketState,
    conditions_of,
    time_of,
)
from ullage_operator.backup.runs import FINAL
from ullage_operator.observation import NodeObject, Observation, RestoreObject

ENDINGS: Final = ("Completed", "Failed")
"""Reasons with which a restoration ends."""

NOT_EMPTY: Final = (
    "There is a repository on node {} already, and nothing is replaced. Only if what it holds is lost or given up, "
    "empty its directory, and annotate its ContentRepositoryNode with ullage.dev/release. Then this begins."
)


class RestoreDecision(NamedTuple):
    """What nodes are to bring back, and the statuses that changed, by name."""

    tickets: dict[str, RestoreTicket]
    statuses: dict[str, RestoreStatus]


def decide_restores(seen: Observation, hosts: Collection[str], *, is_held: bool = False) -> RestoreDecision:
    """What is due now. `is_held`: the repository is paused or not accepted, and nothing begins or is taken back."""
    tickets: dict[str, RestoreTicket] = {}
    statuses: dict[str, RestoreStatus] = {}
    busy: dict[str, str] = {}
    # Those under way first: of two for a node the one that has begun goes on.
    ordered = sorted(seen.restores, key=lambda each: (each.status.phase != RunPhase.RUNNING, each.created, each.name))
    for each in ordered:
        node, status, reason = each.spec.node, each.status, ""
        if status.phase not in FINAL:
            status, reason = _held(each) if is_held else _status(seen, each, hosts, busy)
            status = _told(each, status, reason, seen.now_millis)
        if status != each.status:
            statuses[each.name] = status
        if status.phase == RunPhase.RUNNING:
            busy[node] = each.name
            tickets[node] = RestoreTicket(
                id=each.uid,
                place=status.place,
                generation=seen.repository.generation,
                backup_generation=each.spec.generation,
                at=each.spec.at,
                queues=each.spec.queues,
                ids=each.spec.ids,
            )
        elif status.phase == RunPhase.FAILED and node not in tickets and (kept := _kept(seen, each)) is not None:
            tickets[node] = kept
    return RestoreDecision(tickets, statuses)


def orphaned(restore: RestoreObject, now_millis: int) -> RestoreStatus:
    """Of a restoration whose repository is not there: it begins with it."""
    if restore.status.phase in FINAL:
        return restore.status
    words = f"There is no ContentRepository {restore.spec.repository} in this namespace yet."
    status = msgspec.structs.replace(restore.status, phase=RunPhase.PENDING, message=words)
    return _told(restore, status, "NoRepository", now_millis)


def _held(restore: RestoreObject) -> tuple[RestoreStatus, str]:
    words = "The repository is paused, or not accepted."
    return msgspec.structs.replace(restore.status, message=words), "HandsOff"


def _status(
    seen: Observation, restore: RestoreObject, hosts: Collection[str], busy: dict[str, str]
) -> tuple[RestoreStatus, str]:
    node, status = restore.spec.node, restore.status
    if status.phase == RunPhase.RUNNING:
        return _going(seen, restore)
    place, obstacle, words = _place(seen, restore)
    if obstacle:
        return msgspec.structs.replace(status, message=words[:1024]), obstacle
    if node not in hosts:
        words = f"Node {node} is none of the repository's, or not yet."
        return msgspec.structs.replace(status, message=words), "Waiting"
    if node in busy:
        words = f"Node {node} is restored by ContentRestore {busy[node]} now."
        return msgspec.structs.replace(status, message=words), "Waiting"
    if _has_repository(_object(seen, node)):
        return _refused(restore)
    begun = RestoreStatus(
        phase=RunPhase.RUNNING,
        place=place,
        started=time_of(seen.now_millis),
        message=f"The agent of {node} is waited for.",
        conditions=status.conditions,
    )
    return begun, "Running"


def _going(seen: Observation, restore: RestoreObject) -> tuple[RestoreStatus, str]:
    node, status = restore.spec.node, restore.status
    found = _object(seen, node)
    report = None if found is None else found.status.restoration
    if report is None or report.id != restore.uid:
        if _has_repository(found):  # its agent was faster
            return _refused(restore)
        return msgspec.structs.replace(status, message=f"The agent of {node} is waited for."), "Running"
    share = f"{min(100, 100 * report.bytes_done // report.bytes)} %" if report.bytes else ""
    counted = msgspec.structs.replace(
        status, generation=report.generation, lost=report.lost, erased=report.erased, progress=share
    )
    if report.state not in ENDED:
        return msgspec.structs.replace(counted, message=report.message), "Running"
    if report.state == TicketState.REFUSED:
        return _refused(restore)
    phase = RunPhase.COMPLETED if report.state == TicketState.COMPLETED else RunPhase.FAILED
    ended = time_of(seen.now_millis)
    return msgspec.structs.replace(counted, phase=phase, ended=ended, message=report.message), str(phase)


def _refused(restore: RestoreObject) -> tuple[RestoreStatus, str]:
    """Until somebody gives up what is there: it begins with the next object of the node, before its agent does."""
    words = NOT_EMPTY.format(restore.spec.node)
    return RestoreStatus(message=words, conditions=restore.status.conditions), "NodeNotEmpty"


def _place(seen: Observation, restore: RestoreObject) -> tuple[str, str, str]:
    """Where the backup lies; or why that is not known, or not allowed, as a reason and in words."""
    spec, place = restore.spec, restore.spec.place
    if spec.backup:
        backup = next((each for each in seen.backups if each.name == spec.backup), None)
        if backup is None:
            return "", "NoBackup", f"There is no ContentBackup {spec.backup} of {spec.repository}."
        place = backup.place_of(seen.repository.key, spec.from_node or spec.node)
    buckets = seen.repository.spec.service.backup_buckets
    if not any(f"{place}/".startswith(f"{each.url.rstrip('/')}/") for each in buckets):
        words = f"{place} lies in none of the places of spec.service.backupBuckets of the repository."
        return "", "BucketNotAllowed", words
    return place, "", ""


def _object(seen: Observation, node: str) -> NodeObject | None:
    """That of a node; one that was given up is as good as gone, and the next one begins anew."""
    found = seen.objects.get(node)
    return None if found is None or found.is_released else found


def _has_repository(found: NodeObject | None) -> bool:
    return found is not None and found.status.repository_uuid != ""


def _kept(seen: Observation, restore: RestoreObject) -> RestoreTicket | None:
    """The ticket of one that has failed, as long as its node holds nothing."""
    found = _object(seen, restore.spec.node)
    ticket = None if found is None or _has_repository(found) else found.spec.restoration
    return ticket if ticket is not None and ticket.id == restore.uid else None


def _told(restore: RestoreObject, status: RestoreStatus, reason: str, now_millis: int) -> RestoreStatus:
    """The status with conditions for this reason of its condition Ready."""
    is_going = reason in ("Waiting", "Running", "NoRepository")
    is_stuck = not is_going and reason != "Completed"
    facts = [
        ("Ready", reason, status.message),
        ("Reconciling", reason if is_going else "Ended" if reason in ENDINGS else "HandsOff", ""),
        ("Stalled", reason if is_stuck else "Working", status.message if is_stuck else ""),
    ]
    made = conditions_of("ContentRestore", facts, restore.status.conditions, restore.generation, time_of(now_millis))
    return msgspec.structs.replace(status, observed_generation=restore.generation, conditions=made)
