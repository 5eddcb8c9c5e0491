"""Clients that are gone, or take nothing: what was made for them goes with them, and the log has no traceback of it."""

import json
import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.service.running import Running, document_at, until
from tests.service.test_hostile_clients import answer, connect
from ullage_agent.service.access import ANONYMOUS
from ullage_agent.service.http.protocol import _GuardedProtocol
from ullage_agent.service.limits import Limits

MB = 1_000_000

KEY = {"Idempotency-Key": "one"}
FOREIGN = b"GET /v1/state HTTP/1.1\r\nHost: evil.example\r\n\r\n"
"""Refused at once, by the event loop itself."""


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    limits = Limits(decoded_bytes=40 * MB, decoded_bytes_each=40 * MB, decoded_seconds=0.05)
    with Running(document_at(tmp_path / "r"), limits) as made:
        yield made


def test_a_connection_that_ends_before_its_answer_leaves_no_line(
    running: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its transport is closed, and nobody has been told: whoever has no token could fill the log with tracebacks."""
    begin, lost = _GuardedProtocol._begin, _GuardedProtocol.connection_lost
    ended: list[Any] = []

    def ends(protocol: Any, cycle: Any, app: Any) -> None:
        protocol.seat.cut_off()
        protocol.late = cycle, app

    def is_lost(protocol: Any, error: Exception | None) -> None:
        lost(protocol, error)
        protocol.loop.call_soon(begins, protocol, *protocol.late)

    def begins(protocol: Any, cycle: Any, app: Any) -> None:
        cycle.disconnected = False
        begin(protocol, cycle, app)
        ended.append(cycle)

    with caplog.at_level(logging.ERROR):
        monkeypatch.setattr(_GuardedProtocol, "_begin", ends)
        monkeypatch.setattr(_GuardedProtocol, "connection_lost", is_lost)
        for _ in range(3):
            with connect(running) as sock:
                sock.sendall(FOREIGN)
                assert answer(sock) == b""
        until(lambda: len(ended) == 3, "the requests to be begun")
        monkeypatch.undo()
        assert running.client.get("/v1/state").status_code == 200

    assert caplog.messages == []


def asking(running: Running, path: str, body: bytes = b"") -> socket.socket:
    """A client that takes little of the answer, since its own system has no room for it."""
    split = urlsplit(running.url)
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    sock.settimeout(30)
    sock.connect((split.hostname, split.port))
    method = "POST" if body else "GET"
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    sock.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return sock


def test_answers_that_nobody_takes_have_room_or_are_not_made(running: Running) -> None:
    """Whoever asked for a batch fifty times and took nothing had 4 GB of the agent's memory. What is small is answered
    all the same, and whoever takes an answer, or goes away, gives the room back.
    """
    budget = running.server.budget
    id = running.client.post("/v1/handles", content=bytes(18 * MB)).json()["id"]
    batch = json.dumps({"ids": [id]}).encode()
    with asking(running, "/v1/handles/batch/get", batch):
        until(lambda: 24 * MB <= budget._total < 25 * MB, "the answer to be made")

        refused = running.client.post("/v1/handles/batch/get", json={"ids": [id]})
        small = running.client.post("/v1/handles/batch/get", json={"ids": ["nothing"]})

        assert (refused.status_code, refused.json()["slug"], small.status_code) == (503, "busy", 200)
        assert "decoded_bytes" in refused.json()["detail"]
    until(lambda: budget._total == 0, "the room to be given back")
    assert len(running.client.post("/v1/handles/batch/get", json={"ids": [id]}).content) > 24 * MB
    until(lambda: budget._total == 0, "the room of what was taken to be given back")


def test_a_list_waits_for_room_and_what_is_done_is_answered(running: Running) -> None:
    """A list is made when there is room. What a poll has taken is told when there is, to who asks with the key."""
    item = {"content": "", "attributes": {"text": "t" * 100_000}}
    for path in ("/v1/handles/batch", "/v1/queues/in/batch"):
        assert running.client.post(path, json={"items": [item]}).status_code == 201
    budget = running.server.budget
    until(lambda: budget._total == 0, "the room of what was stored to be given back")

    with budget.take(ANONYMOUS, 40 * MB - 10_000):
        lists = [running.client.get(path) for path in ("/v1/handles", "/v1/queues/in/flowfiles")]
        small = running.client.get("/v1/queues")
        polled = [running.client.post("/v1/queues/in/poll", json={"count": 1}, headers=KEY)]
    polled.append(running.client.post("/v1/queues/in/poll", json={"count": 1}, headers=KEY))
    listed = running.client.get("/v1/handles")

    assert [each.json()["slug"] for each in lists] == ["busy", "busy"]
    assert (small.status_code, listed.status_code) == (200, 200)
    assert [each.status_code for each in polled] == [503, 201]
    assert len(polled[1].json()["flow_files"]) == 1
    until(lambda: budget._total == 0, "the room of all answers to be given back")


def test_an_answer_that_nobody_takes_is_given_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without a line of it: its client is no error of the agent's."""
    limits = Limits(stall_seconds=1.0)
    with caplog.at_level(logging.ERROR), Running(document_at(tmp_path / "r"), limits) as running:
        id = running.repository.handles.put(bytes(12 * MB))
        with asking(running, "/v1/handles/batch/get", json.dumps({"ids": [id]}).encode()) as sock:
            until(lambda: running.server.budget._total > 0, "the answer to be made")
            until(lambda: running.server.budget._total == 0, "it to be given up")
            assert len(answer(sock)) < 16 * MB

    assert caplog.messages == []
