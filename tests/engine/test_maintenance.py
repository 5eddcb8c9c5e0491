import threading

import pytest

from tests.failing_files import FailingFiles
from tests.support import Workshop, committing, content_sizes, drain, put_all
from ullage.contract import PunchSettings
from ullage.engine import maintenance
from ullage.engine.engine import Engine
from ullage.engine.maintenance import MaintenanceRunner

EACH_SECOND = ["volumes", "forgotten", "proof", "swap proof", "provenance", "index", "merge", "pack"]
THREADS = ["ullage-compaction", "ullage-maintenance"]
EVERY = {"clock", "clean", "truncate", "swap", "expire", "orphans", "purge", *EACH_SECOND}


def test_tasks_run_when_they_are_due(workshop: Workshop, repository: Engine) -> None:
    """Nothing runs at once; each task runs after its own time, once, and again after it."""
    upkeep = MaintenanceRunner(repository)
    assert upkeep.run_due(is_heavy=False) == []

    workshop.clock.advance(59)
    assert sorted(upkeep.run_due(is_heavy=False)) == sorted(EACH_SECOND)
    workshop.clock.advance(1)
    assert set(upkeep.run_due(is_heavy=False)) == EVERY
    assert upkeep.run_due(is_heavy=False) == []
    workshop.clock.advance(60)
    assert set(upkeep.run_due(is_heavy=False)) == EVERY | {"checkpoint"}
    assert upkeep.failures == []


def test_the_tasks_do_their_work(workshop: Workshop, repository: Engine) -> None:
    """Expired FlowFiles and handles go, dead content to the archive, the log is covered."""
    repository.queues.define("q", priority="FirstInFirstOut", count_max=0, bytes_max=0, expiration_millis=1_000)
    put_all(repository, "q", [b"x" * 100_000])
    repository.handles.put(b"y", ttl_millis=1_000)
    upkeep = MaintenanceRunner(repository)

    workshop.clock.advance(120)
    upkeep.run_due(is_heavy=False)
    workshop.clock.advance(120)
    upkeep.run_due(is_heavy=False)

    assert upkeep.failures == []
    assert repository.queue("q").figures().flow_files == 0
    assert not list(repository.ledger.flow_files())
    assert all(entry.claim.archived_millis for entry in repository.ledger.entries() if entry.claim.sealed)
    assert repository.log.snapshot_id > 0


def test_a_failing_task_is_recorded_and_tried_again(workshop: Workshop, files: FailingFiles) -> None:
    """A failure is told and kept, spares the other tasks, and ends when its cause does."""
    repository = workshop.make()
    told: list[str] = []
    upkeep = MaintenanceRunner(repository, lambda name, error: told.append(f"{name}: {error}"))
    files.fail("create", "*snapshot*", times=100)
    put_all(repository, "q", [b"x"])
    workshop.clock.advance(120)

    assert set(upkeep.run_due(is_heavy=False)) == EVERY | {"checkpoint"}
    assert [name for name, _ in upkeep.failures] == ["checkpoint"]
    assert len(told) == 1
    assert "checkpoint: " in told[0]

    files.heal()
    workshop.clock.advance(120)
    assert "checkpoint" in upkeep.run_due(is_heavy=False)
    assert len(upkeep.failures) == 1
    assert repository.log.snapshot_id == repository.log.last_id


