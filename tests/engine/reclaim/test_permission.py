"""When reclamation may run, as the engine obeys it."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.support import Workshop, committing, containers, content_sizes, put_all, put_each
from ullage.contract import (
    Calendar,
    CompactionTrigger,
    Duration,
    EmergencySettings,
    MaintenanceOperation,
    Overrun,
    Permission,
    PunchSettings,
    Quantity,
    TruncationMode,
    Window,
    without_windows,
)
from ullage.engine.engine import Engine
from ullage.engine.maintenance import MaintenanceRunner
from ullage.engine.model import Action
from ullage.engine.reclaim.report import ReclamationReport

KB = 1 << 10
MB = 1 << 20
MINUTE = 60_000
REWRITE = MaintenanceOperation.REWRITE
CLOSED = Permission(is_granted=False, reason="not now")

LOOSE: dict[str, Any] = {
    "archive": {"enabled": False},
    "truncation": {"mode": TruncationMode.EAGER},
    "compaction": {
        "min_used_percentage": 0,
        "min_reclaim": 0,
        "bytes_per_second": Quantity(0),
        "output_size": Quantity(200 * KB),
        "punch": PunchSettings(enabled=False),
    },
}
"""Everything dead is wanted back at once, two claims to an output."""

PACED = LOOSE["compaction"] | {"bytes_per_second": Quantity(5 * KB)}
NIGHT = Window(name="night", schedule="0 22 * * *", duration=Duration(15 * MINUTE), operations=(REWRITE,))


def leave_dead(repository: Engine) -> Engine:
    """A dead file, a dead tail, and four files of which a part is dead."""
    with committing(repository) as session:
        session.ingest("drop", [b"d" * (100 * KB)])
    with committing(repository) as session:
        session.ingest("keep", [b"k"])
        session.ingest("drop", [b"t" * (2 * MB)])
    for number in range(4):
        with committing(repository) as session:
            session.ingest("keep", [bytes([number]) * (100 * KB)])
            session.ingest("drop", [bytes([number]) * (300 * KB)])
            session.ingest("keep", [bytes([number]) * (10 * KB)])
    repository.content.retire_idle()
    repository.queues.drop(repository.queue("drop"))
    return repository


def run_everything(workshop: Workshop) -> dict[str, ReclamationReport]:
    """One round of maintenance; what each run told."""
    told: dict[str, ReclamationReport] = {}
    workshop.repository.report_listeners.append(told.__setitem__)
    upkeep = MaintenanceRunner(workshop.repository)
    workshop.clock.advance(60)
    upkeep.run_due()
    assert upkeep.failures == []
    return dict(told)


def refusing(*operations: MaintenanceOperation) -> Callable[[MaintenanceOperation, int], Permission]:
    return lambda operation, _: CLOSED if operation in operations else Permission()


@pytest.mark.parametrize("closed", MaintenanceOperation)
def test_a_closed_operation_waits_and_the_others_run(workshop: Workshop, closed: MaintenanceOperation) -> None:
    """Each operation has its own windows: one that is closed touches nothing and is told; the others do their work."""
    repository = leave_dead(workshop.make(**LOOSE))
    repository.reclamation.permit(refusing(closed))

    told = run_everything(workshop)

    done = {action for report in told.values() for action in report.done}
    expected = {Action.DELETE, Action.TRUNCATE, Action.REWRITE}
    assert done == {action for action in expected if action.name != closed.name}
    refused = {name for name, report in told.items() if not report.done and (report.refusal or report.refused)}
    assert refused == {"Delete": {"clean"}, "Truncate": {"truncate"}}.get(closed, {"compact"} & refused)
    assert repository.check(deep=True).problems == ()


def test_what_waited_is_done_when_the_window_opens(workshop: Workshop) -> None:
    """Nothing is forgotten while it may not be done: tails noted at their death come back after it."""
    repository = workshop.make(**LOOSE)
    repository.reclamation.truncate()  # the first run looks at everything, later ones at what died since
    leave_dead(repository)
    repository.reclamation.permit(refusing(*MaintenanceOperation))
    before = content_sizes(workshop.path)

    closed = run_everything(workshop)
    repository.reclamation.permit(without_windows(repository.spec.maintenance))
    opened = repository.reclamation.clean(), repository.reclamation.truncate()

    assert all(report.refusal == "not now" for report in closed.values())
    assert set(closed) == {"clean", "truncate", "compact"}
    assert content_sizes(workshop.path) != before
    assert opened[0].done == {Action.DELETE: 1}
    assert opened[1].done[Action.TRUNCATE] >= 1


def test_writers_under_pressure_do_not_overrule_the_windows(workshop: Workshop) -> None:
    """A full queue of writers relieves nothing while nothing is permitted; below the floor of the emergency it does."""
    archive = {"enabled": False, "backpressure_percentage": 60}
    repository = workshop.make(archive=archive, storage=containers(c1=MB))
    put_all(repository, "drop", [b"x" * (700 * KB)])
    repository.content.retire_idle()
    repository.queues.drop(repository.queue("drop"))

    repository.reclamation.permit(refusing(*MaintenanceOperation))
    repository.reclamation.relieve()
    closed = len(content_sizes(workshop.path))
    floor = CLOSED._replace(emergency_free_percentage=40)
    told: list[tuple[str, int]] = []
    repository.report_listeners.append(lambda name, report: told.append((name, report.emergency)))
    repository.reclamation.permit(lambda operation, _: floor)
    repository.reclamation.relieve()

    assert closed == 1
    assert content_sizes(workshop.path) == {}
    assert ("clean", 1) in told


def test_only_the_container_that_is_nearly_full_is_relieved(workshop: Workshop) -> None:
    """An emergency on one volume is none on another."""
    repository = workshop.make(
        archive={"enabled": False, "backpressure_percentage": 99},
        storage=containers(c1=MB, c2=100 * MB),
        claims={"max_appendable_size": Quantity(1)},
    )
    put_each(repository, "drop", [b"x" * (980 * KB)] * 2)
    repository.queues.drop(repository.queue("drop"))
    repository.reclamation.permit(lambda *_: CLOSED._replace(emergency_free_percentage=5))

    report = repository.reclamation.clean()

    assert report.emergency == 1
    assert report.refused == 1
    assert [path.split("/")[0] for path in content_sizes(workshop.path)] == ["c2"]


@pytest.mark.parametrize(("overrun", "outputs"), [(Overrun.FINISH, 4), (Overrun.STOP, 2)])
def test_a_run_that_overruns_its_window_finishes_or_stops(workshop: Workshop, overrun: Overrun, outputs: int) -> None:
    """Forty seconds before the end a rewrite begins that takes twenty for each of four outputs: Finish makes all of
    them, Stop ends with the one that was begun.
    """
    window = msgspec.structs.replace(NIGHT, duration=Duration(14 * MINUTE), overrun=overrun)
    repository = leave_dead(workshop.make(**LOOSE | {"compaction": PACED, "maintenance": {"windows": (window,)}}))
    repository.reclamation.truncate()
    repository.reclamation.permit(Calendar(repository.spec.maintenance).permission)

    report = repository.compactor.run(CompactionTrigger.ADMIN)

    made = {entry.relocation.output for entry in repository.ledger.entries() if entry.relocation is not None}
    assert len(made) == outputs
    assert report.is_stopped == (overrun == Overrun.STOP)
    assert {left.reason for left in report.left} == ({"the ticket ended"} if overrun == Overrun.STOP else set())


def test_nothing_starts_in_the_cut_off(workshop: Workshop) -> None:
    """The window is open at 22:13, and its last minutes are for what is under way."""
    window = msgspec.structs.replace(NIGHT, start_cutoff=Duration(5 * MINUTE))
    repository = leave_dead(workshop.make(**LOOSE | {"maintenance": {"windows": (window,)}}))
    repository.reclamation.permit(Calendar(repository.spec.maintenance).permission)

    report = repository.compactor.run(CompactionTrigger.ADMIN)

    assert Action.REWRITE not in report.done
    assert {left.reason for left in report.left} == {"nothing starts in the last 5m of window night"}


def test_a_changed_permission_takes_back_what_was_granted(workshop: Workshop) -> None:
    """Pausing does not wait for the end of a run that may take hours."""
    repository = leave_dead(workshop.make(**LOOSE | {"compaction": PACED}))

    def pause(steps: int, freed_bytes: int) -> None:
        repository.reclamation.permit(refusing(*MaintenanceOperation))

    report = repository.compactor.execute(repository.compactor.plan(), on_progress=pause)

    assert report.is_stopped
    assert Action.REWRITE not in report.done
    assert report.copied_bytes == 0


def test_windows_that_nobody_reads_are_closed(workshop: Workshop) -> None:
    """A program that opens a repository with windows and gives no permission does not pass over them in silence."""
    window = Window(name="night", schedule="* * * * *", duration=Duration(15 * MINUTE))
    leave_dead(workshop.make(**LOOSE | {"maintenance": {"windows": (window,)}}))

    told = run_everything(workshop)

    assert told["clean"].done == {Action.DELETE: 1}  # no window is about it
    assert told["truncate"].refusal == (
        "windows are about Truncate, and this program reads none: give `permit` their calendar"
    )
    assert told["compact"].refusal


def test_paused_holds_in_an_emergency(workshop: Workshop) -> None:
    """Without a byte free nothing is given back while somebody looks into something."""
    maintenance = {"paused": True, "emergency": EmergencySettings(min_free_percentage=100)}
    repository = leave_dead(workshop.make(**LOOSE | {"maintenance": maintenance}))
    before = content_sizes(workshop.path)

    told = run_everything(workshop)
    repository.reclamation.relieve()

    assert {report.refusal for report in told.values()} == {"spec.maintenance.paused is true"}
    assert content_sizes(workshop.path) == before
