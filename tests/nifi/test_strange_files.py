"""What lies under a name of NiFi's may be no file, and a name may be none: told at once, nothing is waited for."""

import gzip
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.nifi.samples import home_of_sample, unpacked
from tests.nifi.test_hostile import KILLED, overflow_of, swap_of
from tests.nifi.test_moment import journal_of, repository
from tests.nifi.test_survey import survey
from ullage.nifi.home import NAME_MAX, queue_names
from ullage.nifi.opened import open_regular
from ullage.nifi.trouble import NotSurveyable

DEPTH = 1_500
"""More than Python calls itself."""

Place = Callable[[Path], Path]


def checkpoint_of_sample(place: Path) -> Path:
    return repository(place) / "checkpoint"


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
@pytest.mark.parametrize("which", [checkpoint_of_sample, journal_of])
def test_what_the_survey_stands_on_must_be_a_file(which: Place, make: Callable[[Path], None], tmp_path: Path) -> None:
    """A pipe was waited for until the end of time; a directory was told without its path."""
    place = unpacked(KILLED, tmp_path)
    found = which(place)
    found.unlink()
    make(found)

    with pytest.raises(NotSurveyable, match=f"{found} can't be read: it is no file"):
        survey(home_of_sample(place))


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
@pytest.mark.parametrize("which", [swap_of, overflow_of])
def test_what_else_is_no_file_is_damage(which: Place, make: Callable[[Path], None], tmp_path: Path) -> None:
    """All else is read."""
    place = unpacked(KILLED, tmp_path)
    found = which(place)
    found.unlink()
    make(found)

    damages = survey(home_of_sample(place)).damages

    assert [each.loses_flowfiles for each in damages if "no file, but" in each.what] == [True]


def test_a_flow_that_is_a_pipe_costs_the_names_only(tmp_path: Path) -> None:
    """As any other that can't be read."""
    os.mkfifo(tmp_path / "flow.json.gz")

    names, damages = queue_names(str(tmp_path / "flow.json.gz"))

    assert (names, len(damages)) == ({}, 1)


def test_names_of_nested_groups_take_bounded_memory(tmp_path: Path) -> None:
    """36 KB took 4.4 GB: each queue had the names of all its groups, whole."""
    group: dict[str, object] = {"name": "x", "connections": [], "processGroups": []}
    for depth in range(100):
        queue = {"identifier": f"q{depth}", "name": "n" * 100_000}
        group = {"name": "g" * 100_000, "connections": [queue], "processGroups": [group]}
    (tmp_path / "flow.json.gz").write_bytes(gzip.compress(json.dumps({"rootGroup": group}).encode()))

    names, damages = queue_names(str(tmp_path / "flow.json.gz"))

    assert damages == []
    assert len(names) == 100
    assert max(map(len, names.values())) <= 2 * NAME_MAX + len(" / ")


def test_folders_nested_deeper_than_python_calls_itself_are_counted(tmp_path: Path) -> None:
    """What is in them is somebody else's."""
    place = unpacked(KILLED, tmp_path)
    home = home_of_sample(place)
    before = survey(home).space.foreign
    root = Path(next(iter(home.containers.values())))
    descriptor = os.open(root, os.O_RDONLY)
    for _ in range(DEPTH):
        os.mkdir("d", dir_fd=descriptor)
        below = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    with os.fdopen(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=descriptor), "wb") as file:
        file.write(bytes(10_000))
    os.close(descriptor)

    try:
        assert survey(home).space.foreign > before
    finally:
        subprocess.run(["rm", "-rf", str(root / "d")], check=True)  # which Python could not, no more than pytest


@pytest.mark.parametrize("name", ["a\0b", "a\ud800b"])
def test_a_name_that_no_file_can_have_is_told(name: str, tmp_path: Path) -> None:
    """Damaged bytes have it, of a swap file and of a directory in nifi.properties."""
    place = unpacked(KILLED, tmp_path)
    home = home_of_sample(place)
    odd = msgspec.structs.replace(home, containers={**home.containers, "odd": str(tmp_path / name)})

    assert [each.file for each in survey(odd).damages if "odd" in each.file or "a" in each.what] != []
    with pytest.raises(OSError, match="no file can have this name"):
        open_regular(str(tmp_path / name))
