"""Containers say whose they are: an unmounted, foreign or swapped directory is never taken for the right one."""

from pathlib import Path

import pytest

from tests.support import TWO, Workshop, content_sizes, drain, put_all, put_each, spec_at
from ullage.contract import ContainerSettings, ContractError
from ullage.engine.engine import Engine
from ullage.errors import ForeignContainer


def make_and_close(workshop: Workshop) -> dict[str, int]:
    repository = workshop.make(storage=TWO, claims={"max_flow_files": 1})
    put_each(repository, "q", [b"0", b"1", b"2", b"3"])
    workshop.close()
    return content_sizes(workshop.path)


def test_an_unmounted_volume_stops_the_start(workshop: Workshop) -> None:
    """An empty directory where a container was is an error that asks for the mount, and nothing is touched."""
    before = make_and_close(workshop)
    (workshop.path / "c2").rename(workshop.path / "elsewhere")
    (workshop.path / "c2").mkdir()

    with pytest.raises(ForeignContainer, match="is its volume mounted"):
        workshop.open()

    (workshop.path / "c2").rmdir()
    (workshop.path / "elsewhere").rename(workshop.path / "c2")
    assert len(drain(workshop.open(), "q")) == 4
    assert content_sizes(workshop.path) == before


def test_a_missing_identity_stops_the_start(workshop: Workshop) -> None:
    """A container without its `ullage.json` is not trusted, whatever it holds."""
    make_and_close(workshop)
    (workshop.path / "c1" / "ullage.json").unlink()

    with pytest.raises(ForeignContainer, match=r"ullage\.json"):
        workshop.open()


def test_swapped_containers_stop_the_start(workshop: Workshop) -> None:
    """Two volumes mounted in each other's place are told apart by name."""
    make_and_close(workshop)
    (workshop.path / "c1").rename(workshop.path / "x")
    (workshop.path / "c2").rename(workshop.path / "c1")
    (workshop.path / "x").rename(workshop.path / "c2")

    with pytest.raises(ForeignContainer, match="is container c2"):
        workshop.open()


def test_a_container_of_another_repository_stops_the_start(workshop: Workshop, tmp_path: Path) -> None:
    """The right name in the wrong repository is wrong."""
    make_and_close(workshop)
    other = spec_at(tmp_path / "other", storage=TWO)
    Engine.initialize(other)
    (workshop.path / "c1" / "ullage.json").write_bytes((tmp_path / "other" / "c1" / "ullage.json").read_bytes())

    with pytest.raises(ForeignContainer, match="not container c1"):
        workshop.open()


def test_a_container_may_be_appended_and_is_used_from_then_on(workshop: Workshop) -> None:
    """The new one gets its identity, and leaving it out later is an error."""
    repository = workshop.make(claims={"max_flow_files": 1})
    put_all(repository, "q", [b"x"])

    repository = workshop.reopen(storage=TWO, claims={"max_flow_files": 1})
    put_each(repository, "q", [b"y"] * 3)
    workshop.close()

    assert {name.split("/")[0] for name in content_sizes(workshop.path)} == {"c1", "c2"}
    with pytest.raises(ForeignContainer, match="missing from spec"):
        workshop.open(claims={"max_flow_files": 1})
    assert len(drain(workshop.open(storage=TWO), "q")) == 4


def test_a_directory_with_content_but_no_identity_is_never_made_a_container(workshop: Workshop) -> None:
    """Neither init nor an appended container takes over files that somebody else put there."""
    section = workshop.path / "c2" / "7"
    section.mkdir(parents=True)
    (section / "1700000000000-7").write_bytes(b"somebody's")

    with pytest.raises(ForeignContainer, match="holds content files"):
        workshop.make(storage=TWO)

    assert (section / "1700000000000-7").read_bytes() == b"somebody's"


def test_the_number_of_sections_cannot_change(workshop: Workshop) -> None:
    """It decides where every file lies."""
    workshop.make(storage={"sections": 8})
    workshop.close()

    with pytest.raises(Exception, match="cannot change"):
        workshop.open(storage={"sections": 16})


def test_containers_cannot_share_a_directory(workshop: Workshop) -> None:
    """The spec itself refuses it."""
    with pytest.raises(ContractError):
        workshop.make(
            storage={"containers": tuple(ContainerSettings(name=name, sub_path="c1") for name in ("c1", "c2"))}
        )
