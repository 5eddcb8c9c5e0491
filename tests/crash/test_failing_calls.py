"""Every call of every workload fails once: a seeded sample of them, or with ULLAGE_FAULTS each one.

Then each call meets EIO, and that share of all calls each of the other ways to fail.
"""

import errno
import os
import random
from collections import Counter
from collections.abc import Callable

import pytest

from tests.crash.explore import SEED
from tests.crash.failing import WAYS, count_calls, fail_once, made, recoveries, require_no_leaks, require_sound
from tests.crash.specs import SPEC
from tests.crash.steps import put, snapshot, take
from tests.crash.workloads import WORKLOADS
from tests.proof.figures import note
from tests.support import ManualClock, abandon
from ullage.engine.engine import Engine
from ullage.errors import CommitOutcomeUnknown, ContentWriteFailed, ForeignContainer
from ullage.testing.crashing import CrashFiles, Fault

SHARE = float(os.environ.get("ULLAGE_FAULTS", "0"))

SAMPLE = 8
"""Runs of each workload in CI, one of each way to fail: some minutes of processor time in all."""

HEALTHY = [name for name in WORKLOADS if "errors" not in name and name not in ("backups", "files made ahead")]
"""The others break their own calls. tests/engine/test_backup.py fails those of a backup."""


def chosen(name: str) -> list[tuple[str, int]]:
    """Ways and calls: all of them, or a sample in which each way has its share."""
    counts = count_calls(WORKLOADS[name])
    chooser = random.Random(f"{SEED} {name}")
    if SHARE:
        calls = [(way, at) for way, count in counts.items() for at in range(1, count + 1)]
        return [(way, at) for way, at in calls if way == "EIO" or chooser.random() < SHARE]
    ways = [*WAYS, *chooser.choices(list(WAYS), [counts[way] for way in WAYS], k=SAMPLE - len(WAYS))]
    return [(way, chooser.randint(1, counts[way])) for way in ways if counts[way]]


@pytest.mark.parametrize("name", HEALTHY)
def test_an_error_at_any_call_surfaces_and_loses_nothing(name: str) -> None:
    """Whichever call fails, the error surfaces, what was acknowledged stands, and nothing is half done or left over."""
    struck: Counter[str] = Counter()
    images = 0

    for way, at in chosen(name):
        trial = fail_once(WORKLOADS[name], way, at, SEED)
        struck[way] += trial.fault.struck is not None
        images += trial.images

    print(f"workload {name}, seed {SEED}: {struck.total()} faults {dict(struck)}, {images} crash states after them")
    note(faults=struck.total(), images=images)
    assert struck.total() > 0.9 * len(chosen(name))  # a reading call more or less depends on what hashing orders


def written() -> tuple[Engine, CrashFiles, ManualClock]:
    """A fresh repository that has written once."""
    repository, files, clock = made()
    put("a", 100)(repository, clock)
    return repository, files, clock


def fault(kind: str, at: int = 1, *, is_late: bool = False) -> Fault:
    return Fault(at, OSError(errno.EIO, os.strerror(errno.EIO)), frozenset({kind}), is_late=is_late)


def test_a_failed_sync_is_the_page_cache_trap() -> None:
    """After a failed sync the process sees its bytes and later syncs succeed, but no crash image ever holds them."""
    files = CrashFiles()
    file = files.create("/f")
    files.sync_directory("/")
    file.write(b"lost", 0)
    files.fault = fault("sync")

    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    file.write(b"kept", 4)
    file.sync()

    assert file.read(8, 0) == b"lostkept"
    assert {image.files["/f"] for image in files.crash_point().images(1)} == {b"\0\0\0\0kept"}


def test_a_sync_that_fails_late_has_done_its_work() -> None:
    """The error of a late fault comes from a call whose effect stays."""
    files = CrashFiles()
    file = files.create("/f")
    files.sync_directory("/")
    file.write(b"there", 0)
    files.fault = fault("sync", is_late=True)

    with pytest.raises(OSError, match="Input/output"):
        file.sync()

    assert {image.files["/f"] for image in files.crash_point().images(1)} == {b"there"}


def test_a_short_write_leaves_its_first_bytes() -> None:
    """Of a write that fails halfway the first half is there, and can reach the disk."""
    files = CrashFiles()
    file = files.create("/f")
    files.fault = fault("write")
    files.fault.keeps = 0.5

    with pytest.raises(OSError, match="Input/output"):
        file.write(b"01234567", 0)

    assert file.read(8, 0) == b"0123"
    assert files.fault.struck is not None


