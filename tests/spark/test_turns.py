"""Tasks of a job are more than a node takes at a time: they wait for their turn, and do nothing twice."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.service.running import until
from tests.service.secured import Secured
from tests.spark.test_missing import CONTENT, ROWS, read
from ullage.client.flight import FlightClient
from ullage.client.retries import Retries
from ullage.enums import HolderKind
from ullage_agent.service.limits import Limits
from ullage_spark import fleet as asking
from ullage_spark.settings import CREDENTIALS
from ullage_spark.writer import ContentBatchWriter


def uploads(made: Secured) -> int:
    """How many streams are under way that bring something."""
    return sum(each.kind == HolderKind.UPLOAD for each in made.running.server.host.repository.holders())


@pytest.mark.parametrize("limit", [{"flight_calls": 2}, {"flight_calls_each": 2}])
def test_a_task_waits_for_its_turn_at_a_node_that_has_enough_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: dict[str, int]
) -> None:
    """With other streams of all, or of its own account, of which a job has more than a node takes. Nothing is there
    twice, though rows were sent before the refusal came.
    """
    monkeypatch.setattr(asking, "MISSING_SECONDS", 0.3)
    monkeypatch.setenv(CREDENTIALS, str(tmp_path))
    made = Secured(tmp_path, limits=Limits(**limit))
    made.admit("spark", "*")
    with made.running:
        url = made.url("flight")
        options = {"endpoint": url, "token": made.tokens["spark"], "caFile": made.ca_file}
        over = threading.Event()

        def held() -> Iterator[list[bytes]]:
            yield [b"held"]
            over.wait(60)

        with FlightClient(url, made.tokens["spark"], ca_file=made.ca_file) as client, ThreadPoolExecutor(4) as pool:
            holders = [pool.submit(lambda: list(client.put_many(held()))) for _ in range(2)]
            stored = made.running.repository.ledger.flow_files
            until(lambda: uploads(made) == 2 == sum(1 for _ in stored()), "both streams to have stored something")
            writer = ContentBatchWriter({**options, "queue": "in"}, CONTENT, overwrite=False)
            refused = threading.Event()
            wait = Retries._wait

            def told(self: Retries, attempt: int, at_least_seconds: float) -> float:
                refused.set()
                return wait(self, attempt, at_least_seconds)

            monkeypatch.setattr(Retries, "_wait", told)
            staged = pool.submit(lambda: writer.write(iter([ROWS])))
            assert refused.wait(60)
            rows = pool.submit(read, options)
            over.set()
            writer.commit([staged.result(60)])
            assert len(rows.result(60)) >= len(holders)
        assert sorted(row["size"] for row in read(options) if row["queue"] == "in") == [1, 1]
