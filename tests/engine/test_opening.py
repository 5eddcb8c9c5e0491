"""Init and open: interrupted, repeated, refused; what is missing is named, and nothing is removed."""

import errno
import shutil
from pathlib import Path

import pytest

from tests.failing_files import FailingFiles
from tests.support import Workshop, content_sizes, drain, open_descriptors, put_all, spec_at
from ullage.contract import ContainerSettings
from ullage.engine.engine import Engine
from ullage.errors import ForeignContainer, NotARepository, RepositoryDamaged, RepositoryExists, RepositoryLocked

TWO = {"containers": (ContainerSettings(name="c1", sub_path="c1"), ContainerSettings(name="c2", sub_path="volumes/c2"))}


def test_an_init_interrupted_at_any_step_is_resumed(tmp_path: Path) -> None:
    """Until its commit point there is no repository; doing it again finishes it, with a repository that works."""
    counted = FailingFiles()
    Engine.initialize(spec_at(tmp_path / "counted", storage=TWO), counted)
    total = len(counted.calls)
    assert total > 20

    for last in range(total):
        spec = spec_at(tmp_path / f"at-{last}", storage=TWO)
        files = FailingFiles()
        files.fail("*", at=last + 1, times=total, error=KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            Engine.initialize(spec, files)
        try:
            Engine.initialize(spec)
        except RepositoryExists:
            # Past the commit point: only the syncs behind it are missing.
            assert (tmp_path / f"at-{last}" / "ullage.json").exists()
        with Engine.open(spec) as repository:
            put_all(repository, "q", [b"x"])
            assert repository.check(deep=True).problems == ()
        shutil.rmtree(tmp_path / f"at-{last}")


def test_an_init_whose_first_file_was_torn_is_begun_anew(tmp_path: Path) -> None:
    """Nothing else was made when power was lost."""
    spec = spec_at(tmp_path / "r")
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "ullage.json.partial").write_bytes(b'{"repos')

    Engine.initialize(spec)

    with Engine.open(spec) as repository:
        put_all(repository, "q", [b"x"])


def test_an_init_that_did_not_end_is_told_and_not_resumed_for_another(tmp_path: Path, files: FailingFiles) -> None:
    """The way out is to run init again; it takes over no container that belongs to somebody else by then."""
    spec = spec_at(tmp_path / "r", storage=TWO)
    files.fail("rename", "*/r/ullage.json")
    with pytest.raises(OSError, match="Input/output"):
        Engine.initialize(spec, files)
    Engine.initialize(spec_at(tmp_path / "other"))

    with pytest.raises(NotARepository, match="run `ullage init` again"):
        Engine.open(spec)
    shutil.copy(tmp_path / "other" / "c1" / "ullage.json", tmp_path / "r" / "c1" / "ullage.json")
    with pytest.raises(ForeignContainer):
        Engine.initialize(spec)


def test_init_never_overwrites_a_repository(workshop: Workshop, repository: Engine) -> None:
    """Doing it again is refused while it is open, and after."""
    put_all(repository, "q", [b"x"])

    with pytest.raises(RepositoryLocked):
        Engine.initialize(workshop.spec)
    repository = workshop.reopen()
    workshop.close()
    with pytest.raises(RepositoryExists, match="already holds"):
        Engine.initialize(workshop.spec)

    assert drain(workshop.open(), "q") == [b"x"]


@pytest.mark.parametrize("exists", [False, True])
def test_a_directory_without_a_repository_is_left_as_it_is(tmp_path: Path, exists: bool) -> None:
    """The error says to run init, and nothing is left in somebody's directory."""
    root = tmp_path / "r"
    if exists:
        root.mkdir()

    with pytest.raises(NotARepository, match="ullage init"):
        Engine.open(spec_at(root))

    assert not exists or list(root.iterdir()) == []


