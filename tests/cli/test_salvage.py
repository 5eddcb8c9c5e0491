"""`ullage salvage` where it must refuse: an exit code, a line that says the way on, and nothing of SOURCE changed."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import ullage
from tests.cli.test_errors import assert_fails, run, small_disk as small_disk  # the fixture
from tests.support import flip
from ullage_agent.cli.exits import ExitCode

NOBODY = 65534
CONTENT = os.urandom(30 << 20)
"""More than the small disk holds, and nothing that could be compressed."""


def digests(root: Path) -> dict[str, tuple[int, int, str]]:
    """Of all files and directories: mode, time of the last change, and content."""
    found = {}
    for path in (root, *root.rglob("*")):
        status = path.lstat()
        data = path.read_bytes() if path.is_file() else b""
        found[str(path)] = status.st_mode, status.st_mtime_ns, hashlib.sha256(data).hexdigest()
    return found


@pytest.fixture
def source() -> Iterator[Path]:
    """A repository with one FlowFile, that everybody may read; afterwards it must be what it was."""
    # Not below pytest's directory: others than its owner cannot enter that.
    with tempfile.TemporaryDirectory(prefix="ullage-salvage-") as directory:
        Path(directory).chmod(0o755)
        root = Path(directory) / "source"
        ullage.initialize(root)
        with ullage.open(root) as repository:
            repository.queues.put("q", b"content")
        for path in (root, *root.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        before = digests(root)
        yield root
        assert digests(root) == before


def assert_salvaged(source: Path, target: Path) -> None:
    made = run("salvage", source, target)
    assert made.exit_code == 0, made.output
    with ullage.open(target) as repository:
        assert repository.queues.find("q").flow_files == 1
        assert repository.check(deep=True).problems == ()


@contextmanager
def nobody() -> Iterator[None]:
    """Not as root, whom no mode keeps out."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(before)


def test_a_missing_parent_is_made_and_a_link_is_followed(source: Path) -> None:
    """As `ullage init` does; a link to SOURCE is as good as SOURCE."""
    place = source.parent
    assert_salvaged(source, place / "not" / "there" / "yet")
    (place / "empty").mkdir()
    (place / "link").symlink_to("empty")
    (place / "to-source").symlink_to("source")
    assert_salvaged(place / "to-source", place / "link")


def test_a_target_that_holds_something_is_refused(source: Path) -> None:
    """A file, a directory that is not empty, another repository."""
    place = source.parent
    (place / "file").write_text("dear")
    (place / "full").mkdir()
    (place / "full" / "letter").write_text("dear")
    ullage.initialize(place / "repository")
    before = digests(place)

    assert_fails(run("salvage", source, place / "file"), ExitCode.USAGE, "file: Not a directory")
    assert_fails(run("salvage", source, place / "full"), ExitCode.USAGE, "is not empty (letter): choose an empty")
    assert_fails(run("salvage", source, place / "repository"), ExitCode.USAGE, "is not empty", "choose an empty")

    assert digests(place) == before


def test_a_target_that_leads_to_source_or_nowhere_is_refused(source: Path) -> None:
    """Whatever way it is written, also where nothing is there yet."""
    place = source.parent
    (place / "link").symlink_to("source")
    (place / "nowhere").symlink_to("missing")
    inside = [source, source / "new", source / "c1" / "new", place, place / "link", place / "link" / "new"]
    before = digests(place)

    for target in inside:
        assert_fails(run("salvage", source, target), ExitCode.USAGE, "is only read", "choose another one")
    assert_fails(run("salvage", source, place / "nowhere"), ExitCode.USAGE, "nowhere: No such file or directory")

    assert digests(place) == before


def test_where_nothing_may_be_written_nothing_is_made(source: Path) -> None:
    """Neither in a directory that is somebody else's, nor below one."""
    shut = source.parent / "shut"
    shut.mkdir(mode=0o555)
    assert_salvaged(source, source.parent / "new")  # also so that all is imported: nobody may not read our packages
    with nobody():
        assert_fails(run("salvage", source, shut), ExitCode.USAGE, "shut", "Permission denied")
        assert_fails(run("salvage", source, shut / "new"), ExitCode.USAGE, "shut", "Permission denied")
    assert list(shut.iterdir()) == []


