"""Crashes during an erasure: the next one finishes it, and nothing of anybody else is lost."""

from functools import cache
from typing import Any

import msgspec
import pytest

from tests.crash.explore import SEED
from tests.crash.failing import made, require_sound
from tests.crash.specs import spec_with
from tests.crash.test_backup_crashes import BACKUP, Recorder
from tests.engine.flowfile.steps import define
from tests.engine.test_erasure import CONTENT, UNTOLD, VALUE, erase, erase_by, others, plant
from tests.engine.test_erasure_finder import CANARY, OTHER
from tests.engine.test_erasure_redaction import ends
from tests.support import ManualClock, drain, put_each
from ullage.contract import ContentRepository, HostPath, Metadata, ProvenanceSettings
from ullage.embedded.erasure import erase_registered
from ullage.engine.engine import Engine
from ullage.engine.erasure.eraser import Eraser, intent_file
from ullage.engine.erasure.overwriting import OverwritingFiles
from ullage.engine.model import Answer, new_uuids
from ullage.engine.opening import IDENTITY
from ullage.engine.registers import PendingErasure, RegisteredSubject, pending_erasure, read_register, register_path
from ullage.engine.wal.format import FORMAT_VERSION
from ullage.errors import NotARepository, RepositoryDamaged
from ullage.testing.crashing import CrashFiles, CrashPoint, Image
from ullage.testing.images import BLOCK_BYTES

SPEC = spec_with(provenance=ProvenanceSettings(compress_on_rollover=False))

COPY = msgspec.structs.replace(SPEC, storage=msgspec.structs.replace(SPEC.storage, host_path=HostPath(path="/copy")))

MINE = CONTENT, VALUE

Others = dict[bytes, tuple[Any, ...]]


def paths_with(image: Image) -> list[str]:
    """The files of a disk that have bytes of the subject."""
    return sorted(path for path, data in image.files.items() if any(text in data for text in MINE))


@cache
def recorded(*, overwrites: bool = False) -> tuple[list[CrashPoint], Others]:
    """An erasure of FlowFiles in a queue, in swap files and staged, of handles, answers, events and contents, and what
    the disk could hold at its calls; what is somebody else's.
    """
    repository, files, clock = made(SPEC)
    with repository:
        define(repository)
        plant(repository, "in")
        for attributes in (CANARY, OTHER) * 4:
            put_each(repository, "q", [CONTENT if attributes == CANARY else b"theirs"], **attributes)
        assert repository.ledger.swaps
        uuids = repository.handles.put_many([CONTENT] * 3, CANARY)
        repository.committer.commit([Answer(b"k" * 32, b"put", uuids[0].encode(), clock.millis)], creates=True)
        write, attempt = new_uuids(2)
        repository.staging.begin(write, "test", queue="in")
        repository.staging.stage(write, attempt, 0, [CONTENT, CONTENT], CANARY)
        repository.provenance.drain()
        repository.provenance.index_step()
        repository.checkpoint()
    recorder = Recorder(files)
    overwriting = OverwritingFiles(files) if overwrites else None
    with Engine.open(SPEC, overwriting or files, clock) as repository:
        before = others(repository)
        assert paths_with(files.image())
        recorder.start()
        assert erase_by(Eraser(repository, UNTOLD, overwriting), repository).remains == ()
        recorder.stop()
        # What was not synced may be lost by now, and what was removed may not come back.
        assert paths_with(files.crash_point().image(())) == []
    return recorder.points, before


