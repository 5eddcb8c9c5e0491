"""The key of this node's agent, made here and never shown, and the certificate that the operator signs for it.

    make a key ── ask in the own object's status ── the operator signs it for this node's names ── serve with it

Each agent has a key of its own, so that one that was stolen from a node stands for that node alone. It lies in the
pod's own directory, and is made anew with the pod. An agent that has both already asks nobody: it serves again after a
restart, though operator or API server are away.
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ullage_agent.node.objects import NodeObjectClient, NodeObjectError, ObservedNode
from ullage_agent.service.log import logger

WAIT_SECONDS: Final = 1.0
"""How often it is looked whether the operator has signed: it takes a second or two."""


class NodeCertificate:
    """Keeps `tls.key` and `tls.crt` in a directory. ValueError or OSError if a key is there that cannot be used."""

    def __init__(self, api: NodeObjectClient, node: str, directory: str) -> None:
        self._api = api
        self._key_file, self._certificate_file = Path(directory, "tls.key"), Path(directory, "tls.crt")
        self._log = logger("certificate")
        self._public = _public_bytes(self._key().public_key())
        self._request_file = Path(directory, "tls.csr")
        self._node = node

    @property
    def is_there(self) -> bool:
        """Whether there is a certificate of this key, though perhaps an old one."""
        return self._certificate_file.exists() and self._fits(self._certificate_file.read_text(encoding="ascii"))

    def obtain(self) -> None:
        """Wait until there is one."""
        while not self.is_there:
            try:
                if (seen := self._api.read()) is not None:
                    self.heed(seen)
            except NodeObjectError as error:
                self._log.warning("no certificate yet, and the cluster cannot be asked for one", problem=str(error))
            if not self.is_there:
                time.sleep(WAIT_SECONDS)

    def request(self, names: Sequence[str]) -> str:
        """What is asked for, as PEM: the one that was made before, if it was for these names. Signatures have chance in
        them, and another request would be news.
        """
        if self._request_file.exists():
            made = self._request_file.read_text(encoding="ascii")
            if _names_in(x509.load_pem_x509_csr(made.encode())) == (*names,):
                return made
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self._node[:64])])
        builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
        if names:
            wanted = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
            builder = builder.add_extension(wanted, critical=False)
        _write(self._request_file, builder.sign(self._key(), hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        return self._request_file.read_text(encoding="ascii")

    def heed(self, seen: ObservedNode) -> None:
        """Ask, if the own object does not say so; take over what the operator has signed. NodeObjectError."""
        request = self.request(seen.spec.certificate_names)
        if seen.status.certificate_request != request:
            self._api.ask_for_certificate(request)
            self._log.info("asked for a certificate", object=self._api.name)
        signed = seen.spec.certificate
        if signed and self._fits(signed) and not (self.is_there and self._certificate_file.read_text() == signed):
            _write(self._certificate_file, signed.encode("ascii"))
            self._log.info("certificate taken over", object=self._api.name)

    def _fits(self, certificate: str) -> bool:
        """One of another key was signed for the pod before this one, and is replaced in a moment."""
        try:
            return _public_bytes(x509.load_pem_x509_certificate(certificate.encode()).public_key()) == self._public
        except ValueError:
            return False

    def _key(self) -> ec.EllipticCurvePrivateKey:
        if not self._key_file.exists():
            form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
            _write(self._key_file, ec.generate_private_key(ec.SECP256R1()).private_bytes(*form))
        found = serialization.load_pem_private_key(self._key_file.read_bytes(), None)
        if not isinstance(found, ec.EllipticCurvePrivateKey):
            raise ValueError(f"{self._key_file} is no key that an agent has made: delete it")  # noqa: TRY004 - of a file
        return found


def _names_in(request: x509.CertificateSigningRequest) -> tuple[str, ...]:
    try:
        names = request.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return tuple(names.get_values_for_type(x509.DNSName))


def _public_bytes(key: object) -> bytes:
    assert hasattr(key, "public_bytes")
    found: bytes = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return found


def _write(path: Path, data: bytes) -> None:
    """Whole or not at all, and for this user alone."""
    partial = path.with_name(f"{path.name}.partial")
    partial.unlink(missing_ok=True)
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
