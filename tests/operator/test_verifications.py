"""Verifications of ContentBackups: which begins, what each node is to read, and how long damage stands."""

from typing import Any

import msgspec
import pytest

from tests.operator.support import HOUR, MINUTE, NOW, changed, decided, repository
from tests.operator.test_backups import BUCKETS, DAILY, backup, current, seeing
from ullage.contract import (
    BackupStatus,
    RunPhase,
    TicketState,
    VerificationReport,
    VerificationStatus,
    VerifyRule,
    time_of,
)
from ullage_operator.backup.decide import health
from ullage_operator.observation import BackupObject, Observation
from ullage_operator.repository.decide import Decision

BACKED_UP = BackupStatus(
    phase=RunPhase.COMPLETED,
    run="uid-b-at-1",
    scheduled=time_of(NOW - HOUR),
    started=time_of(NOW - HOUR),
    ended=time_of(NOW - 30 * MINUTE),
    last_success=time_of(NOW - HOUR),
)
NIGHTLY = VerifyRule(schedule=DAILY, sample_percentage=20)
DAMAGED = {"damaged": 2, "message": "damaged files: 2; content/c1/1: it is missing"}


def verifying(status: BackupStatus = BACKED_UP, rule: VerifyRule | None = NIGHTLY, **spec: Any) -> BackupObject:
    return backup(schedule="0 23 * * *", status=status, verify=rule, **spec)


def found(decision: Decision, name: str = "b") -> VerificationStatus:
    status = decision.backups[name].verification
    assert status is not None
    return status


def verified(status: BackupStatus) -> str:
    return next(each.reason for each in status.conditions if each.type == "BackupVerified")


def said(decision: Decision) -> tuple[str, str]:
    return current(decision.backups["b"]), verified(decision.backups["b"])


def tickets(decision: Decision) -> dict[str, Any]:
    return {name: spec.verification for name, spec in decision.nodes.items() if spec.verification}


def after(seen: Observation, decision: Decision, later: int = MINUTE, **reports: VerificationReport) -> Observation:
    """What is seen once that was written, and agents have reported."""
    backups = tuple(
        msgspec.structs.replace(each, status=decision.backups.get(each.name, each.status)) for each in seen.backups
    )
    objects = {
        name: msgspec.structs.replace(
            node,
            spec=decision.nodes.get(name, node.spec),
            status=msgspec.structs.replace(
                node.status, verification=reports.get(name.replace("-", "_"), node.status.verification)
            ),
        )
        for name, node in seen.objects.items()
    }
    return changed(seen, backups=backups, objects=objects, now_millis=seen.now_millis + later)


def report(run: str, **fields: Any) -> VerificationReport:
    counts = {"generations": 3, "needed": 50, "files_done": 5, "files": 5, "bytes_done": 70, "bytes": 70}
    given: dict[str, Any] = {"state": TicketState.COMPLETED, **counts, **fields}
    return VerificationReport(id=run, **given)


def next_day(seen: Observation, **status: Any) -> Observation:
    """A day later, when another backup has gone well in between."""
    [each] = seen.backups
    day = 24 * HOUR
    news = {"scheduled": time_of(NOW + day - HOUR), "ended": time_of(NOW + day - 30 * MINUTE), **status}
    told = msgspec.structs.replace(each.status, last_success=time_of(NOW + day - HOUR), **news)
    return changed(seen, backups=(msgspec.structs.replace(each, status=told),), now_millis=NOW + day + MINUTE)


def test_each_node_reads_a_sample_of_its_own_backup_and_the_end_is_told() -> None:
    """At the time of its schedule, beside the backups; each day others of the files."""
    seen = seeing(verifying())
    begun = decided(seen)
    first = tickets(begun)

    assert {name: ticket.place for name, ticket in first.items()} == {
        name: f"s3://flows/backups/nightly/data/flows/{name}" for name in ("node-0", "node-1")
    }
    assert {(ticket.sample_percentage, ticket.seed) for ticket in first.values()} == {(20, found(begun).seed)}
    assert (found(begun).phase, found(begun).scheduled, said(begun)) == (
        RunPhase.RUNNING,
        time_of(NOW),
        ("Current", "Never"),
    )
    run = found(begun).run
    half = after(seen, begun, node_0=report(run))
    assert (found(decided(half)).nodes_done, found(decided(half)).phase) == (1, RunPhase.RUNNING)
    whole = after(half, decided(half), node_1=report(run))
    ended = decided(whole)
    assert (found(ended).phase, found(ended).files, found(ended).bytes) == (RunPhase.COMPLETED, 10, 140)
    assert said(ended) == ("Current", "Whole")
    rests = after(whole, ended)
    assert found(decided(rests)).next_run == time_of(NOW + 24 * HOUR)
    assert {ticket.id for ticket in tickets(decided(rests)).values()} == {run}  # and nothing begins once more

    second = decided(next_day(rests))
    assert {ticket.seed for ticket in tickets(second).values()} != {found(begun).seed}


