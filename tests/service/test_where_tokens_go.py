"""Tokens go to who has proved who it is, or stay on the machine."""

import socket
import threading
from pathlib import Path

import pytest

import ullage
from tests.service.secured import Secured
from ullage.client.flight import FlightClient
from ullage.client.http import HttpClient
from ullage.errors import InvalidArgument, NotReachable
from ullage.wire import operations

ELSEWHERE = ("10.0.0.1", "node-1", "0.0.0.0", "127.0.0.1.example", "localhost.example", "[2001:db8::1]")
HERE = ("127.0.0.1", "127.8.8.8", "localhost", "[::1]")


@pytest.mark.parametrize("host", ELSEWHERE)
def test_no_token_goes_to_another_machine_in_the_clear(host: str) -> None:
    """It is refused before anything is sent, whatever the client."""
    with pytest.raises(InvalidArgument, match="no token is sent") as refused:
        HttpClient(f"http://{host}:8480", "secret")
    assert "secret" not in str(refused.value)
    for scheme in ("grpc", "grpc+tcp", "grpc+unix"):
        with pytest.raises(InvalidArgument, match="no token is sent"):
            FlightClient(f"{scheme}://{host}:8481", "secret")
    with pytest.raises(InvalidArgument, match="no token is sent"):
        ullage.connect(f"http://{host}:8480", token="secret")
    with pytest.raises(InvalidArgument, match="no token is sent"):
        ullage.connect("http://127.0.0.1:8480", token="secret", flight=f"grpc://{host}:8481")


def test_loopback_and_strangers_without_a_token_are_as_before() -> None:
    """What stays on the machine needs no encryption, and without a token there is nothing to lose."""
    for host in HERE:
        HttpClient(f"http://{host}:8480", "secret").close()
        FlightClient(f"grpc://{host}:8481", "secret").close()
    HttpClient("http://node-1:8480").close()


def test_a_proxy_of_the_environment_gets_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is meant for this machine would leave it in the clear."""
    heard = bytearray()
    proxy = socket.create_server(("127.0.0.1", 0))
    proxy.settimeout(1)

    def listen() -> None:
        try:
            with proxy.accept()[0] as accepted:
                heard.extend(accepted.recv(1 << 16))
        except TimeoutError:
            return

    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.getsockname()[1]}")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    listening = threading.Thread(target=listen)
    listening.start()
    silent = socket.socket()  # it has a port, which nobody else can have, and does not listen
    silent.bind(("127.0.0.1", 0))
    port = silent.getsockname()[1]

    client = HttpClient(f"http://127.0.0.1:{port}", "secret")
    with pytest.raises(NotReachable):
        client.ask(operations.GET_STATE, operations.GET_STATE.path_of())
    client.close()
    with FlightClient(f"grpc://127.0.0.1:{port}", "secret") as flight, pytest.raises(NotReachable):
        flight.get_many(["00000000-0000-0000-0000-000000000000"])
    listening.join()
    proxy.close()
    silent.close()

    assert not heard


def test_a_certificate_that_nobody_vouches_for_gets_no_token(tmp_path: Path) -> None:
    """Neither over HTTP nor over Flight; the agent never sees a request."""
    secured = Secured(tmp_path)
    with secured.running:
        for client in (HttpClient(secured.url(), secured.tokens["all"]),):
            with pytest.raises(NotReachable):
                client.ask(operations.GET_STATE, operations.GET_STATE.path_of())
            client.close()
        with FlightClient(secured.url("flight"), secured.tokens["all"]) as flight, pytest.raises(NotReachable):
            flight.get_many(["00000000-0000-0000-0000-000000000000"])
