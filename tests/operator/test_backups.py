"""ContentBackups: which run begins, what each node is to write, and what is told of it."""

from typing import Any

import msgspec
import pytest

from tests.operator.support import HOUR, MINUTE, NOW, changed, decided, fleet, repository
from ullage.contract import (
    BackupKeepRule,
    BackupSpec,
    BackupStatus,
    BackupTicketReport,
    RunPhase,
    TicketState,
    time_of,
)
from ullage_operator.observation import BackupObject, Observation
from ullage_operator.repository.decide import Decision

BUCKETS: dict[str, Any] = {"service": {"backupBuckets": [{"url": "s3://flows/backups"}]}}
DAILY = "0 0 * * *"  # due at NOW, midnight


def backup(
    name: str = "b", status: BackupStatus | None = None, created: int = NOW - 72 * HOUR, **spec: Any
) -> BackupObject:
    asked = BackupSpec(**{"repository": "flows", "bucket": "s3://flows/backups/nightly", **spec})
    return BackupObject(
        name=name,
        uid=f"uid-{name}",
        generation=1,
        created=time_of(created),
        spec=asked,
        status=status or BackupStatus(),
    )


def seeing(*backups: BackupObject, count: int = 2, now: int = NOW + MINUTE, **spec: Any) -> Observation:
    return changed(fleet(count, BUCKETS | spec), backups=backups, now_millis=now)


def told(decision: Decision, name: str = "b") -> BackupStatus:
    return decision.backups[name]


def ready(status: BackupStatus) -> str:
    return next(each.reason for each in status.conditions if each.type == "Ready")


def current(status: BackupStatus) -> str:
    return next(each.reason for each in status.conditions if each.type == "BackupCurrent")


def after(seen: Observation, decision: Decision, later: int = MINUTE, **reports: BackupTicketReport) -> Observation:
    """What is seen once that was written, and agents have reported."""
    backups = tuple(
        msgspec.structs.replace(each, status=decision.backups.get(each.name, each.status)) for each in seen.backups
    )
    objects = {
        name: msgspec.structs.replace(
            found,
            spec=decision.nodes.get(name, found.spec),
            status=msgspec.structs.replace(
                found.status, backup=reports.get(name.replace("-", "_"), found.status.backup)
            ),
        )
        for name, found in seen.objects.items()
    }
    return changed(seen, backups=backups, objects=objects, now_millis=seen.now_millis + later)


def done(run: str, **fields: Any) -> BackupTicketReport:
    counts = {"files_done": 5, "files": 5, "bytes_done": 70, "bytes": 70}
    given: dict[str, Any] = {"state": TicketState.COMPLETED, "generation": 3, **counts, **fields}
    return BackupTicketReport(id=run, **given)


def test_each_node_writes_below_a_prefix_of_its_own_and_the_end_is_told() -> None:
    """Running, with a ticket for each; the sums of what they report; the next time of the schedule."""
    seen = seeing(backup(schedule=DAILY, keep=BackupKeepRule(daily=7)))
    begun = decided(seen)
    tickets = {name: spec.backup for name, spec in begun.nodes.items()}

    assert {name: ticket.place for name, ticket in tickets.items() if ticket} == {
        name: f"s3://flows/backups/nightly/data/flows/{name}" for name in ("node-0", "node-1")
    }
    assert {ticket.keep for ticket in tickets.values() if ticket} == {BackupKeepRule(daily=7)}
    status = told(begun)
    assert (status.phase, ready(status), status.nodes) == (RunPhase.RUNNING, "Running", 2)
    assert status.scheduled == time_of(NOW)

    one = after(seen, begun, node_0=done(status.run), node_1=done("another's"))
    half = decided(one)
    assert (told(half).nodes_done, ready(told(half)), told(half).message) == (1, "Running", "The run waits for node-1.")
    whole = decided(after(one, half, node_1=done(status.run, generation=9, bytes_done=30)))
    ended = told(whole)
    assert (ended.phase, ready(ended), current(ended)) == (RunPhase.COMPLETED, "Completed", "Current")
    assert (ended.generation, ended.files, ended.bytes, ended.nodes_failed) == (9, 10, 100, 0)
    assert (ended.last_success, ended.next_run) == (time_of(NOW), time_of(NOW + 24 * HOUR))
    assert [each.node for each in ended.results] == ["node-0", "node-1"]


def test_a_run_is_begun_once_whatever_ends_in_between() -> None:
    """By another operator that reads the status of the first, and after its end."""
    seen = seeing(backup(schedule=DAILY))
    begun = decided(seen)
    again = decided(after(seen, begun))
    run = told(begun).run
    assert told(decided(changed(seen, now_millis=seen.now_millis + MINUTE))).run == run  # who has not heard of it
    ended = decided(after(seen, begun, node_0=done(run), node_1=done(run)))
    later = decided(after(after(seen, begun), ended))

    assert {spec.backup.id for spec in again.nodes.values() if spec.backup} == {run}
    assert "b" not in later.backups  # nothing new is told
    assert {spec.backup.id for spec in later.nodes.values() if spec.backup} == {run}


def test_one_without_a_schedule_is_written_once() -> None:
    """At once, however long ago it was made; never again."""
    seen = seeing(backup(created=NOW - 72 * HOUR))
    begun = decided(seen)
    run = told(begun).run
    ended = after(seen, begun, node_0=done(run), node_1=done(run))
    late = changed(after(ended, decided(ended)), now_millis=NOW + 1_000 * HOUR)

    assert told(begun).phase == RunPhase.RUNNING
    assert told(decided(ended)).phase == RunPhase.COMPLETED
    assert "b" not in decided(late).backups


