"""Verifications of ContentBackups: which begins, what each node is to read, and what of a backup is damaged. Pure.

    due ── begun, a ticket for each node that has a backup ── all have ended, or the time is over: Completed, Failed

One at a time, beside the backups. A sample is drawn by the name of its run. Once damage was found the next ones draw
the same files, and no fewer: only they can show that it was mended. Until one of them has, in every node's backup, the
damage stands, whatever fails meanwhile.
"""

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple
from zlib import crc32

import msgspec

from ullage.contract import (
    BACKUP_RESULTS_MAX,
    ENDED,
    RunPhase,
    Timetable,
    VerificationNode,
    VerificationReport,
    VerificationStatus,
    VerificationTicket,
    millis_of,
    time_of,
)
from ullage_operator.backup.runs import AGAIN_MILLIS, WORDS_MAX, NodeTally, due_at, is_old, some, total
from ullage_operator.objects import soonest
from ullage_operator.observation import BackupObject, NodeObject, Observation

NAMED: Final = "-verified-at-"
"""Between the uid of a ContentBackup and the moment for which its verification was due."""


class VerificationDecision(NamedTuple):
    """What each node is to read; how the verifications of each backup are, by its name, whether or not that changed."""

    tickets: dict[str, VerificationTicket]
    statuses: dict[str, VerificationStatus | None]
    next_millis: int | None


def decide_verifications(seen: Observation, hosts: Collection[str], *, is_held: bool = False) -> VerificationDecision:
    """What is due now. `is_held`: the repository is paused or not accepted, and nothing begins or is taken back."""
    kept = {node: found.spec.verification for node, found in seen.objects.items() if found.spec.verification}
    statuses = {each.name: each.status.verification for each in seen.backups}
    if is_held:
        return VerificationDecision(kept, statuses, None)
    ordered = sorted(seen.backups, key=lambda each: (each.created, each.name))
    running = next((each for each in ordered if _is_running(each.status.verification)), None)
    wakes: list[int | None] = []
    for each in ordered:
        status = _status(seen, each, hosts, is_turn=running is None or running is each)
        if _is_running(status) and running is None:
            running = each
        statuses[each.name] = status
        wakes.append(_wakes(each, status, seen.now_millis))
    known = {each.uid for each in seen.backups}
    tickets = {node: ticket for node, ticket in kept.items() if ticket.id.partition(NAMED)[0] in known}
    if running is not None:
        status = statuses[running.name]
        assert status is not None
        if status.phase == RunPhase.RUNNING:
            tickets |= {node: _ticket(seen, running, status, node) for node in _hosts(seen, running, hosts, status.run)}
        else:  # whoever has not begun does not begin any more, and another may have waited for this one
            wakes.append(seen.now_millis + AGAIN_MILLIS)
            tickets = {node: ticket for node, ticket in tickets.items() if _has_ended(seen.objects[node], ticket.id)}
    return VerificationDecision(tickets, statuses, soonest(*wakes))


def verified(backup: BackupObject, status: VerificationStatus | None, now_millis: int) -> tuple[str, str]:
    """The reason of BackupVerified, and in words why."""
    rule, known = backup.spec.verify, status or VerificationStatus()
    if known.damaged_since is not None:
        return "Damaged", known.damage
    if rule is None:
        return "NotAsked", ""
    if problem := _problem(backup):
        return "InvalidSchedule", problem
    told = next((each for each in backup.status.conditions if each.type == "BackupVerified"), None)
    if known.phase == RunPhase.FAILED:
        return "Failed", known.message
    if known.phase == RunPhase.RUNNING and told is not None and told.reason == "Failed":
        return told.reason, told.message  # until this one has ended better
    return _age(backup, known, now_millis), ""


def _age(backup: BackupObject, known: VerificationStatus, now_millis: int) -> str:
    """The reason of BackupVerified where nothing is wrong but perhaps the time."""
    assert backup.spec.verify is not None
    completed = None if known.last_completed is None else millis_of(known.last_completed)
    since = now_millis if known.asked_since is None else millis_of(known.asked_since)
    if backup.spec.verify.schedule and is_old(_timetable(backup), since, completed, now_millis):
        return "Old"
    return "Never" if completed is None else "Whole"


