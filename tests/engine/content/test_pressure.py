"""A full volume: back-pressure, quotas, and the reserve that only removing work may spend."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.failing_files import FailingFiles
from tests.support import ManualClock, Workshop, drain, put_all, spec_at
from ullage_agent.contract import Container, ContentRepositorySpec, Quantity
from ullage_agent.engine.content.reserve import Reserve
from ullage_agent.engine.content.store import BACK_PRESSURE_WAIT_SECONDS
from ullage_agent.engine.errors import BackPressure, DiskFull
from ullage_agent.engine.files import OsFiles
from ullage_agent.engine.repository import Repository

MB = 1 << 20


def with_quota(count: int) -> dict[str, object]:
    return {"containers": (Container(name="c1", sub_path="c1", capacity=Quantity(count)),)}


@pytest.mark.parametrize("archive", [True, False])
def test_writers_wait_within_bounds_and_then_get_back_pressure(workshop: Workshop, archive: bool) -> None:
    """Above the threshold, with nothing to clean, also where there is no archive and never was."""
    repository = workshop.make(storage=with_quota(MB), archive={"enabled": archive})
    put_all(repository, "q", [b"x" * (950_000)])
    before = workshop.clock.monotonic()

    with pytest.raises(BackPressure, match="c1 90"):
        put_all(repository, "q", [b"y"])

    waited = workshop.clock.monotonic() - before
    assert BACK_PRESSURE_WAIT_SECONDS <= waited <= BACK_PRESSURE_WAIT_SECONDS + 1


@pytest.mark.parametrize("archive", [True, False])
def test_a_waiting_writer_is_relieved_by_cleaning(workshop: Workshop, archive: bool) -> None:
    """What is dead goes at once when somebody waits: through the archive, whose usage limit it exceeds."""
    repository = workshop.make(storage=with_quota(MB), archive={"enabled": archive})
    put_all(repository, "q", [b"x" * 950_000])
    drain(repository, "q")
    before = workshop.clock.monotonic()

    put_all(repository, "q", [b"y"])

    assert workshop.clock.monotonic() - before < 1
    assert repository.content.containers["c1"].bytes_used == 1


def test_a_waiting_writer_is_relieved_by_truncation(workshop: Workshop) -> None:
    """A dead tail counts as room as well as a dead file does."""
    repository = workshop.make(storage=with_quota(MB))
    put_all(repository, "keep", [b"k" * 100])
    put_all(repository, "q", [b"x" * 950_000])
    drain(repository, "q")

    put_all(repository, "q", [b"y"])

    assert repository.content.containers["c1"].bytes_used == 101


def test_pressure_of_one_container_leaves_the_others_writing(workshop: Workshop) -> None:
    """Only a repository whose every container is full makes writers wait."""
    containers = (
        Container(name="c1", sub_path="c1", capacity=Quantity(1000)),
        Container(name="c2", sub_path="c2", capacity=Quantity(MB)),
    )
    repository = workshop.make(storage={"containers": containers}, claims={"max_flow_files": 1})
    for _ in range(2):
        put_all(repository, "q", [b"x" * 950])
    before = workshop.clock.monotonic()

    for _ in range(5):
        put_all(repository, "q", [b"y"])

    assert workshop.clock.monotonic() == before
    assert repository.content.containers["c1"].bytes_used == 950


def test_the_reserve_grows_to_its_share_and_is_spent_once(tmp_path: Path) -> None:
    """It holds real blocks, never more than its share of the volume, and gives them back in one go."""
    reserve = Reserve(OsFiles(), str(tmp_path))

    assert reserve.grow(MB)
    assert reserve.grow(MB // 2)
    allocated = (tmp_path / "ballast").stat().st_blocks * 512

    assert allocated >= MB
    assert (reserve.spend(), reserve.spend()) == (True, False)
    assert (tmp_path / "ballast").stat().st_size == 0


@pytest.mark.parametrize("kind", ["create", "allocate"])
def test_a_reserve_without_room_is_no_error(tmp_path: Path, kind: str) -> None:
    """A full disk must not keep the repository from opening: the next checkpoint tries again."""
    files = FailingFiles()
    files.fail(kind, error=28)
    reserve = Reserve(files, str(tmp_path))

    assert not reserve.grow(MB)
    assert reserve.grow(MB)


@pytest.fixture
def small_volume(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 16 MB of its own."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    target = tmp_path / "volume"
    target.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(target)], check=False)
    if made.returncode != 0:
        pytest.skip("mounting is not allowed here")
    try:
        yield target
    finally:
        subprocess.run(["umount", "-l", str(target)], check=True)


def full_spec(volume: Path, *, archive: bool) -> ContentRepositorySpec:
    return spec_at(
        volume / "r",
        archive={"enabled": archive, "max_usage_percentage": 50, "backpressure_percentage": 100},
        truncation={"usage_threshold_percentage": 10},
    )


def fill(repository: Repository, volume: Path) -> int:
    """Put kilobytes and megabytes until there is no room even for the smallest; how many were acknowledged."""
    count = 0
    for size in (MB, 64 * 1024, 4096, 1024):
        while True:
            try:
                put_all(repository, "q", [b"x" * size])
            except (DiskFull, BackPressure):
                break
            count += 1
    # What others leave on the volume is taken as well: nothing is left but the reserve.
    with (volume / "others").open("wb", buffering=0) as file:
        try:
            while file.write(b"z" * 4096):
                continue
        except OSError:
            return count
    return count


@pytest.mark.parametrize("archive", [False, True])
def test_a_full_disk_is_emptied_with_the_reserve(small_volume: Path, archive: bool) -> None:
    """On a really full volume creating fails with DiskFull, while removing, dropping and reclaiming work."""
    spec = full_spec(small_volume, archive=archive)
    Repository.initialize(spec, clock=ManualClock())
    repository = Repository.open(spec, clock=ManualClock())
    try:
        kept = put_all(repository, "keep", [b"k" * 100])[0]
        put_all(repository, "tail", [b"t" * MB])
        filled = fill(repository, small_volume)
        assert OsFiles().usage(str(small_volume)).free_bytes < 4096
        with pytest.raises((DiskFull, BackPressure)):
            put_all(repository, "q", [b"x" * 200_000])

        assert drain(repository, "tail") == [b"t" * MB]
        assert repository.queues.drop(repository.queue("q")) == filled
        repository.reclamation.clean()
        repository.reclamation.truncate()
        repository.checkpoint()

        assert OsFiles().usage(str(small_volume)).free_bytes > 3 * MB
        assert kept.claim is not None
        assert repository.reader.read(kept.claim, 0, 100) == b"k" * 100
        put_all(repository, "q", [b"again"])
        assert repository.check(deep=True).problems == ()
    finally:
        repository.close()


def test_a_checkpoint_on_a_full_disk_spends_the_reserve(small_volume: Path) -> None:
    """A snapshot is what lets logs go, so it must not wait for room that only it can make."""
    spec = full_spec(small_volume, archive=False)
    clock = ManualClock()
    Repository.initialize(spec, clock=clock)
    with Repository.open(spec, clock=clock) as repository:
        fill(repository, small_volume)

        repository.checkpoint()


def test_a_repository_on_a_full_disk_opens(small_volume: Path) -> None:
    """After a crash on a full volume the start recovers, and what was acknowledged can be read and removed."""
    spec = full_spec(small_volume, archive=False)
    clock = ManualClock()
    Repository.initialize(spec, clock=clock)
    repository = Repository.open(spec, clock=clock)
    filled = fill(repository, small_volume)
    repository.log.abandon()
    repository.close()

    repository = Repository.open(spec, clock=clock)

    try:
        assert repository.check(deep=True).problems == ()
        assert repository.queues.drop(repository.queue("q")) == filled
    finally:
        repository.close()