@pytest.mark.parametrize("kind", ["open", "exists", "size", "list_directory", "usage", "read"])
def test_calls_that_look_fail_on_demand_too(kind: str) -> None:
    """Reading calls can be made to fail as well, once."""
    files = CrashFiles()
    file = files.create("/f")
    calls: dict[str, Callable[[], object]] = {
        "open": lambda: files.open("/f"),
        "exists": lambda: files.exists("/f"),
        "size": file.size,
        "list_directory": lambda: files.list_directory("/"),
        "usage": lambda: files.usage("/"),
        "read": lambda: file.read(1, 0),
    }
    files.fault = fault(kind)

    with pytest.raises(OSError, match="Input/output"):
        calls[kind]()

    calls[kind]()


def test_no_file_is_lost_when_the_disks_figures_cannot_be_read() -> None:
    """A statvfs that fails says nothing of the disk's room: the write goes on, and close closes every file."""
    repository, files, clock = written()
    files.fault = fault("usage")

    put("a", 100)(repository, clock)

    assert files.fault.struck is not None
    put("a", 100)(repository, clock)
    require_sound(repository)
    repository.close()
    assert files.held == 0


def test_a_snapshot_whose_name_was_not_synced_is_synced_by_the_next_start() -> None:
    """A start removes what its snapshot covers, so it first makes that snapshot's name durable."""
    repository, files, clock = written()
    put("a", *[40 + n for n in range(9)])(repository, clock)
    take("a", 10)(repository, clock)
    files.fault = fault("sync_directory", 2)  # a checkpoint syncs the directory of the new log, then the snapshot's
    with pytest.raises(OSError, match="Input/output"):
        snapshot(repository, clock)
    assert files.fault.struck is not None
    assert files.fault.struck.path == "/r/flowfile"
    repository.close()

    Engine.open(SPEC, files, clock)

    for recovered, _ in recoveries(files.crash_point()):
        assert recovered.queue("a").figures().flow_files == 0


def test_an_adopted_orphan_survives_a_loss_of_power() -> None:
    """An orphan that a killed process never synced is synced before a record names it."""
    repository, files, clock = written()
    session = repository.session()
    session.write(session.create(), b"in the file that is open already")
    session.write(session.create(), bytes(6_000))  # which ends that file
    with session.writing(session.create()) as stream:
        stream.write(bytes(6_000))
    abandon(repository)
    repository = Engine.open(SPEC, files, clock)

    assert repository.reclamation.adopt_orphans() == 1

    for recovered, crashed in recoveries(files.crash_point()):
        require_no_leaks(recovered, crashed)


def test_an_init_that_is_resumed_syncs_what_the_first_one_made() -> None:
    """A container whose identity was written, but not synced by name, is so before the init ends."""
    files, clock = CrashFiles(), ManualClock()
    for at in range(1, 20):
        files = CrashFiles()
        files.fault = fault("sync_directory", at)
        try:
            Engine.initialize(SPEC, files, clock)
            break
        except OSError:
            assert files.fault.struck is not None
        if files.fault.struck.path == "/r":
            continue  # the root's own identity: a start looks after that
        Engine.initialize(SPEC, files, clock)
        for _ in recoveries(files.crash_point()):
            continue


def test_a_failed_sync_of_the_log_stops_it_and_the_next_start_writes_anew_what_the_disk_may_lack() -> None:
    """What a lost frame said is served after the restart, and is durable then, though the frame itself never is."""
    repository, files, clock = written()
    files.fault = fault("sync", 2)  # content first, then the log
    with pytest.raises(CommitOutcomeUnknown):
        put("a", 200)(repository, clock)
    repository.close()

    served = Engine.open(SPEC, files, clock).queue("a").figures().flow_files

    for recovered, _ in recoveries(files.crash_point()):
        assert recovered.queue("a").figures().flow_files == served == 2


def test_a_failed_sync_of_content_is_definite_and_stops_only_the_container() -> None:
    """Nothing is committed, reads and removals go on, and no second sync is believed."""
    repository, files, clock = written()
    files.fault = fault("sync")

    with pytest.raises(ContentWriteFailed):
        put("a", 300)(repository, clock)

    require_sound(repository)
    assert repository.queue("a").figures().flow_files == 1
    with pytest.raises(ContentWriteFailed):
        put("a", 300)(repository, clock)
    take("a", 1)(repository, clock)
    repository.close()
    assert len(list(recoveries(files.crash_point()))) > 0


def test_a_start_that_fails_in_one_partition_releases_the_files_of_all() -> None:
    """Whichever read of whichever log fails, no file is held when `open` has raised."""
    spec = WORKLOADS["partitions"].spec
    repository, files, clock = made(spec)
    for size in range(6):
        put("a", size)(repository, clock)
    abandon(repository)
    image = files.crash_point().image(files.crash_point().pending)

    for at in range(1, 100):
        files = CrashFiles(image)
        files.fault = fault("read", at)
        try:
            Engine.open(spec, files, clock).close()
        except (OSError, ForeignContainer):
            is_over = False
        else:
            is_over = True
        assert files.held == 0
        if is_over:
            return
    raise AssertionError("a start has no hundred reads")
