"""`ullage volumes`: what containers lie on, and giving up what nobody can bring back."""

import json
from pathlib import Path

import pytest

from tests.cli.test_commands import HEAD, spec_of, ullage
from tests.support import put_each
from ullage.engine.engine import Engine


@pytest.fixture
def spread(tmp_path: Path) -> Path:
    """A repository on two volumes, each with content; the second one is away."""
    root = tmp_path / "repository"
    containers = ", ".join(f"{{name: {name}, subPath: {name}, capacity: 1Gi}}" for name in ("c1", "c2"))
    storage = f"{{hostPath: {{path: {root}}}, containers: [{containers}]}}"
    root.with_suffix(".yaml").write_text(f"{HEAD}spec:\n  storage: {storage}\n  claims: {{maxFlowFiles: 1}}\n")
    ullage("init", root=root)
    with Engine.open(spec_of(root)) as repository:
        put_each(repository, "in", [f"content {number}".encode() for number in range(4)])
    (root / "c2").rename(tmp_path / "away")
    return root


def test_it_shows_what_would_be_lost_with_each(spread: Path) -> None:
    """As a table and as JSON, with the reason why one is away."""
    shown = ullage("volumes", root=spread)
    document = json.loads(ullage("volumes", "--json", root=spread).stdout)

    assert "c2: container c2 at" in shown.stderr
    assert [line.split()[:2] for line in shown.stdout.splitlines()[2:]] == [["c1", "available"], ["c2", "away"]]
    assert [each["flow_files"] for each in document["volumes"]] == [{"in": 2}, {"in": 2}]


def test_forgetting_says_first_what_would_be_lost(spread: Path) -> None:
    """It changes something only with the flag, and then says what was lost."""
    asked = ullage("volumes", "forget", "c2", root=spread, expect=2)
    assert "2 FlowFiles, 0 handles and 18 B would be lost with c2" in asked.stderr
    assert "nothing was changed: say --accept-loss" in asked.stderr
    ullage("volumes", "forget", "c3", root=spread, expect=2)

    done = ullage("volumes", "forget", "c2", "--accept-loss", root=spread)

    assert "2 FlowFiles, 0 handles and 18 B were lost with c2" in done.stderr
    assert [line.split()[0] for line in ullage("volumes", root=spread).stdout.splitlines()[2:]] == ["c1"]
    ullage("check", "--deep", root=spread)
