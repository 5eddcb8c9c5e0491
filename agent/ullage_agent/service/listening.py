"""Where a service listens and by whose word it lets in: worked out of the contract, before a socket is opened."""

import os
import ssl
import threading
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from ullage.clock import Clock
from ullage.contract import (
    AuthMode,
    ContentRepository,
    ContentRepositorySpec,
    MetricsAccess,
    TlsMode,
    listen_address,
)
from ullage.embedded.repository import EmbeddedRepository
from ullage_agent.service.access import Actors, Anonymous, Authenticator, Principal
from ullage_agent.service.audit import Audit, Unaudited
from ullage_agent.service.budget import ByteBudget
from ullage_agent.service.errors import CannotListen
from ullage_agent.service.fairness import FairTurns
from ullage_agent.service.kubernetes import ApiServer, KubernetesReview
from ullage_agent.service.limits import Limits
from ullage_agent.service.quota import Lane
from ullage_agent.service.snapshots import Snapshots
from ullage_agent.service.tokens import TokenFile, stamp_of


class TlsFiles(msgspec.Struct, frozen=True):
    """A certificate chain and its key."""

    certificate: str
    key: str


class Certificate:
    """The server's side of TLS 1.2 and 1.3, which can change while connections stand. CannotListen if the files cannot
    be used at first.

    New handshakes use what is in the files now; connections that stand go on with what they began with. Files that do
    not fit together, because only one of the two has arrived, change nothing.
    """

    def __init__(self, files: TlsFiles, protocol: str = "http/1.1") -> None:
        """`protocol` is what a client must speak inside TLS, as ALPN names it."""
        self._files = files
        self._refreshing = threading.Lock()
        self._seen: tuple[object, ...] = ()
        self._refused: tuple[object, ...] = ()
        self.generation = -1
        """0 for what the files held at first, and one more each time that they were taken over."""

        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_alpn_protocols([protocol])
        if problem := self.refresh():
            raise CannotListen(f"spec.tls.directory: {problem}")

    def refresh(self) -> str:
        """Take over changed files; what is wrong with them, told once, or nothing."""
        # One at a time: OpenSSL takes in certificate and key one after the other, without Python's lock, and of two
        # threads that do so with one context the second met the first one's certificate beside its own key.
        with self._refreshing:
            files = (self._files.certificate, self._files.key)
            stamp: tuple[object, ...] = ()
            try:
                stamp = tuple(map(stamp_of, files))
                if stamp in (self._seen, self._refused):
                    return ""
                # First into a context that nobody uses: half a pair must not get into the one that serves.
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*files)
                self.context.load_cert_chain(*files)
            except (OSError, ssl.SSLError) as error:
                self._refused = stamp
                return f"{files[0]} and {files[1]} cannot be used: {error}"
            self._seen, self._refused = stamp, ()
            self.generation += 1
            return ""


class Listening(msgspec.Struct, frozen=True):
    """The listeners of one service. Port 0: any free one; None: not served; an empty path: no socket."""

    address: str
    http_port: int
    flight_port: int | None
    metrics_port: int | None
    health_port: int | None
    socket_path: str
    tls: TlsFiles | None
    asks_for_metrics: bool

    @property
    def scheme(self) -> str:
        return "http" if self.tls is None else "https"

    @property
    def host(self) -> str:
        """The address as URLs have it."""
        return f"[{self.address}]" if ":" in self.address else self.address


class Terms(NamedTuple):
    """What transports serve, to whom, within which bounds and where; `on_failure` takes what the service should log."""

    repository: EmbeddedRepository
    authenticator: Authenticator
    limits: Limits
    listening: Listening
    on_failure: Callable[[str, Exception], None]
    budget: ByteBudget
    turns: FairTurns
    actors: Actors
    snapshots: Snapshots
    streams: Lane
    audit: Audit = Unaudited()
    on_skipped: Callable[[int], None] = lambda _: None
    """Told how many nodes of the fleet a job goes on without."""

    on_strangers: Callable[[int], None] = lambda _: None
    """Told how many connections over Flight had to go, as they had made no call."""

    def acting_for(self, principal: Principal) -> EmbeddedRepository:
        """The repository for whoever asks."""
        return self.actors.of(principal)


def listening_of(spec: ContentRepositorySpec) -> Listening:
    """CannotListen if TLS is wanted and there is no certificate."""
    service = spec.service
    return Listening(
        listen_address(service, spec.tls, spec.auth),
        service.http_port,
        service.flight_port,
        service.metrics_port,
        service.health_port,
        service.socket_path,
        _tls_files(spec),
        spec.auth.mode != AuthMode.NONE and spec.auth.metrics == MetricsAccess.AUTHENTICATED,
    )


def authenticator_of(
    document: ContentRepository, clock: Clock, on_problem: Callable[[str], None] = lambda _: None
) -> Authenticator:
    """Whoever knows the tokens. CannotListen if that cannot be used."""
    auth = document.spec.auth
    if auth.mode == AuthMode.NONE:
        return Anonymous()
    if auth.mode == AuthMode.TOKEN_FILE:
        return TokenFile(auth.token_file, clock, on_problem)
    metadata = document.metadata
    return KubernetesReview(ApiServer.of_this_pod(os.environ), metadata.namespace, metadata.name, clock)


def _tls_files(spec: ContentRepositorySpec) -> TlsFiles | None:
    if spec.tls.mode == TlsMode.NONE:
        return None
    directory = spec.tls.directory
    files = TlsFiles(os.path.join(directory, "tls.crt"), os.path.join(directory, "tls.key"))
    for path in (files.certificate, files.key):
        if not os.path.isfile(path):
            raise CannotListen(
                f"spec.tls.mode {spec.tls.mode}: there is no {path}. Put a certificate there, or say None for both "
                "spec.tls.mode and spec.auth.mode to serve this machine only"
            )
    return files
