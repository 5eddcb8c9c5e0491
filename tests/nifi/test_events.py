"""What provenance events name, read from event files."""

import gzip
import json
import os
import random
import tarfile
from pathlib import Path

import pytest

from tests.nifi.samples import GOLDEN_EVENTS
from tests.nifi.stopped import DEAD, LIVE, NAMED, NAMES, event_file, spans_of
from tests.tars import unpack_all
from ullage.nifi.events import NamedContents, event_files

FULL = "ULLAGE_NIFI_FULL" in os.environ


def read(directory: Path, files: set[str]) -> NamedContents:
    found = NamedContents(files)
    found.read([str(directory)])
    return found


@pytest.mark.parametrize("packed", sorted(GOLDEN_EVENTS.glob("*.tar.xz")), ids=lambda path: path.name)
def test_what_nifis_events_name_is_known(packed: Path, tmp_path: Path) -> None:
    """As the content of a FlowFile, as the one that it had before, or as both; compressed or not."""
    with tarfile.open(packed) as golden:
        unpack_all(golden, tmp_path)
    (place,) = tmp_path.iterdir()
    names = [(file, begin, size) for file, begin, size in json.loads((place / "names.json").read_text())]

    found = read(place, {file for file, _, _ in names})

    assert found.damages == []
    assert found.events >= len(names)
    assert len(list(place.glob("*.prov.gz"))) >= 1
    for file in {file for file, _, _ in names}:
        assert found.of(file) == sorted(spans_of(names, file))


def test_contents_are_named_by_whichever_event_has_them(tmp_path: Path) -> None:
    """Several files; of a file that is not on disk nothing is kept."""
    (tmp_path / "0.prov.gz").write_bytes(gzip.compress(event_file(NAMES[:1])) + gzip.compress(b""))
    (tmp_path / "1.prov").write_bytes(event_file(NAMES[1:]))
    (tmp_path / "toc").mkdir()

    found = read(tmp_path, {NAMED, DEAD})

    assert (found.of(NAMED), found.of(DEAD), found.of(LIVE)) == (spans_of(NAMES, NAMED), spans_of(NAMES, DEAD), [])
    assert found.damages == []


def test_many_names_of_one_file_take_little(tmp_path: Path) -> None:
    """What touches is one span: memory is that of what is named apart."""
    names = [(NAMED, begin, 10) for begin in range(0, 20_000, 10)]
    (tmp_path / "0.prov").write_bytes(event_file(names))

    found = read(tmp_path, {NAMED})

    assert found.of(NAMED) == [(0, 20_000)]
    assert len(found._spans[NAMED]) < 600


def test_an_event_that_was_being_written_is_none(tmp_path: Path) -> None:
    """NiFi died: it can't read it either."""
    whole = event_file(NAMES[:1])
    for cut in range(len(event_file(())), len(whole)):
        (tmp_path / "0.prov").write_bytes(whole[:cut])

        found = read(tmp_path, {NAMED})

        assert (found.of(NAMED), found.damages) == ([], [])


@pytest.mark.parametrize("name", ["0.prov", "0.prov.gz"])
def test_event_files_that_can_not_be_read_are_told(tmp_path: Path, name: str) -> None:
    """Whatever is in them: any content may be named there."""
    for data in (b"\0\x05other\0\0\0\1", event_file(NAMES) + b"\0" * 9, event_file(NAMES)[:-30] + b"\xff" * 40):
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)

        (damage,) = read(tmp_path, {NAMED}).damages

        assert damage.file == str(tmp_path / name)


def test_a_compressed_file_that_ends_too_early_is_told(tmp_path: Path) -> None:
    """NiFi removes what it compressed only once that is whole, so this was damaged later."""
    whole = gzip.compress(event_file(NAMES))
    for cut in (len(whole) - 1, len(whole) // 2):
        (tmp_path / "0.prov.gz").write_bytes(whole[:cut])

        assert len(read(tmp_path, {NAMED}).damages) == 1


def test_of_a_file_that_was_being_compressed_the_whole_one_is_read() -> None:
    """As NiFi does, which begins again to compress it."""
    assert event_files(["1.prov.gz", "1.prov", "2.prov.gz", "toc", "x.provx"]) == ["1.prov", "2.prov.gz"]


def test_no_directory_names_nothing_and_one_that_can_not_be_listed_is_told(tmp_path: Path) -> None:
    """NiFi makes it at its first start."""
    assert read(tmp_path / "nowhere", {NAMED}).damages == []
    (tmp_path / "file").touch()
    assert len(read(tmp_path / "file", {NAMED}).damages) == 1


def test_events_of_any_bytes_are_told_or_read(tmp_path: Path) -> None:
    """Each byte of an event file changed: never an error of ours, and never more than it says."""
    whole = event_file(NAMES)
    for at in range(len(whole)) if FULL else random.Random(7).sample(range(len(whole)), 100):
        for value in (0, 0x7F, 0xFF):
            (tmp_path / "0.prov").write_bytes(whole[:at] + bytes([value]) + whole[at + 1 :])

            found = read(tmp_path, {NAMED, DEAD, LIVE})

            assert len(found.damages) <= 1


def test_a_compressed_file_without_its_last_event_is_told(tmp_path: Path) -> None:
    """It is compressed from one that was whole: what is missing may name anything."""
    (tmp_path / "0.prov.gz").write_bytes(gzip.compress(event_file(NAMES)[:-5]))

    (damage,) = read(tmp_path, {NAMED}).damages

    assert damage.what == "it ends amid an event"
