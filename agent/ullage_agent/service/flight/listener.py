"""The gRPC server of Arrow Flight: its port, its certificate, and what of a connection is held before anything is read.

A new certificate is what the next connection gets; those that stand go on with what they began with.
"""

import threading
from concurrent.futures import ThreadPoolExecutor

import grpc

from ullage_agent.service.errors import CannotListen
from ullage_agent.service.flight.calls import Methods
from ullage_agent.service.flight.places import FlightPlaces
from ullage_agent.service.flight.server import SERVICE, FlightServer
from ullage_agent.service.limits import Limits
from ullage_agent.service.listening import Terms, TlsFiles


class FlightListener:
    """Serves from its construction on. Thread-safe."""

    def __init__(self, terms: Terms) -> None:
        """CannotListen if the address is not to be had, or the certificate not to be used."""
        self._terms = terms
        self.flight = FlightServer(terms)
        limits, listening = terms.limits, terms.listening
        # Beside the calls at work as many that are being refused, or whose token is being looked at.
        at_work = limits.flight_calls + limits.flight_controls
        self._threads = ThreadPoolExecutor(2 * at_work, thread_name_prefix="flight")
        self._server = grpc.server(
            self._threads,
            handlers=[Methods(SERVICE, self.flight.methods, self.flight.serve)],
            options=options_of(limits),
            maximum_concurrent_rpcs=limits.requests,
        )
        self._lock = threading.Lock()
        self._generation = 0
        self._fresh: grpc.ServerCertificateConfiguration | None = None
        scheme = "grpc" if listening.tls is None else "grpc+tls"
        port = self._listen(f"{listening.host}:{listening.flight_port or 0}")
        self._server.start()
        self._places = FlightPlaces(port, self.flight.known, limits, terms.repository.clock, terms.on_strangers)
        self.url = f"{scheme}://{listening.host}:{port}"

    def renew(self, generation: int) -> None:
        """Serve with the files as they are now, unless this generation of them is served already.

        CannotListen if they are not to be read. Should they not fit together, gRPC goes on with those from before.
        """
        with self._lock:
            tls = self._terms.listening.tls
            if generation == self._generation or tls is None:
                return
            self._fresh = _certificate(tls)
            self._generation = generation

    def stop(self) -> None:
        """Refuse new calls, let those under way end, release what clients held."""
        self._places.close()
        self._server.stop(self._terms.limits.stop_seconds).wait()
        self._threads.shutdown()
        self.flight.close()

    def _listen(self, address: str) -> int:
        tls = self._terms.listening.tls
        try:
            if tls is None:
                return int(self._server.add_insecure_port(address))
            credentials = grpc.dynamic_ssl_server_credentials(_certificate(tls), self._taken)
            return int(self._server.add_secure_port(address, credentials))
        except RuntimeError as error:
            raise CannotListen(f"spec.service.flightPort: cannot listen on {address}: {error}") from error

    def _taken(self) -> grpc.ServerCertificateConfiguration | None:
        """What is new since the last connection; gRPC asks at each."""
        with self._lock:
            fresh, self._fresh = self._fresh, None
            return fresh


def options_of(limits: Limits) -> list[tuple[str, int]]:
    """What gRPC holds of a connection, at most: see `limits.py`, and docs/flight.md for what it comes to."""
    return [
        ("grpc.so_reuseport", 0),  # a second process on the port would take half of the calls
        ("grpc.max_receive_message_length", limits.flight_message_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", limits.flight_header_bytes),  # beyond it some would be refused
        ("grpc.absolute_max_metadata_size", limits.flight_header_bytes),
        ("grpc.max_concurrent_streams", 2 * limits.flight_calls),  # one too many is told so, rather than left to wait
        ("grpc.max_allowed_incoming_connections", limits.flight_connections),
        ("grpc.server_handshake_timeout_ms", int(limits.handshake_seconds * 1000)),
        ("grpc.max_connection_idle_ms", int(limits.flight_idle_seconds * 1000)),
        ("grpc.keepalive_time_ms", int(limits.stall_seconds * 1000)),
        ("grpc.keepalive_timeout_ms", int(limits.stall_seconds * 1000)),
        # Clients ask an agent that may be stopped for signs of life, which gRPC takes for an attack by itself.
        ("grpc.http2.min_ping_interval_without_data_ms", int(limits.flight_ping_seconds * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        # What comes before somebody asks for it: without probing for more, which grows with what a client sends.
        ("grpc.http2.lookahead_bytes", limits.flight_ahead_bytes),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.experimental.tcp_max_read_chunk_size", limits.flight_ahead_bytes),
        # 1 kB of gzip is 1 MB: a compressed message is refused before it is unpacked.
        ("grpc.compression_enabled_algorithms_bitset", 1),
        ("grpc.per_message_decompression", 0),
        ("grpc.enable_channelz", 0),
    ]


def _certificate(files: TlsFiles) -> grpc.ServerCertificateConfiguration:
    try:
        with open(files.certificate, "rb") as certificate, open(files.key, "rb") as key:
            return grpc.ssl_server_certificate_configuration([(key.read(), certificate.read())])
    except OSError as error:
        raise CannotListen(f"spec.tls.directory: {error}") from error
