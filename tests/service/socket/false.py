"""False sockets: programs that have put themselves where clients look for the agent."""

import array
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

Passed = list[socket.socket]


class FalseSocket:
    """Listens at a path, and keeps everything that it sees: `seen` by bytes, `passed` by descriptors."""

    def __init__(self, path: Path, serve: Callable[["FalseSocket", socket.socket], None]) -> None:
        self.path = str(path)
        self.seen = bytearray()
        self.passed: Passed = []
        self._serve = serve
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        self._listener.listen()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive()
        for each in self.passed:
            each.close()

    def take(self, connection: socket.socket) -> tuple[bytes, Passed]:
        """What comes next, kept."""
        data, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, 16)
        found = [socket.socket(fileno=each) for each in descriptors]
        self.seen += data
        self.passed += found
        return data, found

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._listener.accept()
            except OSError:
                return
            with accepted:
                self._serve(self, accepted)


Meddle = Callable[[Passed], Passed]
"""What goes on in the place of the descriptors that a client passed."""


def relaying(path: str, meddle: Meddle = lambda passed: passed) -> Callable[[FalseSocket, socket.socket], None]:
    """Pass everything on to the agent at `path`, and its answers back, descriptors too."""

    def serve(false: FalseSocket, client: socket.socket) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as agent:
            agent.connect(path)
            back = threading.Thread(target=_pump, args=(false, agent, client, lambda passed: passed))
            back.start()
            _pump(false, client, agent, meddle)
            back.join()

    return serve


def terminating(address: tuple[str, int]) -> Callable[[FalseSocket, socket.socket], None]:
    """Take the TLS out of its frames, and have another listener of the agent, which has the certificate, answer it."""

    def serve(false: FalseSocket, client: socket.socket) -> None:
        with socket.create_connection(address, timeout=5) as listener:
            while True:
                try:
                    data, _ = false.take(client)
                    if not data:
                        return
                    listener.sendall(data[8:])
                    records = listener.recv(1 << 16)
                    client.sendall(struct.pack("<IBBH", len(records), 133, 0, 0) + records)
                except OSError:
                    return  # one of the two has gone

    return serve


def silent(false: FalseSocket, client: socket.socket) -> None:
    """Say nothing, and keep what comes."""
    while false.take(client)[0]:
        pass


def _pump(false: FalseSocket, source: socket.socket, sink: socket.socket, meddle: Meddle) -> None:
    try:
        while True:
            data, passed = false.take(source)
            if not data:
                break
            numbers = array.array("i", [each.fileno() for each in meddle(passed)])
            sink.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)] if numbers else [])
    except OSError:
        pass  # one of the two has gone
    for each in (source, sink):
        try:
            each.shutdown(socket.SHUT_RDWR)
        except OSError:
            continue  # it has gone
