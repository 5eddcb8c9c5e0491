"""When spec.planning begins a run, what becomes of it, and what is told."""

from typing import Any

import msgspec
import pytest

from tests.operator.support import HOUR, MINUTE, NOW, SETTINGS, changed, fleet, planning_run, repository
from ullage.contract import PlanningResult, PlanningStatus, RepositoryStatus, time_of
from ullage_operator.observation import Observation, ObservedPlanning, PlanningRun
from ullage_operator.planning.build import account_objects, run_name, run_object
from ullage_operator.planning.decide import LATE_MILLIS, POLL_MILLIS, is_due
from ullage_operator.repository.decide import Decision, decide

SPEC = {"planning": {"schedule": "0 * * * *", "historyLimit": 2}}
RUNNING, SUCCEEDED, FAILED = PlanningResult.RUNNING, PlanningResult.SUCCEEDED, PlanningResult.FAILED


def seen(told: PlanningStatus | None, *runs: PlanningRun, spec: dict[str, Any] = SPEC, now: int = NOW) -> Observation:
    """At midnight, for which `told` has promised a run unless it says otherwise."""
    status = RepositoryStatus(observed_generation=1, planning=told)
    return fleet(
        1, spec, now_millis=now, repository=repository(spec, status=status), planning=ObservedPlanning(runs=runs)
    )


def promised(at: int = NOW, **fields: Any) -> PlanningStatus:
    return PlanningStatus(next_run=time_of(at), **fields)


def decided(observation: Observation) -> tuple[Decision, PlanningStatus]:
    """The decision, and the status of planning that follows."""
    decision = decide(observation, SETTINGS)
    assert decision.status.planning is not None
    return decision, decision.status.planning


def test_a_schedule_begins_with_a_promise() -> None:
    """A new one starts nothing for times that are past; the next is told."""
    decision, status = decided(seen(None, now=NOW + MINUTE))

    assert decision.planning.begin is None
    assert (status.next_run, status.result) == (time_of(NOW + HOUR), None)
    assert decision.next_millis == NOW + HOUR


def test_what_is_due_is_begun_once() -> None:
    """At its time; after a crash, when the run is there and the status does not say so, it is found."""
    decision, status = decided(seen(promised()))
    assert decision.planning.begin == NOW
    assert (status.last_run, status.result, status.next_run) == (time_of(NOW), RUNNING, time_of(NOW + HOUR))
    assert decision.next_millis == NOW + POLL_MILLIS  # nothing wakes the operator when it has told its beginning

    again, told = decided(seen(promised(), planning_run(NOW, RUNNING), now=NOW + MINUTE))

    assert again.planning.begin is None
    assert (told.last_run, told.result) == (time_of(NOW), RUNNING)


def test_a_run_is_told_with_where_to_look() -> None:
    """Its end, its words, the object and the command that shows its log."""
    ended = planning_run(NOW, message="3 resource claims", logs="kubectl logs -n data job/x")

    _, status = decided(seen(promised(NOW + HOUR, last_run=time_of(NOW), result=RUNNING), ended, now=NOW + 2 * MINUTE))

    assert (status.result, status.ended, status.message) == (SUCCEEDED, time_of(NOW + MINUTE), "3 resource claims")
    assert (status.workload, status.logs) == (f"Job/{ended.name}", "kubectl logs -n data job/x")


def test_one_at_a_time() -> None:
    """What is due while one runs follows it; what has become too late by then is left out."""
    long = planning_run(NOW - HOUR, RUNNING)
    told = promised(NOW, last_run=time_of(NOW - HOUR), result=RUNNING)
    waiting, status = decided(seen(told, long))
    assert waiting.planning.begin is None
    assert status.next_run == time_of(NOW)

    after, _ = decided(seen(status, planning_run(NOW - HOUR), now=NOW + MINUTE))
    assert after.planning.begin == NOW

    daily = {"planning": {"schedule": "0 0 * * *"}}
    late, status = decided(seen(status, planning_run(NOW - HOUR), spec=daily, now=NOW + LATE_MILLIS))
    assert late.planning.begin is None
    assert status.next_run == time_of(NOW + 24 * HOUR)


def test_of_several_missed_times_the_last_counts() -> None:
    """An operator that was away makes one plan, not one for each hour."""
    decision, _ = decided(seen(promised(NOW - 5 * HOUR), now=NOW + MINUTE))

    assert decision.planning.begin == NOW


def test_suspended_it_begins_nothing_and_promises_nothing() -> None:
    """One under way goes on; resumed, what passed meanwhile is not made up for."""
    spec = {"planning": {"schedule": "0 * * * *", "suspend": True}}
    told = promised(NOW, result=RUNNING, last_run=time_of(NOW - HOUR))
    going, status = decided(seen(told, planning_run(NOW - HOUR, RUNNING), spec=spec))
    assert (going.planning.begin, going.planning.removed) == (None, ())
    assert (status.next_run, status.result) == (None, RUNNING)

    resumed, status = decided(seen(status, planning_run(NOW - HOUR), now=NOW + MINUTE))
    assert resumed.planning.begin is None
    assert status.next_run == time_of(NOW + HOUR)


