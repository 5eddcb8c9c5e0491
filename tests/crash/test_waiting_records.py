"""Crash states of starts that cannot read a run of handles, and of the first one behind them that can."""

import errno
import os
import random
from fnmatch import fnmatch

from tests.crash.explore import SEED, some_images
from tests.crash.resting import cool, rest
from tests.crash.specs import SPEC
from tests.support import ManualClock, abandon
from ullage.engine.engine import Engine
from ullage.testing.crashing import Call, CrashFiles, CrashPoint

Handles = dict[bytes, tuple[int, int]]


def refuse(call: Call) -> None:
    """The disk gives nothing of runs of handles."""
    if call.kind == "read" and fnmatch(call.path, "*/handles/*.run"):
        raise OSError(errno.EIO, os.strerror(errno.EIO), call.path)


def begun(files: CrashFiles, clock: ManualClock, *, reads: bool, points: list[CrashPoint] | None = None) -> Engine:
    """A process that serves; `points` gets where it may have crashed on its way there."""
    if not reads:
        files.before_look = refuse
    if points is not None:
        files.before = files.after = lambda call: points.append(files.crash_point())
    repository = Engine.open(SPEC, files, clock)
    files.before = files.after = files.before_look = lambda call: None
    return repository


def waits(repository: Engine) -> bool:
    return any(aside.unread for aside in repository.ledger.set_aside.all())


def handles_of(repository: Engine) -> Handles:
    return {each.uuid: (each.deleted_millis, each.expires_millis) for each in repository.ledger.everything()}


def changed(files: CrashFiles, clock: ManualClock) -> Handles:
    """What is left of handles in a run, some of which are purged, deleted or about to end."""
    Engine.initialize(SPEC, files, clock)
    repository = Engine.open(SPEC, files, clock)
    rest(30, 40, 50, 60, 70)(repository, clock)
    cool(repository, clock)
    purged, deleted, ending, *_ = repository.handles.page(b"", 100)
    repository.handles.delete(purged.id)
    clock.advance(61)
    repository.handles.purge()
    repository.handles.delete(deleted.id)
    repository.handles.set_ttl(ending.id, 600_000)
    found = handles_of(repository)
    assert len(found) == 4
    abandon(repository)
    return found


def test_what_waits_for_a_block_survives_a_crash_at_any_call() -> None:
    """Whichever start a crash cuts short, one that reads the block comes to what was said before, and leaves nothing
    waiting; also behind another one that does not read it.
    """
    files, clock = CrashFiles(), ManualClock()
    wanted = changed(files, clock)
    points: list[CrashPoint] = []
    repository = begun(files, clock, reads=False, points=points)
    assert waits(repository)
    assert handles_of(repository) == {}
    abandon(repository)
    repository = begun(files, clock, reads=True, points=points)
    assert not waits(repository)
    assert handles_of(repository) == wanted
    points.append(files.crash_point())
    abandon(repository)

    chooser = random.Random(SEED)
    images = {image.digest(): image for point in points for image in some_images(point, chooser)}
    assert len(images) > 30
    for number, image in enumerate(images.values()):
        copy = CrashFiles(image)
        if number % 2:
            repository = begun(copy, clock, reads=False)
            (abandon if number % 4 == 1 else Engine.close)(repository)
        repository = begun(copy, clock, reads=True)
        assert not waits(repository)
        assert handles_of(repository) == wanted
        assert repository.check(deep=True).problems == ()
        repository.close()
        again = begun(copy, clock, reads=False)
        assert not waits(again), "what was taken in was not durable"
        abandon(again)
