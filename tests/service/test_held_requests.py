"""Requests over HTTP that are not begun: what they hold is bounded, and goes when their client does."""

import re
import socket
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.service.running import Running, document_at, until
from tests.service.test_fairness import Shared, shared
from tests.service.test_probes import is_gone
from ullage_agent.service.http.protocol import PIPELINED_MAX

PIECE = 50_000
LARGE = 200_000
"""So much that its connection is not read any more."""

MANY = 12


class Crowded:
    """A node on which nothing more of the greedy one is begun, and uploads of it that are not."""

    def __init__(self, both: Shared, stack: ExitStack, piece: int = PIECE) -> None:
        self.piece = piece
        self.both = both
        self.begun: list[Future[None]] = []
        for who in ("good", "greedy", "greedy", "greedy"):
            self.begun.append(both.begin(both.put, who, "HTTP"))
            until(lambda: len(both.gate.waiting) + both.waiting == len(self.begun), "its put to be at work")
        self.uploads = [stack.enter_context(self._upload()) for _ in range(MANY)]
        until(lambda: self.held[0] == MANY, "the uploads to be held")

    @property
    def held(self) -> tuple[int, int]:
        """Requests and bytes, as the metrics tell."""
        text = self.both.running.server.metrics.text().decode()
        found = [re.search(rf"^ullage_requests_held{end} (\S+)$", text, re.MULTILINE) for end in ("", "_bytes")]
        requests, size = (int(float(each[1])) for each in found if each is not None)
        return requests, size

    def _upload(self) -> socket.socket:
        split = urlsplit(self.both.running.url)
        found = socket.create_connection((split.hostname, split.port), timeout=30)
        head = f"POST /v1/handles HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self.both.tokens['greedy']}\r\n"
        found.sendall(f"{head}Content-Length: {2 * self.piece}\r\n\r\n".encode() + bytes(self.piece))
        return found

    def look(self) -> int:
        """As the good one, over a new connection."""
        headers = {"Authorization": f"Bearer {self.both.tokens['good']}"}
        return httpx.get(f"{self.both.running.url}/v1/queues", headers=headers, timeout=30).status_code

    def finish(self) -> list[int]:
        """Let all of it go on; the status of each upload."""
        self.both.gate.open()
        for each in self.begun:
            each.result()
        found = []
        for upload in self.uploads:
            upload.sendall(bytes(self.piece))
            found.append(int(upload.recv(1000).split()[1]))
        return found


@contextmanager
def crowded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int = PIECE, **limits: int) -> Iterator[Crowded]:
    """See the class."""
    monkeypatch.setattr("ullage_agent.service.http.starts.AHEAD_MAX", 1)
    with shared(tmp_path, **limits) as both, ExitStack() as stack:
        yield Crowded(both, stack, piece)


def test_they_are_begun_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what has come of their bodies, and what comes later."""
    with crowded(tmp_path, monkeypatch) as node:
        until(lambda: node.held == (MANY, MANY * PIECE), "what was sent to have come")
        assert node.finish() == [201] * MANY
        assert node.held == (0, 0)


@pytest.mark.parametrize("piece", [PIECE, LARGE])
def test_nothing_is_left_of_those_whose_client_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    """They were counted by nothing, and were begun one after the other, for nobody."""
    with crowded(tmp_path, monkeypatch, piece) as node:
        for upload in node.uploads:
            upload.close()
        until(lambda: node.held == (0, 0), "all of it to be given up")
        node.both.gate.open()
        for each in node.begun:
            each.result()
        # One whose client has gone after it was begun ends so.
        text = node.both.running.server.metrics.text().decode()
        assert 'ullage_errors_total{slug="request-incomplete"} 0.0\n' in text


def test_what_is_refused_by_the_parser_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was answered 400 for what came behind it, and stored all the same."""
    with crowded(tmp_path, monkeypatch) as node:
        for upload in node.uploads:
            upload.sendall(bytes(PIECE) + b"\x00\x01\r\n\r\n")
            assert b" 400 " in upload.recv(1_000)
        assert node.held == (0, 0)
        node.both.gate.open()
        for each in node.begun:
            each.result()
        assert len(node.both.running.repository.handles.page(b"", 100)) == 2 + len(node.begun)


def test_what_has_come_of_their_bodies_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is beyond is refused when its turn comes, without what was sent."""
    with crowded(tmp_path, monkeypatch, held_bytes_each=4 * PIECE) as node:
        assert node.held[1] <= 4 * PIECE
        found = node.finish()
        assert set(found) == {201, 503}
        assert 1 <= found.count(201) <= 4


def test_their_connections_may_be_had_by_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of clients that have said nothing: with as many as an address may have nobody else there got in."""
    with crowded(tmp_path, monkeypatch, connections_per_peer=MANY + 4) as node:
        assert [node.look() for _ in range(MANY)] == [200] * MANY
        assert is_gone(node.uploads[0])


def test_requests_that_are_sent_ahead_of_answers_are_few(tmp_path: Path) -> None:
    """What is read at once holds thousands of them, each of which takes memory."""
    ask = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n{}\r\n".format
    with Running(document_at(tmp_path / "r")) as running:
        split = urlsplit(running.url)
        for count, expected in ((PIPELINED_MAX, [200] * PIPELINED_MAX), (1_000, [400])):
            with socket.create_connection((split.hostname, split.port), timeout=30) as sock:
                sock.sendall((ask("") * (count - 1) + ask("Connection: close\r\n")).encode())
                said = sock.makefile("rb").read().decode()
            assert [int(status) for status in re.findall(r"^HTTP/1.1 (\d+)", said, re.MULTILINE)] == expected