def test_without_a_schedule_it_follows_each_backup() -> None:
    """And before the first one there is nothing to verify."""
    rule = VerifyRule(sample_percentage=100)
    assert tickets(decided(seeing(verifying(BackupStatus(), rule, suspend=True)))) == {}
    seen = seeing(verifying(rule=rule))
    begun = decided(seen)
    run = found(begun).run
    ended = after(seen, begun, node_0=report(run), node_1=report(run))
    rests = after(ended, decided(ended))

    assert found(begun).scheduled == BACKED_UP.ended
    assert tickets(decided(rests)) == tickets(begun)
    assert found(decided(next_day(rests))).run not in ("", run)


def test_damage_stands_until_the_same_files_were_read_whole() -> None:
    """A backup that is damaged is not current; the next verification draws the same files, though fewer are asked for,
    and one that fails says nothing about them.
    """
    seen = seeing(verifying())
    begun = decided(seen)
    run, seed = found(begun).run, found(begun).seed
    one = after(seen, begun, node_0=report(run, **DAMAGED))
    told = decided(one)
    assert said(told) == ("Damaged", "Damaged")  # though node-1 has yet to end
    assert "node-0: damaged files: 2" in found(told).damage
    whole = after(one, told, node_1=report(run))
    ended = decided(whole)
    assert (found(ended).phase, found(ended).nodes_damaged, said(ended)) == (
        RunPhase.COMPLETED,
        1,
        ("Damaged", "Damaged"),
    )
    assert [each.node for each in found(ended).results] == ["node-0", "node-1"]

    seen = next_day(after(whole, ended))
    [each] = seen.backups
    fewer = msgspec.structs.replace(each.spec, verify=VerifyRule(schedule=DAILY, sample_percentage=1))
    seen = changed(seen, backups=(msgspec.structs.replace(each, spec=fewer),))
    again = decided(seen)
    assert {(ticket.sample_percentage, ticket.seed) for ticket in tickets(again).values()} == {(20, seed)}
    assert said(again) == ("Damaged", "Damaged")
    run = found(again).run
    failed = report(run, state=TicketState.FAILED, message="BucketUnavailable: nobody answers")
    half = decided(after(seen, again, node_0=report(run), node_1=failed))
    assert said(half) == ("Damaged", "Damaged")
    last = decided(after(seen, again, node_0=report(run), node_1=report(run)))
    assert said(last) == ("Current", "Whole")
    assert found(last).damaged_since is None


def test_damage_is_looked_for_again_after_each_backup() -> None:
    """Whoever has mended it knows soon; without damage the schedule alone counts."""
    for since, is_due in ((time_of(NOW - 30 * HOUR), True), (None, False)):
        known = VerificationStatus(
            phase=RunPhase.COMPLETED, run="r", scheduled=time_of(NOW - 24 * HOUR), damaged_since=since
        )
        seen = seeing(verifying(msgspec.structs.replace(BACKED_UP, verification=known)), now=NOW - MINUTE)
        assert bool(tickets(decided(seen))) is is_due


def test_what_fails_or_does_not_end_is_told() -> None:
    """In the words of its node, and until one has ended better; the backup itself is as current as before."""
    seen = seeing(verifying(active_deadline_seconds=600))
    begun = decided(seen)
    run = found(begun).run
    failed = report(run, state=TicketState.FAILED, message="BucketUnavailable: nobody answers")
    last = after(seen, begun, node_0=failed, node_1=report(run))
    ended = decided(last)
    assert (found(ended).phase, said(ended)) == (RunPhase.FAILED, ("Current", "Failed"))
    assert found(ended).message == "node-0: BucketUnavailable: nobody answers"
    assert verified(decided(next_day(after(last, ended))).backups["b"]) == "Failed"  # while the next one goes on

    waits = after(seen, begun, node_0=report(run))
    assert decided(waits).next_millis is not None
    late = decided(changed(waits, now_millis=seen.now_millis + 600_000))
    assert (found(late).nodes_failed, said(late)) == (1, ("Current", "Failed"))
    assert "node-1" in found(late).message
    assert (late.nodes["node-0"].verification is None, late.nodes["node-1"].verification) == (False, None)


