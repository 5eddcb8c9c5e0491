"""A service whose repository has an erasure that did not come to its end says so, and not whose it is."""

from pathlib import Path
from typing import Any

from structlog.testing import capture_logs

from tests.service.running import Running, document_at
from ullage.embedded.erasure import erase_subject
from ullage.engine.engine import Engine


def test_an_unfinished_erasure_is_told_at_the_start(tmp_path: Path) -> None:
    """With what finishes it; the subject's value is in no log, which goes to other machines and is kept."""
    document = document_at(tmp_path / "r")
    with Running(document):
        pass  # it makes the repository
    with Engine.open(document.spec) as engine, engine.session() as session:
        session.ingest("in", [b"content"], {"customer": "4711x"})
        session.commit()
        engine.leases.acquire("reader", 3_600_000, [])
    steps: dict[str, Any] = {"on_cost": lambda _: None, "on_phase": lambda _: None, "on_step": lambda _: None}
    report = erase_subject(document, {"customer": "4711x"}, on_found=lambda _: True, **steps)
    assert report is not None
    assert not report.is_finished

    with capture_logs() as logs, Running(document):
        told = list(logs)

    (found,) = [each for each in told if each["event"] == "an erasure is not finished"]
    assert found["log_level"] == "warning"
    assert "ullage erase --where customer=VALUE" in found["problem"]
    assert "4711x" not in repr(told)
