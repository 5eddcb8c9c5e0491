"""What an attack found: many who ask at once, refused or cut off, and what a head may hide."""

import re
import resource
import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.running import Running, audited, document_at, until
from tests.service.secured import known
from tests.service.test_hostile_clients import answer, connect
from tests.service.test_probes import Member
from tests.support import ManualClock
from ullage.contract import AuthMode
from ullage_agent.service.http.crowd import ENDED_MAX, Crowd
from ullage_agent.service.limits import DEFAULTS, Limits
from ullage_agent.service.log import REFUSED_LINES_MAX, RefusedLog
from ullage_agent.service.server import SPARE_DESCRIPTORS, _within_descriptors

EACH, ALL = 6, 16


class Guarded:
    """A node with few places that asks for tokens."""

    def __init__(self, path: Path) -> None:
        file = path / "tokens"
        self.tokens = known(file, "greedy", "good")
        auth = {"mode": AuthMode.TOKEN_FILE, "token_file": str(file)}
        self.running = Running(
            document_at(path / "r", auth=auth), Limits(requests=ALL, requests_each=EACH, requests_per_peer=ALL // 2)
        )

    def upload(self, token: str, body: bytes = b"a part of it") -> socket.socket:
        """Of which the rest does not come."""
        found = connect(self.running)
        head = f"POST /v1/handles HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
        found.sendall(f"{head}Content-Length: 1000000\r\n\r\n".encode() + body)
        return found

    def ask(self, who: str = "good", method: str = "GET", path: str = "/v1/queues", **headers: str) -> httpx.Response:
        headers |= {"Authorization": f"Bearer {self.tokens[who]}"} if who else {}
        return httpx.request(method, self.running.url.rstrip("/") + path, headers=headers, timeout=30)

    def count(self, name: str) -> int:
        text = self.running.server.metrics.text().decode()
        values = re.findall(rf"^ullage_{name}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE)
        return int(sum(map(float, values)))


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    made = Guarded(tmp_path)
    with made.running:
        yield made


@pytest.mark.parametrize("who", ["greedy", "nobody"])
def test_who_is_refused_takes_no_place_while_the_rest_of_a_body_is_taken_in(guarded: Guarded, who: str) -> None:
    """Whoever had more slow uploads than a quota allows, or no token, had all places for two seconds, over and over."""
    with ExitStack() as stack:
        uploads = [stack.enter_context(guarded.upload(guarded.tokens.get(who, who))) for _ in range(3 * ALL)]

        def refused() -> int:
            return len(select.select(uploads, [], [], 0)[0])

        # They are told at once, and are taken in for two seconds more.
        until(lambda: refused() >= 3 * ALL - EACH, "what is beyond the quota to be refused")
        assert [guarded.ask().status_code for _ in range(5)] == [200] * 5
        # The last one that was asked here may still be ending.
        assert guarded.count("requests_under_way") - (EACH if who == "greedy" else 0) in (0, 1)


def test_a_head_of_many_empty_headers_is_refused(guarded: Guarded) -> None:
    """Each costs the parser and memory a hundred times what its bytes do."""
    with connect(guarded.running) as sock:
        sock.sendall(b"GET /healthz HTTP/1.1\r\n" + b"a:\r\n" * 2_000 + b"\r\n")
        assert b" 400 " in answer(sock)


@pytest.mark.parametrize("path", ["/v1/state", "/v1/handles", "/", "/docs", "/openapi.json", "/healthz"])
@pytest.mark.parametrize("who", ["", "good"])
def test_no_page_of_another_place_is_told_what_it_may_ask(guarded: Guarded, path: str, who: str) -> None:
    """OPTIONS is not answered, and is no fault of the service's."""
    found = guarded.ask(who, "OPTIONS", path)

    assert (found.status_code, found.headers.get("access-control-allow-origin")) == (405, None)


def test_nobody_says_from_where_they_ask(guarded: Guarded) -> None:
    """A header of proxies does not change what the audit log has."""
    guarded.ask(path="/v1/handles/" + "0" * 32, **{"X-Forwarded-For": "6.6.6.6", "X-Forwarded-Proto": "https"})
    guarded.ask("", **{"X-Forwarded-For": "<script>"})

    assert [line.peer for line in audited(guarded.running, 2)] == ["127.0.0.1"] * 2


def test_what_stands_behind_a_body_is_no_header(guarded: Guarded) -> None:
    """A proxy that looks at headers does not see it there."""
    token = guarded.tokens["good"].encode()
    with connect(guarded.running) as sock:
        sock.sendall(
            b"POST /v1/handles HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
            b"4\r\nbody\r\n0\r\nAuthorization: Bearer " + token + b"\r\n\r\n"
        )
        assert b" 401 " in answer(sock)


def test_few_lose_their_places_in_a_second() -> None:
    """Clients that connect again as soon as they are cut off, each in the place of the next, kept the loop busy."""
    clock = ManualClock()
    crowd: Crowd[Member] = Crowd(5, 2, clock.monotonic)
    all_of_one = [Member() for _ in range(2 + ENDED_MAX)]
    for each in all_of_one:
        assert crowd.enter(each, "10.0.0.1")

    assert not crowd.enter(Member(), "10.0.0.1")
    assert sum(each.is_cut_off for each in all_of_one) == ENDED_MAX
    assert crowd.enter(Member(), "10.0.0.2")
    clock.advance(1.0)
    assert crowd.enter(Member(), "10.0.0.1")


def test_with_few_descriptors_one_has_a_part_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """With all quotas as they were, one principal or address had every connection that there could be."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1_024, 1_024))

    found = _within_descriptors(DEFAULTS)

    assert found.connections == 1_024 - SPARE_DESCRIPTORS
    assert found.requests_each < found.requests <= found.connections // 2
    assert found.connections_per_peer <= found.connections // 2
    assert found.requests_per_peer <= found.requests // 2


def test_a_flood_of_refusals_is_logged_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody who asks a thousand times a second fills a log."""
    told: list[dict[str, Any]] = []
    clock = ManualClock()
    log = RefusedLog(clock)
    monkeypatch.setattr(log, "_log", type("Log", (), {"warning": lambda _, event, **said: told.append(said)})())

    for _ in range(1_000):
        log.tell(path="/")
    clock.advance(1.0)
    log.tell(path="/")

    assert told == [{"path": "/"}] * REFUSED_LINES_MAX + [{"path": "/", "left_out": 1_000 - REFUSED_LINES_MAX}]
