"""`ullage windows`: what is open and until when, as somebody who reads or parses it gets it."""

import json
from datetime import datetime
from pathlib import Path

from click.testing import Result

from tests.cli.test_commands import HEAD, ullage

NIGHTLY = "{maintenance: {timeZone: Europe/Berlin, windows: [{name: n, schedule: '0 1 * * *', duration: 3h}]}}"


def millis(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def shown(tmp_path: Path, spec: str, *arguments: str, expect: int = 0) -> Result:
    config = tmp_path / "repository.yaml"
    config.write_text(f"{HEAD}spec: {spec}")
    return ullage("windows", "--config", config, *arguments, expect=expect)


def test_the_command_shows_what_is_open_and_until_when(tmp_path: Path) -> None:
    """`ullage windows` needs no repository; a time without a zone is one of the schedules' zone."""
    out = shown(tmp_path, NIGHTLY, "--at", "2026-05-05T02:00").stdout

    rows = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert "2026-05-05T04:00:00+02:00, then finish" in rows["Rewrite"]
    assert "no window is about Delete" in rows["Delete"]


def test_the_command_prints_one_json_document(tmp_path: Path) -> None:
    """With --json: every operation with its verdict, and problems apart."""
    document = json.loads(shown(tmp_path, NIGHTLY, "--at", "2026-05-05T10:00:00Z", "--json").stdout)

    assert document["millis"] == millis("2026-05-05T10:00+00:00")
    assert document["problems"] == []
    verdicts = {verdict["operation"]: verdict for verdict in document["operations"]}
    assert verdicts["Delete"]["is_allowed"] is True
    assert verdicts["Rewrite"]["opens_millis"] == millis("2026-05-06T01:00+02:00")


def test_the_command_names_what_cannot_be_read(tmp_path: Path) -> None:
    """A zone that does not exist is a problem on stderr, and everything under it is shown closed."""
    told = shown(tmp_path, NIGHTLY.replace("Berlin", "Atlantis"))

    assert "problem: spec.maintenance.timeZone: 'Europe/Atlantis'" in told.stderr
    assert "closed" in told.stdout


def test_a_time_that_is_none_is_wrong_usage(tmp_path: Path) -> None:
    """--at takes ISO 8601."""
    assert "tonight" in shown(tmp_path, NIGHTLY, "--at", "tonight", expect=2).stderr
