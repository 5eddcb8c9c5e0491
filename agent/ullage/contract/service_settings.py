"""The contract's sections `service`, `tls` and `auth`: where the agent listens, and whom it lets in.

Loopback and no authentication belong together: what leaves the machine is encrypted and has a name.
"""

import enum
import ipaddress
import posixpath
from collections.abc import Iterator
from typing import Annotated, Final

from msgspec import Meta

from ullage.contract.queue_rules import QueueRule
from ullage.contract.settings import DNS_LABEL, Settings
from ullage.contract.units import Quantity

LOOPBACK: Final = "127.0.0.1"
EVERYWHERE: Final = "0.0.0.0"  # noqa: S104 - only ever with TLS and authentication

Port = Annotated[int, Meta(ge=0, le=65_535)]


class TlsMode(enum.StrEnum):
    """Who makes the certificate. Alone, the first three mean the same: files in a directory."""

    OPERATOR = "Operator"
    CERT_MANAGER = "CertManager"
    SECRET = "Secret"  # noqa: S105 - a kind of Kubernetes object
    NONE = "None"

    @property
    def agent_makes_key(self) -> bool:
        """Whether each agent of a cluster has a key of its own, and asks for a certificate of it."""
        return self in (TlsMode.OPERATOR, TlsMode.CERT_MANAGER)


class AuthMode(enum.StrEnum):
    """Who knows the bearer tokens."""

    KUBERNETES = "Kubernetes"
    TOKEN_FILE = "TokenFile"  # noqa: S105 - a name
    NONE = "None"


class MetricsAccess(enum.StrEnum):
    """Who may read metrics."""

    AUTHENTICATED = "Authenticated"
    ANYONE = "Anyone"


class BackupBucket(Settings, frozen=True, kw_only=True):
    """A place in a bucket where clients may have the service write backups. No client chooses how it is reached."""

    url: Annotated[str, Meta(min_length=8, max_length=1024)]
    """`s3://BUCKET/PREFIX`. A client names this, or what lies below it."""

    endpoint: Annotated[str, Meta(max_length=1024)] = ""
    """The URL of a server that is not Amazon's."""

    region: Annotated[str, Meta(max_length=64)] = ""
    """The bucket's region. Empty takes what the agent's environment says."""

    ca_file: Annotated[str, Meta(max_length=1024)] = ""
    """The absolute path of a file with certificates of further authorities that are believed, as PEM. Empty takes the
    file `ca.crt` beside credentialsFile, if there is one."""

    credentials_file: Annotated[str, Meta(max_length=1024)] = ""
    """The absolute path of a file with credentials as Amazon's tools keep them, such as a mounted Secret. It is read
    again while it is used, so it may be rotated. Empty takes those of the agent's environment, or its identity."""

    encryption: Annotated[str, Meta(pattern="^(AES256|aws:kms)?$", max_length=16)] = ""
    """How the server is asked to encrypt what is put there: AES256, with keys of its own, or aws:kms. Empty leaves it
    to the rule of the bucket."""

    encryption_key: Annotated[str, Meta(max_length=2048)] = ""
    """With aws:kms the id of the key. Empty takes the one of the account."""

    credentials_secret: Annotated[str, Meta(pattern=f"({DNS_LABEL})|^$", max_length=40)] = ""
    """In a cluster, which Secret of the repository has such a file as its key `credentials`, and perhaps the
    authorities of the bucket's server as its key `ca.crt`: the one beside the repository that is called
    REPOSITORY-ullage-bucket-THIS. Agents get both keys mounted, and read what they are rotated to."""


class ServiceSettings(Settings, frozen=True, kw_only=True):
    """Where the agent listens."""

    address: Annotated[str, Meta(max_length=64)] = ""
    """The IP address to listen on. Empty takes loopback where tls.mode or auth.mode is None, and every address
    otherwise (NiFi: nifi.web.https.host)."""

    http_port: Port = 8480
    """The port of HTTP. 0 takes any free one (NiFi: nifi.web.https.port)."""

    flight_port: Port | None = 8481
    """The port of Arrow Flight. 0 takes any free one, and null serves none."""

    metrics_port: Port | None = 8482
    """The port of `/metrics`, which others may reach than those who may reach content. 0 takes any free one, and null
    serves none (NiFi: a reporting task)."""

    health_port: Port | None = 8484
    """The port of `/healthz` and `/readyz` alone, for probes, without TLS and tokens. It answers under any load of the
    other ports. 0 takes any free one, and null serves none: probes then share httpPort with everybody."""

    socket_path: Annotated[str, Meta(max_length=1024)] = "/run/ullage/ullage.sock"
    """The absolute path of the Unix socket for programs of this machine. Empty opens none."""

    max_request_bytes: Quantity = Quantity(0)
    """The bytes of content that one request may bring. 0 allows as many as there is room for (NiFi:
    nifi.web.max.content.size)."""

    backup_directory: Annotated[str, Meta(max_length=1024)] = ""
    """The absolute path of the folder beneath which clients may have the service write backups. Empty lets them have
    none written: whoever may ask for a backup would otherwise choose any path that the service's process can write."""

    backup_buckets: Annotated[tuple[BackupBucket, ...], Meta(max_length=100)] = ()
    """The places in buckets where clients may have the service write backups. None lets them have none written there.
    Of several that fit, the longest URL counts."""


