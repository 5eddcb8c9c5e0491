"""A certificate authority for each repository, and the certificates of its agents. Pure, but for the keys' chance.

A new authority is published before it signs, and an old one stays published until what it signed has expired:

    authority A    signs ─────────────────────────┐ published until B has signed everything
    authority B             published ── a day ── signs ──────────────

Agents make their keys themselves, and ask with a signing request (PKCS #10). Of what is asked only the key is taken:
which names it may have is never the asker's word.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ullage_operator.authority import CertificateAuthority

AUTHORITY_LIFE: Final = timedelta(days=3650)
LEAF_LIFE: Final = timedelta(days=90)
SPENT: Final = 2 / 3
"""The part of its life after which a certificate is replaced."""

PUBLISHED_FIRST: Final = timedelta(days=1)
"""How long clients have to learn of an authority before it signs: ConfigMaps arrive within minutes."""

CLOCK_SKEW: Final = timedelta(minutes=5)

READ_MAX: Final = 10_000
"""Certificates and requests whose reading is remembered: each reconciliation looks at those of all nodes."""

UNUSED: Final = (
    *("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("encipher_only", "decipher_only"),
)
"""What none of our keys may be used for."""


class _Read(msgspec.Struct, frozen=True):
    """What is looked at in a certificate: whose key it is of, its names, and from when till when it counts."""

    key: bytes
    hosts: tuple[str, ...]
    begin: datetime
    end: datetime


def rotated(kept: CertificateAuthority, now: datetime, name: str) -> CertificateAuthority:
    """What shall be kept: the same object if nothing is due."""
    if not kept.authority:  # nothing was signed before, so there is nobody to be told first
        authority, key = _authority(name, now)
        kept = CertificateAuthority(authority=authority, authority_key=key)
    elif kept.next_authority and now - _begin(kept.next_authority) >= PUBLISHED_FIRST:
        kept = CertificateAuthority(
            authority=kept.next_authority, authority_key=kept.next_authority_key, previous_authority=kept.authority
        )
    elif not kept.next_authority and now >= spent_at(kept.authority):
        authority, key = _authority(name, now)
        kept = msgspec.structs.replace(kept, next_authority=authority, next_authority_key=key)
    if kept.previous_authority and now - _begin(kept.authority) >= PUBLISHED_FIRST + LEAF_LIFE:
        kept = msgspec.structs.replace(kept, previous_authority="")
    return kept


def next_rotation(kept: CertificateAuthority) -> datetime:
    """When `rotated` will have something to do."""
    if kept.next_authority:
        return _begin(kept.next_authority) + PUBLISHED_FIRST
    return spent_at(kept.authority)


def renewed(
    kept: CertificateAuthority, certificate: str, request: str, now: datetime, name: str, hosts: Sequence[str]
) -> str:
    """The certificate that whoever asks with this request shall have: the one that there is, if it is of that key and
    these names and its time is not spent; else a new one. ValueError for a request that proves no key of ours.
    """
    key = _key_in(request)
    return certificate if fits(certificate, request, now, hosts) else _leaf(kept, key, now, name, hosts)


def fits(certificate: str, request: str, now: datetime, hosts: Sequence[str]) -> bool:
    """Whether it is of the request's key and these names, and its time is not spent. ValueError for a bad request."""
    key = _key_in(request)
    try:
        read = _read(certificate)
    except ValueError:
        return False  # somebody wrote something else there: a new one takes its place
    return (read.key, sorted(read.hosts)) == (key, sorted(hosts)) and now < spent_at(certificate)


def believed(authorities: Sequence[str], chains: Sequence[str]) -> str:
    """Of certificates of authorities those that are named as issuers in these chains, each once."""
    known = {found.public_bytes(serialization.Encoding.PEM): found for each in authorities for found in _all_in(each)}
    issuers = {found.issuer for chain in chains for found in _all_in(chain)}
    return b"".join(pem for pem, found in known.items() if found.subject in issuers).decode()


def _all_in(pem: str) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem.encode())
    except ValueError:
        return []  # there is none in it


def expiry(pem: str) -> datetime:
    """When a certificate ends; ValueError if it cannot be read."""
    return _read(pem).end


