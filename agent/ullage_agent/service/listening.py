"""Where a service listens and by whose word it lets in: worked out of the contract, before a socket is opened."""

import os
from collections.abc import Callable

import msgspec

from ullage_agent.contract import (
    AuthMode,
    ContentRepository,
    ContentRepositorySpec,
    MetricsAccess,
    TlsMode,
    listen_address as listen_address,
)
from ullage_agent.engine.clock import Clock
from ullage_agent.service.access import Anonymous, Authenticator
from ullage_agent.service.errors import CannotListen
from ullage_agent.service.kubernetes import ApiServer, KubernetesReview
from ullage_agent.service.tokens import TokenFile


class TlsFiles(msgspec.Struct, frozen=True):
    """A certificate chain and its key."""

    certificate: str
    key: str


class Listening(msgspec.Struct, frozen=True):
    """The listeners of one service. Port 0: any free one; None: not served; an empty path: no socket."""

    address: str
    http_port: int
    flight_port: int | None
    metrics_port: int | None
    socket_path: str
    tls: TlsFiles | None
    asks_for_metrics: bool

    @property
    def scheme(self) -> str:
        return "http" if self.tls is None else "https"


def listening_of(spec: ContentRepositorySpec) -> Listening:
    """CannotListen if TLS is wanted and there is no certificate."""
    service = spec.service
    return Listening(
        listen_address(service, spec.tls, spec.auth),
        service.http_port,
        service.flight_port,
        service.metrics_port,
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
    return KubernetesReview(ApiServer.of_this_pod(dict(os.environ)), metadata.namespace, metadata.name, clock)


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
