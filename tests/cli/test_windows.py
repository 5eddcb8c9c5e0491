"""`ullage windows`: what is open and until when, as somebody who reads or parses it gets it."""

import json
from datetime import datetime
from pathlib import Path

from click.testing import CliRunner

from ullage_agent.cli.app import app

NIGHTLY = "{maintenance: {timeZone: Europe/Berlin, windows: [{name: n, schedule: '0 1 * * *', duration: 3h}]}}"


def millis(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def shown(tmp_path: Path, spec: str, *arguments: str) -> tuple[int, str, str]:
    config = tmp_path / "repository.yaml"
    head = "apiVersion: ullage.dev/v1alpha1\nkind: ContentRepository\nmetadata: {name: flows}\n"
    config.write_text(f"{head}spec: {spec}")
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["windows", "--config", str(config), *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_the_command_shows_what_is_open_and_until_when(tmp_path: Path) -> None:
    """`ullage windows` needs no repository; a time without a zone is one of the schedules' zone."""
    code, out, _ = shown(tmp_path, NIGHTLY, "--at", "2026-05-05T02:00")

    assert code == 0
    rows = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert "2026-05-05T04:00:00+02:00, then finish" in rows["Rewrite"]
    assert "no window is about Delete" in rows["Delete"]


def test_the_command_prints_one_json_document(tmp_path: Path) -> None:
    """With --json: every operation with its verdict, and problems apart."""
    code, out, _ = shown(tmp_path, NIGHTLY, "--at", "2026-05-05T10:00:00Z", "--json")
    document = json.loads(out)

    assert code == 0
    assert document["millis"] == millis("2026-05-05T10:00+00:00")
    assert document["problems"] == []
    verdicts = {verdict["operation"]: verdict for verdict in document["operations"]}
    assert verdicts["Delete"]["is_allowed"] is True
    assert verdicts["Rewrite"]["opens_millis"] == millis("2026-05-06T01:00+02:00")


def test_the_command_names_what_cannot_be_read(tmp_path: Path) -> None:
    """A zone that does not exist is a problem on stderr, and everything under it is shown closed."""
    code, out, err = shown(tmp_path, NIGHTLY.replace("Berlin", "Atlantis"))

    assert code == 0
    assert "problem: spec.maintenance.timeZone: 'Europe/Atlantis'" in err
    assert "closed" in out


def test_a_time_that_is_none_is_wrong_usage(tmp_path: Path) -> None:
    """--at takes ISO 8601."""
    code, _, err = shown(tmp_path, NIGHTLY, "--at", "tonight")

    assert code == 2
    assert "tonight" in err
