"""A job that goes on without nodes says so where people look: in its driver's log, and in the repository's events."""

import http.server
import json
import logging
import ssl
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.certificates import Authority
from tests.spark.fleet import Fleet, fleet_at
from ullage_spark import addresses, skips
from ullage_spark.fleet import called
from ullage_spark.settings import SourceOptions

GONE = "grpc://127.0.0.1:1"
TEXT = "a job goes on without 1 of 2 nodes"


class Answers(http.server.BaseHTTPRequestHandler):
    """Takes events as an API server does: of each name one, and only of whoever may."""

    made: dict[str, dict[str, Any]]
    refuses = False
    busy = 0
    """How often it still says that it has too much to do."""

    def do_POST(self) -> None:
        thing = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name = thing["metadata"]["name"]
        known = self.headers["Authorization"] == "Bearer token" and self.path == "/api/v1/namespaces/data/events"
        code = 403 if self.refuses or not known else 409 if name in self.made else 201
        if self.busy:
            type(self).busy -= 1
            code = 429
        if code == 201:
            self.made[name] = thing
        self.send_response(code)
        self.send_header("Retry-After", "0")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody reads it."""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Answers]]:
    """Behind TLS, with a pod's account for it."""
    authority = Authority(tmp_path / "authority")
    authority.issue(tmp_path)
    for name, text in (("token", "token"), ("namespace", "data"), ("ca.crt", authority.certificate.read_text())):
        (tmp_path / name).write_text(text)

    class Server(Answers):
        made: dict[str, dict[str, Any]] = {}  # noqa: RUF012 - of this test

    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    served.socket = context.wrap_socket(served.socket, server_side=True)
    monkeypatch.setattr(addresses, "ACCOUNT", str(tmp_path))
    monkeypatch.setattr(addresses, "API", f"https://127.0.0.1:{served.server_port}")
    thread = threading.Thread(target=served.serve_forever)
    thread.start()
    yield Server
    served.shutdown()
    thread.join()
    served.server_close()


@pytest.fixture(autouse=True)
def _nothing_told() -> None:
    skips._told.clear()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with fleet_at(tmp_path, "a") as made:
        yield made


def test_a_skipped_node_stands_in_the_log_once_and_is_counted(
    fleet: Fleet, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By name, and with what it holds as far as anybody knows; a stream's next look at its fleet repeats nothing."""
    monkeypatch.setattr("ullage_spark.fleet.MISSING_SECONDS", 0.1)
    settings = SourceOptions.of({"endpoint": f"{fleet.endpoint},{GONE}", "missingNodes": "skip"})
    with caplog.at_level(logging.WARNING, "ullage_spark"):
        for _ in range(2):
            assert [node.name for node in called(settings).nodes] == ["a"]
    metrics = fleet.agents["a"].server.metrics
    assert metrics.counted("skipped_nodes_total") == 1
    (record,) = [each for each in caplog.records if each.name == "ullage_spark"]
    assert f"without 1 of 2 nodes, which hold 0 bytes of content, and of 1 nobody knows: {GONE}" in record.getMessage()


def test_where_kubernetes_lists_the_fleet_an_event_says_it(
    server: type[Answers], caplog: pytest.LogCaptureFixture
) -> None:
    """Of the repository, one an hour of many jobs; an account that may make none has the log."""
    for endpoint in ("kubernetes:data/flows", "kubernetes:flows"):  # the second one is of the pod's namespace
        skips.tell(endpoint, "b", TEXT, lambda: 0.0)
    (event,) = server.made.values()
    assert (event["type"], event["reason"], event["message"]) == ("Warning", "NodesSkipped", TEXT)
    assert (event["involvedObject"]["kind"], event["involvedObject"]["name"]) == ("ContentRepository", "flows")

    server.refuses = True
    with caplog.at_level(logging.WARNING, "ullage_spark"):
        skips.tell("kubernetes:data/other", "b", TEXT)
    assert "needs the verb create on events" in caplog.text
    assert len(server.made) == 1


def test_an_api_server_that_asks_to_come_again_is_asked_again(
    server: type[Answers], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For as long as a node is: one that has too much to do for longer leaves the log."""
    server.busy = 2
    skips.tell("kubernetes:data/flows", "b", TEXT)
    assert len(server.made) == 1

    server.busy = 2
    monkeypatch.setattr(addresses, "BUSY_SECONDS_MAX", -1.0)
    skips.tell("kubernetes:data/other", "b", TEXT)
    assert (len(server.made), server.busy) == (1, 1)


def test_the_same_is_told_again_after_an_hour(caplog: pytest.LogCaptureFixture) -> None:
    """Also of a stream that runs for weeks."""
    with caplog.at_level(logging.WARNING, "ullage_spark"):
        for now in (0.0, 3_599.0, 3_600.0, 7_300.0):
            skips.tell("grpc://a:1", "b", f"{TEXT}, as it is at {now}", partial(float, now))
    assert len(caplog.records) == 3