def test_a_source_that_is_none_is_refused(source: Path) -> None:
    """Missing, empty, a file, something else, and one that may not be read; nothing is made."""
    place = source.parent
    target = place / "new"
    (place / "empty").mkdir()
    (place / "else").mkdir()
    (place / "else" / "letter").write_text("dear")
    (place / "locked").mkdir()
    (place / "locked").chmod(0)

    assert_fails(run("salvage", place / "missing", target), ExitCode.REPOSITORY, "missing does not exist")
    assert_fails(run("salvage", place / "empty", target), ExitCode.REPOSITORY, "empty holds no log, snapshot")
    assert_fails(run("salvage", place / "else", target), ExitCode.REPOSITORY, "else holds no log, snapshot")
    assert_fails(run("salvage", place / "else" / "letter", target), ExitCode.USAGE, "letter: Not a directory")
    with nobody():
        assert_fails(run("salvage", place / "locked", target), ExitCode.USAGE, "locked")

    assert not target.exists()


def test_a_source_that_is_open_is_refused(source: Path) -> None:
    """What its process writes meanwhile would be taken for damage."""
    copy = shutil.copytree(source, source.parent / "copy")
    with ullage.open(copy, maintain=False):  # which would change files by itself
        before = digests(copy)
        assert_fails(run("salvage", copy, copy.parent / "new"), ExitCode.LOCKED, "is open in another process")
        assert digests(copy) == before
        assert not (copy.parent / "new").exists()


def test_a_disk_that_is_too_small_is_told_and_what_is_there_is_no_repository(tmp_path: Path, small_disk: Path) -> None:
    """It says what to remove, every command refuses what is there, and once removed another try succeeds."""
    source, target = tmp_path / "source", small_disk / "new"
    ullage.initialize(source)
    with ullage.open(source, maintain=False) as repository:
        repository.queues.put("q", CONTENT)
    before = digests(source)

    assert_fails(run("salvage", source, target), ExitCode.NO_ROOM, "room", f"in {target}", "remove it before")
    assert_fails(run("ls", "--root", target), ExitCode.REPOSITORY, "was cut short", "remove what is there")
    assert_fails(run("salvage", source, target), ExitCode.USAGE, "a salvage was cut short there: remove it")

    shutil.rmtree(target)
    assert_fails(run("salvage", source, target), ExitCode.NO_ROOM)
    assert_salvaged(source, tmp_path / "new")
    assert digests(source) == before


def test_what_is_held_says_why_and_goes_back_to_its_queues_in_one_command(tmp_path: Path) -> None:
    """In batches; a handle has no queue, and stays to be read."""
    source, target = tmp_path / "source", tmp_path / "new"
    ullage.initialize(source)
    with ullage.open(source, maintain=False) as repository:
        repository.queues.put("lost", b"content", {"kind": "of which the log is damaged"})
        repository.queues.put_many("a", [b"a"] * 1_100, attributes={"kind": "first"})
        repository.queues.put("b", b"b")
        handle = repository.handles.put(b"handle")
        # What a process that was killed leaves: the log as it is, and no later snapshot.
        shutil.copytree(source, tmp_path / "killed")
    (log,) = (tmp_path / "killed").glob("flowfile/partition-0/*.wal")
    flip(log, log.read_bytes().index(b"the log is damaged"))

    made = run("salvage", tmp_path / "killed", target)

    assert made.exit_code == ExitCode.INCOMPLETE
    said = " ".join(made.stderr.split())
    assert "held: 1,102 FlowFiles and handles wait in queue salvaged, because something that is lost may" in said
    assert "`ullage held release` puts the others back" in said
    with ullage.open(target) as repository:
        assert [queue.name for queue in repository.queues.all() if queue.flow_files] == ["salvaged"]

    released = run("held", "release", "--root", target)

    assert released.stdout == "1,101 FlowFiles put back, 1 left in queue salvaged\n"
    with ullage.open(target) as repository:
        counts = {queue.name: queue.flow_files for queue in repository.queues.all() if queue.flow_files}
        assert counts == {"a": 1_100, "b": 1, "salvaged": 1}
        assert all(
            not name.startswith("salvaged") for each in repository.queues.flow_files("a") for name in each.attributes
        )
        assert [each.attributes["salvaged.uuid"] for each in repository.queues.flow_files("salvaged")] == [handle]
        assert repository.check(deep=True).problems == ()
    assert "0 FlowFiles put back" in run("held", "release", "--root", target).stdout
