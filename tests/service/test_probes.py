"""Probes on a port of their own, and slow connections, which take nobody else's place."""

import selectors
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import httpx
import pytest

from tests.service.running import Running, document_at, until
from tests.service.secured import Secured
from ullage_agent.service.addresses import client_of
from ullage_agent.service.http import health
from ullage_agent.service.http.crowd import Crowd
from ullage_agent.service.limits import Limits

PROBE_SECONDS = 5.0
"""What the operator's probes wait."""

SLOW = b"GET /v1/state HTTP/1.1\r\nHost: localhost\r\nx: "


class Slow:
    """Connections that say a part of a request and no more."""

    def __init__(self, url: str, count: int, said: bytes = SLOW) -> None:
        split = urlsplit(url)
        self.sockets = [socket.create_connection((split.hostname, split.port), timeout=30) for _ in range(count)]
        for each in self.sockets:
            each.sendall(said)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self.sockets:
            each.close()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """A service with few places, and a port for probes."""
    limits = Limits(connections=20, connections_per_peer=10, requests=8, requests_per_peer=4)
    with Running(document_at(tmp_path / "r", service={"health_port": 0}), limits) as made:
        yield made


def probed(running: Running, path: str = "/healthz") -> int:
    return httpx.get(running.server.urls["health"].rstrip("/") + path, timeout=PROBE_SECONDS).status_code


def test_probes_are_answered_while_the_service_is_full(running: Running) -> None:
    """Of slow connections, and of slow uploads: a healthy agent was restarted, or taken out of service."""
    upload = b"POST /v1/handles HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n"
    with Slow(running.url, 4, upload), Slow(running.url, 40):
        until(lambda: refusal(running) == 503, "the service to be full")

        assert {probed(running, path) for path in ("/healthz", "/readyz") for _ in range(5)} == {200}


def refusal(running: Running) -> int:
    return httpx.get(f"{running.url}/v1/state", timeout=30).status_code


def test_probes_are_answered_while_their_own_port_is_full(running: Running) -> None:
    """Who has waited longest loses its place to the probe."""
    with Slow(running.server.urls["health"], 2 * health.CONNECTIONS):
        assert {probed(running, path) for path in ("/healthz", "/readyz") for _ in range(5)} == {200}


class Again:
    """Silent connections of the prober's own address, each opened again as soon as it has been cut off."""

    def __init__(self, url: str, count: int) -> None:
        split = urlsplit(url)
        self._place = split.hostname, split.port
        self._selector = selectors.DefaultSelector()
        self._is_over = threading.Event()
        self.cut_off = 0
        for _ in range(count):
            self._open()
        self._thread = threading.Thread(target=self._go_on)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()

    def _open(self) -> None:
        sock = socket.create_connection(self._place, timeout=30)
        self._selector.register(sock, selectors.EVENT_READ)

    def _go_on(self) -> None:
        while not self._is_over.is_set():
            for key, _ in self._selector.select(0.01):
                self._selector.unregister(key.fileobj)
                key.fileobj.close()  # type: ignore[union-attr]
                self.cut_off += 1
                self._open()


def test_probes_are_answered_beside_a_crowd_of_their_own_address(running: Running) -> None:
    """Which comes again as it is cut off, as whatever a node masquerades may: each probe failed, and the agent was
    restarted.
    """
    with Again(running.server.urls["health"], 200) as crowd:
        until(lambda: crowd.cut_off > 150, "the port to be full")

        assert {probed(running, path) for path in ("/healthz", "/readyz") for _ in range(10)} == {200}


def test_slow_connections_of_a_peer_take_the_place_of_its_own_alone(running: Running) -> None:
    """A new one takes that of the longest waiting; who asks something is answered."""
    with Slow(running.url, 40) as slow:
        assert [refusal(running) for _ in range(20)] == [200] * 20
        assert is_gone(slow.sockets[0])


def is_gone(sock: socket.socket) -> bool:
    """Whether the other end has closed it: with a reset if it had not read everything by then."""
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def test_slow_uploads_of_a_peer_take_half_of_the_places(running: Running) -> None:
    """Named in the refusal, so that a client behind a Service sees why."""
    upload = b"POST /v1/handles HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n"
    with Slow(running.url, 4, upload):
        until(lambda: refusal(running) == 503, "the peer's places to be taken")
        found = httpx.get(f"{running.url}/v1/state")

    assert "4 requests of 127.0.0.1 are under way of which nobody is known" in found.json()["detail"]
    until(lambda: refusal(running) == 200, "the places to be given back")


def test_connections_that_never_begin_tls_are_counted(tmp_path: Path) -> None:
    """Each cost a descriptor for a minute, and nobody counted them."""
    limits = Limits(connections=20, connections_per_peer=10)
    secured = Secured(tmp_path, limits=limits)
    with secured.running, Slow(secured.url(), 40, b"") as slow:
        for _ in range(5):
            with secured.client() as client:
                assert client.get("/healthz").status_code == 200
        for each in slow.sockets[:20]:
            assert each.recv(1) == b""


def test_a_service_that_is_stuck_says_so(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its event loop runs nothing: the thread that answers probes is another, and must not hide it."""
    gate = threading.Event()
    monkeypatch.setattr(health, "STUCK_SECONDS", 1.5)
    loop: Any = running.server._loop
    loop.call_soon_threadsafe(gate.wait)

    until(lambda: probed(running) == 503, "the probe to fail")
    gate.set()
    until(lambda: probed(running) == 200, "the probe to be answered again")


def test_nothing_else_is_answered_there(running: Running) -> None:
    """Who may reach the port may reach nothing."""
    url = running.server.urls["health"].rstrip("/")

    assert [httpx.get(url + path).status_code for path in ("/", "/v1/state", "/metrics", "/openapi.json")] == [404] * 4
    assert httpx.post(f"{url}/healthz").status_code == 404


class Member:
    def __init__(self) -> None:
        self.is_cut_off = False

    def cut_off(self) -> None:
        self.is_cut_off = True


def test_who_works_is_never_cut_off() -> None:
    """Where all do, a new connection is refused; where a peer has its share, others still get in."""
    crowd: Crowd[Member] = Crowd(4, 2)
    busy = [Member(), Member()]
    for each in busy:
        assert crowd.enter(each, "10.0.0.1")
        crowd.work(each)

    assert not crowd.enter(Member(), "10.0.0.1")
    idle = Member()
    assert crowd.enter(idle, "10.0.0.2")
    assert crowd.enter(Member(), "10.0.0.3")
    assert crowd.enter(Member(), "10.0.0.4")
    assert [each.is_cut_off for each in (*busy, idle)] == [False, False, True]
    crowd.leave(busy[0])
    assert crowd.enter(Member(), "10.0.0.1")


@pytest.mark.parametrize(
    ("one", "other", "are_same"),
    [
        ("10.0.0.1", "10.0.0.2", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::1", True),
    ],
)
def test_addresses_that_one_client_has_at_will_are_one_peer(one: str, other: str, are_same: bool) -> None:
    """Of IPv6 whoever has one has 2^64."""
    assert (client_of(one) == client_of(other)) is are_same
