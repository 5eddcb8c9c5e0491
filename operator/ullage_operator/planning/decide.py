"""Runs of spec.planning: which is begun, which are removed, and what is told of them. Pure.

    due at t1 ── begun, Running in status ── ended: Succeeded, Failed ── the oldest are removed
                 while it runs none is begun; one that is due meanwhile follows, unless it is late by then

A run's name says for which time of the schedule it is. So an operator that dies between beginning it and saying so in
the status finds it, and begins no second one. Runs are few, and not followed: they are asked for when something is due.
"""

from typing import Final

import msgspec

from ullage.contract import ContentRepositorySpec, PlanningResult, PlanningStatus, Timetable, millis_of, time_of
from ullage_operator.objects import RepositoryObject
from ullage_operator.observation import Observation, ObservedPlanning, PlanningRun

LATE_MILLIS: Final = 3_600_000
"""A run that could not be begun for so long is left out: the operator was away, or the last one took its time."""

POLL_MILLIS: Final = 10_000
"""How often one that is under way is looked at."""


LOOK_AGAIN_MILLIS: Final = 60_000
"""How soon it is asked again which runs there are, after that was refused."""


class PlanningDecision(msgspec.Struct, frozen=True, kw_only=True):
    """`begin`: the time of the schedule for which a run is begun, None for none; `removed`: runs that shall go."""

    status: PlanningStatus | None = None
    begin: int | None = None
    removed: tuple[PlanningRun, ...] = ()
    next_millis: int | None = None


def timetable(spec: ContentRepositorySpec) -> Timetable:
    """When planning is due; not to be asked for where there is no schedule."""
    return Timetable(spec.planning.schedule, spec.maintenance.time_zone, "spec.planning")


def is_due(repository: RepositoryObject, now_millis: int) -> bool:
    """Whether anything may have to be done, so that it is worth asking which runs there are."""
    if repository.document is None or repository.is_paused:
        return False
    planning, told = repository.spec.planning, repository.status.planning
    if told is None or repository.generation != repository.status.observed_generation:
        return bool(planning.schedule) or told is not None
    if not planning.schedule or told.result == PlanningResult.RUNNING:
        return True
    if planning.suspend:
        return told.next_run is not None
    return told.next_run is None or now_millis >= millis_of(told.next_run)


def plan(seen: Observation) -> PlanningDecision:
    """What is due now."""
    repository = seen.repository
    planning, told = repository.spec.planning, repository.status.planning
    if seen.planning is None:
        next_run = None if told is None or told.next_run is None else millis_of(told.next_run)
        return PlanningDecision(status=told, next_millis=next_run)
    if seen.planning.problem:
        status = msgspec.structs.replace(told or PlanningStatus(), message=seen.planning.problem[:1024])
        return PlanningDecision(status=status, next_millis=seen.now_millis + LOOK_AGAIN_MILLIS)
    ended, running, late = _sorted(seen, seen.planning)
    status = _told(told or PlanningStatus(), [*ended, *running], late, seen.now_millis)
    if not planning.schedule:
        # What is under way may end; then nothing is left to tell.
        wakes = seen.now_millis + POLL_MILLIS if running else None
        kept = msgspec.structs.replace(status, next_run=None) if running else None
        return PlanningDecision(status=kept, removed=tuple(ended), next_millis=wakes)
    overdue = _overdue(seen, status)
    begin = None if running else overdue
    following = timetable(repository.spec).next(seen.now_millis)
    if begin is not None:
        status = PlanningStatus(last_run=time_of(begin), result=PlanningResult.RUNNING)
    elif overdue is not None and status.next_run is not None:
        following = millis_of(status.next_run)  # it waits for the one under way
    if planning.suspend:
        following = None
    status = msgspec.structs.replace(status, next_run=None if following is None else time_of(following))
    is_running = status.result == PlanningResult.RUNNING
    return PlanningDecision(
        status=status,
        begin=begin,
        removed=(*late, *ended[: max(0, len(ended) - planning.history_limit)]),
        next_millis=seen.now_millis + POLL_MILLIS if is_running else following,
    )


def refused(status: PlanningStatus, problem: str, now_millis: int) -> PlanningStatus:
    """What is told of a run that the API server did not take: the schedule brings the next."""
    ended = time_of(now_millis)
    return msgspec.structs.replace(status, result=PlanningResult.FAILED, ended=ended, message=problem[:1024])


def _sorted(
    seen: Observation, found: ObservedPlanning
) -> tuple[list[PlanningRun], list[PlanningRun], tuple[PlanningRun, ...]]:
    """Runs that ended, the oldest first; those under way; and those that took too long. Kubernetes ends a late Job by
    itself; nobody ends a SparkApplication but us.
    """
    runs = sorted(found.runs, key=lambda run: run.scheduled_millis)
    deadline = int(seen.repository.spec.planning.active_deadline)
    ended = [run for run in runs if run.result != PlanningResult.RUNNING]
    going = [run for run in runs if run.result == PlanningResult.RUNNING]
    late = [run for run in going if run.kind != "Job" and seen.now_millis >= run.began_millis + deadline]
    return ended, [run for run in going if run not in late], tuple(late)


def _told(
    before: PlanningStatus, runs: list[PlanningRun], late: tuple[PlanningRun, ...], now_millis: int
) -> PlanningStatus:
    """The status as the newest run makes it; what was told of one that was removed since stands."""
    told = None if before.last_run is None else millis_of(before.last_run)
    newest = max((*runs, *late), key=lambda run: run.scheduled_millis, default=None)
    if newest is None or (told is not None and newest.scheduled_millis < told):
        if before.result != PlanningResult.RUNNING:
            return before
        return msgspec.structs.replace(
            before,
            result=PlanningResult.FAILED,
            ended=time_of(now_millis),
            message="The run was removed before its end.",
        )
    is_late = newest in late
    ended = now_millis if is_late else newest.ended_millis
    return PlanningStatus(
        next_run=before.next_run,
        last_run=time_of(newest.scheduled_millis),
        ended=None if ended is None else time_of(ended),
        result=PlanningResult.FAILED if is_late else newest.result,
        message="The run was ended after spec.planning.activeDeadline." if is_late else newest.message[:1024],
        workload=f"{newest.kind}/{newest.name}",
        logs="" if is_late else newest.logs,
    )


def _overdue(seen: Observation, status: PlanningStatus) -> int | None:
    """The time of the schedule for which a run should have begun by now, as was promised; None if there is none, or it
    is too long ago. A schedule that is new has promised nothing yet.
    """
    spec, now = seen.repository.spec, seen.now_millis
    if spec.planning.suspend or status.next_run is None or now < millis_of(status.next_run):
        return None
    due = timetable(spec).last(now)
    if due is None or now - due >= LATE_MILLIS:
        return None
    return due if status.last_run is None or due > millis_of(status.last_run) else None