@pytest.mark.parametrize(("overwrites", "looks"), [(False, 40), (True, 20)])
def test_a_crash_during_an_erasure_is_finished_by_the_next_one(overwrites: bool, looks: int) -> None:
    """Whatever reached the disk: afterwards no file has a byte of the subject, and all that is others' is there. Also
    where what goes is overwritten: a file that is half zeros is one that nobody needs any more.
    """
    points, before = recorded(overwrites=overwrites)
    images = ends(points[:: max(1, len(points) // looks)])
    begun = 0

    for image in images:
        files, clock = CrashFiles(image), ManualClock()
        with Engine.open(SPEC, files, clock) as repository:
            begun += intent_file(repository).read() is not None
            assert erase(repository).remains == ()
        assert paths_with(files.image()) == []
        with Engine.open(SPEC, files, clock) as repository:
            assert others(repository) == before
            require_sound(repository)

    print(f"seed {SEED}: {len(points)} crash points, {len(images)} images, {begun} of them with an intent")
    assert 0 < begun < len(images)


def goes_on(files: CrashFiles, subjects: tuple[RegisteredSubject, ...]) -> None:
    """As `ullage restore --register` does, from wherever one before it was cut short."""
    root, clock = COPY.storage.host_path.path, ManualClock()
    wanted = PendingErasure(format=FORMAT_VERSION, source=BACKUP, asked=None, subjects=subjects)
    is_made = files.exists(f"{root}/{IDENTITY}")
    if not is_made:
        Engine.restore_backup(BACKUP, COPY, files, to_erase=wanted)
    pending = pending_erasure(files, root)
    if pending is not None:
        document = ContentRepository(metadata=Metadata(name="copy"), spec=COPY)
        erased = erase_registered(document, pending, UNTOLD, files=files, clock=clock)
        assert all(each.is_finished for each in erased)


@cache
def recorded_restoration() -> tuple[list[CrashPoint], tuple[RegisteredSubject, ...]]:
    """A restoration of a backup of before an erasure, and what the register names."""
    repository, files, clock = made(SPEC)
    with repository:
        plant(repository, "in")
        repository.provenance.drain()
        repository.backup(BACKUP)
    with Engine.open(SPEC, files, clock) as repository:
        assert erase(repository).remains == ()
        subjects = read_register(files, register_path(repository.root))
    recorder = Recorder(files)
    recorder.start()
    goes_on(files, subjects)
    recorder.stop()
    return recorder.points, subjects


def test_nobody_opens_what_was_restored_before_a_register_is_applied() -> None:
    """Whatever a crash left: either it does not open, or it has nothing of the subject; and it goes on."""
    points, subjects = recorded_restoration()
    images = ends([*points[:: max(1, len(points) // 15)], points[-1]])
    opened = refused = 0

    for image in images:
        files, clock = CrashFiles(image), ManualClock()
        try:
            with Engine.open(COPY, files, clock) as repository:
                assert copied_with(files.image()) == []
                require_sound(repository)
            opened += 1
        except (NotARepository, RepositoryDamaged):
            refused += 1
        goes_on(files, subjects)
        assert copied_with(files.image()) == []
        with Engine.open(COPY, files, clock) as repository:
            assert sorted(drain(repository, "in")) == [b"theirs, before", b"theirs, behind"]

    print(f"seed {SEED}: {len(points)} crash points, {len(images)} images, {refused} of them do not open")
    assert min(opened, refused) > 0


def copied_with(image: Image) -> list[str]:
    """The files of what was restored that have bytes of the subject."""
    return [path for path in paths_with(image) if path.startswith(f"{COPY.storage.host_path.path}/")]


def test_nothing_goes_before_the_intent_is_durable() -> None:
    """From its removal on nothing is left to do: so it is the first that is there, and the last that goes."""
    points, _ = recorded()

    for point in points:
        image = point.image(())
        has_intent = any(path.endswith(("/erasure/intent", "/erasure/intent.over")) for path in image.files)
        assert has_intent or paths_with(image) in ([], paths_with(points[0].image(())))


def test_a_crash_while_a_part_of_a_file_goes_costs_nothing_beside_it() -> None:
    """Of what is punched or cut, and overwritten before, a crash leaves some or nothing; once it is gone, nothing."""
    files = CrashFiles()
    recorder, overwriting = Recorder(files), OverwritingFiles(files)
    file = overwriting.create("/file")
    file.write(b"k" * BLOCK_BYTES + CONTENT.ljust(2 * BLOCK_BYTES) + CONTENT, 0)
    file.sync()
    files.sync_directory("/")
    recorder.start()

    file.punch(BLOCK_BYTES, 2 * BLOCK_BYTES)
    file.truncate(BLOCK_BYTES)

    recorder.stop()
    for image in ends(recorder.points):
        assert image.files["/file"].startswith(b"k" * BLOCK_BYTES)
    assert CONTENT in recorder.points[0].image(()).files["/file"]
    assert CONTENT not in recorder.points[-1].image(()).files["/file"]
