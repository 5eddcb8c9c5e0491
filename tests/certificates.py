"""Certificate authorities of tests, and what they sign: openssl does the work."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

from tests.cluster.errors import NotPossibleHereError

DAYS = "365"


@dataclass(frozen=True)
class Credentials:
    """A certificate and its private key, as files in PEM."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates that nobody else trusts; `certificate` is for whoever is to trust them."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("openssl") is None:
            raise NotPossibleHereError("openssl is missing: apt-get install openssl")
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.certificate = folder / "ca.crt"
        self.key = folder / "ca.key"
        if not self.certificate.exists():
            _make_key(self.key)
            _openssl("req", "-x509", "-key", self.key, "-subj", "/CN=ullage", "-days", DAYS, "-out", self.certificate)

    def signing_pair(self, name: str) -> tuple[Path, Path]:
        """A private key for the tokens of service accounts, and the public key that they are checked with."""
        private, public = self.folder / f"{name}.key", self.folder / f"{name}.pub"
        if not public.exists():
            _make_key(private)
            _openssl("pkey", "-in", private, "-pubout", "-out", public)
        return private, public

    def server(self, name: str, addresses: list[str], names: list[str]) -> Credentials:
        """For a server that is reached by these IP addresses and host names."""
        alternatives = ",".join([*(f"IP:{address}" for address in addresses), *(f"DNS:{host}" for host in names)])
        return self._sign(name, f"/CN={name}", f"extendedKeyUsage=serverAuth\nsubjectAltName={alternatives}\n")

    def issue(self, directory: Path) -> int:
        """`tls.crt` and `tls.key` for loopback in a directory; the certificate's serial number."""
        made = self.server("loopback", ["127.0.0.1"], ["localhost"])
        directory.mkdir(parents=True, exist_ok=True)
        shutil.copy(made.certificate, directory / "tls.crt")
        shutil.copy(made.key, directory / "tls.key")
        return x509.load_pem_x509_certificate(made.certificate.read_bytes()).serial_number

    def client(self, user: str, *groups: str) -> Credentials:
        """For a user of the API server, in these groups."""
        subject = "".join(f"/O={group}" for group in groups) + f"/CN={user}"
        return self._sign(user.replace(":", "-"), subject, "extendedKeyUsage=clientAuth\n")

    def _sign(self, name: str, subject: str, extensions: str) -> Credentials:
        stem = self.folder / name
        made = Credentials(stem.with_name(f"{name}.crt"), stem.with_name(f"{name}.key"))
        request, wanted = stem.with_name(f"{name}.csr"), stem.with_name(f"{name}.ext")
        wanted.write_text(f"basicConstraints=CA:FALSE\n{extensions}")
        _make_key(made.key)
        _openssl("req", "-new", "-key", made.key, "-subj", subject, "-out", request)
        signer = ("-CA", self.certificate, "-CAkey", self.key, "-CAcreateserial", "-days", DAYS, "-extfile", wanted)
        _openssl("x509", "-req", "-in", request, *signer, "-out", made.certificate)
        return made


def _make_key(path: Path) -> None:
    _openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", path)


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
