"""`ullage demo` on a small tree: it proves what it says, cleans up after itself and notices what is wrong."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.test_commands import ullage, ullage_json
from ullage.embedded.queues import EmbeddedQueues
from ullage_agent.cli.demo_files import library_files


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Files of all routes and sizes."""
    top = tmp_path / "tree"
    top.mkdir()
    for number in range(150):
        suffix = (".py", ".pyc", ".txt")[number % 3]
        length = 200_000 if number % 25 == 0 else number * 37
        (top / f"{number}{suffix}").write_bytes(os.urandom(length))
    return top


def test_the_demo_proves_what_it_says(tree: Path, tmp_path: Path) -> None:
    """All steps run, space comes back, the killed writer's acknowledged files are there, and the folder is gone."""
    folder = tmp_path / "demo"

    outcome = ullage_json("demo", "--dir", folder, "--tree", tree, "--large-mb", 4, "--kills", 2)

    assert (outcome["files"], outcome["kills"], outcome["problems"]) == (151, 2, [])
    before, after = (outcome["surveys"][moment] for moment in ("dropped", "rewritten"))
    assert before["totals"]["disk_bytes"] - after["totals"]["disk_bytes"] == outcome["freed_bytes"] >= 4 << 20
    assert before["totals"]["live_bytes"] == after["totals"]["live_bytes"]
    assert before["allocated_bytes"] - after["allocated_bytes"] >= 4 << 20
    assert outcome["verified"] >= outcome["acknowledged"] >= 100
    assert outcome["goal"]["before"] >= outcome["goal"]["after"]
    assert outcome["goal"]["after"] <= 1.1
    assert outcome["goal"]["will_miss"] is None
    assert not folder.exists()


def test_the_demo_serves_what_it_made_and_ends_by_itself(tree: Path, tmp_path: Path) -> None:
    """Off a terminal it says where it serves, asks itself once, and is gone."""
    folder = tmp_path / "demo"
    arguments = ["--dir", str(folder), "--tree", str(tree), "--large-mb", "1", "--kills", "0", "--serve"]

    result = subprocess.run(
        [sys.executable, "-m", "ullage_agent", "demo", *arguments], capture_output=True, text=True, check=False
    )

    assert result.returncode == 0, result.stderr
    assert "serving on http://127.0.0.1:" in result.stdout
    asked = re.search(r"asked it once: it holds (\d+) FlowFiles", result.stdout)
    assert asked is not None
    assert int(asked[1]) > 50
    assert not folder.exists()


def test_the_demo_can_be_kept_and_run_again(tree: Path, tmp_path: Path) -> None:
    """With --keep the repository can be looked at with the other commands; the next demo replaces the folder."""
    folder = tmp_path / "demo"
    arguments = ("demo", "--dir", folder, "--tree", tree, "--large-mb", 0, "--kills", 0, "--keep")

    ullage(*arguments)
    ullage("check", "--deep", root=folder / "repository")
    again = ullage(*arguments).stdout

    assert "Proven" in again
    assert "\x1b" not in again


def test_the_demo_deletes_no_folder_that_it_did_not_make(tree: Path, tmp_path: Path) -> None:
    """A folder that is already there stays as it is, even an empty one."""
    folder = tmp_path / "mine"
    folder.mkdir()

    assert "not made by the demo" in ullage("demo", "--dir", folder, "--tree", tree, expect=2).stderr
    assert list(folder.iterdir()) == []


def test_the_demo_notices_a_mismatch(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the repository does not do what it says, the demo fails, says what differs and keeps the folder."""
    folder = tmp_path / "demo"

    monkeypatch.setattr(EmbeddedQueues, "drop", lambda queues, name: queues.find(name).flow_files)

    result = ullage("demo", "--dir", folder, "--tree", tree, "--large-mb", 0, "--kills", 0, expect=1)

    assert "MISMATCH" in result.stdout
    assert "in queue bulk should be gone" in result.stdout
    assert "Proven" not in result.stdout
    assert folder.exists()


def test_the_default_tree_is_large_and_real() -> None:
    """Without --tree there are at least a thousand files of this Python to ingest."""
    sources = library_files()

    assert len(sources) > 1_000
    assert all(os.path.isfile(source.path) for source in sources[:10])
