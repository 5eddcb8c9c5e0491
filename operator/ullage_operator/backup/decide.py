"""ContentBackups of a repository: which run begins, what each node is to write, and how far each is. Pure.

    due at t1 ── begun, a ticket for each node ── all have ended, or the time is over: Completed, Failed ── due at t2

One run at a time: what a node reported stands in its status until it gets another ticket. A run is named by its object
and the moment for which it was due, so an operator that ends anywhere in it begins none twice.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from ullage.contract import (
    BACKUP_RESULTS_MAX,
    ENDED,
    BackupNode,
    BackupStatus,
    BackupTicket,
    BackupTicketReport,
    RunPhase,
    TicketState,
    Timetable,
    VerificationTicket,
    conditions_of,
    millis_of,
    time_of,
)
from ullage_operator.backup.runs import (
    AGAIN_MILLIS,
    FINAL,
    WORDS_MAX,
    NodeTally,
    due_at,
    is_old,
    is_to_come,
    some,
    total,
)
from ullage_operator.backup.verify import decide_verifications, ended_without_repository, verified
from ullage_operator.objects import soonest
from ullage_operator.observation import BackupObject, NodeObject, Observation

ENDINGS: Final = ("Completed", "Failed", "DeadlineExceeded", "NoNodes")
"""Reasons with which a run ends."""

UNVERIFIED: Final = ("Failed", "Old", "InvalidSchedule")
"""Reasons of BackupVerified with which a verification is missing that somebody asks for."""


class BackupDecision(NamedTuple):
    """What each node is to write and to verify, and the statuses that changed, by name."""

    tickets: dict[str, BackupTicket]
    verifications: dict[str, VerificationTicket]
    statuses: dict[str, BackupStatus]
    next_millis: int | None


class BackupHealth(NamedTuple):
    """What metrics tell of one. One that never ran is not too old yet, and one that is damaged was verified."""

    is_current: bool
    is_damaged: bool
    is_verified: bool


def decide_backups(seen: Observation, hosts: Collection[str], *, is_held: bool = False) -> BackupDecision:
    """What is due now. `is_held`: the repository is paused or not accepted, and nothing begins or is taken back."""
    before = {each.name: each.status for each in seen.backups}
    seen = msgspec.structs.replace(seen, backups=tuple(_believed(each, seen.now_millis) for each in seen.backups))
    kept = {node: found.spec.backup for node, found in seen.objects.items() if found.spec.backup is not None}
    statuses: dict[str, BackupStatus] = {}
    verifications = decide_verifications(seen, hosts, is_held=is_held)
    ordered = sorted(seen.backups, key=lambda each: (each.created, each.name))
    running = next((each for each in ordered if each.status.phase == RunPhase.RUNNING), None)
    wakes = [verifications.next_millis]
    for told in ordered:
        verification = verifications.statuses[told.name]
        each = msgspec.structs.replace(told, status=msgspec.structs.replace(told.status, verification=verification))
        is_turn = running is None or running is told
        status = _held(seen, each) if is_held else _status(seen, each, hosts, is_turn=is_turn)
        if status.phase == RunPhase.RUNNING and running is None:
            running = told
        if status != before[each.name]:
            statuses[each.name] = status
        wakes.append(_wakes(each, status, seen.now_millis))
    known = {each.uid for each in seen.backups}
    tickets = {node: ticket for node, ticket in kept.items() if is_held or ticket.id.partition("-at-")[0] in known}
    if running is not None and not is_held:
        status = statuses.get(running.name, running.status)
        if status.phase == RunPhase.RUNNING:
            tickets |= {node: _ticket(seen, running, status, node) for node in hosts}
        else:
            wakes.append(seen.now_millis + AGAIN_MILLIS)  # another may have waited for this one
        if status.phase != RunPhase.RUNNING:  # its time is over: whoever has not begun does not begin any more
            tickets = {node: ticket for node, ticket in tickets.items() if _has_ended(seen.objects[node], ticket.id)}
    return BackupDecision(tickets, verifications.tickets, statuses, soonest(*wakes))


def _believed(backup: BackupObject, now_millis: int) -> BackupObject:
    """Without what cannot be: a run that is to begin in years would be under way until then, in the way of others."""
    status, verification = backup.status, backup.status.verification
    if verification is not None and is_to_come(verification.phase, verification.started, now_millis):
        verification = msgspec.structs.replace(verification, phase=RunPhase.PENDING, run="", started=None)
    if is_to_come(status.phase, status.started, now_millis):
        status = BackupStatus(last_success=status.last_success, conditions=status.conditions)
    return msgspec.structs.replace(backup, status=msgspec.structs.replace(status, verification=verification))


def orphaned(backup: BackupObject, now_millis: int) -> BackupStatus:
    """Of a backup whose repository is not there: one that comes later is backed up then."""
    message = f"There is no ContentRepository {backup.spec.repository} in this namespace."
    status = backup.status
    if status.phase == RunPhase.RUNNING:
        status = msgspec.structs.replace(status, phase=RunPhase.FAILED, ended=time_of(now_millis))
    verification = ended_without_repository(status.verification, now_millis)
    status = msgspec.structs.replace(status, message=message, next_run=None, verification=verification)
    return _told(backup, status, "NoRepository", now_millis)


def is_current(backup: BackupObject, status: BackupStatus, now_millis: int) -> tuple[str, str]:
    """The reason of BackupCurrent, and in words why."""
    found = status.verification
    if found is not None and found.damaged_since is not None:
        return "Damaged", found.damage
    if _is_too_old(backup, status, now_millis):
        return "Old", ""
    return ("Never" if status.last_success is None else "Current"), ""


def _is_too_old(backup: BackupObject, status: BackupStatus, now_millis: int) -> bool:
    if not backup.spec.schedule:
        return False
    success = None if status.last_success is None else millis_of(status.last_success)
    return is_old(_timetable(backup), millis_of(backup.created), success, now_millis)


def _timetable(backup: BackupObject) -> Timetable:
    return Timetable(backup.spec.schedule, backup.spec.time_zone, "spec.schedule")


def _wakes(backup: BackupObject, status: BackupStatus, now_millis: int) -> int | None:
    """When time alone changes something."""
    times = [None if status.next_run is None else millis_of(status.next_run)]
    if status.phase == RunPhase.RUNNING and status.started is not None:
        times.append(_deadline(backup, status))
    if backup.spec.schedule and not (timetable := _timetable(backup)).problem:
        times.append(timetable.next(now_millis))  # it may be too old from then on
    return min((each for each in times if each is not None and each > now_millis), default=None)


def _deadline(backup: BackupObject, status: BackupStatus) -> int:
    assert status.started is not None
    return millis_of(status.started) + backup.spec.active_deadline_seconds * 1000


def _held(seen: Observation, backup: BackupObject) -> BackupStatus:
    """What is under way goes on, and is looked at when hands are on again."""
    if backup.status.phase in FINAL and not backup.spec.schedule:
        return backup.status
    status = msgspec.structs.replace(backup.status, message="The repository is paused, or not accepted.", next_run=None)
    return _told(backup, status, "HandsOff", seen.now_millis)


def _status(seen: Observation, backup: BackupObject, hosts: Collection[str], *, is_turn: bool) -> BackupStatus:
    status = backup.status
    if status.phase == RunPhase.RUNNING:
        return _going(seen, backup, hosts)
    if status.phase in FINAL and not backup.spec.schedule:
        return _ended(backup, status, seen.now_millis)
    if obstacle := _obstacle(seen, backup):
        status = msgspec.structs.replace(status, message=obstacle[1][:1024], next_run=None)
        return _told(backup, status, obstacle[0], seen.now_millis)
    due = _due(seen, backup)
    if due is not None and is_turn and not backup.spec.suspend:
        return _begun(seen, backup, hosts, due)
    following = None
    if backup.spec.schedule and not backup.spec.suspend:
        following = due if due is not None else _timetable(backup).next(seen.now_millis)
    status = msgspec.structs.replace(status, next_run=None if following is None else time_of(following))
    if status.phase in FINAL:
        return _ended(backup, status, seen.now_millis)
    message = ""
    if not backup.spec.suspend:
        message = "Another backup of the repository is under way." if due is not None else "It waits for its time."
    status = msgspec.structs.replace(status, message=message)
    return _told(backup, status, "Suspended" if backup.spec.suspend else "Waiting", seen.now_millis)


def _ended(backup: BackupObject, status: BackupStatus, now_millis: int) -> BackupStatus:
    """As its last run ended, whatever was told since."""
    told = next((each.reason for each in backup.status.conditions if each.type == "Ready"), "")
    if told not in ENDINGS:
        told = "Completed" if status.phase == RunPhase.COMPLETED else "Failed"
        status = msgspec.structs.replace(status, message="")
    return _told(backup, status, told, now_millis)


def _due(seen: Observation, backup: BackupObject) -> int | None:
    """The time for which a run should have begun by now; None if there is none, or it is too long ago."""
    created, told = millis_of(backup.created), backup.status.scheduled
    if not backup.spec.schedule:
        return created if told is None else None
    return due_at(_timetable(backup), created, None if told is None else millis_of(told), seen.now_millis)


def _obstacle(seen: Observation, backup: BackupObject) -> tuple[str, str] | None:
    """Why nothing can begin until a person does something, as a reason and in words."""
    if backup.spec.schedule and (problem := _timetable(backup).problem):
        return "InvalidSchedule", problem
    place = f"{backup.spec.bucket.rstrip('/')}/"
    if not any(place.startswith(f"{each.url.rstrip('/')}/") for each in seen.repository.spec.service.backup_buckets):
        words = f"{backup.spec.bucket} lies in none of the places of spec.service.backupBuckets of the repository."
        return "BucketNotAllowed", words
    return None


def _begun(seen: Observation, backup: BackupObject, hosts: Collection[str], due: int) -> BackupStatus:
    status = BackupStatus(
        phase=RunPhase.RUNNING,
        run=f"{backup.uid}-at-{due // 1000}",
        scheduled=time_of(due),
        started=time_of(seen.now_millis),
        last_success=backup.status.last_success,
        verification=backup.status.verification,
        nodes=len(hosts),
        conditions=backup.status.conditions,
    )
    if not hosts:
        ended = time_of(seen.now_millis)
        status = msgspec.structs.replace(
            status, phase=RunPhase.FAILED, ended=ended, message="The repository has no node."
        )
        return _told(backup, _with_next(backup, status, seen.now_millis), "NoNodes", seen.now_millis)
    words = f"The run waits for {some(sorted(hosts))}."
    return _told(backup, msgspec.structs.replace(status, message=words), "Running", seen.now_millis)


def _going(seen: Observation, backup: BackupObject, hosts: Collection[str]) -> BackupStatus:
    status = backup.status
    reports = {node: report for node in hosts if (report := _report(seen.objects.get(node), status.run)) is not None}
    ended, waiting, failed = NodeTally.of(hosts, reports)
    done = {node: reports[node] for node in ended}
    is_late = bool(waiting) and seen.now_millis >= _deadline(backup, status)
    is_over = not waiting or is_late
    reason = "DeadlineExceeded" if is_late else "Running" if waiting else "Failed" if failed else "Completed"
    phase = RunPhase.RUNNING
    if is_over:
        phase = RunPhase.COMPLETED if reason == "Completed" else RunPhase.FAILED
    status = msgspec.structs.replace(
        status,
        phase=phase,
        ended=time_of(seen.now_millis) if is_over else None,
        last_success=status.scheduled if phase == RunPhase.COMPLETED else status.last_success,
        nodes=len(hosts),
        nodes_done=len(done) + (len(waiting) if is_late else 0),
        nodes_failed=len(failed) + (len(waiting) if is_late else 0),
        generation=max((report.generation for report in done.values()), default=0),
        files=total(report.files_done for report in done.values()),
        bytes=total(report.bytes_done for report in done.values()),
        message=_message(reason, waiting, failed, done),
        results=_worst(done),
    )
    if is_over:
        status = _with_next(backup, status, seen.now_millis)
    return _told(backup, status, reason, seen.now_millis)


def _with_next(backup: BackupObject, status: BackupStatus, now_millis: int) -> BackupStatus:
    if not backup.spec.schedule or backup.spec.suspend or (timetable := _timetable(backup)).problem:
        return msgspec.structs.replace(status, next_run=None)
    following = timetable.next(now_millis)
    return msgspec.structs.replace(status, next_run=None if following is None else time_of(following))


def _report(found: NodeObject | None, run: str) -> BackupTicketReport | None:
    report = None if found is None else found.status.backup
    return report if report is not None and report.id == run else None


def _has_ended(found: NodeObject, run: str) -> bool:
    report = _report(found, run)
    return report is not None and report.state in ENDED


def _ticket(seen: Observation, backup: BackupObject, status: BackupStatus, node: str) -> BackupTicket:
    repository = seen.repository
    place = backup.place_of(repository.key, node)
    return BackupTicket(id=status.run, place=place, generation=repository.generation, keep=backup.spec.keep)


def _message(reason: str, waiting: list[str], failed: list[str], done: Mapping[str, BackupTicketReport]) -> str:
    if reason == "DeadlineExceeded":
        return f"The time of spec.activeDeadlineSeconds was over before {some(waiting)}."
    if waiting:
        return f"The run waits for {some(waiting)}."
    if failed:
        return f"{failed[0]}: {done[failed[0]].message}"[:1024]
    damaged = sorted(node for node, report in done.items() if report.damaged)
    return f"The backup lacks what could not be read on {some(damaged)}." if damaged else ""


def _worst(done: Mapping[str, BackupTicketReport]) -> tuple[BackupNode, ...]:
    """Those that failed first, then those that lack something: as many as a person reads."""
    worst = sorted(
        done.items(), key=lambda each: (each[1].state == TicketState.COMPLETED, not each[1].damaged, each[0])
    )
    return tuple(
        BackupNode(node=node, report=msgspec.structs.replace(report, message=report.message[:WORDS_MAX]))
        for node, report in worst[:BACKUP_RESULTS_MAX]
    )


def _told(backup: BackupObject, status: BackupStatus, reason: str, now_millis: int) -> BackupStatus:
    """The status with conditions for this reason of its condition Ready."""
    is_going = reason in ("Waiting", "Running")
    is_stuck = not is_going and reason != "Completed"
    is_settled = reason == "Waiting" and status.next_run is not None and millis_of(status.next_run) > now_millis
    idle = "Ended" if reason in ENDINGS or is_settled else "HandsOff"
    message = status.message
    facts = [
        ("Ready", reason, message),
        ("BackupCurrent", *is_current(backup, status, now_millis)),
        ("BackupVerified", *verified(backup, status.verification, now_millis)),
        ("Reconciling", reason if is_going and not is_settled else idle, message if is_going else ""),
        ("Stalled", reason if is_stuck else "Working", message if is_stuck else ""),
    ]
    made = conditions_of("ContentBackup", facts, backup.status.conditions, backup.generation, time_of(now_millis))
    return msgspec.structs.replace(status, observed_generation=backup.generation, conditions=made)


def health(
    backups: Iterable[BackupObject], statuses: Mapping[str, BackupStatus], now_millis: int
) -> dict[str, BackupHealth]:
    """Of each by name how it is, as it is told from now on."""
    found: dict[str, BackupHealth] = {}
    for each in backups:
        status = statuses.get(each.name, each.status)
        reason, _ = verified(each, status.verification, now_millis)
        found[each.name] = BackupHealth(
            is_current=not _is_too_old(each, status, now_millis),
            is_damaged=reason == "Damaged",
            is_verified=reason not in UNVERIFIED,
        )
    return found
