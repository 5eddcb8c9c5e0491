"""Who asks, and what they may do: verbs, principals, and the authenticators that know them.

Each transport takes a bearer token from its request, asks `authenticate` once and `authorize` for each verb it needs.
Both may block, for as long as `may_block` says; neither ever puts a token into a message.
"""

import enum
from typing import Protocol

import msgspec

from ullage.errors import Forbidden, Unauthenticated


class Verb(enum.StrEnum):
    """What can be asked for. The same words as verbs on contentrepositories in Kubernetes."""

    GET = "get"
    CREATE = "create"
    DELETE = "delete"
    RECLAIM = "reclaim"


class Principal(msgspec.Struct, frozen=True):
    """Whoever asks, as an authenticator knows them."""

    name: str
    groups: tuple[str, ...] = ()


class Authenticator(Protocol):
    """Knows principals by their tokens, and what they may do. Thread-safe."""

    may_block: bool
    """Whether a call may wait for a network, and so belongs into a thread."""

    def authenticate(self, token: str | None, peer: str = "") -> Principal:
        """Who this is. Unauthenticated: nobody known; AccessUnknown: it cannot be told now. `peer`: the address that it
        came from, which may be made to wait.
        """
        ...

    def authorize(self, principal: Principal, verb: Verb) -> None:
        """Forbidden if the principal may not do this; AccessUnknown."""
        ...


ANONYMOUS = Principal("anonymous")


class Anonymous:
    """Lets everybody do everything: for loopback only."""

    may_block = False

    def authenticate(self, token: str | None, peer: str = "") -> Principal:
        return ANONYMOUS

    def authorize(self, principal: Principal, verb: Verb) -> None:
        return


def bearer(header: str | None) -> str | None:
    """The token of an `Authorization` header; None without one. Unauthenticated for another scheme."""
    if header is None:
        return None
    scheme, _, token = header.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthenticated("the Authorization header must be 'Bearer' and a token")
    return token.strip()


def forbidden(principal: Principal, verb: Verb) -> Forbidden:
    """The refusal, in one wording for all authenticators."""
    return Forbidden(f"{principal.name} has no permission for the verb {verb}")
