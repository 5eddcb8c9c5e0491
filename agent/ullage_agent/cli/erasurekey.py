"""The key of a repository with which erasures are certified, and the certificates.

`<root>/erasure/key` has an Ed25519 private key, made at the first erasure that wants a certificate; only its owner may
read it. By a secret that follows from it a subject is digested: a certificate names nobody, and only who has the key
can look for the subject again. Whoever has the public key can tell that a certificate is the repository's, and is as it
was signed.
"""

import os
from contextlib import suppress
from hashlib import blake2b
from typing import Final

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from ullage import __version__
from ullage.embedded.erasure import subject_digest
from ullage.embedded.ownerfiles import write_anew
from ullage.errors import InvalidArgument
from ullage.wire.erasure import DoneErasure, ErasureCertificate, ErasureReport

SEED_BYTES: Final = 32


class ErasureKey:
    """The key of one repository."""

    def __init__(self, seed: bytes) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.public = self._key.public_key().public_bytes_raw().hex()
        self.digest_key = blake2b(seed, digest_size=32, person=b"ullage-subjects").digest()

    @classmethod
    def of(cls, root: str, *, is_made: bool) -> "ErasureKey":
        """The key of the repository at this root; made where there is none, or InvalidArgument."""
        path = os.path.join(root, "erasure", "key")
        if is_made and not os.path.exists(path):
            write_anew(path, os.urandom(SEED_BYTES))
        try:
            with open(path, "rb") as file:
                seed = file.read()
        except FileNotFoundError:
            raise InvalidArgument(f"{path} is missing: this repository has certified no erasure") from None
        if len(seed) != SEED_BYTES:
            raise InvalidArgument(f"{path} has {len(seed)} bytes and is no key: restore it from a backup")
        return cls(seed)

    def certificate(self, report: ErasureReport) -> ErasureCertificate:
        """What a report says, without saying who, signed."""
        unsigned = ErasureCertificate(
            product=f"ullage {__version__}",
            attributes=tuple(sorted(report.where)),
            subject=subject_digest(report.where, self.digest_key).hex(),
            **{name: getattr(report, name) for name in DoneErasure.__struct_fields__},
            public_key=self.public,
        )
        return msgspec.structs.replace(unsigned, signature=self._key.sign(_signed_bytes(unsigned)).hex())


def is_unchanged(certificate: ErasureCertificate) -> bool:
    """Whether a certificate is as it was signed, by the key that it names."""
    with suppress(InvalidSignature, ValueError):  # that it can't be verified is the answer
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(certificate.public_key))
        key.verify(bytes.fromhex(certificate.signature), _signed_bytes(certificate))
        return True
    return False


def certificate_bytes(certificate: ErasureCertificate) -> bytes:
    """The file of a certificate, of which there is one form: in another one a name may be said twice, and each reader
    would believe another value.
    """
    return msgspec.json.format(msgspec.json.encode(certificate), indent=2) + b"\n"


def _signed_bytes(certificate: ErasureCertificate) -> bytes:
    """JSON with sorted names and no space, without the signature."""
    unsigned = msgspec.structs.replace(certificate, signature="")
    return msgspec.json.encode(msgspec.to_builtins(unsigned), order="sorted")
