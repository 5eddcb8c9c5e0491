"""Clients that mean harm, or are broken: nothing of theirs is stored, no descriptor leaks, nobody else suffers."""

import json
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

from tests.service.running import Running, document_at, until
from ullage_agent.service.limits import Limits

SHORT = Limits(header_seconds=1.0, idle_seconds=1.0, stall_seconds=1.0, header_bytes=8_192, requests=20)
"""Longer than a busy machine keeps a client that goes on from its next step."""


@pytest.fixture
def strict(tmp_path: Path) -> Iterator[Running]:
    """A server that loses its patience soon."""
    with Running(document_at(tmp_path / "repository"), SHORT) as made:
        yield made


def connect(running: Running) -> socket.socket:
    split = urlsplit(running.url)
    return socket.create_connection((split.hostname, split.port), timeout=30)


def answer(sock: socket.socket) -> bytes:
    """Everything until the server closes."""
    received = b""
    try:
        while data := sock.recv(65_536):
            received += data
    except ConnectionResetError:
        return received  # it closed on what was still coming
    finally:
        sock.close()
    return received


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


FILES = 5
"""What a put may open and keep: content files."""

POST = b"POST /v1/handles HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize("cut", [b"", b"half", b"a" * 700_000, b"b" * 3_000_000])
@pytest.mark.parametrize("is_reset", [True, False])
def test_an_upload_that_breaks_off_leaves_nothing(running: Running, cut: bytes, *, is_reset: bool) -> None:
    """Whether the client closes in order or not, early or late: no handle, no open writer, no descriptor."""
    running.client.post("/v1/handles", content=b"warm up")
    before = descriptors()
    sock = connect(running)
    sock.sendall(POST + b"Content-Length: 9000000\r\n\r\n" + cut)
    if is_reset:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()

    until(lambda: descriptors() <= before, "the descriptors to be closed")

    until(lambda: len(running.client.get("/v1/handles").json()["handles"]) == 1, "the upload to end")
    assert running.client.post("/v1/handles", content=b"y").status_code == 201
    # A slow machine may begin to read what was sent only now.
    until(lambda: running.repository.reclamation.orphans.look() == [], "no file to be left")


def test_an_upload_that_stalls_is_given_up(strict: Running) -> None:
    """408 and the end of the connection; nothing is stored."""
    sock = connect(strict)
    sock.sendall(POST + b"Content-Length: 9000000\r\n\r\n" + b"x" * 2_000_000)

    assert b" 408 " in answer(sock)
    assert strict.client.get("/v1/handles").json()["handles"] == []


def test_a_half_closed_socket_gets_no_handle(running: Running) -> None:
    """A client that says it will send no more, in the middle of its body, has sent no content."""
    sock = connect(running)
    sock.sendall(POST + b"Content-Length: 100\r\n\r\nhalf")
    sock.shutdown(socket.SHUT_WR)

    answer(sock)

    assert running.client.get("/v1/handles").json()["handles"] == []


def test_a_refusal_reaches_a_client_that_is_still_sending(running: Running) -> None:
    """An answer before the end of the body comes with the end of the connection, and not with a reset."""
    for _ in range(20):
        sock = connect(running)
        sock.sendall(b"POST /v1/handles?attribute=wrong HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500000\r\n\r\n")
        sock.sendall(b"x" * 500_000)

        assert b'"slug":"invalid-argument"' in answer(sock)


def test_headers_that_never_end_are_cut_off(strict: Running) -> None:
    """By their size, whether they are many, or one; and by their time."""
    many = connect(strict)
    many.sendall(b"GET /healthz HTTP/1.1\r\n" + b"".join(b"x-%d: y\r\n" % n for n in range(2_000)))
    one = connect(strict)
    one.sendall(b"GET /healthz HTTP/1.1\r\nx: " + b"y" * 20_000 + b"\r\n\r\n")
    slow = connect(strict)
    slow.sendall(b"GET /healthz HT")
    silent = connect(strict)

    assert b" 400 " in answer(many)
    assert b" 400 " in answer(one)
    assert answer(slow) == b""
    assert answer(silent) == b""


def test_an_endless_header_line_does_not_fill_memory(strict: Running) -> None:
    """The connection ends long before the line does."""
    sock = connect(strict)
    sent = 0
    try:
        sock.sendall(b"GET /healthz HTTP/1.1\r\nx: ")
        while sent < 64 << 20:
            sock.sendall(b"y" * 65_536)
            sent += 65_536
    except OSError:
        pass  # it was closed on us, as it should be
    finally:
        sock.close()

    assert sent < 64 << 20