def spent_at(pem: str) -> datetime:
    """When a certificate is replaced; ValueError if it cannot be read."""
    read = _read(pem)
    return read.begin + (read.end - read.begin) * SPENT


def readable(pem: str | None) -> str:
    """The same, or nothing for what no agent can serve with: somebody may have written anything there."""
    try:
        _read(pem or "")
    except ValueError:
        return ""
    return pem or ""


@lru_cache(READ_MAX)
def _read(pem: str) -> _Read:
    found = x509.load_pem_x509_certificate(pem.encode())
    try:
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        hosts = tuple(names.get_values_for_type(x509.DNSName))
    except x509.ExtensionNotFound:
        hosts = ()
    return _Read(_public_bytes(found.public_key()), hosts, found.not_valid_before_utc, found.not_valid_after_utc)


@lru_cache(READ_MAX)
def _key_in(request: str) -> bytes:
    """The public key that a request is for, and was signed by: nobody gets a certificate of somebody else's key."""
    try:
        found = x509.load_pem_x509_csr(request.encode())
        key = found.public_key()
        is_ours = isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)
        if not is_ours or not found.is_signature_valid:
            raise ValueError("it is not signed by a key on the curve P-256")
        return _public_bytes(key)
    except (ValueError, TypeError, UnsupportedAlgorithm, InvalidSignature) as error:
        raise ValueError(f"the signing request cannot be used: {error}") from error


def require_names(request: str, common_name: str, hosts: Sequence[str]) -> None:
    """That a request can be signed as it is: by a key of ours, for this subject, for exactly these names, and with
    nothing else in it. Whoever signs for us copies what it asks for. ValueError says what it asks for beyond that.
    """
    _key_in(request)
    found = x509.load_pem_x509_csr(request.encode())
    wanted = x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts])
    try:
        asked = [(each.value, each.critical) for each in found.extensions]
    except (ValueError, x509.DuplicateExtension) as error:
        raise ValueError(f"the signing request cannot be read: {error}") from error
    if found.subject != _subject(common_name):
        raise ValueError(f"the signing request is for {found.subject.rfc4514_string()}, not for CN={common_name}")
    if asked != [(wanted, False)]:
        raise ValueError(f"the signing request asks for more, or else, than the names {', '.join(hosts)}")


def _public_bytes(key: object) -> bytes:
    assert hasattr(key, "public_bytes")
    found: bytes = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return found


def _begin(pem: str) -> datetime:
    return _read(pem).begin + CLOCK_SKEW


def _usage(*, is_authority: bool) -> x509.KeyUsage:
    uses = {"digital_signature": True, "key_cert_sign": is_authority, "crl_sign": is_authority}
    return x509.KeyUsage(**dict.fromkeys(UNUSED, False) | uses)


def _authority(name: str, now: datetime) -> tuple[str, str]:
    """A certificate of its own key, and the key, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject(f"{name} authority {now:%Y-%m-%d}")
    builder = _builder(subject, subject, key.public_key(), now, AUTHORITY_LIFE)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(is_authority=True), critical=True)
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return _signed(builder, key), key.private_bytes(*form).decode()


def _leaf(kept: CertificateAuthority, key: bytes, now: datetime, name: str, hosts: Sequence[str]) -> str:
    signer = serialization.load_pem_private_key(kept.authority_key.encode(), None)
    public = serialization.load_der_public_key(key)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    assert isinstance(public, ec.EllipticCurvePublicKey)
    issuer = x509.load_pem_x509_certificate(kept.authority.encode()).subject
    builder = _builder(_subject(name), issuer, public, now, LEAF_LIFE)
    extensions: list[tuple[x509.ExtensionType, bool]] = [
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage(is_authority=False), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts]), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), False),
    ]
    for extension, is_critical in extensions:
        builder = builder.add_extension(extension, critical=is_critical)
    return _signed(builder, signer)


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, life: timedelta
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number())
    # A node whose clock is a little late takes it all the same.
    builder = builder.not_valid_before(now.astimezone(UTC) - CLOCK_SKEW).not_valid_after(now.astimezone(UTC) + life)
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)


def _signed(builder: x509.CertificateBuilder, signer: ec.EllipticCurvePrivateKey) -> str:
    return builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()
