"""Emptying a directory, on a real filesystem with links in it: planted before, and swapped in while it runs."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ullage_agent.node import cleaning


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """What must not be touched."""
    kept = tmp_path / "outside"
    (kept / "deep").mkdir(parents=True)
    (kept / "file").write_text("kept")
    (kept / "deep" / "file").write_text("kept")
    return kept


def contents(path: Path) -> list[str]:
    return sorted(str(each.relative_to(path)) for each in path.rglob("*"))


def test_what_lies_below_goes_and_links_are_not_followed(tmp_path: Path, outside: Path) -> None:
    """Links to files and directories, above, absolute, in a circle and to nothing: each goes, and none is followed."""
    root = tmp_path / "root"
    (root / "c1" / "0" / "archive").mkdir(parents=True)
    (root / "c1" / "0" / "1-1").write_bytes(b"x" * 10_000)
    for place in (root, root / "c1", root / "c1" / "0"):
        (place / "file").symlink_to(outside / "file")
        (place / "folder").symlink_to(outside, target_is_directory=True)
        (place / "above").symlink_to("../../..")
        (place / "self").symlink_to("self")
        (place / "nothing").symlink_to("gone")
    os.mkfifo(root / "pipe")
    before = contents(outside)

    cleaning.empty(str(root))

    assert contents(root) == []
    assert contents(outside) == before


def test_a_root_that_is_a_link_is_refused(tmp_path: Path, outside: Path) -> None:
    """The kubelet mounts a directory there; anything else is a mistake."""
    (tmp_path / "root").symlink_to(outside, target_is_directory=True)

    with pytest.raises(NotADirectoryError):
        cleaning.empty(str(tmp_path / "root"))
    assert contents(outside) != []


@pytest.mark.parametrize("moment", ["before it is entered", "before it is removed"])
def test_a_link_that_is_swapped_in_is_not_followed(
    tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """At the two moments at which a directory is known by its name: a link in its place goes as a link."""
    root = tmp_path / "root"
    (root / "c1").mkdir(parents=True)
    (root / "c1" / "file").write_text("x")
    swapped: list[str] = []

    def swap() -> None:
        if not swapped:
            os.rename(root / "c1", tmp_path / "moved")
            (root / "c1").symlink_to(outside, target_is_directory=True)
            swapped.append("c1")

    def first(called: Callable[..., object]) -> Callable[..., object]:
        def acting(path: str, *rest: object, **more: object) -> object:
            if path == "c1":
                swap()
            return called(path, *rest, **more)

        return acting

    name = "open" if moment == "before it is entered" else "rmdir"
    monkeypatch.setattr(os, name, first(getattr(os, name)))
    cleaning.empty(str(root))

    assert swapped == ["c1"]
    assert contents(root) == []
    assert contents(outside) == ["deep", "deep/file", "file"]


def test_links_swapped_in_all_the_time_lead_nowhere(tmp_path: Path, outside: Path) -> None:
    """A thread exchanges directories for links as fast as it can, while they are emptied two hundred times."""
    root = tmp_path / "root"
    root.mkdir()
    stop = threading.Event()

    def exchange() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            try:
                os.mkdir(root / "d")
                (root / "d" / "f").write_text("x")
                os.rename(root / "d", tmp_path / f"m{number}")
                os.symlink(outside, root / "d")
                os.unlink(root / "d")
            except OSError:
                continue  # the other side was faster

    thread = threading.Thread(target=exchange)
    thread.start()
    try:
        for _ in range(200):
            try:
                cleaning.empty(str(root))
            except OSError:
                continue  # a job that fails is begun again
    finally:
        stop.set()
        thread.join()

    assert contents(outside) == ["deep", "deep/file", "file"]


def test_directories_without_end_end_it(tmp_path: Path) -> None:
    """Instead of taking all descriptors, or the stack."""
    deep = tmp_path / "root"
    for _ in range(cleaning.DEPTH_MAX + 1):
        deep /= "d"
    deep.mkdir(parents=True)

    with pytest.raises(OSError, match="lie in one another"):
        cleaning.empty(str(tmp_path / "root"))


def test_it_runs_as_the_job_runs_it(tmp_path: Path) -> None:
    """As a module, with the directory as its argument; one that cannot be opened is named."""
    root = tmp_path / "root"
    (root / "c1").mkdir(parents=True)

    subprocess.run([sys.executable, "-m", "ullage_agent.node.cleaning", str(root)], check=True)

    assert contents(root) == []
    gone = [sys.executable, "-m", "ullage_agent.node.cleaning", str(root / "gone")]
    failed = subprocess.run(gone, capture_output=True, text=True, check=False)
    assert failed.returncode != 0
    assert str(root / "gone") in failed.stderr
