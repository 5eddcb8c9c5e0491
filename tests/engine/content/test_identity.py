"""Containers say whose they are: an unmounted, foreign or swapped directory is never taken for the right one."""

import shutil
from pathlib import Path

import pytest

from tests.failing_files import FailingFiles
from tests.support import TWO, RoomyFiles, Workshop, content_sizes, drain, flip, put_all, put_each, spec_at
from ullage.contract import ContainerSettings, ContractError
from ullage.engine.content.containers import VolumeState
from ullage.engine.engine import Engine
from ullage.engine.files import FileMark
from ullage.errors import ForeignContainer, RepositoryDamaged


def make_and_close(workshop: Workshop) -> dict[str, int]:
    repository = workshop.make(storage=TWO, claims={"max_flow_files": 1})
    put_each(repository, "q", [b"0", b"1", b"2", b"3"])
    workshop.close()
    return content_sizes(workshop.path)


def readable(repository: Engine) -> int:
    return len(list(repository.queue("q").records())) - len(repository.unavailable.listed(100))


def test_an_unmounted_volume_is_never_taken_for_an_empty_one(workshop: Workshop) -> None:
    """The start serves what lies on the others, nothing is made in the empty directory, and all is back with it."""
    before = make_and_close(workshop)
    (workshop.path / "c2").rename(workshop.path / "elsewhere")
    (workshop.path / "c2").mkdir()

    repository = workshop.open()
    assert "is its volume mounted" in repository.content.containers["c2"].condition.reason
    assert readable(repository) == 2
    repository.checkpoint()
    assert list((workshop.path / "c2").iterdir()) == []
    workshop.shut()

    (workshop.path / "c2").rmdir()
    (workshop.path / "elsewhere").rename(workshop.path / "c2")
    assert content_sizes(workshop.path) == before
    assert len(drain(workshop.open(), "q")) == 4


def test_without_any_container_a_start_is_refused(workshop: Workshop) -> None:
    """There is nothing that it could serve."""
    make_and_close(workshop)
    kept = {name: (workshop.path / name / "ullage.json").read_bytes() for name in ("c1", "c2")}
    for name in kept:
        (workshop.path / name / "ullage.json").unlink()

    with pytest.raises(ForeignContainer, match=r"ullage\.json.*ullage\.json"):
        workshop.open()

    for name, identity in kept.items():
        (workshop.path / name / "ullage.json").write_bytes(identity)
    assert len(drain(workshop.open(), "q")) == 4


def test_swapped_containers_are_told_apart(workshop: Workshop) -> None:
    """Two volumes mounted in each other's place are told apart by name, and neither is read or written."""
    make_and_close(workshop)
    (workshop.path / "c1").rename(workshop.path / "x")
    (workshop.path / "c2").rename(workshop.path / "c1")
    (workshop.path / "x").rename(workshop.path / "c2")

    with pytest.raises(ForeignContainer, match="is container c2"):
        workshop.open()


def test_a_container_of_another_repository_is_not_ours(workshop: Workshop, tmp_path: Path) -> None:
    """The right name in the wrong repository is wrong."""
    make_and_close(workshop)
    other = spec_at(tmp_path / "other", storage=TWO)
    Engine.initialize(other)
    identity = workshop.path / "c1" / "ullage.json"
    ours = identity.read_bytes()
    identity.write_bytes((tmp_path / "other" / "c1" / "ullage.json").read_bytes())

    repository = workshop.open()
    assert "not container c1" in repository.content.containers["c1"].condition.reason
    assert readable(repository) == 2
    workshop.shut()
    identity.write_bytes(ours)
    assert len(drain(workshop.open(), "q")) == 4


def test_a_container_may_be_appended_and_is_used_from_then_on(workshop: Workshop) -> None:
    """The new one gets its identity; left out later, it is read and emptied, and gets nothing new."""
    repository = workshop.make(claims={"max_flow_files": 1})
    put_all(repository, "q", [b"x"])

    repository = workshop.reopen(storage=TWO, claims={"max_flow_files": 1})
    put_each(repository, "q", [b"y"] * 3)
    workshop.close()

    assert {name.split("/")[0] for name in content_sizes(workshop.path)} == {"c1", "c2"}
    repository = workshop.open(claims={"max_flow_files": 1})
    put_each(repository, "new", [b"z"] * 4)
    assert {entry.claim.container for entry in repository.ledger.entries() if not entry.claim.sealed} <= {"c1"}
    assert len(drain(repository, "q")) == 4


