"""A power loss after what no workload does: a stranger changed the files, or the process went on after a failure."""

import errno
import os
from contextlib import suppress

import pytest

from tests.crash.failing import require_sound
from tests.crash.steps import clean, drop, put
from tests.crash.workloads import SPEC
from tests.support import ManualClock
from ullage_agent.engine.errors import CommitOutcomeUnknown, UllageError
from ullage_agent.engine.model import Delete
from ullage_agent.engine.repair import Mend, execute_repair, plan_repair
from ullage_agent.engine.repository import Repository
from ullage_agent.engine.testing import CrashFiles, Fault

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