def ended_without_repository(status: VerificationStatus | None, now_millis: int) -> VerificationStatus | None:
    """The same when its repository is gone: nobody reads any more."""
    if status is None or status.phase != RunPhase.RUNNING:
        return status
    words = "The repository is gone."
    return msgspec.structs.replace(status, phase=RunPhase.FAILED, ended=time_of(now_millis), message=words)


def _is_running(status: VerificationStatus | None) -> bool:
    return status is not None and status.phase == RunPhase.RUNNING


def _problem(backup: BackupObject) -> str:
    return _timetable(backup).problem if backup.spec.verify and backup.spec.verify.schedule else ""


def _timetable(backup: BackupObject) -> Timetable:
    assert backup.spec.verify is not None
    return Timetable(backup.spec.verify.schedule, backup.spec.time_zone, "spec.verify.schedule")


def _wakes(backup: BackupObject, status: VerificationStatus | None, now_millis: int) -> int | None:
    """When time alone changes something."""
    times: list[int | None] = []
    if status is not None and status.phase == RunPhase.RUNNING:
        times.append(_deadline(backup, status))
    if backup.spec.verify is not None and backup.spec.verify.schedule and not _problem(backup):
        times.append(_timetable(backup).next(now_millis))  # one is due then, or the last one too long ago
    return min((each for each in times if each is not None and each > now_millis), default=None)


def _deadline(backup: BackupObject, status: VerificationStatus) -> int:
    assert status.started is not None
    return millis_of(status.started) + backup.spec.active_deadline_seconds * 1000


def _status(
    seen: Observation, backup: BackupObject, hosts: Collection[str], *, is_turn: bool
) -> VerificationStatus | None:
    status = _asked(backup, seen.now_millis)
    if status is not None and status.phase == RunPhase.RUNNING:
        return _going(seen, backup, status, _hosts(seen, backup, hosts, status.run))
    if backup.spec.verify is None or backup.spec.suspend:
        return None if status is None else msgspec.structs.replace(status, next_run=None)
    due, nodes = _due(backup, seen.now_millis), _hosts(seen, backup, hosts)
    if due is not None and is_turn and nodes:
        return _begun(backup, status or VerificationStatus(), nodes, due, seen.now_millis)
    following = None
    if backup.spec.verify.schedule and not _problem(backup):
        following = due if due is not None else _timetable(backup).next(seen.now_millis)
    told = None if following is None else time_of(following)
    return msgspec.structs.replace(status or VerificationStatus(), next_run=told)


def _asked(backup: BackupObject, now_millis: int) -> VerificationStatus | None:
    """The status, which knows since when verifications are asked for: that of a ContentBackup of last year may be
    asked for since today.
    """
    status = backup.status.verification
    if backup.spec.verify is None:
        return None if status is None else msgspec.structs.replace(status, asked_since=None)
    known = status or VerificationStatus()
    return msgspec.structs.replace(known, asked_since=known.asked_since or time_of(now_millis))


def _due(backup: BackupObject, now_millis: int) -> int | None:
    """The time for which one should have begun by now; before the first backup there is none."""
    rule, status, known = backup.spec.verify, backup.status, backup.status.verification
    if rule is None or status.last_success is None:
        return None
    told = None if known is None or known.scheduled is None else millis_of(known.scheduled)
    moments: list[int | None] = []
    if rule.schedule:
        moments.append(due_at(_timetable(backup), millis_of(backup.created), told, now_millis))
    is_damaged = known is not None and known.damaged_since is not None
    if (is_damaged or not rule.schedule) and status.phase == RunPhase.COMPLETED and status.ended is not None:
        ended = min(millis_of(status.ended), now_millis)
        moments.append(ended if told is None or ended > told else None)
    return max((each for each in moments if each is not None), default=None)


def _hosts(seen: Observation, backup: BackupObject, hosts: Collection[str], run: str = "") -> list[str]:
    """The nodes that have a backup, those that are at it already included: one that joined since has none yet, and
    nothing is wrong with that.
    """
    status = backup.status
    since = status.ended if status.phase == RunPhase.COMPLETED else status.last_success

    def has_one(found: NodeObject) -> bool:
        ticket = found.spec.verification
        is_at_it = run != "" and ticket is not None and ticket.id == run
        return is_at_it or (since is not None and found.created <= since)  # all times are written in one way

    return sorted(node for node in hosts if node in seen.objects and has_one(seen.objects[node]))


