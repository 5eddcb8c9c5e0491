# ruff: noqa: INP001 - a program of the image's, in no package
"""Gives every certificate of a Java keystore the same date, so that two builds of an image with Java are the same.

    steady_keystore.py FILE MILLISECONDS

Debian makes /etc/ssl/certs/java/cacerts when Java is installed, with the time of day in each entry. The format is JKS:
FEEDFEED, version, count; of each entry its sort, alias, date, and the certificate's type and bytes; then the SHA-1 of
the password in UTF-16, "Mighty Aphrodite" and all that. Everything is big-endian.
"""

import hashlib
import struct
import sys
from pathlib import Path

MAGIC = 0xFEEDFEED
VERSION = 2
TRUSTED = 2
"""The sort of an entry that is a certificate; the other one, a private key, is in no store of authorities."""

PASSWORD = "changeit"  # noqa: S105 - Java's own, which everybody knows
DIGEST_BYTES = 20


def steadied(store: bytes, millis: int) -> bytes:
    """The same store with this date on each entry. ValueError if it is none of trusted certificates."""
    body = bytearray(store[:-DIGEST_BYTES])
    magic, version, count = struct.unpack_from(">III", body)
    if (magic, version) != (MAGIC, VERSION) or _digest(bytes(body)) != store[-DIGEST_BYTES:]:
        raise ValueError("no Java keystore of version 2 with the usual password")
    at = 12
    for _ in range(count):
        (sort,) = struct.unpack_from(">I", body, at)
        if sort != TRUSTED:
            raise ValueError(f"the entry at byte {at} is no trusted certificate")
        at = _after(body, at + 4, ">H")
        struct.pack_into(">q", body, at, millis)
        at = _after(body, at + 8, ">H")
        at = _after(body, at, ">I")
    if at != len(body):
        raise ValueError(f"{len(body) - at} bytes follow the last entry")
    return bytes(body) + _digest(bytes(body))


def _after(body: bytearray, at: int, length: str) -> int:
    """Where what begins with its length ends."""
    return at + struct.calcsize(length) + int(struct.unpack_from(length, body, at)[0])


def _digest(body: bytes) -> bytes:
    return hashlib.sha1(PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + body).digest()  # noqa: S324 - the format's


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_bytes(steadied(file.read_bytes(), int(sys.argv[2])))
