"""`ullage clock`: whether the machine's clock is believed, and accepting it."""

import json
from pathlib import Path

import pytest

from tests.cli.test_commands import HEAD, ullage
from ullage.clock import LATEST_MILLIS, Clock, moment_of
from ullage.contract.objects import time_of
from ullage_agent.cli.output import moment

YEARS = 11 * 365 * 86_400_000


def test_it_shows_and_accepts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As text and as JSON; `check` tells it too, and succeeds; accepted, it is believed by the next start."""
    root = tmp_path / "repository"
    root.with_suffix(".yaml").write_text(f"{HEAD}spec:\n  storage: {{hostPath: {{path: {root}}}}}\n")
    ullage("init", root=root)
    assert "is believed" in ullage("clock", root=root).stdout
    now = Clock().now_millis()
    monkeypatch.setattr(Clock, "now_millis", lambda _: now + YEARS)

    shown = json.loads(ullage("clock", "--json", root=root).stdout)
    assert shown["machine_millis"] - shown["believed_millis"] > YEARS // 2
    assert "clock not believed: the machine's clock says" in ullage("clock", root=root).stdout
    assert "clock not believed: the machine's clock says" in ullage("check", root=root).stdout
    assert "is believed" in ullage("clock", "accept", root=root).stdout
    assert json.loads(ullage("clock", "--json", root=root).stdout)["reason"] == ""


@pytest.mark.parametrize("millis", [-(1 << 63), -1, 0, LATEST_MILLIS, LATEST_MILLIS * 2, (1 << 63) - 1, 1 << 80])
def test_any_number_is_shown_as_a_time(millis: int) -> None:
    """What lies beyond the calendar as its nearest end."""
    year = 1970 if millis <= 0 else 9999
    assert moment_of(millis).year == year
    assert moment(millis).startswith(str(year))
    assert time_of(millis).startswith(str(year))