@pytest.mark.parametrize("obstacle", ["file in its place", "somebody's content", "another repository's"])
@pytest.mark.parametrize("how", ["running", "start"])
def test_a_container_that_cannot_be_added_stops_no_start(
    workshop: Workshop, tmp_path: Path, obstacle: str, how: str
) -> None:
    """It is shown as away, with the reason, and made as soon as it can be, by the repository that runs or a start. The
    rest serves meanwhile.
    """
    put_all(workshop.make(), "q", [b"old"])
    workshop.close()
    place = workshop.path / "c2"
    if obstacle == "file in its place":
        place.write_text("in the way")
    elif obstacle == "somebody's content":
        (place / "7").mkdir(parents=True)
        (place / "7" / "1700000000000-7").write_bytes(b"somebody's")
    else:
        Engine.initialize(spec_at(tmp_path / "other"))
        shutil.copytree(tmp_path / "other" / "c1", place)

    repository = workshop.open(storage=TWO, claims={"max_flow_files": 1})

    condition = repository.content.containers["c2"].condition
    assert condition.state is VolumeState.AWAY
    assert "could not be made" in condition.reason
    repository.volumes.look()
    put_each(repository, "q", [b"new"] * 4)
    assert {entry.claim.container for entry in repository.ledger.entries()} == {"c1"}
    if how == "start":
        workshop.expects_problems = True
        workshop.close()

    place.unlink() if place.is_file() else shutil.rmtree(place)
    if how == "start":
        repository = workshop.open(storage=TWO, claims={"max_flow_files": 1})
    repository.volumes.look()
    assert repository.content.containers["c2"].condition.state is VolumeState.AVAILABLE
    put_each(repository, "q", [b"newer"] * 4)
    assert {entry.claim.container for entry in repository.ledger.entries()} == {"c1", "c2"}
    # The repository has it, whatever the settings say from now on.
    assert drain(workshop.crash(archive={}), "q") == [b"old", *[b"new"] * 4, *[b"newer"] * 4]


def test_damage_is_told_as_such_beside_a_container_that_cannot_be_made(workshop: Workshop) -> None:
    """The log knows nothing of that container, so mending it would mend nothing."""
    put_all(workshop.make(), "q", [b"x"])
    workshop.kill()
    flip(workshop.path / "flowfile" / "snapshot", 50)
    (workshop.path / "c2").write_text("in the way")

    with pytest.raises(RepositoryDamaged, match="snapshot"):
        workshop.open(storage=TWO)


def test_a_container_is_written_once_the_repository_is_known_to_have_it(workshop: Workshop) -> None:
    """Else a start under other settings would not know what content lies there."""
    workshop.make(claims={"max_flow_files": 1})
    workshop.close()
    (workshop.path / "c2").write_text("in the way")
    files = FailingFiles()
    repository = workshop.open(files, storage=TWO, claims={"max_flow_files": 1})
    (workshop.path / "c2").unlink()
    files.fail("rename", str(workshop.path / "ullage.json"))

    repository.volumes.look()
    put_each(repository, "q", [b"x"] * 4)

    assert {entry.claim.container for entry in repository.ledger.entries()} == {"c1"}
    assert "Input/output error" in repository.content.containers["c2"].condition.reason
    repository.volumes.look()
    put_each(repository, "q", [b"x"] * 4)
    assert {entry.claim.container for entry in repository.ledger.entries()} == {"c1", "c2"}


def test_where_a_wrong_volume_was_unmounted_nothing_is_made_before_the_right_one_is_there(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The right one would hide it a moment later, and look like one that lost its content."""
    workshop.make()
    workshop.close()
    place = workshop.path / "c2"
    (place / "7").mkdir(parents=True)
    (place / "7" / "1700000000000-7").write_bytes(b"somebody's")
    mounted = {str(place)}
    monkeypatch.setattr(RoomyFiles, "mark", lambda files, path: FileMark(2 if path in mounted else 1, 0, 0))
    repository = workshop.open(storage=TWO)
    shutil.rmtree(place)
    place.mkdir()
    mounted.clear()

    repository.volumes.look()

    assert "mount the volume" in repository.content.containers["c2"].condition.reason
    assert list(place.iterdir()) == []
    mounted.add(str(place))
    repository.volumes.look()
    assert repository.content.containers["c2"].condition.state is VolumeState.AVAILABLE


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
