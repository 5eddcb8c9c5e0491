"""An own certificate authority for each repository, and the certificate of its agents. Pure, but for the keys' chance.

A new authority is published before it signs, and an old one stays published until what it signed has expired:

    authority A    signs ─────────────────────────┐ published until B has signed everything
    authority B             published ── a day ── signs ──────────────
"""

import base64
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ullage_operator.objects import Object
from ullage_operator.observation import Observation

AUTHORITY_LIFE: Final = timedelta(days=3650)
LEAF_LIFE: Final = timedelta(days=90)
SPENT: Final = 2 / 3
"""The part of its life after which a certificate is replaced."""

PUBLISHED_FIRST: Final = timedelta(days=1)
"""How long clients have to learn of an authority before it signs: ConfigMaps arrive within minutes."""

CLOCK_SKEW: Final = timedelta(minutes=5)

UNUSED: Final = (
    *("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("encipher_only", "decipher_only"),
)
"""What none of our keys may be used for."""

AUTHORITY: Final = {
    "ca.crt": "authority",
    "ca.key": "authority_key",
    "next.crt": "next_authority",
    "next.key": "next_authority_key",
    "previous.crt": "previous_authority",
}
LEAF: Final = {"tls.crt": "leaf", "tls.key": "leaf_key"}
"""Which field of a CertificateSet each key of the two secrets holds."""


class CertificateSet(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept in secrets, as PEM. `next_*`: an authority that is published and does not sign yet."""

    authority: str = ""
    authority_key: str = ""
    next_authority: str = ""
    next_authority_key: str = ""
    previous_authority: str = ""
    leaf: str = ""
    leaf_key: str = ""

    @property
    def bundle(self) -> str:
        """Every authority that a client should trust."""
        return self.authority + self.next_authority + self.previous_authority


def rotated(kept: CertificateSet, now: datetime, name: str, hosts: Sequence[str]) -> CertificateSet:
    """What shall be kept: the same object if nothing is due."""
    if not kept.authority:  # nothing was signed before, so there is nobody to be told first
        authority, key = _authority(name, now)
        kept = CertificateSet(authority=authority, authority_key=key)
    elif kept.next_authority and now - _begin(kept.next_authority) >= PUBLISHED_FIRST:
        kept = CertificateSet(
            authority=kept.next_authority, authority_key=kept.next_authority_key, previous_authority=kept.authority
        )
    elif not kept.next_authority and now >= _spent_at(kept.authority):
        authority, key = _authority(name, now)
        kept = msgspec.structs.replace(kept, next_authority=authority, next_authority_key=key)
    if kept.previous_authority and now - _begin(kept.authority) >= PUBLISHED_FIRST + LEAF_LIFE:
        kept = msgspec.structs.replace(kept, previous_authority="")
    if not kept.leaf or now >= _spent_at(kept.leaf) or _hosts(kept.leaf) != list(hosts):
        leaf, key = _leaf(kept, now, name, hosts)
        kept = msgspec.structs.replace(kept, leaf=leaf, leaf_key=key)
    return kept


def next_rotation(kept: CertificateSet) -> datetime:
    """When `rotated` will have something to do."""
    due = [_spent_at(kept.leaf), _spent_at(kept.authority)]
    if kept.next_authority:
        due[1] = _begin(kept.next_authority) + PUBLISHED_FIRST
    return min(due)


def expiry(pem: str) -> datetime:
    """When a certificate ends; ValueError if it cannot be read."""
    return _load(pem).not_valid_after_utc


def own_authority(seen: Observation, hosts: Sequence[str]) -> tuple[list[Object], str, int]:
    """The secrets and the ConfigMap, rotated if it is time; the agents' certificate; and when it is time again."""
    repository, secrets = seen.repository, seen.owned["Secret"]
    names = f"{repository.name}-ullage-authority", repository.tls_secret
    kept = kept_of(*(decoded(secrets.get((repository.namespace, name))) for name in names))
    now = datetime.fromtimestamp(seen.now_millis / 1000, UTC)
    kept = rotated(kept, now, f"{repository.namespace}/{repository.name}", hosts)
    objects = [
        repository.owned("Secret", name, type=kind, data=_encoded(data))
        for name, kind, data in zip(names, ("Opaque", "kubernetes.io/tls"), secrets_of(kept), strict=True)
    ]
    objects.append(repository.owned("ConfigMap", repository.authority, data={"ca.crt": kept.bundle}))
    return objects, kept.leaf, int(next_rotation(kept).timestamp() * 1000)


def decoded(secret: Object | None) -> dict[str, str]:
    """The data of a secret; nothing if there is none."""
    data = (secret or {}).get("data") or {}
    return {key: base64.b64decode(value).decode() for key, value in data.items()}


def _encoded(data: Mapping[str, str]) -> dict[str, str]:
    return {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}


def kept_of(authority: Mapping[str, str], leaf: Mapping[str, str]) -> CertificateSet:
    """From the decoded data of the two secrets."""
    fields = {field: authority.get(key, "") for key, field in AUTHORITY.items()}
    return CertificateSet(**fields | {field: leaf.get(key, "") for key, field in LEAF.items()})


def secrets_of(kept: CertificateSet) -> tuple[dict[str, str], dict[str, str]]:
    """The data of the authority's secret, which the operator alone reads, and of the agents'."""
    authority, leaf = ({key: getattr(kept, field) for key, field in each.items()} for each in (AUTHORITY, LEAF))
    return authority, leaf | {"ca.crt": kept.bundle}


def _load(pem: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem.encode())


def _begin(pem: str) -> datetime:
    return _load(pem).not_valid_before_utc + CLOCK_SKEW


def _spent_at(pem: str) -> datetime:
    certificate = _load(pem)
    life = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    return certificate.not_valid_before_utc + life * SPENT


def _hosts(pem: str) -> list[str]:
    names = _load(pem).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return names.get_values_for_type(x509.DNSName)


def _usage(*, is_authority: bool) -> x509.KeyUsage:
    uses = {"digital_signature": True, "key_cert_sign": is_authority, "crl_sign": is_authority}
    return x509.KeyUsage(**dict.fromkeys(UNUSED, False) | uses)


def _authority(name: str, now: datetime) -> tuple[str, str]:
    constraints = (x509.BasicConstraints(ca=True, path_length=0), True)
    return _signed(
        f"{name} authority {now:%Y-%m-%d}", now, AUTHORITY_LIFE, constraints, (_usage(is_authority=True), True)
    )


def _leaf(kept: CertificateSet, now: datetime, name: str, hosts: Sequence[str]) -> tuple[str, str]:
    signer = serialization.load_pem_private_key(kept.authority_key.encode(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    return _signed(
        name,
        now,
        LEAF_LIFE,
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage(is_authority=False), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts]), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), False),
        authority=(_load(kept.authority).subject, signer),
    )


def _signed(
    subject: str,
    now: datetime,
    life: timedelta,
    *extensions: tuple[x509.ExtensionType, bool],
    authority: tuple[x509.Name, ec.EllipticCurvePrivateKey] | None = None,
) -> tuple[str, str]:
    """A certificate with these extensions, critical or not, and its key, as PEM. Without an authority it is its own."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject[:64])])
    issuer, signer = authority or (name, key)
    builder = x509.CertificateBuilder(issuer, name, key.public_key(), x509.random_serial_number())
    # A node whose clock is a little late takes it all the same.
    builder = builder.not_valid_before(now.astimezone(UTC) - CLOCK_SKEW).not_valid_after(now.astimezone(UTC) + life)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    for extension, is_critical in extensions:
        builder = builder.add_extension(extension, critical=is_critical)
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    certificate = builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    return certificate.decode(), key.private_bytes(*form).decode()