def test_a_root_without_its_identity_is_damaged(workshop: Workshop) -> None:
    """Open and init both refuse it and name the file."""
    put_all(workshop.make(), "q", [b"x"])
    workshop.close()
    identity = (workshop.path / "ullage.json").rename(workshop.path / "saved")

    with pytest.raises(RepositoryDamaged, match=r"ullage\.json is missing"):
        Engine.open(workshop.spec)
    with pytest.raises(RepositoryDamaged, match="restore that file"):
        Engine.initialize(workshop.spec)

    identity.rename(workshop.path / "ullage.json")
    assert drain(workshop.open(), "q") == [b"x"]


@pytest.mark.parametrize("lost", ["flowfile", "flowfile/snapshot"])
def test_a_lost_flowfile_repository_stops_the_start(workshop: Workshop, lost: str) -> None:
    """NiFi deletes all content then; here the error names the way out, twice over, and nothing is removed."""
    put_all(workshop.make(), "q", [b"x" * 1000])
    workshop.close()
    before = content_sizes(workshop.path)
    (workshop.path / lost).rename(workshop.path / "saved")

    for _ in range(2):
        with pytest.raises(RepositoryDamaged, match="restore") as caught:
            Engine.open(workshop.spec)
        assert "nothing was removed" in str(caught.value)

    assert content_sizes(workshop.path) == before
    (workshop.path / "saved").rename(workshop.path / lost)
    assert drain(workshop.open(), "q") == [b"x" * 1000]


def test_an_empty_ledger_beside_content_stops_the_start(workshop: Workshop) -> None:
    """Snapshot and logs lost, with only a torn partial left: that is not an empty repository."""
    put_all(workshop.make(), "q", [b"x" * 1000])
    workshop.close()
    before = content_sizes(workshop.path)
    flowfile = workshop.path / "flowfile"
    (flowfile / "snapshot").rename(flowfile / "snapshot.partial")
    with (flowfile / "snapshot.partial").open("r+b") as file:
        file.truncate(20)
    for partition in flowfile.glob("partition-*"):
        shutil.rmtree(partition)

    for _ in range(2):
        with pytest.raises(RepositoryDamaged, match="restore"):
            Engine.open(workshop.spec)

    assert content_sizes(workshop.path) == before


def test_a_second_process_is_locked_out(workshop: Workshop, repository: Engine) -> None:
    """Until the first one closes, whatever files somebody removes; a failed attempt disturbs nothing."""
    for path in workshop.path.iterdir():
        if path.is_file() and path.name != "ullage.json":
            path.unlink()
    with pytest.raises(RepositoryLocked, match="another process"):
        Engine.open(workshop.spec)
    put_all(repository, "q", [b"x"])

    assert drain(workshop.reopen(), "q") == [b"x"]


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("open", "*/r/ullage.json"),
        ("open", "*/c1/ullage.json"),
        ("open", "*/flowfile/snapshot"),
        ("create", "*/partition-0/*"),
        ("sync", "*/snapshot.partial"),
        ("rename", "*/flowfile/snapshot"),
        ("list_directory", "*/swap"),
        ("unlink", "*/c1/*-*"),
    ],
)
def test_a_failed_open_releases_everything(tmp_path: Path, kind: str, path: str) -> None:
    """Whatever failed, no descriptor and no lock is left, and a second open works."""
    spec = spec_at(tmp_path / "r", archive={"enabled": False})
    files = FailingFiles()
    Engine.initialize(spec)
    repository = Engine.open(spec, files)
    put_all(repository, "q", [b"x" * (2 << 20)])
    put_all(repository, "keep", [b"y"])
    drain(repository, "q")
    files.fail("unlink", "*/c1/*-*", error=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        repository.reclamation.clean()
    repository.log.abandon()
    repository.close()
    before = open_descriptors(tmp_path)
    files.fail(kind, path, error=errno.EIO)

    with pytest.raises((OSError, ForeignContainer), match="Input/output"):
        Engine.open(spec, files)

    assert open_descriptors(tmp_path) == before
    with Engine.open(spec, files) as repository:
        assert repository.check(deep=True).problems == ()
        assert drain(repository, "keep") == [b"y"]
