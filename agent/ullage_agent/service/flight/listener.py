"""The one Flight server of a service, and its successor when the certificate has changed.

gRPC takes a certificate when it starts, and two servers cannot share a port, so a new certificate means a new server:

    try       a server on another port proves that the files can be used; nothing was touched until then
    retire    the old one closes the port and tells its clients to connect anew; calls under way go on to their end
    succeed   the new one takes the port, a millisecond later

Who connects within that millisecond is refused, as by a restart; calls of clients that retry, ours among them, get
through. Snapshots and the bound on calls belong to both.
"""

import threading
from typing import Final

from ullage_agent.service.errors import CannotListen
from ullage_agent.service.flight.server import FlightServer, Shared
from ullage_agent.service.listening import Terms

SUCCESSION_TRIES: Final = 500
TRY_SECONDS: Final = 0.01
"""How long the port may take to become free: other processes do not wait for it, so it is ours within milliseconds."""

DRAIN_SECONDS: Final = 5.0
"""What a stop grants to calls that a retired server still has, beyond those of its successor."""


class FlightListener:
    """Serves from its construction on. Thread-safe."""

    def __init__(self, terms: Terms) -> None:
        """CannotListen if the address is not to be had, or the certificate not to be used."""
        self._shared = Shared(terms)
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._retired: list[threading.Thread] = []
        self._generation = 0
        self._server: FlightServer | None = FlightServer(self._shared, terms.listening.flight_port or 0)
        self._port = self._server.port
        self.url = self._server.url

    def renew(self, generation: int) -> None:
        """Serve with the files as they are now, unless this generation of them is served already.

        CannotListen if they cannot be used: the old server goes on; or if somebody took the port: asked again, it
        tries again.
        """
        with self._lock:
            if generation == self._generation or self._stopping.is_set():
                return
            FlightServer(self._shared, 0).shutdown()
            if self._server is not None:
                self._retire(self._server)
            self._server = None
            self._server = self._successor()
            self._generation = generation

    def stop(self) -> None:
        """Refuse new calls, let those under way end, release what clients held."""
        self._stopping.set()
        with self._lock:
            server, self._server = self._server, None
        if server is not None:
            server.shutdown()
        for thread in self._retired:
            thread.join(DRAIN_SECONDS)
        self._shared.snapshots.close()

    def _retire(self, server: FlightServer) -> None:
        """Its `shutdown` closes the port at once, and waits for its calls."""
        self._retired = [thread for thread in self._retired if thread.is_alive()]
        thread = threading.Thread(target=server.shutdown, name="flight-retired", daemon=True)
        self._retired.append(thread)
        thread.start()

    def _successor(self) -> FlightServer:
        for _ in range(SUCCESSION_TRIES):
            try:
                return FlightServer(self._shared, self._port)
            except CannotListen:
                if self._stopping.wait(TRY_SECONDS):
                    break
        return FlightServer(self._shared, self._port)
