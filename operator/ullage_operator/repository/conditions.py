"""What a repository and a run say of themselves, and which events that makes. Pure; the table is the contract's."""

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from ullage.contract import (
    TABLE,
    Condition,
    ConditionStatus,
    News,
    ReplicationMode,
    RepositoryStatus,
    cell_of,
    conditions_of,
    time_of,
)
from ullage_operator.agents.claims import provisioned
from ullage_operator.agents.rollout import Rollout
from ullage_operator.errors import ApiError, ApiUnreachable, OperatorError
from ullage_operator.objects import PAUSED, RepositoryObject
from ullage_operator.observation import RELEASE, NodeObject, Observation
from ullage_operator.repository.acceptance import PENDING, VALID
from ullage_operator.repository.foreign import added, in_words
from ullage_operator.repository.reach import Placement, holds, is_heard, is_kept, says, serves, why_not

Event = tuple[str, str, str]
"""Type, reason and message."""

NO_NODES: Final = (
    "No node of the cluster has the labels of spec.nodeSelector, matches spec.affinity, and has only taints that "
    "spec.tolerations tolerates."
)
TRANSIENT: Final = (408, 409, 410, 429)
"""Refusals of HTTP that say: again."""

TROUBLES: Final = ("Degraded", "ClockImplausible")
"""Conditions of a node that stand for its repository too, in the agent's words."""

KIND: Final = "ContentRepository"

SAID_MAX: Final = 64
"""Characters of an annotation that are told again."""


def conditions(
    seen: Observation, acceptance: tuple[str, str], status: RepositoryStatus, placement: Placement, rolls: Rollout
) -> tuple[Condition, ...]:
    """All of a repository's. `status`: its figures."""
    repository = seen.repository
    facts = {row.type: ("", "") for row in TABLE[KIND]}
    facts |= {
        "Accepted": acceptance,
        "Ready": _ready(seen, acceptance, status, placement),
        "Stalled": _stalled(seen, acceptance, placement),
        "Applied": _applied(seen, acceptance, placement),
        "Reachable": _reachable(status),
        "Degraded": _degraded(seen, placement),
        "DataUnavailable": _said(seen, "DataUnavailable", "OnNodes", "AllThere", "What was stored can't be read on"),
        "DiskPressure": _said(seen, "DiskPressure", "AboveBackpressure", "RoomLeft", "Writers wait, or fail, on"),
        "GoalMissed": _missed(seen),
        "Replicated": _replicated(seen, placement),
        "Provisioned": provisioned(seen, sorted(placement.hosts)),
        "MaintenanceDeferred": _deferred(seen, status),
        "Paused": _paused(repository.pause),
    }
    is_held = repository.is_paused or facts["Stalled"][0] != "Working"
    facts["Reconciling"] = ("HandsOff", "") if is_held else _reconciling(seen, acceptance, placement, rolls)
    told = ((type, *said) for type, said in facts.items())
    return conditions_of(KIND, told, repository.status.conditions, repository.generation, time_of(seen.now_millis))


def _paused(said: str | None) -> tuple[str, str]:
    if said in (None, "true", "false"):
        return "Annotation" if said == "true" else "NotPaused", ""
    return "NotUnderstood", f'The annotation {PAUSED} is {ascii(said)[:SAID_MAX]}, and not "true": nothing is paused.'


def _ready(
    seen: Observation, acceptance: tuple[str, str], status: RepositoryStatus, placement: Placement
) -> tuple[str, str]:
    is_held = seen.repository.is_paused or acceptance[0] not in (VALID, PENDING)
    if is_held and not seen.objects:
        return "NotStarted", acceptance[1] if acceptance[0] != VALID else "The repository is paused."
    if not placement.hosts:
        return "NoNodes", NO_NODES
    reasons = {node: why_not(seen, node, placement) for node in placement.hosts if not serves(seen, node)}
    failing = {node: words for node, (reason, words) in reasons.items() if reason != "Silent"}
    if failing:
        return "NotServing", f"No agent serves on {_explained(failing)}."
    if any(each.reason not in ("Silent", "") for each in status.out_of_reach):
        return "OutOfReach", _listed(status)
    if reasons:
        return _silent(reasons)
    return "AllServe", ""