def test_nodes_that_fail_or_do_not_answer_are_named() -> None:
    """A failure in the words of its node; after the deadline who has not ended is, and writes no further."""
    seen = seeing(backup(active_deadline_seconds=600))
    begun = decided(seen)
    run = told(begun).run
    failed = done(run, state=TicketState.FAILED, message="BucketRefused: no such bucket")
    one = decided(after(seen, begun, node_0=failed, node_1=done(run)))
    assert (told(one).phase, ready(told(one)), told(one).nodes_failed) == (RunPhase.FAILED, "Failed", 1)
    assert told(one).message == "node-0: BucketRefused: no such bucket"
    assert [each.node for each in told(one).results] == ["node-0", "node-1"]

    waits = after(seen, begun, node_0=done(run))
    assert decided(waits).next_millis is not None
    late = decided(changed(waits, now_millis=seen.now_millis + 600_000))
    assert (ready(told(late)), told(late).nodes_failed) == ("DeadlineExceeded", 1)
    assert "node-1" in told(late).message
    assert (late.nodes["node-0"].backup is None, late.nodes["node-1"].backup) == (False, None)


def test_of_two_the_second_waits_for_the_first() -> None:
    """What a node reported stands in its status until it gets another ticket; then it is the other one's turn."""
    seen = seeing(backup("a", schedule=DAILY, created=NOW - 90 * HOUR), backup("b", schedule=DAILY))
    begun = decided(seen)
    run = told(begun, "a").run
    assert (told(begun, "a").phase, told(begun, "b").phase) == (RunPhase.RUNNING, RunPhase.PENDING)
    assert ready(told(begun, "b")) == "Waiting"
    ended = after(seen, begun, node_0=done(run), node_1=done(run))
    second = decided(ended)
    assert told(second, "a").phase == RunPhase.COMPLETED
    assert second.next_millis is not None
    assert second.next_millis - ended.now_millis <= 1_000
    third = decided(after(ended, second))
    assert told(third, "b").phase == RunPhase.RUNNING
    assert {spec.backup.id for spec in third.nodes.values() if spec.backup} == {told(third, "b").run}


def test_one_that_is_deleted_is_called_off() -> None:
    """Its tickets go, so that agents stop."""
    seen = seeing(backup())
    begun = after(seen, decided(seen))
    assert all(spec.backup for spec in decided(begun).nodes.values())
    assert not any(spec.backup for spec in decided(changed(begun, backups=())).nodes.values())


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"schedule": "61 * * * *"}, "InvalidSchedule"),
        ({"schedule": DAILY, "time_zone": "Nowhere/At_all"}, "InvalidSchedule"),
        ({"bucket": "s3://flows/backups-of-others"}, "BucketNotAllowed"),
        ({"bucket": "s3://others/backups"}, "BucketNotAllowed"),
        ({"suspend": True}, "Suspended"),
    ],
)
def test_what_cannot_begin_says_why(wrong: dict[str, Any], reason: str) -> None:
    """And no node is told anything."""
    decision = decided(seeing(backup(**wrong)))
    status = told(decision)

    assert (status.phase, ready(status), status.next_run) == (RunPhase.PENDING, reason, None)
    assert {each.reason for each in status.conditions if each.type == "Stalled"} == {reason}
    assert not any(spec.backup for spec in decision.nodes.values())


def test_a_paused_repository_begins_nothing_and_takes_nothing_back() -> None:
    """What is under way goes on; it is counted when hands are on again."""
    seen = seeing(backup(schedule=DAILY))
    begun = after(seen, decided(seen))
    paused = changed(begun, repository=repository(BUCKETS, is_paused=True))
    held = decided(paused)
    run = begun.backups[0].status.run

    assert ready(told(held)) == "HandsOff"
    assert held.nodes == {}
    counted = after(begun, held, node_0=done(run), node_1=done(run))
    assert told(decided(counted)).phase == RunPhase.COMPLETED
    idle = changed(seen, repository=repository(BUCKETS, is_paused=True))
    assert told(decided(idle)).phase == RunPhase.PENDING


def test_a_backup_is_old_when_two_times_have_passed_without_one() -> None:
    """Not at the first: a run that is under way has until the next time. By time alone, without anything heard."""
    success = BackupStatus(
        phase=RunPhase.COMPLETED, run="uid-b-at-1", scheduled=time_of(NOW), last_success=time_of(NOW)
    )
    for hours, reason in ((23, "Current"), (47, "Current"), (49, "Old")):
        seen = seeing(backup(schedule=DAILY, suspend=True, status=success), now=NOW + hours * HOUR)
        assert current(told(decided(seen))) == reason
        assert decided(seen).next_millis is not None
    never = backup(schedule=DAILY, suspend=True, created=NOW - HOUR)
    assert current(told(decided(seeing(never, now=NOW + 12 * HOUR)))) == "Never"
    assert current(told(decided(seeing(never, now=NOW + 49 * HOUR)))) == "Old"


def test_a_run_that_is_an_hour_late_is_left_out() -> None:
    """The operator was away: the next time brings the next."""
    status = told(decided(seeing(backup(schedule=DAILY), now=NOW + 2 * HOUR)))

    assert (status.phase, status.next_run) == (RunPhase.PENDING, time_of(NOW + 24 * HOUR))


def test_a_repository_without_nodes_has_failed() -> None:
    """There is nothing that could be backed up, and nobody waits for it."""
    status = told(decided(seeing(backup(), count=0)))

    assert (status.phase, ready(status)) == (RunPhase.FAILED, "NoNodes")
