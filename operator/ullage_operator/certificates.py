"""An own certificate authority for each repository, and the certificate of its agents. Pure, but for the keys' chance.

A new authority is published before it signs, and an old one stays published until what it signed has expired:

    authority A    signs ─────────────────────────┐ published until B has signed everything
    authority B             published ── a day ── signs ──────────────
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_LIFE: Final = timedelta(days=3650)
LEAF_LIFE: Final = timedelta(days=90)
SPENT: Final = 2 / 3
"""The part of its life after which a certificate is replaced."""

PUBLISHED_FIRST: Final = timedelta(days=1)
"""How long clients have to learn of an authority before it signs: ConfigMaps arrive within minutes."""

CLOCK_SKEW: Final = timedelta(minutes=5)


class Kept(msgspec.Struct, frozen=True, kw_only=True):
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


def rotated(kept: Kept, now: datetime, name: str, hosts: Sequence[str]) -> Kept:
    """What shall be kept: the same object if nothing is due."""
    if not kept.authority:
        authority, key = _authority(name, now)
        kept = Kept(authority=authority, authority_key=key)
    elif kept.next_authority and now - _begin(kept.next_authority) >= PUBLISHED_FIRST:
        kept = msgspec.structs.replace(
            kept,
            authority=kept.next_authority,
            authority_key=kept.next_authority_key,
            previous_authority=kept.authority,
            next_authority="",
            next_authority_key="",
            leaf="",
            leaf_key="",
        )
    elif not kept.next_authority and _is_spent(kept.authority, now):
        authority, key = _authority(name, now)
        kept = msgspec.structs.replace(kept, next_authority=authority, next_authority_key=key)
    if kept.previous_authority and now - _begin(kept.authority) >= PUBLISHED_FIRST + LEAF_LIFE:
        kept = msgspec.structs.replace(kept, previous_authority="")
    if not kept.leaf or _is_spent(kept.leaf, now) or _hosts(kept.leaf) != list(hosts):
        leaf, key = _leaf(kept, now, name, hosts)
        kept = msgspec.structs.replace(kept, leaf=leaf, leaf_key=key)
    return kept


def next_rotation(kept: Kept) -> datetime:
    """When `rotated` will have something to do."""
    due = [_spent_at(kept.leaf), _spent_at(kept.authority)]
    if kept.next_authority:
        due[1] = _begin(kept.next_authority) + PUBLISHED_FIRST
    return min(due)


def expiry(pem: str) -> datetime:
    """When a certificate ends."""
    return _load(pem).not_valid_after_utc


def kept_of(authority: Mapping[str, str], leaf: Mapping[str, str]) -> Kept:
    """From the decoded data of the two secrets."""
    return Kept(
        authority=authority.get("ca.crt", ""),
        authority_key=authority.get("ca.key", ""),
        next_authority=authority.get("next.crt", ""),
        next_authority_key=authority.get("next.key", ""),
        previous_authority=authority.get("previous.crt", ""),
        leaf=leaf.get("tls.crt", ""),
        leaf_key=leaf.get("tls.key", ""),
    )


def secrets_of(kept: Kept) -> tuple[dict[str, str], dict[str, str]]:
    """The data of the authority's secret, which the operator alone reads, and of the agents'."""
    authority = {
        "ca.crt": kept.authority,
        "ca.key": kept.authority_key,
        "next.crt": kept.next_authority,
        "next.key": kept.next_authority_key,
        "previous.crt": kept.previous_authority,
    }
    return authority, {"tls.crt": kept.leaf, "tls.key": kept.leaf_key, "ca.crt": kept.bundle}


def _load(pem: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem.encode())


def _begin(pem: str) -> datetime:
    return _load(pem).not_valid_before_utc + CLOCK_SKEW


def _spent_at(pem: str) -> datetime:
    certificate = _load(pem)
    life = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    return certificate.not_valid_before_utc + life * SPENT


def _is_spent(pem: str, now: datetime) -> bool:
    return now >= _spent_at(pem)


def _hosts(pem: str) -> list[str]:
    names = _load(pem).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return names.get_values_for_type(x509.DNSName)


def _key_text(key: ec.EllipticCurvePrivateKey) -> str:
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return key.private_bytes(*form).decode()


def _builder(
    subject: str, issuer: x509.Name | None, key: ec.EllipticCurvePrivateKey, now: datetime, life: timedelta
) -> x509.CertificateBuilder:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject[:64])])
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer or name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now.astimezone(UTC) - CLOCK_SKEW)
        .not_valid_after(now.astimezone(UTC) + life)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _authority(name: str, now: datetime) -> tuple[str, str]:
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        _builder(f"{name} authority {now:%Y-%m-%d}", None, key, now, AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(is_authority=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM).decode(), _key_text(key)


def _leaf(kept: Kept, now: datetime, name: str, hosts: Sequence[str]) -> tuple[str, str]:
    authority = _load(kept.authority)
    signer = serialization.load_pem_private_key(kept.authority_key.encode(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        _builder(name, authority.subject, key, now, LEAF_LIFE)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(is_authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM).decode(), _key_text(key)
