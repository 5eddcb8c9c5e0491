"""An erasure that overwrites: what it removes is read afterwards by descriptors that were open before."""

import errno
import os
from pathlib import Path

import pytest

from tests.engine.test_erasure import (
    CONTENT,
    PLAIN,
    SMALL,
    UNTOLD,
    VALUE,
    erase_by,
    opened_anew,
    others,
    plant_everything,
)
from tests.engine.test_erasure_finder import CANARY
from tests.support import Workshop, put_all
from ullage.engine.erasure.eraser import Eraser
from ullage.engine.erasure.overwriting import PIECE, OverwritingFiles
from ullage.engine.files import File, OsFiles
from ullage.testing.crashing import Call, CrashFiles
from ullage.wire.erasure import ErasureReport

MINE = CONTENT, VALUE


class KeptFiles(OsFiles):
    """Of each file that was there or was made since, a descriptor: what was in it can be read when it has gone."""

    def __init__(self, *, in_place: bool = True) -> None:
        super().__init__()
        self.kept: list[tuple[str, int]] = []
        self._in_place = in_place

    def keep(self, path: str | Path) -> None:
        self.kept.append((str(path), os.open(path, os.O_RDONLY)))

    def create(self, path: str) -> File:
        file = super().create(path)
        self.keep(path)
        return file

    def overwrites_in_place(self, path: str) -> bool:
        return self._in_place  # whatever filesystem the tests run on

    def with_subject(self) -> list[str]:
        """Whatever has its bytes, and is away."""
        return [
            path
            for path, file in self.kept
            if os.fstat(file).st_nlink == 0 and any(each in os.pread(file, 1 << 30, 0) for each in MINE)
        ]

    def close(self) -> None:
        for _, file in self.kept:
            os.close(file)


def watched(workshop: Workshop, *, in_place: bool = True) -> KeptFiles:
    """Every kind of record of the subject is there, and is watched from here on."""
    repository = workshop.make(**PLAIN, **SMALL)
    plant_everything(repository)
    workshop.shut()
    files = KeptFiles(in_place=in_place)
    for path in filter(Path.is_file, workshop.path.rglob("*")):
        files.keep(path)
    return files


def erased(workshop: Workshop, overwriting: OverwritingFiles) -> ErasureReport:
    """As `ullage erase --overwrite` does."""
    repository = workshop.open(overwriting)
    return erase_by(Eraser(repository, UNTOLD, overwriting), repository)


def test_what_goes_is_zeros(workshop: Workshop) -> None:
    """Content, swap, event and run files, logs, snapshots, the intent: also those that were made and replaced
    meanwhile. What is others' is there; without it bytes of the subject are in files that have gone.
    """
    files = watched(workshop)
    before = others(workshop.open())
    workshop.shut()
    overwriting = OverwritingFiles(files)

    report = erased(workshop, overwriting)
    after = others(opened_anew(workshop))
    workshop.shut()
    overwriting.close()

    assert report.is_finished
    assert files.with_subject() == []
    assert after == before
    assert report.overwritten_bytes
    assert any(f"{report.overwritten_bytes} bytes were overwritten" in each for each in report.not_promised)
    files.close()


def test_without_it_what_goes_is_in_free_blocks(workshop: Workshop) -> None:
    """So the search finds something; and where bytes that are written again get other blocks nothing is overwritten,
    and that is certified.
    """
    files = watched(workshop, in_place=False)
    overwriting = OverwritingFiles(files)

    report = erased(workshop, overwriting)

    workshop.shut()
    overwriting.close()
    assert files.with_subject()
    assert report.overwritten_bytes == 0
    assert any("Files that were not overwritten" in each for each in report.not_promised)
    files.close()


def test_a_file_with_another_name_is_somebodys_copy(workshop: Workshop, tmp_path: Path) -> None:
    """It stays as it is, with what is others' in it, and the report tells."""
    put_all(workshop.make(**PLAIN), "in", [CONTENT], **CANARY)
    workshop.shut()
    (content,) = (each for each in workshop.path.rglob("*") if each.is_file() and CONTENT in each.read_bytes())
    copy = tmp_path / "copy"
    os.link(content, copy)
    overwriting = OverwritingFiles(KeptFiles())

    report = erased(workshop, overwriting)
    workshop.shut()

    assert not content.exists()
    assert CONTENT in copy.read_bytes()
    assert any("because they have another name as well: 1." in each for each in report.not_promised)


@pytest.mark.parametrize("way", ["punch", "truncate"])
def test_a_part_that_goes_is_zeros_before(way: str) -> None:
    """And nothing beside it; what is zeros already, or a hole, is not written."""
    files = CrashFiles()
    seen: list[bytes] = []

    def look(call: Call) -> None:
        if call.kind == way:
            seen.append(files.image().files["/file"])

    files.before = look
    overwriting = OverwritingFiles(files)
    file = overwriting.create("/file")
    file.write(b"x" * 4 * PIECE, 0)
    file.write(bytes(PIECE), 2 * PIECE)

    if way == "punch":
        file.punch(PIECE, 3 * PIECE)
    else:
        file.truncate(PIECE)

    assert seen[0] == b"x" * PIECE + bytes(3 * PIECE)
    assert overwriting.overwritten.bytes == 2 * PIECE
    assert file.read(PIECE, 0) == b"x" * PIECE


def test_what_cannot_be_overwritten_stays_and_is_told() -> None:
    """It keeps its name: so the next erasure tries again."""
    files = CrashFiles()
    files.create("/file").write(b"x", 0)
    overwriting = OverwritingFiles(files)

    def refuse(call: Call) -> None:
        if call.kind == "write":
            raise OSError(errno.EIO, "refused")

    files.before = refuse
    with pytest.raises(OSError, match="refused"):
        overwriting.unlink("/file")

    assert files.exists("/file")
    assert "/file could not be overwritten" in overwriting.overwritten.failures[0]
