"""Every field of the sections replication, service, tls, auth and audit changes something that can be seen."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from tests.support import ManualClock
from ullage.contract import (
    AuditSettings,
    AuthMode,
    AuthSettings,
    BackupBucket,
    ContentRepository,
    ContentRepositorySpec,
    Duration,
    Metadata,
    MetricsAccess,
    Quantity,
    QueueRule,
    QueueUse,
    ReplicationMode,
    ReplicationSettings,
    ServiceSettings,
    TlsMode,
    TlsSettings,
)
from ullage.embedded.replication import bucket_of, limits_of
from ullage_agent.service.access import Anonymous, Principal, acting_of
from ullage_agent.service.audit import audit_log_of
from ullage_agent.service.errors import CannotListen
from ullage_agent.service.limits import DEFAULTS
from ullage_agent.service.listening import authenticator_of, listening_of

OPEN = {"tls": TlsSettings(mode=TlsMode.SECRET), "auth": AuthSettings(mode=AuthMode.TOKEN_FILE)}


SHIPPED: dict[str, Any] = {"mode": ReplicationMode.ASYNC, "url": "s3://flows/replicas"}


class Case(NamedTuple):
    """Two settings, and what is to differ between services made with them."""

    one: dict[str, Any]
    other: dict[str, Any]
    observe: Callable[[ContentRepositorySpec], object]


def _listening(name: str) -> Callable[[ContentRepositorySpec], object]:
    def observe(spec: ContentRepositorySpec) -> object:
        try:
            return getattr(listening_of(spec), name)
        except CannotListen as error:
            return str(error)

    return observe


def _authenticator(spec: ContentRepositorySpec) -> object:
    try:
        return type(authenticator_of(ContentRepository(metadata=Metadata(name="x"), spec=spec), ManualClock()))
    except CannotListen as error:
        return str(error)


def _readable_queues(spec: ContentRepositorySpec) -> object:
    acting = acting_of(Anonymous(), Principal("x"), spec.auth.queues, DEFAULTS)
    return [acting.queues.allows(QueueUse.READ, queue) for queue in ("a", "b")]


def _shipping(spec: ContentRepositorySpec) -> object:
    settings = spec.replication
    return (
        bucket_of(settings, "share"),
        limits_of(settings),
        settings.interval.seconds,
        int(settings.max_lag),
        settings.adopt_after,
    )


def _audit(field: str) -> Callable[[ContentRepositorySpec], object]:
    """What of the log is there after two lines, each of which fills a file."""

    def observe(spec: ContentRepositorySpec) -> object:
        root = Path(spec.storage.host_path.path) / field / str(getattr(spec.audit, field))
        root.mkdir(parents=True)
        log = audit_log_of(spec.audit, str(root), ManualClock(), lambda _count, _error: None)
        for number in range(2):
            log.note(who="x", via="HTTP", operation=str(number), allowed=True)
            log.settle()
        log.close()
        return len(list(root.glob("audit/*")))

    return observe


CASES = {
    "audit.enabled": Case({}, {"audit": AuditSettings(enabled=False)}, _audit("enabled")),
    "audit.maxFileSize": Case({}, {"audit": AuditSettings(max_file_size=Quantity(1))}, _audit("max_file_size")),
    "audit.maxFiles": Case(
        {"audit": AuditSettings(max_file_size=Quantity(1))},
        {"audit": AuditSettings(max_file_size=Quantity(1), max_files=1)},
        _audit("max_files"),
    ),
    "service.address": Case({}, {"service": ServiceSettings(address="::1")}, _listening("address")),
    "service.httpPort": Case({}, {"service": ServiceSettings(http_port=9)}, _listening("http_port")),
    "service.flightPort": Case({}, {"service": ServiceSettings(flight_port=None)}, _listening("flight_port")),
    "service.metricsPort": Case({}, {"service": ServiceSettings(metrics_port=None)}, _listening("metrics_port")),
    "service.healthPort": Case({}, {"service": ServiceSettings(health_port=None)}, _listening("health_port")),
    "service.socketPath": Case({}, {"service": ServiceSettings(socket_path="")}, _listening("socket_path")),
    "service.maxRequestBytes": Case(
        {}, {"service": ServiceSettings(max_request_bytes=Quantity(1))}, lambda spec: spec.service.max_request_bytes
    ),
    "service.backupDirectory": Case(
        {}, {"service": ServiceSettings(backup_directory="/b")}, lambda spec: spec.service.backup_directory
    ),
    "service.backupBuckets": Case(
        {},
        {"service": ServiceSettings(backup_buckets=(BackupBucket(url="s3://b"),))},
        lambda spec: spec.service.backup_buckets,
    ),
    **{
        f"replication.{name}": Case(
            {"replication": ReplicationSettings(**SHIPPED)},
            {"replication": ReplicationSettings(**SHIPPED | {field: value})},
            _shipping,
        )
        for name, field, value in (
            ("url", "url", "s3://flows/other"),
            ("endpoint", "endpoint", "https://s3.example.com"),
            ("region", "region", "eu-north-1"),
            ("caFile", "ca_file", "/ca.pem"),
            ("credentialsFile", "credentials_file", "/credentials"),
            ("interval", "interval", Duration(5_000)),
            ("maxLag", "max_lag", Duration(61_000)),
            ("maxHeld", "max_held", Quantity(1)),
            ("adoptAfter", "adopt_after", Duration(60_000)),
            ("retention", "retention", Duration(1)),
        )
    },
    "tls.mode": Case({}, {"tls": TlsSettings(mode=TlsMode.SECRET)}, _listening("tls")),
    "tls.directory": Case(OPEN, OPEN | {"tls": TlsSettings(mode=TlsMode.SECRET, directory="/x")}, _listening("tls")),
    "auth.mode": Case({}, {"auth": AuthSettings(mode=AuthMode.TOKEN_FILE)}, _authenticator),
    "auth.tokenFile": Case(
        OPEN, OPEN | {"auth": AuthSettings(mode=AuthMode.TOKEN_FILE, token_file="/x")}, _authenticator
    ),
    "auth.metrics": Case(
        {"auth": AuthSettings(mode=AuthMode.TOKEN_FILE)},
        {"auth": AuthSettings(mode=AuthMode.TOKEN_FILE, metrics=MetricsAccess.ANYONE)},
        _listening("asks_for_metrics"),
    ),
    "auth.queues": Case({}, {"auth": AuthSettings(queues=(QueueRule(prefix="a"),))}, _readable_queues),
}


@pytest.mark.parametrize("field", CASES)
def test_a_change_of_this_field_changes_what_is_served(field: str, tmp_path: Path) -> None:
    """Two services that differ in this field alone differ in what is seen of them."""
    case = CASES[field]
    spec = ContentRepositorySpec.embedded(tmp_path)

    one = case.observe(msgspec.structs.replace(spec, **case.one))
    other = case.observe(msgspec.structs.replace(spec, **case.other))

    assert one != other


def test_embedded_defaults_serve_this_machine_alone(tmp_path: Path) -> None:
    """Nothing said: loopback, no token, a socket in the root."""
    listening = listening_of(ContentRepositorySpec.embedded(tmp_path))

    assert listening.address == "127.0.0.1"
    assert listening.tls is None
    assert listening.socket_path == str(tmp_path / "ullage.sock")


def test_with_tls_and_tokens_every_address_is_served(tmp_path: Path) -> None:
    """Which needs a certificate."""
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).touch()
    spec = msgspec.structs.replace(
        ContentRepositorySpec.embedded(tmp_path),
        **OPEN | {"tls": TlsSettings(mode=TlsMode.SECRET, directory=str(tmp_path))},
    )

    listening = listening_of(spec)

    assert listening.address == "0.0.0.0"
    assert listening.scheme == "https"