def _reconciling(
    seen: Observation, acceptance: tuple[str, str], placement: Placement, rolls: Rollout
) -> tuple[str, str]:
    if rolls.waiting and not rolls.may_go:
        nodes = _named(rolls.waiting)
        return "WaitsForWindow", f"The change of the format on disk waits for a window on {nodes}."
    if rolling := [node for node in placement.hosts if seen.is_away(node)]:
        return "Rolling", f"No pod is ready on {_named(rolling)}."
    if behind := _behind(seen, placement):
        return "AgentsBehind", f"These have yet to take over the settings: {_named(behind)}."
    return acceptance if acceptance[0] == PENDING else ("Settled", "")


def _stalled(seen: Observation, acceptance: tuple[str, str], placement: Placement) -> tuple[str, str]:
    if acceptance[0] not in (VALID, PENDING):
        return "NotAccepted", acceptance[1]
    if not placement.hosts:
        return "NoNodes", NO_NODES
    if seen.refused_pods:
        return "PodsRefused", seen.refused_pods
    return "Working", ""


def _applied(seen: Observation, acceptance: tuple[str, str], placement: Placement) -> tuple[str, str]:
    if acceptance[0] != VALID:
        return "NotAccepted", acceptance[1]
    if not placement.hosts:
        return "NoNodes", ""
    if behind := _behind(seen, placement):
        return "AgentsBehind", f"Agents run with older settings on {_named(behind)}."
    silent = [node for node in placement.hosts if node not in seen.objects or not is_heard(seen, seen.objects[node])]
    return _silent(silent) if silent else ("AllAgents", "")


def _behind(seen: Observation, placement: Placement) -> list[str]:
    """Nodes whose agents were heard of, and have other settings."""
    known = {node: seen.objects[node] for node in placement.hosts if node in seen.objects}
    generation = seen.repository.generation
    return [n for n, found in known.items() if is_heard(seen, found) and found.status.settings_generation != generation]


def _reachable(status: RepositoryStatus) -> tuple[str, str]:
    if not status.out_of_reach:
        return "AllServed", ""
    return status.out_of_reach[0].reason, _listed(status)


def _listed(status: RepositoryStatus) -> str:
    """Nodes out of reach, in words: the first three, and how many more."""
    named = [f"{each.node} ({each.live} live; {each.message})" for each in status.out_of_reach[:3]]
    more = status.nodes_out_of_reach - len(named)
    return f"Content can't be reached on {', '.join(named)}" + (f" and {more} more." if more > 0 else ".")


def _degraded(seen: Observation, placement: Placement) -> tuple[str, str]:
    if kept := [node for node, found in seen.objects.items() if is_kept(found)]:
        words = "They stay, because content lies there: delete the repository, or give it up by the annotation"
        return "ObjectDeleted", f"Somebody deleted the objects of these nodes: {_named(kept)}. {words} {RELEASE}."
    if lost := [node for node in seen.objects if node not in placement.nodes]:
        return "NodeLost", f"These nodes are gone with their data: {_named(lost)}."
    if seen.refused_certificates:
        return "NoCertificate", f"cert-manager gave agents no certificate: {_explained(seen.refused_certificates)}."
    troubled = {node: words for node, found in seen.objects.items() if (words := _troubles(found))}
    if troubled:
        return "AgentTrouble", f"Agents are in trouble: {_explained(troubled)}."
    if fields := added(seen.owned, seen.repository.namespace, seen.repository.uid):
        return "ForeignFields", f"Others have added what nobody asked for, and it stays: {in_words(fields)}."
    return _unless_silent(seen, "Well")


def _troubles(found: NodeObject) -> str:
    said = [each for each in found.status.conditions if each.type in TROUBLES and each.status == ConditionStatus.TRUE]
    return "; ".join(f"{each.type}: {each.message or each.reason}" for each in said)


def _said(seen: Observation, type: str, bad: str, good: str, words: str) -> tuple[str, str]:
    if nodes := [node for node, found in seen.objects.items() if says(found, type)]:
        return bad, f"{words} {_named(nodes)}."
    return _unless_silent(seen, good)


def _missed(seen: Observation) -> tuple[str, str]:
    missing = _words_of(seen, "GoalMissed", ConditionStatus.TRUE)
    if missing:
        return "OnNodes", f"A goal of compaction is not held, or will not be, on {_explained(missing)}."
    return _unless_silent(seen, "NoneMissed")