def _begun(
    backup: BackupObject, before: VerificationStatus, nodes: list[str], due: int, now_millis: int
) -> VerificationStatus:
    assert backup.spec.verify is not None
    run, sample = f"{backup.uid}{NAMED}{due // 1000}", backup.spec.verify.sample_percentage
    is_damaged = before.damaged_since is not None
    return VerificationStatus(
        phase=RunPhase.RUNNING,
        run=run,
        scheduled=time_of(due),
        started=time_of(now_millis),
        asked_since=before.asked_since,
        last_completed=before.last_completed,
        damaged_since=before.damaged_since,
        damage=before.damage,
        sample_percentage=max(sample, before.sample_percentage) if is_damaged else sample,
        seed=before.seed if is_damaged else crc32(run.encode()),
        nodes=len(nodes),
        message=f"The verification waits for {some(nodes)}.",
    )


def _going(seen: Observation, backup: BackupObject, status: VerificationStatus, hosts: list[str]) -> VerificationStatus:
    reports = {node: report for node in hosts if (report := _report(seen.objects[node], status.run)) is not None}
    done, waiting, failed = NodeTally.of(hosts, reports)
    damaged = [node for node in done if reports[node].damaged]
    is_late = bool(waiting) and seen.now_millis >= _deadline(backup, status)
    is_over = not waiting or is_late
    phase = RunPhase.RUNNING
    if is_over:
        phase = RunPhase.FAILED if waiting or failed else RunPhase.COMPLETED
    now = time_of(seen.now_millis)
    if damaged:
        words = f"{damaged[0]}: {reports[damaged[0]].message}"[:1024]
        status = msgspec.structs.replace(status, damaged_since=status.damaged_since or now, damage=words)
    elif phase == RunPhase.COMPLETED:
        status = msgspec.structs.replace(status, damaged_since=None, damage="")
    late = len(waiting) if is_late else 0
    return msgspec.structs.replace(
        status,
        phase=phase,
        ended=now if is_over else None,
        last_completed=status.scheduled if phase == RunPhase.COMPLETED else status.last_completed,
        nodes=len(hosts),
        nodes_done=len(done) + late,
        nodes_failed=len(failed) + late,
        nodes_damaged=len(damaged),
        files=total(reports[node].files_done for node in done),
        bytes=total(reports[node].bytes_done for node in done),
        message=_message(waiting, failed, reports, is_late=is_late),
        results=_worst({node: reports[node] for node in done}),
    )


def _report(found: NodeObject, run: str) -> VerificationReport | None:
    report = found.status.verification
    return report if report is not None and report.id == run else None


def _has_ended(found: NodeObject, run: str) -> bool:
    report = _report(found, run)
    return report is not None and report.state in ENDED


def _ticket(seen: Observation, backup: BackupObject, status: VerificationStatus, node: str) -> VerificationTicket:
    return VerificationTicket(
        id=status.run,
        place=backup.place_of(seen.repository.key, node),
        generation=seen.repository.generation,
        sample_percentage=status.sample_percentage,
        seed=status.seed,
    )


def _message(waiting: list[str], failed: list[str], reports: Mapping[str, VerificationReport], *, is_late: bool) -> str:
    if is_late:
        return f"The time of spec.activeDeadlineSeconds was over before {some(waiting)}."
    if waiting:
        return f"The verification waits for {some(waiting)}."
    return f"{failed[0]}: {reports[failed[0]].message}"[:1024] if failed else ""


def _worst(done: Mapping[str, VerificationReport]) -> tuple[VerificationNode, ...]:
    """Those that found damage first, then those that failed: as many as a person reads."""
    worst = sorted(done.items(), key=lambda each: (-each[1].damaged, each[1].state == "Completed", each[0]))
    return tuple(
        VerificationNode(node=node, report=msgspec.structs.replace(report, message=report.message[:WORDS_MAX]))
        for node, report in worst[:BACKUP_RESULTS_MAX]
    )
