"""A relay whose connections can go silent: neither closed nor answered, as behind a balancer that died."""

import socket
import threading
from contextlib import suppress

PIECE_BYTES = 1 << 16


class Relay:
    """Forwards connections from `port` of loopback to another one."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._silent: set[socket.socket] = set()
        threading.Thread(target=self._accept, name="relay", daemon=True).start()

    def silence(self) -> int:
        """From here on nothing comes through the present connections; how many. New ones work."""
        with self._lock:
            self._silent |= self._open
            return len(self._open) // 2

    def close(self) -> None:
        """Close all, silent ones too."""
        self._listener.close()
        with self._lock:
            for each in self._open | self._silent:
                with suppress(OSError):  # its other end was first
                    each.shutdown(socket.SHUT_RDWR)
                each.close()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target_port))
                with self._lock:
                    self._open |= {near, far}
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=(source, sink), name="relay", daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):  # either side went away
            while piece := source.recv(PIECE_BYTES):
                if source in self._silent:
                    return  # neither forwarded nor closed
                sink.sendall(piece)
        with self._lock:
            if source in self._silent:
                return
            self._open -= {source, sink}
        for each in (source, sink):
            with suppress(OSError):  # its other end was first
                each.shutdown(socket.SHUT_RDWR)
            each.close()