def test_a_node_that_joined_since_is_left_out() -> None:
    """It has no backup yet, and that is no damage; one that has a part already keeps it."""
    seen = seeing(verifying())
    joined = msgspec.structs.replace(seen.objects["node-1"], created=time_of(NOW - MINUTE))
    seen = changed(seen, objects=seen.objects | {"node-1": joined})
    begun = decided(seen)
    assert set(tickets(begun)) == {"node-0"}

    started = seeing(verifying())
    begun = decided(started)
    later = after(started, begun)
    objects = {
        name: msgspec.structs.replace(each, created=time_of(NOW - 10 * MINUTE)) for name, each in later.objects.items()
    }
    assert tickets(decided(changed(later, objects=objects))) == tickets(begun)


def test_of_two_the_second_waits_for_the_first() -> None:
    """What a node reported stands in its status until it gets another ticket."""
    other = backup("a", schedule="0 23 * * *", status=BACKED_UP, verify=NIGHTLY, created=NOW - 90 * HOUR)
    seen = seeing(other, verifying())
    begun = decided(seen)
    run = found(begun, "a").run
    assert found(begun).phase == RunPhase.PENDING
    ended = after(seen, begun, node_0=report(run), node_1=report(run))
    second = decided(ended)
    assert second.next_millis is not None
    assert second.next_millis - ended.now_millis <= 1_000
    third = decided(after(ended, second))
    assert {ticket.id for ticket in tickets(third).values()} == {found(third).run}


def test_a_backup_that_is_deleted_is_verified_no_further() -> None:
    """Its tickets go, so that agents stop; so do those of nobody when the repository is paused."""
    seen = seeing(verifying())
    begun = after(seen, decided(seen))
    assert len(tickets(decided(begun))) == 2
    assert tickets(decided(changed(begun, backups=()))) == {}
    paused = decided(changed(begun, repository=repository(BUCKETS, is_paused=True)))
    assert paused.nodes == {}
    assert found(paused).phase == RunPhase.RUNNING


@pytest.mark.parametrize(
    ("rule", "spec", "reason"),
    [
        (None, {}, "NotAsked"),
        (VerifyRule(schedule="61 * * * *"), {}, "InvalidSchedule"),
        (NIGHTLY, {"suspend": True}, "Never"),
    ],
)
def test_what_is_not_asked_for_is_not_done(rule: VerifyRule | None, spec: dict[str, Any], reason: str) -> None:
    """And backups go on as they were."""
    decision = decided(seeing(verifying(rule=rule, **spec)))

    assert tickets(decision) == {}
    assert said(decision) == ("Current", reason)


def test_two_times_without_a_verification_are_too_many() -> None:
    """By time alone; metrics tell it, and damage, apart from the age of the backup."""
    for hours, reason, is_verified in ((47, "Whole", True), (49, "Old", False)):
        since = time_of(NOW - HOUR)
        known = VerificationStatus(phase=RunPhase.COMPLETED, run="r", asked_since=since, last_completed=time_of(NOW))
        status = msgspec.structs.replace(BACKED_UP, verification=known, last_success=time_of(NOW + 47 * HOUR))
        seen = seeing(verifying(status, suspend=True), now=NOW + hours * HOUR)
        decision = decided(seen)
        assert verified(decision.backups["b"]) == reason
        assert decision.next_millis is not None
        assert health(seen.backups, decision.backups, seen.now_millis) == {"b": (True, False, is_verified)}
    for hours, reason in ((47, "Never"), (49, "Old")):  # asked for since then, of a backup that is older
        known = VerificationStatus(asked_since=time_of(NOW + MINUTE))
        seen = seeing(verifying(msgspec.structs.replace(BACKED_UP, verification=known), suspend=True))
        late = decided(changed(seen, now_millis=NOW + hours * HOUR))
        assert verified(late.backups["b"]) == reason
    damaged = VerificationStatus(phase=RunPhase.COMPLETED, run="r", damaged_since=time_of(NOW))
    seen = seeing(verifying(msgspec.structs.replace(BACKED_UP, verification=damaged), suspend=True))
    assert health(seen.backups, decided(seen).backups, seen.now_millis) == {"b": (True, True, True)}
