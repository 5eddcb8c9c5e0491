"""`ullage token`: a token is printed once, and its file lets it in."""

import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support import ManualClock
from ullage.contract import Right
from ullage.errors import Unauthenticated
from ullage_agent.cli.app import app
from ullage_agent.service.tokens import TokenFile

RUNNER = CliRunner()


def test_a_token_is_printed_once_and_only_its_hash_is_kept(tmp_path: Path) -> None:
    """The file is its owner's alone; a second token stands beside the first."""
    path = tmp_path / "tokens"

    first = RUNNER.invoke(app, ["token", str(path), "ingest", "-r", "records", "-r", "content:create"]).stdout.strip()
    second = RUNNER.invoke(app, ["token", str(path), "admin", "-r", "reclaim", "--for", "0s"]).stdout.strip()

    tokens = TokenFile(str(path), ManualClock())
    assert tokens.authenticate(first).rights == (Right.RECORDS, Right.WRITE)
    tokens.authorize(tokens.authenticate(second), Right.RECLAIM)
    assert first not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_token_expires(tmp_path: Path) -> None:
    """After the time it was made for."""
    path = tmp_path / "tokens"
    token = RUNNER.invoke(app, ["token", str(path), "x", "-r", "*", "--for", "1h"]).stdout.strip()
    clock = ManualClock(4_000_000_000_000)

    with pytest.raises(Unauthenticated, match="expired"):
        TokenFile(str(path), clock).authenticate(token)


@pytest.mark.parametrize(
    "arguments", [["a b", "-r", "*"], ["x", "-r", "*", "--for", "soon"], ["x", "-r", "fly"], ["x"]]
)
def test_what_makes_no_token_is_refused(tmp_path: Path, arguments: list[str]) -> None:
    """Exit code 2, and no file."""
    path = tmp_path / "tokens"

    assert RUNNER.invoke(app, ["token", str(path), *arguments]).exit_code == 2
    assert not path.exists()
