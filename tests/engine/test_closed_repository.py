"""What is still at work when a repository is closed changes nothing that is the next owner's."""

import os
import threading
from io import RawIOBase
from pathlib import Path

import pytest

import ullage
from tests.engine.test_backup import files_below
from ullage.embedded.repository import EmbeddedRepository
from ullage.engine.files import OsFiles
from ullage.engine.heldfiles import HeldFiles
from ullage.errors import NotRestored

MIB = 1 << 20


class Stream(RawIOBase):
    """Four MiB, of which the last two come once they are let through."""

    def __init__(self) -> None:
        self.pieces = 0
        self.waits, self.goes_on = threading.Event(), threading.Event()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        self.pieces += 1
        if self.pieces == 3:
            self.waits.set()
            assert self.goes_on.wait(60)
        return os.urandom(MIB) if self.pieces <= 4 else b""


def test_a_put_amid_its_stream_writes_no_file_of_the_next_owner(tmp_path: Path) -> None:
    """It shared a file with an acknowledged handle, and went on to write it once another process had opened that."""
    repository = ullage.open(tmp_path / "r", create=True, maintain=False)
    handles, stream, told = repository.handles, Stream(), list[BaseException]()
    handle = handles.put(b"small" * 100)

    def put() -> None:
        try:
            handles.put(stream)
        except ullage.UllageError as error:
            told.append(error)

    putting = threading.Thread(target=put)
    putting.start()
    assert stream.waits.wait(60)
    repository.close()
    with ullage.open(tmp_path / "r", maintain=False) as owner:
        before = files_below(tmp_path / "r" / "c1")
        stream.goes_on.set()
        putting.join(60)
        assert [type(error) for error in told] == [NotRestored]
        assert files_below(tmp_path / "r" / "c1") == before
        assert owner.check(deep=True).problems == ()
        assert owner.handles.get(handle) == b"small" * 100


def test_a_file_that_is_made_while_the_repository_closes_is_closed_too(tmp_path: Path) -> None:
    """Its maker is refused; no descriptor is left."""
    files = HeldFiles(OsFiles(), None)
    kept = files.create(str(tmp_path / "kept"))
    before = len(os.listdir("/proc/self/fd"))
    kept.write(b"before", 0)

    files.close()
    kept.close()

    assert len(os.listdir("/proc/self/fd")) == before - 1
    assert (tmp_path / "kept").read_bytes() == b"before"
    for step in (
        lambda: kept.write(b"after", 0),
        lambda: kept.truncate(0),
        kept.sync,
        lambda: files.create(str(tmp_path / "another")),
        lambda: files.unlink(str(tmp_path / "kept")),
    ):
        with pytest.raises(NotRestored):
            step()
    assert [each.name for each in tmp_path.iterdir()] == ["kept"]


def test_a_put_that_is_durable_when_the_repository_closes_is_told_as_that(tmp_path: Path) -> None:
    """Its caller would put it again after an error."""
    repository = ullage.open(tmp_path / "r", create=True, maintain=False)
    assert isinstance(repository, EmbeddedRepository)
    handles = repository.handles
    first = handles.put(b"first")  # and no commit but that of its own is needed for the next one
    repository.hear_commits(lambda _seconds: repository.close())

    second = handles.put(b"second")

    with ullage.open(tmp_path / "r", maintain=False) as owner:
        assert {each.id for each in owner.handles.all()} == {first, second}
        assert owner.handles.get(second) == b"second"