def _replicated(seen: Observation, placement: Placement) -> tuple[str, str]:
    document = seen.repository.document
    if document is None or document.spec.replication.mode == ReplicationMode.NONE:
        return "NotAsked", ""
    if lacking := _words_of(seen, "Replicated", ConditionStatus.FALSE):
        return "OnNodes", f"The bucket lacks what was committed on {_explained(lacking)}."
    said = _unless_silent(seen, "AllNodes")
    shipping = _words_of(seen, "Replicated", ConditionStatus.TRUE)
    holding = {node for node, found in seen.objects.items() if holds(found)}
    if said[0] == "AllNodes" and (starting := sorted((holding | placement.hosts) - shipping.keys())):
        return "Starting", f"It is not known yet what the bucket lacks of {_named(starting)}."
    return said


def _words_of(seen: Observation, type: str, status: ConditionStatus) -> dict[str, str]:
    """The nodes whose agents say so of a condition, and what they say of it."""
    return {
        node: each.message
        for node, found in seen.objects.items()
        for each in found.status.conditions
        if (each.type, each.status) == (type, status)
    }


def _unless_silent(seen: Observation, good: str) -> tuple[str, str]:
    """Where nobody is heard of who could say otherwise, it is not known."""
    silent = [node for node, found in seen.objects.items() if holds(found) and not is_heard(seen, found)]
    return _silent(silent) if silent else (good, "")


def _silent(nodes: Iterable[str]) -> tuple[str, str]:
    return "Silent", f"No agent was heard of lately on {_named(nodes)}."


def _deferred(seen: Observation, status: RepositoryStatus) -> tuple[str, str]:
    if not status.nodes_deferred:
        return "NothingInTheWay", ""
    found = [each.spec.deferral for each in seen.objects.values() if each.spec.deferral is not None]
    waits = sorted({application for deferral in found for application in deferral.waits_for})
    return "PodsRun", f"Reclamation waits on {status.nodes_deferred} nodes for {', '.join(waits[:3]) or 'pods'}."


def _explained(troubles: dict[str, str]) -> str:
    """The first three with why, and how many more."""
    names = sorted(troubles)
    more = f", and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(f"{name} ({troubles[name]})" if troubles[name] else name for name in names[:3]) + more


def _named(nodes: Iterable[str]) -> str:
    """The first three, and how many more."""
    return _explained(dict.fromkeys(nodes, ""))


def failed(
    repository: RepositoryObject, status: RepositoryStatus, error: Exception, now_millis: int
) -> RepositoryStatus:
    """The same status with what went wrong: what the API server refuses stays so until somebody does something."""
    if isinstance(error, ApiUnreachable) or (isinstance(error, ApiError) and _is_transient(error)):
        return with_facts(repository, status, [("Reconciling", "Retrying", str(error)), WORKING], now_millis)
    reason = "Refused" if isinstance(error, OperatorError) else "OperatorFailed"
    words = str(error) if isinstance(error, OperatorError) else f"{type(error).__name__}: {error}"
    return with_facts(repository, status, [("Reconciling", "HandsOff", ""), ("Stalled", reason, words)], now_millis)


WORKING: Final = ("Stalled", "Working", "")


def _is_transient(error: ApiError) -> bool:
    return error.status >= 500 or error.status in TRANSIENT


def with_facts(
    repository: RepositoryObject, status: RepositoryStatus, facts: list[tuple[str, str, str]], now_millis: int
) -> RepositoryStatus:
    """The same status with these conditions."""
    made = conditions_of(KIND, facts, repository.status.conditions, repository.generation, time_of(now_millis))
    changed = {condition.type: condition for condition in made}
    before = {condition.type: condition for condition in status.conditions}
    rows = [row.type for row in TABLE[KIND]]
    known = before | changed
    told = tuple(known[type] for type in rows if type in known)
    return msgspec.structs.replace(status, observed_generation=repository.generation, conditions=told)


def news(kind: str, before: Iterable[Condition], after: Iterable[Condition]) -> Iterator[Event]:
    """Conditions that turned, for `kubectl describe`: of those that were never told before, only bad ones."""
    known = {condition.type: (condition.status, condition.reason) for condition in before}
    for condition in after:
        cell = cell_of(kind, condition.type, condition.reason)
        was = known.get(condition.type)
        if was == (condition.status, condition.reason) or not cell.news or (was is None and cell.news == News.NORMAL):
            continue
        words = f"{condition.type} is {condition.status} ({condition.reason})"
        words += f": {condition.message}" if condition.message else ""
        yield str(cell.news), f"{condition.type}{condition.status}", words[:1024]
