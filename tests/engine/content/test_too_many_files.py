"""A process that may open no more files refuses what it cannot do, and goes on when it may again."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.failing_files import FailingFiles
from tests.support import Workshop, drain, put_all
from ullage.engine.oserrors import SyncNotTried
from ullage.errors import ContentWriteFailed

PROGRAM = """
import os, resource, sys
import ullage
from ullage.errors import UllageError

soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
refused, stored = 0, []
with ullage.open(sys.argv[1], create=True, maintain=False) as repository:
    stored.append(repository.handles.put(b"before" * 10_000))
    for spare in range(60):
        used = len(os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + spare % 6 - 1, hard))
        try:
            stored.append(repository.handles.put(b"%06d" % spare * 10_000))
        except (UllageError, OSError) as error:
            assert "open" in str(error) or "sync" in str(error), error
            refused += 1
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert repository.state().poisoned == [], spare
    after = repository.handles.put(b"after")
    assert repository.handles.get(after) == b"after"
    assert repository.check(deep=True).problems == ()
with ullage.open(sys.argv[1]) as repository:
    assert {head.id for head in repository.handles.all()} == {*stored, after}
print(refused)
"""


def test_the_limit_of_open_files_refuses_and_poisons_nothing(tmp_path: Path) -> None:
    """With a real limit, at each of several heights: refused, then all is well; nothing that was stored is lost."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "r")], capture_output=True, text=True, check=False, timeout=120
    )

    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0


@pytest.mark.parametrize("ahead", [0, 5])
def test_a_directory_that_cannot_be_opened_for_its_sync_is_no_failed_sync(workshop: Workshop, ahead: int) -> None:
    """One file, or several made ahead: the commit fails, the next one succeeds, the container goes on writing."""
    files = FailingFiles()
    repository = workshop.make(files, claims={"max_flow_files": 1})
    for number in range(ahead):
        put_all(repository, "q", [b"%d" % number])
    files.fail("sync_directory", "*/c1/*", error=SyncNotTried(24, "Too many open files"), times=1)

    failures: list[str] = []
    for number in range(ahead, ahead + 20):
        try:
            put_all(repository, "q", [b"%d" % number])
        except ContentWriteFailed as error:
            failures.append(str(error))
            put_all(repository, "q", [b"%d" % number])

    assert len(failures) == 1
    assert "try again" in failures[0]
    assert repository.content.containers["c1"].failure is None
    assert drain(repository, "q") == [b"%d" % number for number in range(ahead + 20)]


def test_reclamation_that_could_not_sync_names_is_done_by_the_next_run(workshop: Workshop) -> None:
    """The unlink has happened and its name's sync has not: not reported as freed before it is."""
    files = FailingFiles()
    repository = workshop.make(files, archive={"enabled": False})
    put_all(repository, "q", [b"x" * 200_000])
    drain(repository, "q")
    files.fail("sync_directory", "*/c1/*", error=SyncNotTried(24, "Too many open files"))

    with pytest.raises(OSError, match="Too many"):
        repository.reclamation.clean()
    assert repository.content.containers["c1"].failure is None
    assert repository.reclamation.clean().freed_bytes >= 200_000
