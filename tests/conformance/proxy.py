"""A network between a program and a service that can lose answers."""

import contextlib
import socket
import threading
from typing import Self
from urllib.parse import urlsplit

PIECE_BYTES = 1 << 16


class Proxy:
    """Passes connections on. Of the next `lose` answers the first byte is the end of the connection: whatever was asked
    has been done, and nobody is told.
    """

    def __init__(self, url: str) -> None:
        there = urlsplit(url)
        assert there.hostname is not None
        assert there.port is not None
        self._there = (there.hostname, there.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self.lose = 0
        self.lost = 0
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it was closed
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._there)
                threading.Thread(target=self._pass, args=(near, far, False), daemon=True).start()
                threading.Thread(target=self._pass, args=(far, near, True), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, is_answer: bool) -> None:
        with contextlib.suppress(OSError):  # either end may go
            while data := source.recv(PIECE_BYTES):
                if is_answer and self._is_lost():
                    break
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):  # the other thread was quicker
                end.shutdown(socket.SHUT_RDWR)
        source.close()

    def _is_lost(self) -> bool:
        with self._lock:
            if self.lose == 0:
                return False
            self.lose -= 1
            self.lost += 1
            return True
