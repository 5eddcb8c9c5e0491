"""What is told of an erasure that has begun and not finished: by a service, and of its last file."""

from pathlib import Path

import httpx
from structlog.testing import capture_logs

from tests.cli.test_commands import root as root, ullage, ullage_json
from tests.cli.test_erase import begin, plant
from tests.service.running import Running, document_at


def test_one_that_is_not_finished_is_told_by_a_service(root: Path) -> None:
    """In the log of its start, in its state and in a metric, with the command that finishes it, and without values."""
    plant(root)
    begin(root)
    document = document_at(root, service={"metrics_port": 0})

    with capture_logs() as logged, Running(document) as running:
        shown = ullage_json("status", "--url", running.url)
        scraped = httpx.get(f"{running.server.urls['metrics']}metrics").text

    (warning,) = (each for each in logged if each["event"] == "an erasure is not finished")
    assert warning["log_level"] == "warning"
    for told in (warning["problem"], shown["unfinishedErasure"], shown["state"]["unfinished_erasure"]):
        assert "ullage erase --where customer=VALUE" in told
        assert "4711" not in told
    assert "ullage_erasure_unfinished 1.0" in scraped


def test_a_file_that_an_erasure_left_at_its_end_is_told_until_it_goes(root: Path) -> None:
    """A crash between its renaming and its removal: it still names the subject, and the next erasure may never come."""
    plant(root)
    begin(root)
    left = root / "erasure" / "intent.over"
    (root / "erasure" / "intent").rename(left)

    for call in (("check",), ("status",)):
        assert "ullage erase --give-up" in ullage(*call, root=root).stdout
    ullage("erase", "--give-up", root=root)

    assert not left.exists()
    assert "erasure" not in ullage("check", root=root).stdout