def test_an_unforeseen_failure_is_recorded_too(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault in one task never ends the thread that runs them all."""
    repository = workshop.make()

    def fail() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(repository.queues, "expire", fail)
    upkeep = MaintenanceRunner(repository)
    workshop.clock.advance(60)

    assert set(upkeep.run_due(is_heavy=False)) == EVERY
    assert [(name, type(error)) for name, error in upkeep.failures] == [("expire", ZeroDivisionError)]


def test_failures_are_not_kept_without_end(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest failures are remembered, the oldest go."""
    monkeypatch.setattr(maintenance, "FAILURES_KEPT", 3)
    files = FailingFiles()
    repository = workshop.make(files)
    upkeep = MaintenanceRunner(repository)
    files.fail("create", "*snapshot*", times=100)
    for _ in range(5):
        put_all(repository, "q", [b"x"])
        workshop.clock.advance(120)
        upkeep.run_due(is_heavy=False)

    assert len(upkeep.failures) == 3


def test_a_large_log_is_due_at_once(workshop: Workshop) -> None:
    """When the log has grown past its size the checkpoint does not wait; without a change there is none."""
    repository = workshop.make(flow_file={"checkpoint_log_size": 10_000})
    upkeep = MaintenanceRunner(repository)
    put_all(repository, "q", [b"x"])
    assert upkeep.run_due(is_heavy=False) == []

    put_all(repository, "q", [b"x"] * 500)

    assert upkeep.run_due(is_heavy=False) == ["checkpoint"]
    assert upkeep.run_due(is_heavy=False) == []
    snapshot = repository.log.snapshot_id
    workshop.clock.advance(120)
    upkeep.run_due(is_heavy=False)
    assert repository.log.snapshot_id == snapshot


def test_a_large_log_that_cannot_be_covered_waits(workshop: Workshop, files: FailingFiles) -> None:
    """After a failed checkpoint the next one comes in its time, not at every look."""
    repository = workshop.make(flow_file={"checkpoint_log_size": 10_000})
    upkeep = MaintenanceRunner(repository)
    put_all(repository, "q", [b"x"] * 500)
    files.fail("create", "*snapshot*", times=100)

    assert [upkeep.run_due(is_heavy=False) for _ in range(3)] == [["checkpoint"], [], []]

    files.heal()
    workshop.clock.advance(120)
    assert "checkpoint" in upkeep.run_due(is_heavy=False)
    assert upkeep.run_due(is_heavy=False) == []


def test_a_failed_swap_out_is_tried_again(workshop: Workshop, files: FailingFiles) -> None:
    """What could not be swapped out at the commit is by maintenance."""
    repository = workshop.make(flow_file={"swap_threshold": 4, "swap_batch": 2})
    files.fail("create", "*.swap")
    put_all(repository, "q", [b"x"] * 6)
    assert repository.queue("q").figures().swapped == 0
    upkeep = MaintenanceRunner(repository)
    workshop.clock.advance(60)

    upkeep.run_due(is_heavy=False)

    assert repository.queue("q").figures().swapped == 2
    assert drain(repository, "q") == [b"x"] * 6


def test_the_thread_starts_stops_and_starts(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A started maintenance does what is due by itself until it is stopped, and can be started again."""
    monkeypatch.setattr(maintenance, "TICK_SECONDS", 0.001)
    repository = workshop.make()
    upkeep = MaintenanceRunner(repository)

    def running() -> list[str]:
        """Of the whole process: threads of earlier tests end when they like."""
        return sorted(each.name for each in threading.enumerate() if each.name in THREADS)

    for round_ in range(2):
        ran = threading.Event()
        monkeypatch.setattr(upkeep, "run_due", lambda *, is_heavy, ran=ran: ran.set())
        upkeep.start()
        upkeep.start()
        assert running() == THREADS
        assert ran.wait(30), round_
        upkeep.stop()
        assert running() == []
    upkeep.stop()


def test_compaction_runs_at_start_and_then_in_its_time(workshop: Workshop) -> None:
    """What died before the last end is looked at at once, and again after checkFrequency."""
    repository = workshop.make(
        archive={"enabled": False},
        compaction={"min_used_percentage": 0, "min_reclaim": 0, "punch": PunchSettings(enabled=False)},
    )
    with committing(repository) as session:
        session.ingest("keep", [b"k" * 1000])
        session.ingest("drop", [b"d" * 200_000])
    repository.queues.drop(repository.queue("drop"))
    upkeep = MaintenanceRunner(repository)

    first = [upkeep.run_due(is_heavy=True) for _ in range(2)]
    workshop.clock.advance(3600)
    later = upkeep.run_due(is_heavy=True)

    assert first == [["compact"], []]
    assert later == ["compact"]
    assert upkeep.failures == []
    assert sum(content_sizes(workshop.path).values()) < 10_000
