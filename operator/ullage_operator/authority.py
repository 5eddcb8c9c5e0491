"""What is kept of a repository's certificate authority, so that who only looks at it needs no cryptography."""

from typing import Final

import msgspec

KEYS: Final = {
    "ca.crt": "authority",
    "ca.key": "authority_key",
    "next.crt": "next_authority",
    "next.key": "next_authority_key",
    "previous.crt": "previous_authority",
}
"""Which field of a CertificateAuthority each key of its secret holds."""


class CertificateAuthority(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept in a secret, as PEM. `next_*`: one that is published and does not sign yet."""

    authority: str = ""
    authority_key: str = ""
    next_authority: str = ""
    next_authority_key: str = ""
    previous_authority: str = ""

    @property
    def bundle(self) -> str:
        """Every authority that a client should trust."""
        return self.authority + self.next_authority + self.previous_authority
