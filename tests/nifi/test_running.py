"""Whether a NiFi works on its repositories."""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.nifi.stopped import TRANSACTION, stopped_nifi
from ullage.nifi import running
from ullage.nifi.home import NiFiHome
from ullage.nifi.running import refuse_in_use, state_of
from ullage.nifi.trouble import NiFiInUse


@pytest.fixture
def home(tmp_path: Path) -> NiFiHome:
    return stopped_nifi(tmp_path / "nifi")


def journal_of(home: NiFiHome) -> Path:
    return Path(home.flowfiles) / "journals" / f"{TRANSACTION + 1}.journal"


@contextmanager
def process(program: str, *arguments: object) -> Iterator[int]:
    """Another process that has said that it is ready; its number."""
    begun = subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert begun.stdout is not None
        assert begun.stdout.readline() == b"ready\n"
        yield begun.pid
    finally:
        begun.kill()
        begun.communicate()


HOLDS = "import sys; file = open(sys.argv[1], 'ab'); print('ready', flush=True); sys.stdin.read()"
LOCKS = (
    "import fcntl, sys; file = open(sys.argv[1], 'ab'); fcntl.lockf(file, fcntl.LOCK_EX);"
    "print('ready', flush=True); sys.stdin.read()"
)


def test_a_nifi_that_was_stopped_is_not_in_the_way(home: NiFiHome) -> None:
    """It closed its journal with a mark."""
    refuse_in_use(home)


def test_a_process_that_has_a_journal_open_is_a_nifi(home: NiFiHome) -> None:
    """Whatever anybody says."""
    with process(HOLDS, journal_of(home)) as number:
        for is_assured in (False, True):
            with pytest.raises(NiFiInUse, match=f"NiFi is running: process {number} has files"):
                refuse_in_use(home, is_assured=is_assured)
    refuse_in_use(home)


@pytest.mark.parametrize("name", ["flowfile_repository/wali.lock", "provenance_repository/lucene-9-index-1/write.lock"])
def test_a_lock_that_is_held_is_a_nifi(
    home: NiFiHome, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where its process can't be seen: it is asked for the lock itself."""
    path = tmp_path / "nifi" / name
    path.touch()
    refuse_in_use(home)
    monkeypatch.setattr(running, "PROCESSES", "/nowhere")
    with process(LOCKS, path) as number, pytest.raises(NiFiInUse, match=f"process {number} holds a lock"):
        refuse_in_use(home)


def test_a_journal_without_its_mark_needs_a_word(home: NiFiHome) -> None:
    """NiFi was killed, or runs where it can't be seen: only a person knows."""
    whole = journal_of(home).read_bytes()
    journal_of(home).write_bytes(whole.removesuffix(b"\x7f\x7f"))

    with pytest.raises(NiFiInUse, match=r"was not closed.*--not-running"):
        refuse_in_use(home)
    refuse_in_use(home, is_assured=True)


def test_the_newest_journal_counts(home: NiFiHome) -> None:
    """By its number: one that NiFi could not close, for its disk was full, may lie before it."""
    later = journal_of(home).with_name("1000.journal")
    later.write_bytes(journal_of(home).read_bytes())
    journal_of(home).write_bytes(b"")

    refuse_in_use(home)
    later.write_bytes(b"")
    with pytest.raises(NiFiInUse):
        refuse_in_use(home)


def test_a_repository_that_never_had_a_journal_is_at_rest(home: NiFiHome) -> None:
    """None is open."""
    shutil.rmtree(journal_of(home).parent)

    refuse_in_use(home)


def test_a_nifi_whose_files_may_not_be_looked_at_needs_a_word(
    home: NiFiHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be of other repositories."""
    proc = tmp_path / "proc"
    (proc / "77").mkdir(parents=True)
    (proc / "77" / "cmdline").write_bytes(b"java\0-cp\0lib\0org.apache.nifi.NiFi\0")
    listed = os.listdir

    def refusing(path: str) -> list[str]:
        if str(path).endswith("/77/fd"):
            raise PermissionError(1, "not permitted", path)
        return listed(path)

    monkeypatch.setattr(running, "PROCESSES", str(proc))
    monkeypatch.setattr(os, "listdir", refusing)

    with pytest.raises(NiFiInUse, match="process 77 is a NiFi"):
        refuse_in_use(home)
    refuse_in_use(home, is_assured=True)
    (proc / "77" / "cmdline").write_bytes(b"java\0-jar\0other.jar\0")
    refuse_in_use(home)


def test_what_a_nifi_does_as_it_starts_changes_the_state(home: NiFiHome) -> None:
    """It writes a checkpoint and another journal."""
    before = state_of(home.flowfiles)

    assert state_of(home.flowfiles) == before
    (Path(home.flowfiles) / "ullage-reclaim.done").touch()
    assert state_of(home.flowfiles) == before
    for path in (journal_of(home), Path(home.flowfiles) / "checkpoint", *(Path(home.flowfiles) / "swap").iterdir()):
        data, found = path.read_bytes(), path.stat()
        path.write_bytes(data + b"x")
        assert state_of(home.flowfiles) != before
        path.write_bytes(data)
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
        assert state_of(home.flowfiles) == before
    journal_of(home).with_name("99.journal").touch()
    assert state_of(home.flowfiles) != before


def test_locks_are_asked_for_as_the_kernel_has_them(tmp_path: Path) -> None:
    """Nobody's, and one of another process; our own is none that is in the way."""
    path = tmp_path / "lock"
    path.touch()
    with path.open("ab") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        assert running._holder(str(path)) is None
    assert running._holder(str(tmp_path / "none")) is None
