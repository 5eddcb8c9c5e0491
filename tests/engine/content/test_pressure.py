"""A full volume: back-pressure, quotas, and the reserve that only removing work may spend."""

from pathlib import Path

import pytest

from tests.failing_files import FailingFiles
from tests.support import Workshop, containers, drain, put_all, put_each
from ullage.engine.content.reserve import Reserve
from ullage.engine.content.writer import BACK_PRESSURE_WAIT_SECONDS
from ullage.engine.files import OsFiles
from ullage.errors import BackPressure

MB = 1 << 20


@pytest.mark.parametrize("archive", [True, False])
def test_writers_wait_within_bounds_and_then_get_back_pressure(workshop: Workshop, archive: bool) -> None:
    """Above the threshold, with nothing to clean, also where there is no archive and never was."""
    repository = workshop.make(storage=containers(c1=MB), archive={"enabled": archive})
    put_all(repository, "q", [b"x" * (950_000)])
    before = workshop.clock.monotonic()

    with pytest.raises(BackPressure, match="c1 90"):
        put_all(repository, "q", [b"y"])

    waited = workshop.clock.monotonic() - before
    assert BACK_PRESSURE_WAIT_SECONDS <= waited <= BACK_PRESSURE_WAIT_SECONDS + 1


@pytest.mark.parametrize("archive", [True, False])
def test_a_waiting_writer_is_relieved_by_cleaning(workshop: Workshop, archive: bool) -> None:
    """What is dead goes at once when somebody waits: through the archive, whose usage limit it exceeds."""
    repository = workshop.make(storage=containers(c1=MB), archive={"enabled": archive})
    put_all(repository, "q", [b"x" * 950_000])
    drain(repository, "q")
    before = workshop.clock.monotonic()

    put_all(repository, "q", [b"y"])

    assert workshop.clock.monotonic() - before < 1
    assert repository.content.containers["c1"].bytes_used == 1


def test_a_waiting_writer_is_relieved_by_truncation(workshop: Workshop) -> None:
    """A dead tail counts as room as well as a dead file does."""
    repository = workshop.make(storage=containers(c1=MB))
    put_all(repository, "keep", [b"k" * 100])
    put_all(repository, "q", [b"x" * 950_000])
    drain(repository, "q")

    put_all(repository, "q", [b"y"])

    assert repository.content.containers["c1"].bytes_used == 101


def test_pressure_of_one_container_leaves_the_others_writing(workshop: Workshop) -> None:
    """Only a repository whose every container is full makes writers wait."""
    repository = workshop.make(storage=containers(c1=1000, c2=MB), claims={"max_flow_files": 1})
    put_each(repository, "q", [b"x" * 950] * 2)
    before = workshop.clock.monotonic()

    put_each(repository, "q", [b"y"] * 5)

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
def test_a_reserve_without_room_is_no_error(tmp_path: Path, kind: str, files: FailingFiles) -> None:
    """A full disk must not keep the repository from opening: the next checkpoint tries again."""
    files.fail(kind, error=28)
    reserve = Reserve(files, str(tmp_path))

    assert not reserve.grow(MB)
    assert reserve.grow(MB)