def test_a_reader_that_takes_nothing_is_given_up(strict: Running) -> None:
    """Its pin is given back, so that what it read may be reclaimed."""
    id = strict.client.post("/v1/handles", content=b"x" * (32 << 20)).json()["id"]
    sock = connect(strict)
    sock.sendall(f"GET /v1/handles/{id} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())

    def is_let_go() -> bool:
        return not any(entry.pins for entry in strict.repository.ledger.entries())

    assert sock.recv(100)
    until(is_let_go, "the pin to be given back")
    assert len(answer(sock)) < 32 << 20


def test_a_thousand_idle_connections_keep_nobody_out(tmp_path: Path) -> None:
    """They cost a descriptor each until their time is over, then none."""
    with Running(document_at(tmp_path / "r"), Limits(header_seconds=2.0)) as running:
        running.client.get("/healthz")
        before = descriptors()
        idle = [connect(running) for _ in range(1_000)]

        assert running.client.post("/v1/handles", content=b"x").status_code == 201

        until(lambda: descriptors() <= before + len(idle) + FILES, "the server's ends to be closed")
        for each in idle:
            each.close()
        assert descriptors() <= before + FILES


def test_more_requests_than_allowed_are_told_to_come_again(strict: Running) -> None:
    """503 with Retry-After; whoever watches is answered all the same."""
    stuck = [connect(strict) for _ in range(SHORT.requests)]
    for sock in stuck:
        sock.sendall(POST + b"Content-Length: 10\r\n\r\n")

    def refused() -> bool:
        found = strict.client.get("/v1/state")
        return found.status_code == 503 and found.json()["slug"] == "busy" and bool(found.headers["retry-after"])

    until(refused, "the bound to be reached")
    assert strict.client.get("/healthz").status_code == 200
    for sock in stuck:
        sock.close()
    until(lambda: strict.client.get("/v1/state").status_code == 200, "room")


BODIES = [
    b"",
    b"{",
    b"[]",
    b"null",
    b'{"items": []}',
    b'{"items": [{"content": "not base64!"}]}',
    b'{"items": [{"content": 5}]}',
    b'{"items": [{"content": "eA==", "attributes": {"uuid": "x"}}]}',
    b'{"items": [{"content": "eA==", "attributes": {"a": "\\ud800"}}]}',
    b'{"items": [{"content": "eA=="}], "ttl": "soon"}',
    b'{"items": [{"content": "eA=="}], "ttl": "-1s"}',
    b'{"items": [{"content": "eA=="}], "more": 1}',
    b"[" * 100_000,
    b"\xff\xfe" * 100,
    json.dumps({"items": [{"content": ""}] * 10_001}).encode(),
]


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_hostile_bodies_are_refused_by_name(running: Running, body: bytes) -> None:
    """A problem with a status below 500, and nothing stored."""
    found = running.client.post("/v1/handles/batch", content=body, headers={"content-type": "application/json"})

    assert 400 <= found.status_code < 500, found.text
    assert found.headers["content-type"] == "application/problem+json"
    assert running.client.get("/v1/handles").json()["handles"] == []


def test_a_body_larger_than_its_kind_may_be_is_refused(tmp_path: Path) -> None:
    """What is decoded as a whole is bounded, announced or not."""
    with Running(document_at(tmp_path / "r"), Limits(small_body_bytes=10_000)) as running:
        headers = {"content-type": "application/json"}
        announced = running.client.post("/v1/handles/batch", content=b" " * 10_001, headers=headers)
        streamed = running.client.post("/v1/handles/batch", content=iter([b" " * 6_000] * 3), headers=headers)

        assert announced.status_code == streamed.status_code == 413


RAW = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET / HTTP/9.9\r\n\r\n",
    b"POST /v1/handles HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    b"POST /v1/handles HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /v1/handles HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"GET \xff\xff HTTP/1.1\r\n\r\n",
    b"GET /v1/handles/%00%ff HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    b"GET /v1/handles/a?attribute=%ff HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    b"\x00" * 1_000,
    b"GET /v1/state HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
]


@pytest.mark.parametrize("raw", RAW, ids=range(len(RAW)))
def test_what_is_no_http_harms_nobody(strict: Running, raw: bytes) -> None:
    """A refusal or the end of the connection; never a 5xx."""
    sock = connect(strict)
    sock.sendall(raw)

    status = answer(sock)[9:12]

    assert not status.startswith(b"5")
    assert strict.client.get("/healthz").status_code == 200


@pytest.mark.parametrize("name", ["../../etc/passwd", "a\x00b", "." * 300, "é" * 100, "con", "a b"])
def test_no_name_of_a_client_becomes_a_name_of_a_file(running: Running, name: str) -> None:
    """Queues, attributes and keys may be called anything: files have numbers."""
    root = Path(running.document.spec.storage.host_path.path)
    params = {"attribute": f"filename={name}"}
    headers = {"idempotency-key": "k"}

    running.client.post("/v1/handles", content=b"x", params=params, headers=headers)
    running.client.post(f"/v1/queues/{quote(name, safe='')}/flowfiles", content=b"x", params=params)

    names = [str(path.relative_to(root)) for path in root.rglob("*")]
    assert not any(piece in each for each in names for piece in ("passwd", "con", "é", "a b"))
    assert not Path("/etc/passwd-1").exists()
