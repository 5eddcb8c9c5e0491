"""What a backup or a restoration that can't be says: the place, what is wrong there, and nothing that misleads."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

import ullage
from ullage.beneath import LeadsOut
from ullage.engine.backupdirectory import DirectoryPlace
from ullage.engine.byteranges import require_range
from ullage.engine.files import OsFiles
from ullage.errors import ContentMissing, DirectoryUnusable, RangeNotSatisfiable, RepositoryDamaged
from ullage_agent.cli.app import app
from ullage_agent.cli.exits import ExitCode


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    """Of a FlowFile."""
    with ullage.open(tmp_path / "r", create=True) as repository:
        repository.queues.put("in", b"a" * 70_000)
        repository.backup(str(tmp_path / "b"))
    return tmp_path / "b"


def test_a_target_that_cannot_be_is_told_as_it_is_of_a_backup(backup: Path, tmp_path: Path) -> None:
    """With its path, and with one exit code for both commands, whether all of a backup goes there or some of it."""
    (tmp_path / "file").touch()
    for target in (tmp_path / ("x" * 300), tmp_path / "file" / "below"):
        with pytest.raises(DirectoryUnusable, match=r"Say another place than"):
            ullage.restore(backup, target)
        with pytest.raises(DirectoryUnusable, match=r"Say another place than"):
            ullage.restore_some(backup, target, queues=["in"])
        codes = [
            CliRunner().invoke(app, ["restore", str(backup), str(target)]).exit_code,
            CliRunner().invoke(app, ["backup", str(target), "--root", str(tmp_path / "r")]).exit_code,
        ]
        assert codes == [ExitCode.USAGE, ExitCode.USAGE]


def test_what_is_no_file_in_a_backup_is_told_as_that(backup: Path, tmp_path: Path) -> None:
    """A pipe in the place of a content, and a directory in that of the list: no repository is meant, and none named."""
    [content] = (backup / "content" / "c1").iterdir()
    content.unlink()
    os.mkfifo(content)
    with pytest.raises(ContentMissing, match=r"is no file$"):
        ullage.restore(backup, tmp_path / "one")
    content.unlink()
    with pytest.raises(ContentMissing, match=r"is missing$"):
        ullage.restore(backup, tmp_path / "one")
    (backup / "backup.json").unlink()
    (backup / "backup.json").mkdir()
    with pytest.raises(RepositoryDamaged, match=r"backup\.json is no file, as in no backup"):
        ullage.restore(backup, tmp_path / "two")


def test_a_link_to_what_somebody_has_locked_is_told_as_a_link(tmp_path: Path) -> None:
    """Not as if somebody else wrote a backup there: the lock would follow it."""
    (tmp_path / "within").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "within" / "b").symlink_to(tmp_path / "elsewhere")
    files = OsFiles()
    place = DirectoryPlace(files, str(tmp_path / "within" / "b"), str(tmp_path / "within"))
    lock = files.lock(str(tmp_path / "elsewhere"))
    with pytest.raises(LeadsOut), place.writing():
        pass
    lock.close()


def test_a_range_that_begins_behind_the_end_has_no_negative_size() -> None:
    """As of a reader who leaves the size to the content."""
    with pytest.raises(RangeNotSatisfiable, match=r"^offset 2 lies outside the content of 1 bytes"):
        require_range(2, -1, 1)
    with pytest.raises(RangeNotSatisfiable, match=r"^range 0\+2 lies outside"):
        require_range(0, 2, 1)
