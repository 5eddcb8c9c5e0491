"""What a survey of a damaged repository finds of a real one."""

import shutil
from pathlib import Path

import pytest

import ullage
from tests.fuzz.corpus import with_header
from ullage.engine.check.salvage import SurveyedSource, survey
from ullage.engine.files import OsFiles
from ullage.engine.wal.format import FRAME_HEADER_BYTES

HANDLES = 5


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """What a process that was killed leaves: an early snapshot, and a log with a transaction for each handle."""
    path = tmp_path / "source"
    ullage.initialize(path)
    with ullage.open(path) as repository:
        for number in range(HANDLES):
            repository.handles.put(b"content %d" % number)
        return Path(shutil.copytree(path, tmp_path / "killed"))


def surveyed(root: Path) -> SurveyedSource:
    """The survey, which must have changed nothing."""
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    source = survey(OsFiles(), str(root))
    assert before == {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    return source


def test_a_sound_repository_is_whole_also_without_its_identity(root: Path) -> None:
    """Every file of records names its repository, so `ullage.json` is not needed."""
    for _ in range(2):
        source = surveyed(root)
        assert len(source.chain.proved) >= HANDLES
        assert source.is_whole
        assert source.lost == []
        assert source.repository is not None
        (root / "ullage.json").unlink(missing_ok=True)


@pytest.mark.parametrize("keeps_copy", [True, False])
def test_a_snapshot_without_its_header_is_named(root: Path, *, keeps_copy: bool) -> None:
    """Nothing is missing as long as the copy at its end is there; without both nobody knows where its blocks begin."""
    path = root / "flowfile" / "snapshot"
    data = path.read_bytes()
    path.write_bytes(b"\0" * 8 + data[8:] if keeps_copy else b"\0" * 8 + data[8:-8] + b"\0" * 8)
    source = surveyed(root)
    assert source.is_whole == keeps_copy
    assert [lost.path for lost in source.lost][:1] == [str(path)]


@pytest.mark.parametrize("what", ["snapshot", "partition-*/*.wal"])
def test_a_header_that_was_written_wrong_is_named(root: Path, what: str) -> None:
    """Its checksum is right, so it proves that nobody knows what follows it."""
    path = next((root / "flowfile").glob(what))
    path.write_bytes(with_header(path.read_bytes(), b"\xc1"))
    source = surveyed(root)
    assert not source.is_whole
    assert str(path) in {lost.path for lost in source.lost}


def test_an_empty_directory_gives_nothing_and_says_what_is_missing(tmp_path: Path) -> None:
    """A survey finds nothing there, and does not fail."""
    source = surveyed(tmp_path)
    assert (source.repository, source.is_whole) == (None, False)
    assert [lost.reason for lost in source.lost] == ["it is missing"]


def test_transactions_behind_a_damaged_one_are_kept_apart(root: Path) -> None:
    """The lost one may have changed or deleted what they leave."""
    proved = surveyed(root).chain.proved
    victim = proved[len(proved) // 2]
    data = bytearray(Path(victim.path).read_bytes())
    data[victim.offset + FRAME_HEADER_BYTES] ^= 1
    Path(victim.path).write_bytes(data)
    found = surveyed(root).chain
    id = victim.header.id
    assert found.gaps == [(id, id)]
    assert found.proved + found.behind == [frame for frame in proved if frame is not victim]
    assert all(frame.header.id < id for frame in found.proved)
