"""Log and snapshot may lie on a volume of their own, mounted at `flowfile`: a missing or wrong one stops the start.

What stands for a mounted volume here is a directory with the `lost+found` that mkfs leaves.
"""

from pathlib import Path

import pytest

from tests.support import ManualClock, RoomyFiles, Workshop, drain, put_all, spec_at
from ullage.engine.engine import Engine
from ullage.errors import DirectoryNotEmpty, RepositoryDamaged


def volume(path: Path) -> Path:
    """A fresh volume, mounted there."""
    (path / "lost+found").mkdir(parents=True)
    return path


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(found.relative_to(directory)): found.read_bytes()
        for found in sorted(directory.rglob("*"))
        if found.is_file()
    }


def test_a_repository_is_made_on_mounted_volumes(workshop: Workshop) -> None:
    """`lost+found` is nobody's data; the log and its reserve lie on their volume."""
    for name in ("flowfile", "c1"):
        volume(workshop.path / name)
    repository = workshop.make()
    put_all(repository, "q", [b"content"])

    repository.checkpoint()

    assert {"snapshot", "ballast", "partition-0"} <= {found.name for found in (workshop.path / "flowfile").iterdir()}
    assert drain(workshop.crash(), "q") == [b"content"]


def test_a_directory_with_somebodys_files_is_no_fresh_volume(workshop: Workshop) -> None:
    """A log whose identity file is gone is not written over."""
    (volume(workshop.path / "flowfile") / "snapshot").write_bytes(b"somebody's")

    with pytest.raises(RepositoryDamaged, match=r"no ullage\.json"):
        workshop.make()


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_log_volume_that_is_not_mounted_refuses_the_start(workshop: Workshop, is_clean: bool) -> None:
    """By that name, with nothing made on what lies below the mount point; mounted again, everything is there."""
    put_all(workshop.make(), "q", [b"content"])
    if is_clean:
        workshop.shut()
    else:
        workshop.kill()
    mounted, away = workshop.path / "flowfile", workshop.path.parent / "away"
    mounted.rename(away)
    mounted.mkdir()

    with pytest.raises(RepositoryDamaged, match="has no snapshot: is its volume mounted"):
        workshop.open()

    assert list(mounted.iterdir()) == []
    mounted.rmdir()
    away.rename(mounted)
    assert drain(workshop.open(), "q") == [b"content"]


@pytest.mark.parametrize("left", ["", "snapshot.partial", "only the partial"])
def test_another_repositorys_log_volume_refuses_the_start(workshop: Workshop, left: str) -> None:
    """By both uuids, and the other's files are as they were, what a checkpoint of it left included."""
    put_all(workshop.make(), "q", [b"ours"])
    workshop.shut()
    other = spec_at(workshop.path.parent / "other")
    Engine.initialize(other, RoomyFiles(), ManualClock())
    with Engine.open(other, RoomyFiles(), ManualClock()) as repository:
        put_all(repository, "q", [b"theirs"])
    ours, theirs = workshop.path / "flowfile", workshop.path.parent / "other" / "flowfile"
    if left:
        (theirs / "snapshot.partial").write_bytes((theirs / "snapshot").read_bytes())
    if left == "only the partial":
        (theirs / "snapshot").unlink()
    before = contents(theirs)
    ours.rename(workshop.path / "away")
    theirs.rename(ours)

    with pytest.raises(RepositoryDamaged, match=r"belongs to repository .* check which volume is mounted"):
        workshop.open()

    assert contents(ours) == before
    ours.rename(theirs)
    (workshop.path / "away").rename(ours)
    assert drain(workshop.open(), "q") == [b"ours"]


def test_a_backup_is_restored_onto_mounted_volumes(workshop: Workshop, tmp_path: Path) -> None:
    """Empty ones; one with anything else in it is refused."""
    repository = workshop.make()
    put_all(repository, "q", [b"content"])
    repository.backup(str(tmp_path / "backup"))
    target = tmp_path / "restored"
    for name in ("flowfile", "c1"):
        volume(target / name)
    (target / "flowfile" / "snapshot").write_bytes(b"somebody's")
    with pytest.raises(DirectoryNotEmpty, match="flowfile is not empty"):
        Engine.restore_backup(str(tmp_path / "backup"), spec_at(target), RoomyFiles())
    (target / "flowfile" / "snapshot").unlink()

    Engine.restore_backup(str(tmp_path / "backup"), spec_at(target), RoomyFiles())

    with Engine.open(spec_at(target), RoomyFiles(), ManualClock()) as again:
        assert again.check(deep=True).problems == ()
        assert drain(again, "q") == [b"content"]
