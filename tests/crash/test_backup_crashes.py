"""Crashes while a backup is written, and while one is restored: the last backup counts, or the new one, never a mix."""

import errno

import msgspec
import pytest

from tests.crash.explore import SEED, State, state_of
from tests.crash.failing import made
from tests.crash.specs import SPEC
from tests.crash.steps import LARGE, checkpoint, clean, drop, put, truncate
from tests.support import ManualClock
from ullage.contract import HostPath
from ullage.engine.backupdirectory import DirectoryPlace
from ullage.engine.backupgenerations import generations_at
from ullage.engine.engine import Engine
from ullage.errors import NotABackup, NotARepository, RepositoryDamaged
from ullage.testing.crashing import Call, CrashFiles, CrashPoint, Image
from ullage.wire.upkeep import Keep

BACKUP = "/b"
COPY = msgspec.structs.replace(SPEC, storage=msgspec.structs.replace(SPEC.storage, host_path=HostPath(path="/copy")))


class Recorder:
    """Takes the disk's state around each call while it is on."""

    def __init__(self, files: CrashFiles) -> None:
        self.points: list[CrashPoint] = []
        self._files = files

    def start(self) -> None:
        self._files.before = self._files.after = self._take

    def stop(self) -> None:
        self._files.before = self._files.after = lambda _: None

    def _take(self, call: Call) -> None:
        self.points.append(self._files.crash_point())


def distinct(points: list[CrashPoint]) -> list[Image]:
    """What the disk could hold at these points, each once."""
    return list({image.digest(): image for point in points for image in point.images(SEED, torn=False)}.values())


def restored(files: CrashFiles, generation: int | None = None) -> State:
    """The state of the backup, restored and checked deeply."""
    Engine.restore_backup(BACKUP, COPY, files, generation=generation)
    with Engine.open(COPY, files, ManualClock()) as repository:
        assert repository.check(deep=True).problems == ()
        return state_of(repository)


def recorded(states: list[State], point_of_restore: bool = False) -> Recorder:
    """Two backups with writing, dropping and reclaiming between them; the calls of the last step are recorded."""
    repository, files, clock = made()
    recorder = Recorder(files)
    with repository:
        for step in (put("a", 300, LARGE), put("b", 40), put("c", *[20 + n for n in range(6)])):
            step(repository, clock)
        repository.backup(BACKUP)
        states.append(state_of(repository))
        for step in (put("b", LARGE, 10), drop("a"), checkpoint, truncate, clean, put("c", 50)):
            step(repository, clock)
        if not point_of_restore:
            recorder.start()
        repository.backup(BACKUP)
        recorder.stop()
        states.append(state_of(repository))
    if point_of_restore:
        recorder.start()
        Engine.restore_backup(BACKUP, COPY, files)
        recorder.stop()
    return recorder


def test_a_crash_during_a_backup_leaves_the_last_one_or_the_new_one() -> None:
    """Whatever reached the disk, the backup restores to exactly one of the two moments, and the next backup works."""
    states: list[State] = []
    points = recorded(states).points
    assert states[0] != states[1]
    found = [0, 0]

    images = distinct(points)
    for image in images:
        found[states.index(restored(CrashFiles(image)))] += 1

    print(
        f"seed {SEED}: {len(points)} crash points, {len(images)} images, {found} restored to the first and the second"
    )
    assert min(found) > 0


def test_the_next_backup_after_a_crash_is_whole() -> None:
    """What a crash left in the directory neither stops the next backup nor gets into it."""
    states: list[State] = []
    points = recorded(states).points

    for point in points[::3]:
        files = CrashFiles(point.image(point.pending[: len(point.pending) // 2]))
        with Engine.open(SPEC, files, ManualClock()) as repository:
            repository.backup(BACKUP)
            expected = state_of(repository)
        assert restored(files) == expected


def test_a_crash_during_a_restore_leaves_no_repository_or_a_whole_one() -> None:
    """Before its commit point there is nothing that opens, and a repeated restore goes on with what is there."""
    states: list[State] = []
    points = recorded(states, point_of_restore=True).points
    whole = refused = 0

    for image in distinct(points):
        files = CrashFiles(image)
        try:
            repository = Engine.open(COPY, files, ManualClock())
        except (NotARepository, RepositoryDamaged):
            assert not files.exists("/copy/ullage.json")
            refused += 1
            assert restored(files) == states[1]
            continue
        with repository:
            assert repository.check(deep=True).problems == ()
            assert state_of(repository) == states[1]
        whole += 1

    print(f"seed {SEED}: {len(points)} crash points, {whole} whole, {refused} no repository")
    assert min(whole, refused) > 0


def test_a_crash_costs_no_generation_that_is_kept() -> None:
    """Of three, of which two are kept, while the third is written: what the manifest lists restores to its moment."""
    states: list[State] = []
    repository, files, clock = made()
    recorder, keep = Recorder(files), Keep(last=2)
    with repository:
        for steps in ((put("a", 300, LARGE), put("b", 40)), (drop("a"), clean, put("b", 50)), (drop("b"), clean)):
            for step in steps:
                step(repository, clock)
            if len(states) == 2:
                recorder.start()
            repository.backup(BACKUP, keep=keep)
            recorder.stop()
            states.append(state_of(repository))
    found: set[tuple[int, ...]] = set()

    for image in distinct(recorder.points):
        there = [each.sequence for each in generations_at(DirectoryPlace(CrashFiles(image), BACKUP))]
        found.add(tuple(there))
        for sequence in there:
            assert restored(CrashFiles(image), sequence) == states[sequence - 1]

    assert found == {(1, 2), (2, 3)}


class KilledError(Exception):
    """The process is gone, and the page cache is there."""


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), KilledError()])
def test_a_restoration_that_goes_on_believes_nothing_that_was_not_synced(error: Exception) -> None:
    """It reads back from the page cache, and is on no disk: after a loss of power all is there."""
    repository, files, clock = made()
    with repository:
        put("a", 300, LARGE)(repository, clock)
        repository.backup(BACKUP)
        expected = state_of(repository)
    failed: list[str] = []

    def fail_once(call: Call) -> None:
        if call.kind == "sync" and call.path.startswith("/copy/c1/") and "-" in call.path and not failed:
            failed.append(call.path)
            raise error

    files.before = fail_once
    with pytest.raises(type(error)):
        Engine.restore_backup(BACKUP, COPY, files)
    Engine.restore_backup(BACKUP, COPY, files)

    lost = CrashFiles(files.crash_point().image(()))
    with Engine.open(COPY, lost, ManualClock()) as again:
        assert again.check(deep=True).problems == ()
        assert state_of(again) == expected
    assert failed


def test_a_crash_during_the_first_backup_leaves_none_and_stops_no_other() -> None:
    """Without a manifest there is no backup; the directory is taken up by the next one all the same."""
    repository, files, clock = made()
    recorder = Recorder(files)
    with repository:
        put("a", 300, LARGE)(repository, clock)
        recorder.start()
        repository.backup(BACKUP)
        recorder.stop()
        expected = state_of(repository)

    for point in recorder.points:
        again = CrashFiles(point.image(()))
        if not again.exists(f"{BACKUP}/backup.json"):
            with pytest.raises(NotABackup, match="holds no backup"):
                Engine.restore_backup(BACKUP, COPY, again)
            with Engine.open(SPEC, again, ManualClock()) as repository:
                repository.backup(BACKUP)
        assert restored(again) == expected
