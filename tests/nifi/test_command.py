import errno
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.cli.test_salvage import nobody
from tests.nifi.samples import NAMES, home_of_sample, truth, unpacked
from ullage_agent.cli.app import app

RUNNER = CliRunner(env={"COLUMNS": "400"})
NAME = next(name for name in NAMES if name.endswith("killed"))
QUEUES = 3


def ullage(*arguments: object, expect: int = 0) -> Result:
    result = RUNNER.invoke(app, ["nifi", "survey", *map(str, arguments)])
    assert result.exit_code == expect, result.output
    return result


@pytest.fixture
def nifi(tmp_path: Path) -> Path:
    """A NiFi as it is unpacked, with repositories that NiFi's classes wrote."""
    return _unpacked(tmp_path)


@pytest.fixture
def readable() -> Iterator[Path]:
    """The same, in a place that others than its owner can enter."""
    with tempfile.TemporaryDirectory(prefix="ullage-nifi-") as directory:
        Path(directory).chmod(0o755)
        place = _unpacked(Path(directory))
        for path in (place, *place.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        yield place


def _unpacked(directory: Path) -> Path:
    place = unpacked(NAME, directory)
    (place / "conf").mkdir()
    (place / "conf" / "nifi.properties").write_text(
        "nifi.flowfile.repository.directory=./flowfile_repository\n"
        "nifi.content.repository.directory.default=./content_repository\n"
        "nifi.content.repository.directory.second=./content_second\n"
    )
    return place


def test_people_see_what_holds_the_disk(nifi: Path) -> None:
    """How many FlowFiles, how much for how much, the uses, queues, bands and files."""
    shown = ullage(nifi, "--files", 2).stdout

    assert shown.startswith(f"{len(truth(nifi))} FlowFiles in {QUEUES} queues at transaction ")
    for words in ("times as much", "dead middles", "archive", "waiting: a week or more", "size: empty", "alone"):
        assert words in shown
    assert shown.count("default/") + shown.count("second/") == 2


def test_programs_get_one_document_from_properties_or_directories(nifi: Path) -> None:
    """Both ways lead to the same figures."""
    home = home_of_sample(nifi)
    containers = [word for item in home.containers.items() for word in ("--content-repository", "=".join(item))]

    by_properties: dict[str, Any] = json.loads(ullage(nifi / "conf" / "nifi.properties", "--json").stdout)
    by_directories = json.loads(ullage("--json", "--flowfile-repository", home.flowfiles, *containers).stdout)

    assert by_properties["flowfiles"] == len(truth(nifi))
    assert by_properties["space"] == by_directories["space"]
    assert by_properties["ratio"] == by_properties["space"]["allocated"] / by_properties["space"]["live"]


def test_a_survey_without_some_flowfiles_ends_with_its_own_code(nifi: Path) -> None:
    """The figures are there all the same, and stderr names what could not be read."""
    (overflow,) = (nifi / "flowfile_repository" / "journals").glob("overflow-*/*")
    overflow.unlink()

    result = ullage(nifi, expect=11)

    assert overflow.name in result.stderr
    assert "may be theirs" in result.stderr
    assert "dead middles" in result.stdout


def test_wrong_usage_says_what_to_name(nifi: Path) -> None:
    """Neither, or both, or half."""
    for arguments in ((), (nifi, "--flowfile-repository", "x"), ("--flowfile-repository", nifi)):
        assert "name CONF, or --flowfile-repository" in ullage(*arguments, expect=2).stderr
    assert "no nifi.properties" in ullage(nifi / "flowfile_repository", expect=2).stderr


def run(*arguments: object, expect: int = 0) -> Result:
    result = RUNNER.invoke(app, ["nifi", *map(str, arguments)])
    assert result.exit_code == expect, result.output
    return result


def test_no_file_is_told_where_none_is_asked_for(nifi: Path) -> None:
    """The totals are the same."""
    assert json.loads(ullage(nifi, "--files", 0, "--json").stdout)["files"] == []


def test_a_plan_shows_what_would_come_back(nifi: Path) -> None:
    """By container and by file; for programs, each hole."""
    shown = run("plan", nifi, "--files", 2).stdout
    document = json.loads(run("plan", nifi, "--json").stdout)

    assert "would come back from" in shown
    assert shown.count("default/") + shown.count("second/") == 2
    assert document["freed"] == sum(step["freed"] for step in document["steps"]) > 0
    assert {container["name"] for container in document["containers"]} == {"default", "second"}


def test_a_plan_without_some_flowfiles_is_empty_and_says_why(nifi: Path) -> None:
    """With its own code."""
    (overflow,) = (nifi / "flowfile_repository" / "journals").glob("overflow-*/*")
    overflow.unlink()

    result = run("plan", nifi, expect=11)

    assert result.stdout.startswith("0 B would come back from 0 files")
    assert "Nothing is touched, because it can't be known what is alive" in result.stderr
    assert overflow.name in result.stderr


def test_events_have_to_be_known_where_directories_are_named(nifi: Path) -> None:
    """What is dead may be named there."""
    home = home_of_sample(nifi)
    named = [word for item in home.containers.items() for word in ("--content-repository", "=".join(item))]
    directories = ("--flowfile-repository", home.flowfiles, *named)
    (nifi / "events").mkdir()

    assert "--no-provenance" in run("plan", *directories, expect=2).stderr
    assert "no directory" in run("plan", *directories, "--provenance-repository", nifi / "none", expect=2).stderr
    for history in (("--no-provenance",), ("--provenance-repository", nifi / "events")):
        assert "would come back" in run("plan", *directories, *history).stdout
    assert "CONF says where" in run("plan", nifi, "--no-provenance", expect=2).stderr


@pytest.mark.parametrize("command", [("survey",), ("pins",), ("plan",), ("import", "--dry-run", "--not-running")])
def test_a_container_that_may_not_be_read_is_named(command: tuple[str, ...], readable: Path) -> None:
    """With what helps, and with the code of what is not whole; the other container is read."""
    place = readable / "content_second"
    words = (*command, readable, *(["/nowhere"] if command[0] == "import" else []))
    run(*words)  # whoever is nobody may not import what this needs
    place.chmod(0)
    try:
        with nobody():
            result = run(*words, expect=11)
    finally:
        place.chmod(0o755)

    assert "/content_second: it can't be read: Permission denied: run this as NiFi's user or as root" in result.stderr
    assert "counts as not on the disk" in result.stderr
    assert "default/" in result.stdout or "FlowFiles" in result.stdout


@pytest.mark.parametrize("command", ["survey", "plan"])
def test_a_container_whose_disk_fails_is_named(command: str, nifi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even root can read it."""
    scan = os.scandir

    def failing(path: str) -> object:
        if path.endswith("content_second"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", failing)

    result = run(command, nifi, expect=11)

    assert "/content_second: it can't be read: Input/output error\n" in result.stderr
    assert "counts as not on the disk" in result.stderr


def test_a_reclaim_leaves_a_container_alone_that_can_not_be_read(nifi: Path) -> None:
    """It says so in the end, with the code of what is not whole, and gives back what the other one has."""
    (nifi / "content_second").rename(nifi / "elsewhere")
    (nifi / "content_second").write_bytes(b"no folder")

    result = run("reclaim", nifi, "--for-good", "--not-running", expect=11)

    assert "/content_second: it can't be read: Not a directory" in result.stderr
    assert "came back" in result.stdout
