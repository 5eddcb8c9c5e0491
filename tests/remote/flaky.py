"""Between a client and an S3 server: passes everything on, and does some requests wrong."""

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from tests.places import LOOPBACK, Gateway

HOPS: Final = ("content-length", "connection")
REFUSALS: Final = {
    "503": (503, b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"),
    "conflict": (409, b"<Error><Code>ConditionalRequestConflict</Code><Message>Again.</Message></Error>"),
    "denied": (403, b"<Error><Code>AccessDenied</Code><Message>No more.</Message></Error>"),
}


class Flaky:
    """What is done to each request is said by `fault`, of its method, its path and how many came before it: "" nothing,
    "503" and "conflict" it is refused, "denied" for good, "lost" it never arrives, "unanswered" it arrives and its
    answer does not, "cut" half of its answer does, "ignored" its condition is not looked at.
    """

    def __init__(self, gateway: Gateway) -> None:
        self.fault: Callable[[str, str, int], str] = lambda _method, _path, _number: ""
        self.done: list[str] = []
        """What was done wrong, in order."""

        self._gateway = gateway
        self.count = 0
        """Requests so far."""

        self._lock = threading.Lock()

    def kind(self, method: str, path: str) -> str:
        """Of the next request."""
        with self._lock:
            self.count += 1
            kind = self.fault(method, path, self.count)
            if kind:
                self.done.append(kind)
        return kind

    def asked(self, method: str, path: str, headers: list[tuple[str, str]], body: bytes) -> http.client.HTTPResponse:
        """The server's answer."""
        connection = http.client.HTTPConnection(LOOPBACK, self._gateway.port)
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in headers:
            connection.putheader(name, value)
        connection.endheaders(body)
        return connection.getresponse()


@contextmanager
def flaky_running(gateway: Gateway) -> Iterator[tuple[Flaky, str]]:
    """The proxy and its URL, until the end of the block."""
    flaky = Flaky(gateway)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            kind = flaky.kind(self.command, self.path)
            if kind in REFUSALS:
                status, said = REFUSALS[kind]
                self._answer(status, [], said, len(said))
                return
            if kind == "ignored" and {"if-match", "if-none-match"} & {name.lower() for name in self.headers}:
                self._answer(200, [("etag", '"1"')], b"", 0)
                return
            if kind != "lost":
                answer = flaky.asked(self.command, self.path, self.headers.items(), body)
                found = answer.read()
                headers = [each for each in answer.getheaders() if each[0].lower() not in HOPS]
                length = int(answer.getheader("content-length") or len(found))
                if kind != "unanswered":
                    self._answer(answer.status, headers, found[: len(found) // 2] if kind == "cut" else found, length)
            if kind:
                self.close_connection = True

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any  # noqa: N815 - as the base class finds them

        def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes, length: int) -> None:
            self.send_response_only(status)
            for name, value in [*headers, ("content-length", str(length))]:
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *_: Any) -> None:
            """Nothing: the test says what matters."""

    server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield flaky, f"http://{LOOPBACK}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
