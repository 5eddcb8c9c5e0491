"""A power loss after what no workload does: a stranger changed the files, or the process went on after a failure."""

import errno
from contextlib import suppress

import msgspec
import pytest

from tests.crash.explore import SEED, resumed
from tests.crash.failing import made, recoveries, require_sound
from tests.crash.specs import SPEC
from tests.crash.steps import answered, clean, drop, put
from tests.support import ManualClock, abandon
from ullage.contract import HostPath, ProvenanceSettings
from ullage.engine.check.repair import Mend
from ullage.engine.engine import Engine
from ullage.engine.model import Delete
from ullage.engine.salvaging import salvage
from ullage.errors import CommitOutcomeUnknown, NotARepository, UllageError
from ullage.testing.crashing import CrashFiles, CrashPoint, Fault
from ullage.wire.provenance import EventQuery

SECOND = msgspec.structs.replace(
    SPEC, storage=msgspec.structs.replace(SPEC.storage, host_path=HostPath(path="/second"))
)
"""The same repository in another place: where a backup is restored."""


def test_a_length_that_a_repair_recorded_survives_a_loss_of_power() -> None:
    """What somebody appended to a file was never synced: the repair does it before its record counts on these bytes."""
    repository, files, clock = made()
    with repository:
        put("kept", 300)(repository, clock)
        put("dead", 400)(repository, clock)
        drop("dead")(repository, clock)
        (entry,) = repository.ledger.entries()
        path = repository.content.path_of(entry.claim)
    files.open(path, writable=True).write(b"appended by a stranger", 700)

    with Engine.open(SPEC, files, clock) as repository:
        plan = repository.repair.plan()
        assert [step.mend for step in plan.steps] == [Mend.RESEAL]
        repository.repair.execute(plan)

    for _, recovered in recoveries(files.crash_point()):
        assert recovered.size(path).length == 700 + len(b"appended by a stranger")


def test_a_promise_whose_commit_failed_destroys_nothing_later() -> None:
    """The removal and the promise to delete share a failed sync: the next cleaning of that process touches no file."""
    repository, files, clock = made()
    put("a", 6_000)(repository, clock)
    (record,) = repository.ledger.everything()
    # Another thread's removal, which has not come to its sync yet.
    repository.log.append([Delete(record.uuid)], clock.now_millis())
    files.fault = Fault(1, OSError(errno.EIO, "late"), frozenset({"sync"}))
    with pytest.raises(CommitOutcomeUnknown):
        clean(repository, clock)

    for _ in range(2):
        with suppress(UllageError):  # that it refuses is not the point here: nothing may be gone
            clean(repository, clock)
    repository.close()

    for recovered, _ in recoveries(files.crash_point()):
        assert recovered.queue("a").figures().flow_files == 1


def _backed_up() -> CrashFiles:
    """A repository with content, swapped FlowFiles and event files, and a backup of it at /b that was acknowledged."""
    repository, files, clock = made()
    with repository:
        put("a", *[300] * 30)(repository, clock)
        put("a", 6_000, 20_000)(repository, clock)
        assert repository.queue("a").figures().swapped > 0
        repository.provenance.drain()
        repository.backup("/b")
    return files


def _served(repository: Engine) -> tuple[int, int]:
    """FlowFiles and events."""
    return repository.queue("a").figures().flow_files, len(repository.history.query(EventQuery()).events)


def test_a_backup_that_was_acknowledged_survives_a_loss_of_power() -> None:
    """Its files, their names and its manifest are on the disk when the report comes back."""
    for image in _backed_up().crash_point().images(SEED):
        files = CrashFiles(image)
        Engine.restore_backup("/b", SECOND, files)
        with Engine.open(SECOND, files, ManualClock()) as recovered:
            require_sound(recovered)
            assert _served(recovered) == (32, 32)


def test_a_restored_repository_survives_a_loss_of_power() -> None:
    """So do those of a restored repository: nobody has to keep the backup until the first commit."""
    files = _backed_up()
    Engine.restore_backup("/b", SECOND, files)
    for recovered, _ in recoveries(files.crash_point(), SECOND):
        assert _served(recovered) == (32, 32)


def test_a_backup_of_damaged_content_survives_a_loss_of_power() -> None:
    """The copy that is put together of what can be read is on the disk too: its checksum is in the manifest."""
    repository, files, clock = made()
    with repository:
        put("a", 300, 6_000)(repository, clock)
        put("a", 400)(repository, clock)
        small, *_ = sorted(repository.ledger.everything(), key=lambda record: record.size)
        assert small.claim is not None
        (path,) = [
            repository.content.path_of(entry.claim)
            for entry in repository.ledger.entries()
            if entry.claim.index == small.claim.resource
        ]
        file = files.open(path, writable=True)
        file.write(b"damage", small.claim.offset)
        file.sync()
        (lost,) = repository.backup("/b").lost
        assert lost.id == small.id

    for image in files.crash_point().images(SEED):
        recovered = CrashFiles(image)
        Engine.restore_backup("/b", SECOND, recovered)
        with Engine.open(SECOND, recovered, ManualClock()) as restored:
            readable = [record.size for record in restored.ledger.everything() if record.id != small.id]
            assert sorted(readable) == [400, 6_000]
            for record in restored.ledger.everything():
                if record.id != small.id and record.claim is not None:
                    restored.reader.verify(record.claim)


