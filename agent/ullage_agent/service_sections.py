"""The contract's sections `service`, `tls` and `auth`: where the agent listens, and whom it lets in.

Loopback and no authentication belong together: what leaves the machine is encrypted and has a name.
"""

import enum
import ipaddress
import posixpath
from collections.abc import Iterator
from typing import Annotated, Final

from msgspec import Meta

from ullage_agent.sections import Section
from ullage_agent.units import Quantity

LOOPBACK: Final = "127.0.0.1"
EVERYWHERE: Final = "0.0.0.0"  # noqa: S104 - only ever with TLS and authentication

Port = Annotated[int, Meta(ge=0, le=65_535)]


class TlsMode(enum.StrEnum):
    """Who makes the certificate. Alone, the first three mean the same: files in a directory."""

    OPERATOR = "Operator"
    CERT_MANAGER = "CertManager"
    SECRET = "Secret"  # noqa: S105 - a kind of Kubernetes object
    NONE = "None"


class AuthMode(enum.StrEnum):
    """Who knows the bearer tokens."""

    KUBERNETES = "Kubernetes"
    TOKEN_FILE = "TokenFile"  # noqa: S105 - a name
    NONE = "None"


class MetricsAccess(enum.StrEnum):
    """Who may read metrics."""

    AUTHENTICATED = "Authenticated"
    ANYONE = "Anyone"


class Service(Section, frozen=True, kw_only=True):
    """Where the agent listens."""

    address: Annotated[str, Meta(max_length=64)] = ""
    """An IP address of this machine. Empty: loopback where TLS or authentication is None, else every address (NiFi:
    nifi.web.https.host)."""

    http_port: Port = 8480
    """HTTP; 0 takes any free one (NiFi: nifi.web.https.port)."""

    flight_port: Port | None = 8481
    """Arrow Flight; null: not served (NiFi, Ambry: none)."""

    metrics_port: Port | None = 8482
    """`/metrics`, apart so that it can be reached by others than content can; null: not served (NiFi: a reporting
    task)."""

    socket_path: Annotated[str, Meta(max_length=1024)] = "/run/ullage/ullage.sock"
    """Unix socket for programs of this machine, absolute; empty: none (NiFi, Ambry: none)."""

    max_request_bytes: Quantity = Quantity(0)
    """Bytes of one content that a request may bring; 0: as much as there is room for (NiFi:
    nifi.web.max.content.size)."""


class Tls(Section, frozen=True, kw_only=True):
    """Encryption of what leaves the machine."""

    mode: TlsMode = TlsMode.OPERATOR
    """Operator, CertManager, Secret: the certificate is in `directory`, put there by the operator, cert-manager or
    you. None: loopback only (NiFi: nifi.security.keystore)."""

    directory: Annotated[str, Meta(min_length=1, max_length=1024)] = "/etc/ullage/tls"
    """Where `tls.crt` and `tls.key` are; read again when they change (NiFi: nifi.security.keystore with
    nifi.security.autoreload.enabled)."""


class Auth(Section, frozen=True, kw_only=True):
    """Who may do what: verbs get, create, delete and reclaim."""

    mode: AuthMode = AuthMode.KUBERNETES
    """Kubernetes: TokenReview and SubjectAccessReview. TokenFile: `tokenFile`. None: everybody on this machine,
    loopback only (NiFi: nifi.security.user.authorizer)."""

    token_file: Annotated[str, Meta(min_length=1, max_length=1024)] = "/etc/ullage/tokens"  # noqa: S105 - a path
    """Names, verbs and SHA-256 of tokens, a line each; read again when it changes (NiFi, Ambry: none)."""

    metrics: MetricsAccess = MetricsAccess.AUTHENTICATED
    """Whether `/metrics` asks for a token with the verb get; where auth.mode is None nobody is asked (NiFi: none)."""


def is_loopback(address: str) -> bool:
    """Whether only programs of this machine reach the address."""
    return ipaddress.ip_address(address).is_loopback


def listen_address(service: Service, tls: Tls, auth: Auth) -> str:
    """Where to listen, as the modes of TLS and authentication allow."""
    if service.address:
        return service.address
    return LOOPBACK if tls.mode == TlsMode.NONE or auth.mode == AuthMode.NONE else EVERYWHERE


def service_problems(service: Service, tls: Tls, auth: Auth) -> Iterator[str]:
    """The rules that join fields, or that a bare type cannot say."""
    try:
        is_open = not is_loopback(listen_address(service, tls, auth))
    except ValueError:
        yield f"spec.service.address: {service.address!r} is no IP address"
        is_open = False
    if is_open and (tls.mode == TlsMode.NONE or auth.mode == AuthMode.NONE):
        yield (
            f"spec.service.address: {service.address} can be reached from other machines, so spec.tls.mode and "
            "spec.auth.mode must not be None"
        )
    ports = [port for port in (service.http_port, service.flight_port, service.metrics_port) if port]
    if len(set(ports)) < len(ports):
        yield "spec.service: httpPort, flightPort and metricsPort must differ"
    for field, path in (
        ("service.socketPath", service.socket_path),
        ("tls.directory", tls.directory),
        ("auth.tokenFile", auth.token_file),
    ):
        if path and (not posixpath.isabs(path) or ".." in path.split("/") or "\0" in path):
            yield f"spec.{field}: {path!r} is not an absolute path without '..'"