def test_the_oldest_runs_go() -> None:
    """As many ended ones stay as historyLimit says, the youngest; those under way do not count."""
    runs = [planning_run(NOW - hours * HOUR) for hours in (1, 4, 2, 3)]

    decision, _ = decided(seen(promised(NOW + HOUR), planning_run(NOW, RUNNING), *runs, now=NOW + MINUTE))

    assert [each.scheduled_millis for each in decision.planning.removed] == [NOW - 4 * HOUR, NOW - 3 * HOUR]


@pytest.mark.parametrize(("kind", "is_ended"), [("SparkApplication", True), ("Job", False)])
def test_a_late_application_is_ended(kind: str, is_ended: bool) -> None:
    """Nobody else ends a SparkApplication; a Job has its own deadline, and says itself that it passed."""
    late = planning_run(NOW - HOUR, RUNNING, kind=kind)

    decision, status = decided(seen(promised(NOW + HOUR, last_run=time_of(NOW - HOUR), result=RUNNING), late))

    assert (decision.planning.removed == (late,)) == is_ended
    assert (status.result == FAILED) == is_ended


def test_a_run_that_somebody_deleted_has_failed() -> None:
    """It is not waited for; one that had ended is told as it was."""
    told = promised(NOW + HOUR, last_run=time_of(NOW), result=RUNNING)
    _, status = decided(seen(told, now=NOW + MINUTE))
    assert (status.result, status.message) == (FAILED, "The run was removed before its end.")

    before = promised(NOW + HOUR, last_run=time_of(NOW), result=SUCCEEDED, message="said")
    assert decided(seen(before, now=NOW + MINUTE))[1] == before


def test_without_a_schedule_nothing_is_left() -> None:
    """Ended runs go with it, one under way is followed to its end; then the status says nothing of it."""
    going, status = decided(seen(promised(), planning_run(NOW - HOUR), planning_run(NOW, RUNNING), spec={}))
    assert [each.scheduled_millis for each in going.planning.removed] == [NOW - HOUR]
    assert (status.next_run, status.result) == (None, RUNNING)

    over = decide(seen(status, planning_run(NOW), spec={}), SETTINGS)
    assert (over.status.planning, len(over.planning.removed)) == (None, 1)


def test_what_cannot_be_asked_stops_planning_alone() -> None:
    """The status says why, keeps what it told before, and it is asked again; everything else goes on."""
    told = promised(last_run=time_of(NOW - HOUR), result=SUCCEEDED)
    observation = changed(seen(told), planning=ObservedPlanning(problem="forbidden"))

    decision, status = decided(observation)

    assert (decision.planning.begin, status.message, status.result) == (None, "forbidden", SUCCEEDED)
    assert decision.next_millis == NOW + MINUTE
    assert len(decision.nodes) == 1


def test_nobody_asks_while_nothing_is_due() -> None:
    """An idle schedule costs no request; a new generation, a run under way, and the time itself do."""
    idle = seen(promised(NOW + HOUR)).repository
    assert not is_due(idle, NOW)
    assert is_due(idle, NOW + HOUR)
    assert is_due(msgspec.structs.replace(idle, generation=2), NOW)
    assert is_due(seen(promised(NOW + HOUR, result=RUNNING)).repository, NOW)
    assert not is_due(repository(status=RepositoryStatus(observed_generation=1)), NOW)
    kept = decide(changed(seen(promised(NOW + HOUR)), planning=None), SETTINGS)
    assert kept.status.planning == promised(NOW + HOUR)
    assert kept.next_millis == NOW + HOUR


def test_a_schedule_that_cannot_be_read_is_refused_by_name() -> None:
    """As for windows: not accepted, with the field."""
    decision = decide(seen(None, spec={"planning": {"schedule": "at noon"}}), SETTINGS)

    accepted = decision.status.conditions[0]
    assert (accepted.type, accepted.reason) == ("Accepted", "InvalidSchedule")
    assert accepted.message.startswith("spec.planning.schedule: 'at noon' is not cron")


@pytest.mark.parametrize("is_application", [True, False])
def test_planning_is_no_agent_and_nobody_waits_for_it(is_application: bool) -> None:
    """Its pods are not reached by the agents' Services, and do not hold up reclamation on their nodes."""
    made = run_object(repository(SPEC), "spark:1", NOW, is_application=is_application, has_authority=True)

    templates = [made["spec"][part] for part in ("driver", "executor")] if is_application else []
    pods = [each["labels"] for each in templates] or [made["spec"]["template"]["metadata"]["labels"]]
    for pod in pods:
        assert not repository(SPEC).labels.items() <= pod.items()
        assert is_application <= (pod.get("ullage.dev/ignored") == "true")
    assert {each["kind"] for each in account_objects(repository(SPEC))} == {"ServiceAccount", "Role", "RoleBinding"}


@pytest.mark.parametrize("name", ["flows", "a" * 56, f"{'a' * 30}b"])
def test_a_run_s_name_leaves_room_for_what_spark_adds(name: str) -> None:
    """A label of DNS for Services of drivers, different for each repository and minute."""
    made = run_name(repository(name=name), NOW)

    assert len(made) <= 45
    assert made != run_name(repository(name=f"{name}c"), NOW)
    assert made != run_name(repository(name=name), NOW + MINUTE)