class TlsSettings(Settings, frozen=True, kw_only=True):
    """Encryption of what leaves the machine."""

    mode: TlsMode = TlsMode.OPERATOR
    """Who puts the certificate into `directory`: the operator, cert-manager, or you. For an agent that runs alone it is
    you, whichever of the three it says. With None the agent listens on loopback only (NiFi: nifi.security.keystore)."""

    directory: Annotated[str, Meta(min_length=1, max_length=1024)] = "/etc/ullage/tls"
    """The directory that holds `tls.crt` and `tls.key`. They are read again when they change. In a cluster the operator
    chooses it (NiFi: nifi.security.autoreload.enabled)."""


class AuditSettings(Settings, frozen=True, kw_only=True):
    """The audit log: who read content, changed, deleted or administered, and who was refused. docs/security.md."""

    enabled: bool = True
    """Whether it is written, into the folder `audit` of the repository's root."""

    max_file_size: Quantity = Quantity(64 << 20)
    """The size at which a file of it is put aside and another one begun (NiFi: the rolling policy of
    nifi-request.log)."""

    max_files: Annotated[int, Meta(ge=1, le=10_000)] = 10
    """How many files are kept, with the one that is written. The oldest goes first. Refusals of those that nobody knows
    have two files of their own."""


class AuthSettings(Settings, frozen=True, kw_only=True):
    """Who may do what. docs/security.md has the rights."""

    mode: AuthMode = AuthMode.KUBERNETES
    """Who knows the bearer tokens. Kubernetes asks the cluster by TokenReview and SubjectAccessReview, TokenFile reads
    `tokenFile`, and None lets in everybody on this machine, on loopback only (NiFi: nifi.security.user.authorizer)."""

    token_file: Annotated[str, Meta(min_length=1, max_length=1024)] = "/etc/ullage/tokens"  # noqa: S105 - a path
    """The file with the name, the rights and the SHA-256 of each token, one token a line. It is read again when it
    changes."""

    metrics: MetricsAccess = MetricsAccess.AUTHENTICATED
    """Whether `/metrics` asks for a token with the right metrics:get. Where auth.mode is None nobody is asked."""

    queues: tuple[QueueRule, ...] = ()
    """Rules about queues, for principals that have the right at all. A queue that no rule is about is everybody's who
    has the right. They are taken over while the agent runs. docs/security.md explains them."""


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine are reached at an address or a name: what no other name than `localhost`
    promises.
    """
    return host == "localhost" or (is_address(host) and ipaddress.ip_address(host).is_loopback)


def is_address(host: str) -> bool:
    """Whether it is an IP address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def listen_address(service: ServiceSettings, tls: TlsSettings, auth: AuthSettings) -> str:
    """Where to listen, as the modes of TLS and authentication allow."""
    if service.address:
        return service.address
    return LOOPBACK if tls.mode == TlsMode.NONE or auth.mode == AuthMode.NONE else EVERYWHERE


def _bucket_problems(service: ServiceSettings) -> Iterator[str]:
    for bucket in service.backup_buckets:
        if not bucket.url.startswith("s3://"):
            yield f"spec.service.backupBuckets: {bucket.url!r} does not begin with s3://"
        if bucket.credentials_secret and bucket.credentials_file:
            yield f"spec.service.backupBuckets: {bucket.url!r} has both a credentialsFile and a credentialsSecret"
        if bucket.encryption_key and bucket.encryption != "aws:kms":
            yield f"spec.service.backupBuckets: {bucket.url!r} has an encryptionKey, which is of aws:kms alone"
        if bucket.endpoint and not bucket.endpoint.startswith(("http://", "https://")):
            yield f"spec.service.backupBuckets: the endpoint {bucket.endpoint!r} does not begin with https://"


def service_problems(service: ServiceSettings, tls: TlsSettings, auth: AuthSettings) -> Iterator[str]:
    """The rules that join fields, or that a bare type cannot say."""
    address = listen_address(service, tls, auth)
    if not is_address(address):
        yield f"spec.service.address: {service.address!r} is no IP address"
    elif not is_loopback(address) and (tls.mode == TlsMode.NONE or auth.mode == AuthMode.NONE):
        yield (
            f"spec.service.address: {service.address} can be reached from other machines, so spec.tls.mode and "
            "spec.auth.mode must not be None"
        )
    others = (service.flight_port, service.metrics_port, service.health_port)
    ports = [port for port in (service.http_port, *others) if port]
    if len(set(ports)) < len(ports):
        yield "spec.service: httpPort, flightPort, metricsPort and healthPort must differ"
    prefixes = [rule.prefix for rule in auth.queues]
    if repeated := sorted({prefix for prefix in prefixes if prefixes.count(prefix) > 1}):
        yield f"spec.auth.queues: {', '.join(map(repr, repeated))} stands in several rules, and one must decide"
    yield from _bucket_problems(service)
    files = [path for bucket in service.backup_buckets for path in (bucket.ca_file, bucket.credentials_file)]
    for field, path in (
        *(("service.backupBuckets", path) for path in files),
        ("service.socketPath", service.socket_path),
        ("service.backupDirectory", service.backup_directory),
        ("tls.directory", tls.directory),
        ("auth.tokenFile", auth.token_file),
    ):
        if path and (not posixpath.isabs(path) or ".." in path.split("/") or "\0" in path):
            yield f"spec.{field}: {path!r} is not an absolute path without '..'"
