"""Links that somebody put where a backup, or a damaged repository, is read or written: none is followed."""

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from crc32c import crc32c

from tests.support import Workshop, put_all, spec_at
from ullage.beneath import LeadsOut
from ullage.engine.backupplace import MANIFEST
from ullage.engine.engine import Engine
from ullage.engine.files import OsFiles
from ullage.engine.salvaging import salvage
from ullage.errors import InvalidArgument, RepositoryDamaged

KB = 1 << 10
SECRET = b"what only the restorer may read" * 100


def linked(path: Path, target: Path) -> None:
    """Move what lies there away, and leave a link to it."""
    path.rename(target)
    path.symlink_to(target)


@pytest.fixture
def backup(repository: Engine, tmp_path: Path) -> Path:
    """Of a repository with some content."""
    put_all(repository, "q", [b"a" * KB, b"b" * 70 * KB])
    repository.backup(str(tmp_path / "b"))
    return tmp_path / "b"


@pytest.mark.parametrize("what", ["backup.json", "content", "content/c1", "flowfile", "flowfile/snapshot-1.*"])
def test_a_backup_with_a_link_in_it_is_refused(backup: Path, what: str, tmp_path: Path) -> None:
    """Also one that leads to the very bytes that the manifest means: a link may lead elsewhere at the next look."""
    (found,) = backup.glob(what)
    linked(found, tmp_path / "elsewhere")

    with pytest.raises(RepositoryDamaged, match="link"):
        Engine.restore_backup(str(backup), spec_at(tmp_path / "again"))

    assert not (tmp_path / "again" / "ullage.json").exists()


def test_a_forged_manifest_makes_no_content_of_a_foreign_file(backup: Path, tmp_path: Path) -> None:
    """With the right length and checksum, which whoever forges it may know, the link was read as content."""
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    manifest = msgspec.json.decode((backup / MANIFEST).read_bytes().rpartition(b"\n")[0])
    content = manifest["contents"][0]
    content |= {"length": len(SECRET), "crc": crc32c(SECRET)}
    lies_at = backup / (content["path"] + content["suffix"])
    lies_at.unlink()
    lies_at.symlink_to(secret)
    body = msgspec.json.encode(manifest)
    (backup / MANIFEST).write_bytes(body + b"\n%08x" % crc32c(body))

    with pytest.raises(RepositoryDamaged, match="link"):
        Engine.restore_backup(str(backup), spec_at(tmp_path / "again"))

    copies = [path for path in (tmp_path / "again").rglob("*") if path.is_file() and SECRET in path.read_bytes()]
    assert copies == []


@pytest.mark.parametrize("what", ["content", "content/c1", "flowfile", "swap"])
def test_a_backup_is_not_written_through_a_link(repository: Engine, what: str, tmp_path: Path) -> None:
    """Whoever may write where backups lie could have the repository's process write into any directory."""
    put_all(repository, "q", [b"a" * KB])
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "b" / what).parent.mkdir(parents=True)
    (tmp_path / "b" / what).symlink_to(tmp_path / "elsewhere")

    with pytest.raises(InvalidArgument, match="link"):
        repository.backup(str(tmp_path / "b"))

    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_no_link_on_the_way_to_a_backup_is_followed_within_a_folder(repository: Engine, tmp_path: Path) -> None:
    """The folder is the owner's own word, a link below it is not."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "b").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "alias").symlink_to(tmp_path / "folder")

    with pytest.raises(InvalidArgument, match="link"):
        repository.backup(str(tmp_path / "folder" / "b" / "c"), within=str(tmp_path / "folder"))
    repository.backup(str(tmp_path / "alias" / "d"), within=str(tmp_path / "alias"))

    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert (tmp_path / "folder" / "d" / MANIFEST).is_file()


def test_a_salvage_reads_nothing_through_a_link_and_names_it(workshop: Workshop, tmp_path: Path) -> None:
    """What it says can't be read can be copied to its place, and the salvage be run again."""
    put_all(workshop.make(), "q", [b"a" * KB])
    workshop.close()
    linked(workshop.path / "c1", tmp_path / "elsewhere")

    report = salvage(str(workshop.path), spec_at(tmp_path / "again"))

    assert [(each.path, "link" in each.reason) for each in report.damaged] == [(str(workshop.path / "c1"), True)]
    assert (report.lost_count, report.is_whole) == (1, False)


def test_every_call_on_a_path_behind_a_link_is_refused(tmp_path: Path) -> None:
    """A directory that is a link is refused by whatever asks for something in it, and so is a file that is one."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "file").write_bytes(b"x")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "way").symlink_to(tmp_path / "out")
    (tmp_path / "in" / "link").symlink_to(tmp_path / "out" / "file")
    (tmp_path / "in" / "plain").write_bytes(b"y")
    files = OsFiles().without_links_below(str(tmp_path / "in"))
    behind, link, plain = (str(tmp_path / "in" / name) for name in ("way/file", "link", "plain"))

    new = str(tmp_path / "in" / "way" / "new")
    calls: list[tuple[Callable[..., object], tuple[str, ...]]] = [
        *((files.open, (path,)) for path in (behind, link)),
        *((files.open_descriptor, (path,)) for path in (behind, link)),
        *((call, (new,)) for call in (files.create, files.make_directory)),
        *((call, (behind,)) for call in (files.exists, files.size, files.unlink)),
        *((call, (str(tmp_path / "in" / "way"),)) for call in (files.list_directory, files.sync_directory)),
        *((files.rename, pair) for pair in ((behind, plain), (plain, new))),
    ]
    for call, paths in calls:
        with pytest.raises(LeadsOut):
            call(*paths)

    assert sorted(os.listdir(tmp_path / "out")) == ["file"]
    assert not files.size(link).is_file
    assert (files.exists(plain), files.exists(link)) == (True, True)