def _salvaged(files: CrashFiles, clock: ManualClock) -> None:
    salvage("/r", SECOND, files, clock)


def _put_and_killed() -> tuple[CrashFiles, ManualClock]:
    """A repository with content, swapped FlowFiles and events in files and in the log, that nobody has closed."""
    repository, files, clock = made()
    put("a", *[300] * 30)(repository, clock)
    repository.provenance.drain()
    put("a", 6_000, 20_000)(repository, clock)
    abandon(repository)
    return files, clock


def test_a_salvaged_repository_survives_a_loss_of_power() -> None:
    """All of it, and the end of the salvage: who has read the report may remove the damaged repository."""
    files, clock = _put_and_killed()
    _salvaged(files, clock)
    for recovered, _ in recoveries(files.crash_point(), SECOND):
        assert _served(recovered) == (32, 32)


def test_a_loss_of_power_during_a_salvage_leaves_nothing_that_opens_or_all() -> None:
    """At each call: what could be opened before everything is there would be taken for everything."""
    files, clock = _put_and_killed()
    points: list[CrashPoint] = []
    files.before = lambda call: points.append(files.crash_point())
    _salvaged(files, clock)
    files.before = lambda call: None
    points.append(files.crash_point())
    whole = refused = 0
    images = {image.digest(): image for point in points for image in point.images(SEED, torn=False)}
    for image in images.values():
        recovered = CrashFiles(image)
        try:
            repository = Engine.open(SECOND, recovered, clock)
        except NotARepository:
            refused += 1
            continue
        with repository:
            require_sound(repository)
            assert _served(repository) == (32, 32)
            whole += 1
    print(f"seed {SEED}: {len(points)} crash points, {whole} whole, {refused} refused")
    assert min(whole, refused) > 0


class Killed(BaseException):
    """The process ended at a call; the kernel still has what it had written."""


@pytest.mark.parametrize("has_history", [False, True])
def test_a_first_commit_after_an_init_that_was_killed_survives_a_loss_of_power(*, has_history: bool) -> None:
    """The name that makes a directory a repository may exist in memory only; whoever opens it makes it durable."""
    spec = msgspec.structs.replace(SPEC, provenance=ProvenanceSettings(enabled=has_history))
    clock = ManualClock()
    call, was_killed = 0, True
    while was_killed:
        call += 1
        files = CrashFiles()
        files.fault = Fault(call, Killed())
        was_killed = False
        try:
            Engine.initialize(spec, files, clock)
        except Killed:
            was_killed = True
        files.fault = None
        try:
            repository = Engine.open(spec, files, clock)
        except NotARepository:  # the init was cut short before its commit point
            continue
        with repository:
            put("a", 300)(repository, clock)
            point = files.crash_point()
        for recovered, _ in recoveries(point, spec):
            assert recovered.queue("a").figures().flow_files == 1, f"killed at call {call} of the init"
    assert call > 20


def test_what_an_unclean_start_serves_survives_a_loss_of_power() -> None:
    """A kill at each call of a put, a drain and a close: the next start seals files, and forgets what is drained.

    Both count on what the killed process had written and not come to sync.
    """
    repository, files, clock = made()
    kills: list[CrashPoint] = []
    with repository:
        put("a", 300)(repository, clock)
        files.before = lambda call: kills.append(files.crash_point())
        put("a", 400)(repository, clock)
        repository.provenance.drain()
    assert len(kills) > 10
    for kill in kills:
        killed = resumed(kill)
        with Engine.open(SPEC, killed, clock) as repository:
            served = _served(repository)
            image = killed.crash_point().image(())
        with Engine.open(SPEC, CrashFiles(image), clock) as recovered:
            require_sound(recovered)
            assert _served(recovered) == served


@pytest.mark.parametrize("names", [("runs",), ("runs", "runs/answers")])
def test_a_directory_that_a_killed_process_has_made_survives_a_loss_of_power(names: tuple[str, ...]) -> None:
    """It was not synced: whoever finds it there sees to that before anything that counts lies in it."""
    repository, files, clock = made()
    repository.close()
    for name in names:
        files.make_directory(f"/r/flowfile/{name}")

    with Engine.open(SPEC, files, clock) as repository:
        answered(1)(repository, clock)
        repository.checkpoint()
        point = files.crash_point()
        abandon(repository)

    for recovered, _ in recoveries(point):
        assert len(recovered.ledger.answers.runs()) == 1
        assert recovered.check().problems == ()
