"""`ullage demo` on a small tree: it proves what it says, cleans up after itself and notices what is wrong."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from ullage_agent.cli.app import app
from ullage_agent.cli.demo_files import Oracle, library_files

RUNNER = CliRunner(env={"ULLAGE_ROOT": None, "ULLAGE_CONFIG": None, "COLUMNS": "400"})


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

    result = RUNNER.invoke(
        app, ["demo", "--dir", str(folder), "--tree", str(tree), "--large-mb", "4", "--kills", "2", "--json"]
    )

    assert result.exit_code == 0, result.output
    outcome = json.loads(result.stdout)
    assert (outcome["files"], outcome["kills"], outcome["problems"]) == (151, 2, [])
    before, after = (outcome["surveys"][moment] for moment in ("dropped", "rewritten"))
    assert before["totals"]["disk_bytes"] - after["totals"]["disk_bytes"] == outcome["freed_bytes"] >= 4 << 20
    assert before["totals"]["live_bytes"] == after["totals"]["live_bytes"]
    assert before["allocated_bytes"] - after["allocated_bytes"] >= 4 << 20
    assert outcome["verified"] >= outcome["acknowledged"] >= 100
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
    arguments = ["demo", "--dir", str(folder), "--tree", str(tree), "--large-mb", "0", "--kills", "0", "--keep"]

    assert RUNNER.invoke(app, arguments).exit_code == 0
    assert RUNNER.invoke(app, ["check", "--deep", "--config", str(folder / "repository.yaml")]).exit_code == 0
    result = RUNNER.invoke(app, arguments)

    assert result.exit_code == 0
    assert "Proven" in result.stdout
    assert "\x1b" not in result.stdout


def test_the_demo_deletes_no_folder_that_it_did_not_make(tree: Path, tmp_path: Path) -> None:
    """A folder that is already there stays as it is, even an empty one."""
    folder = tmp_path / "mine"
    folder.mkdir()

    result = RUNNER.invoke(app, ["demo", "--dir", str(folder), "--tree", str(tree)])

    assert result.exit_code == 2
    assert "not made by the demo" in result.stderr
    assert list(folder.iterdir()) == []


def test_the_demo_notices_a_mismatch(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the oracle and the repository disagree the demo fails, says what differs and keeps the folder."""
    folder = tmp_path / "demo"

    def drop_nothing_from_the_oracle(oracle: object, queue: str) -> None:
        return None

    monkeypatch.setattr(Oracle, "forget_queue", drop_nothing_from_the_oracle)

    result = RUNNER.invoke(app, ["demo", "--dir", str(folder), "--tree", str(tree), "--large-mb", "0", "--kills", "0"])

    assert result.exit_code == 1
    assert "MISMATCH" in result.stdout
    assert "is missing from bulk" in result.stdout
    assert "Proven" not in result.stdout
    assert folder.exists()


def test_the_default_tree_is_large_and_real() -> None:
    """Without --tree there are at least a thousand files of this Python to ingest."""
    sources = library_files()

    assert len(sources) > 1_000
    assert all(os.path.isfile(source.path) for source in sources[:10])
