"""A power loss after what no workload does: a stranger changed the files, or the process went on after a failure."""

import errno
import os
from contextlib import suppress

import msgspec
import pytest

from tests.crash.explore import resumed
from tests.crash.failing import require_sound
from tests.crash.steps import clean, drop, put
from tests.crash.workloads import SPEC
from tests.support import ManualClock
from ullage_agent.contract import HostPath, Provenance
from ullage_agent.engine.errors import CommitOutcomeUnknown, NotARepository, UllageError
from ullage_agent.engine.model import Delete
from ullage_agent.engine.provenance.query import Query
from ullage_agent.engine.repair import Mend, execute_repair, plan_repair
from ullage_agent.engine.repository import Repository
from ullage_agent.engine.testing import CrashFiles, CrashPoint, Fault

SECOND = msgspec.structs.replace(
    SPEC, storage=msgspec.structs.replace(SPEC.storage, host_path=HostPath(path="/second"))
)
"""The same repository in another place: where a backup is restored."""

SEED = int(os.environ.get("ULLAGE_CRASH_SEED", "20261121"))


def test_a_length_that_a_repair_recorded_survives_a_loss_of_power() -> None:
    """What somebody appended to a file was never synced: the repair does it before its record counts on these bytes."""
    files, clock = CrashFiles(), ManualClock()
    Repository.initialize(SPEC, files, clock)
    with Repository.open(SPEC, files, clock) as repository:
        put("kept", 300)(repository, clock)
        put("dead", 400)(repository, clock)
        drop("dead")(repository, clock)
        (entry,) = repository.ledger.entries()
        path = repository.content.container_of(entry.claim).live_path(entry.claim)
    files.open(path, writable=True).write(b"appended by a stranger", 700)

    with Repository.open(SPEC, files, clock) as repository:
        plan = plan_repair(repository)
        assert [step.mend for step in plan.steps] == [Mend.RESEAL]
        execute_repair(repository, plan)

    for image in files.crash_point().images(SEED):
        with Repository.open(SPEC, CrashFiles(image), clock) as recovered:
            require_sound(recovered)
            assert recovered.files.size(path).length == 700 + len(b"appended by a stranger")


def test_a_promise_whose_commit_failed_destroys_nothing_later() -> None:
    """The removal and the promise to delete share a failed sync: the next cleaning of that process touches no file."""
    files, clock = CrashFiles(), ManualClock()
    Repository.initialize(SPEC, files, clock)
    repository = Repository.open(SPEC, files, clock)
    put("a", 6_000)(repository, clock)
    (record,) = repository.ledger.flow_files()
    # Another thread's removal, which has not come to its sync yet.
    repository.log.append([Delete(record.uuid)], clock.now_millis())
    files.fault = Fault(1, OSError(errno.EIO, "late"), frozenset({"sync"}))
    with pytest.raises(CommitOutcomeUnknown):
        clean(repository, clock)

    for _ in range(2):
        with suppress(UllageError):  # that it refuses is not the point here: nothing may be gone
            clean(repository, clock)
    repository.close()

    for image in files.crash_point().images(SEED):
        with Repository.open(SPEC, CrashFiles(image), clock) as recovered:
            require_sound(recovered)
            assert recovered.queue("a").figures().flow_files == 1


def _backed_up(clock: ManualClock) -> CrashFiles:
    """A repository with content, swapped FlowFiles and event files, and a backup of it at /b that was acknowledged."""
    files = CrashFiles()
    Repository.initialize(SPEC, files, clock)
    with Repository.open(SPEC, files, clock) as repository:
        put("a", *[300] * 30)(repository, clock)
        put("a", 6_000, 20_000)(repository, clock)
        assert repository.queue("a").figures().swapped > 0
        repository.provenance.drain()
        repository.backup("/b")
    return files


def _require_all(files: CrashFiles, clock: ManualClock) -> None:
    with Repository.open(SECOND, files, clock) as recovered:
        require_sound(recovered)
        assert _served(recovered) == (32, 32)


def _served(repository: Repository) -> tuple[int, int]:
    """FlowFiles and events."""
    return repository.queue("a").figures().flow_files, len(repository.history.query(Query()).events)


def test_a_backup_that_was_acknowledged_survives_a_loss_of_power() -> None:
    """Its files, their names and its manifest are on the disk when the report comes back."""
    clock = ManualClock()
    for image in _backed_up(clock).crash_point().images(SEED):
        files = CrashFiles(image)
        Repository.restore_backup("/b", SECOND, files)
        _require_all(files, clock)


def test_a_restored_repository_survives_a_loss_of_power() -> None:
    """So do those of a restored repository: nobody has to keep the backup until the first commit."""
    clock = ManualClock()
    files = _backed_up(clock)
    Repository.restore_backup("/b", SECOND, files)
    for image in files.crash_point().images(SEED):
        _require_all(CrashFiles(image), clock)


class Killed(BaseException):
    """The process ended at a call; the kernel still has what it had written."""


@pytest.mark.parametrize("has_history", [False, True])
def test_a_first_commit_after_an_init_that_was_killed_survives_a_loss_of_power(*, has_history: bool) -> None:
    """The name that makes a directory a repository may exist in memory only; whoever opens it makes it durable."""
    spec = msgspec.structs.replace(SPEC, provenance=Provenance(enabled=has_history))
    clock = ManualClock()
    call, was_killed = 0, True
    while was_killed:
        call += 1
        files = CrashFiles()
        files.fault = Fault(call, Killed())
        was_killed = False
        try:
            Repository.initialize(spec, files, clock)
        except Killed:
            was_killed = True
        files.fault = None
        try:
            repository = Repository.open(spec, files, clock)
        except NotARepository:  # the init was cut short before its commit point
            continue
        with repository:
            put("a", 300)(repository, clock)
            point = files.crash_point()
        for image in point.images(SEED):
            with Repository.open(spec, CrashFiles(image), clock) as recovered:
                require_sound(recovered)
                assert recovered.queue("a").figures().flow_files == 1, f"killed at call {call} of the init"
    assert call > 20


def test_what_an_unclean_start_serves_survives_a_loss_of_power() -> None:
    """A kill at each call of a put, a drain and a close: the next start seals files, and forgets what is drained.

    Both count on what the killed process had written and not come to sync.
    """
    files, clock = CrashFiles(), ManualClock()
    Repository.initialize(SPEC, files, clock)
    kills: list[CrashPoint] = []
    with Repository.open(SPEC, files, clock) as repository:
        put("a", 300)(repository, clock)
        files.before = lambda call: kills.append(files.crash_point())
        put("a", 400)(repository, clock)
        repository.provenance.drain()
    assert len(kills) > 10
    for kill in kills:
        killed = resumed(kill)
        with Repository.open(SPEC, killed, clock) as repository:
            served = _served(repository)
            image = killed.crash_point().image(())
        with Repository.open(SPEC, CrashFiles(image), clock) as recovered:
            require_sound(recovered)
            assert _served(recovered) == served
