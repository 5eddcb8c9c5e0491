"""`python -m bench.greedy HTTP FLIGHT SOCKET TOKEN CONTENT PART`: a client that has all that a principal may have of
a node, or of that a part such as an eighth (8), until its stdin ends. It prints a line once all of it is at work.

Over HTTP and the Unix socket it is one loop that sends bytes it has put together before, so that it asks as fast as the
node answers; over Flight it is threads. Half of it reads a content, half puts one of 1 KB.
"""

import os
import selectors
import socket
import sys
import threading
from collections.abc import Iterable
from functools import partial
from typing import Final
from urllib.parse import urlsplit

from ullage.client.flight import FlightClient
from ullage.errors import UllageError
from ullage.wire import frames, operations, tickets
from ullage.wire.frames import HEADER, FrameKind, Hello, PutHead
from ullage_agent.service.limits import DEFAULTS

ADDRESSES: Final = ("127.0.0.2", "127.0.0.3")
"""Where its connections over HTTP come from: each address has half of what a node takes from one."""

PIECE: Final = 1 << 16
CONTENT: Final = os.urandom(1_024)


class Asking:
    """A connection with one request, which it sends again whenever an answer has come."""

    def __init__(self, sock: socket.socket, request: bytes) -> None:
        self.sock = sock
        self._request = request
        self._got = b""

    def ask(self) -> None:
        """Send it: it fits into the kernel's buffer."""
        self._got = b""
        self.sock.sendall(self._request)

    def heard(self) -> bool:
        """Take what has come; whether the answer is whole. ConnectionError if the node has hung up."""
        piece = self.sock.recv(PIECE)
        if not piece:
            raise ConnectionError
        self._got += piece
        return len(self._got) >= self._size()

    def _size(self) -> int:
        head, end, _ = self._got.partition(b"\r\n\r\n")
        if not end:
            return len(self._got) + 1
        length = next((line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), b":0")
        return len(head) + len(end) + int(length.partition(b":")[2])


class AskingFrames(Asking):
    """The same over the Unix socket."""

    def _size(self) -> int:
        return HEADER.size + HEADER.unpack_from(self._got)[0] if len(self._got) >= HEADER.size else HEADER.size


def over_http(url: str, token: str, content: str, count: int) -> Iterable[Asking]:
    """So many connections, each with a request."""
    place = urlsplit(url)
    head = f"Host: {place.netloc}\r\nAuthorization: Bearer {token}\r\n"
    putting = operations.PUT_HANDLE
    wanted = (
        f"GET /v1/handles/{content} HTTP/1.1\r\n{head}\r\n".encode(),
        f"{putting.method} {putting.path} HTTP/1.1\r\n{head}Content-Type: application/octet-stream\r\n"
        f"Content-Length: {len(CONTENT)}\r\n\r\n".encode()
        + CONTENT,
    )
    for number in range(count):
        address = ADDRESSES[number // 2 % len(ADDRESSES)]
        sock = socket.create_connection((str(place.hostname), place.port or 0), source_address=(address, 0))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield Asking(sock, wanted[number % 2])


def over_socket(path: str, token: str, content: str, count: int) -> Iterable[Asking]:
    """So many connections, after their greeting."""
    hello = frames.pack_frame(FrameKind.HELLO, 0, frames.pack_hello(Hello(frames.VERSION, frames.VERSION, token)))
    head = frames.pack_put(PutHead(0, 0, b"", "", (len(CONTENT),)))
    wanted = (
        frames.pack_frame(FrameKind.READ, 1, frames.READ.pack(bytes.fromhex(content), 0, len(CONTENT))),
        frames.pack_frame(FrameKind.PUT, 1, head, CONTENT),
    )
    for number in range(count):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.connect(path)
        greeting = AskingFrames(sock, hello)
        greeting.ask()
        while not greeting.heard():
            continue
        yield AskingFrames(sock, wanted[number % 2])


def converse(asking: list[Asking]) -> None:
    """Ask again and again, on all connections."""
    with selectors.DefaultSelector() as selector:
        for each in asking:
            selector.register(each.sock, selectors.EVENT_READ, each)
            each.ask()
        while True:
            for key, _ in selector.select():
                try:
                    if key.data.heard():
                        key.data.ask()
                except OSError:  # the node has given it up
                    selector.unregister(key.fileobj)


def stream(client: FlightClient, content: str, number: int) -> None:
    """Streams one after the other: of puts, a content a batch, or of one get each."""
    while True:
        try:
            if number % 2:
                for _ in client.put_many([CONTENT] for _ in range(100)):
                    continue
            else:
                client.get_many([content])
        except UllageError:  # it is beyond a quota for a moment: the call before has not ended yet
            continue


def ask(client: FlightClient, _: int) -> None:
    """What is answered at once, again and again."""
    while True:
        try:
            client.act(tickets.ABOUT, tickets.ABOUT.request())
        except UllageError:  # as above
            continue


def main() -> None:
    """See the module's text."""
    http, flight, path, token, content, part = sys.argv[1:]
    asking = [
        *over_http(http, token, content, DEFAULTS.requests_each // int(part)),
        *over_socket(path, token, content, DEFAULTS.socket_connections_each // int(part)),
    ]
    with FlightClient(flight, token) as client:
        works = [
            partial(converse, asking),
            *(partial(stream, client, content, number) for number in range(DEFAULTS.flight_calls_each // int(part))),
            *(partial(ask, client, number) for number in range(DEFAULTS.flight_controls_each // int(part))),
        ]
        for work in works:
            threading.Thread(target=work, daemon=True).start()
        print("at work", flush=True)
        sys.stdin.read()
        os._exit(0)


if __name__ == "__main__":
    main()
