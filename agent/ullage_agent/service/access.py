"""Who asks, and what they may do: principals, and the authenticators that know them and their rights.

Each transport takes a bearer token from its request, asks `authenticate` once and `authorize` for each right it needs.
Both may block, for as long as `may_block` says; neither ever puts a token into a message.
"""

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

import msgspec

from ullage.contract import QueueAccess, QueueRule, Right
from ullage.embedded.acting import Acting
from ullage.embedded.repository import EmbeddedRepository
from ullage.errors import Forbidden, Unauthenticated
from ullage_agent.service.limits import Limits


class Principal(msgspec.Struct, frozen=True):
    """Whoever asks, as an authenticator knows them."""

    name: str
    groups: tuple[str, ...] = ()
    """Those that the cluster has them in."""

    rights: tuple[Right, ...] = ()
    """Those that a token file gives; a cluster is asked for each."""

    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """What else the cluster knows of them, which its authorizers may look at."""

    @property
    def holder(self) -> str:
        """What events call them; empty for the anonymous, who may be anybody."""
        return "" if self == ANONYMOUS else self.name

    def share(self, each_max: int) -> int | None:
        """A quota of one principal as it is theirs: None, which is no bound, for the anonymous, who may be anybody and
        are bounded together only.
        """
        return each_max if self.holder else None


class Authenticator(Protocol):
    """Knows principals by their tokens, and what they may do. Thread-safe."""

    may_block: bool
    """Whether a call may wait for a network, and so belongs into a thread."""

    def authenticate(self, token: str | None, peer: str = "") -> Principal:
        """Who this is. Unauthenticated: nobody known; AccessUnknown: it cannot be told now. `peer`: the address that it
        came from, which may be made to wait.
        """
        ...

    def authorize(self, principal: Principal, right: Right) -> None:
        """Forbidden if the principal does not have this right; AccessUnknown."""
        ...


ANONYMOUS = Principal("anonymous")

ACTORS_MAX: Final = 1_000
"""Principals whose repository is kept: some kB each."""


class Anonymous:
    """Lets everybody do everything: for loopback only."""

    may_block = False

    def authenticate(self, token: str | None, peer: str = "") -> Principal:
        return ANONYMOUS

    def authorize(self, principal: Principal, right: Right) -> None:
        return


def authorize_all(authenticator: Authenticator, principal: Principal, rights: Iterable[Right]) -> None:
    """Forbidden names the first of the rights that the principal does not have; AccessUnknown."""
    for right in rights:
        authenticator.authorize(principal, right)


def acting_of(authenticator: Authenticator, principal: Principal, rules: Iterable[QueueRule], limits: Limits) -> Acting:
    """The principal as the repository sees them."""

    def may(right: Right) -> bool:
        try:
            authenticator.authorize(principal, right)
        except Forbidden:
            return False
        return True

    return Acting(
        principal.name,
        QueueAccess(rules, principal.name, principal.groups),
        may,
        by=principal.holder,
        leases_max=principal.share(limits.leases_each),
        holds_max=principal.share(limits.holds_each),
        writes_max=principal.share(limits.writes_each),
        streams_max=principal.share(limits.streams_each),
        queues_max=principal.share(limits.queues_each),
        counters_max=principal.share(limits.counters_each),
    )


class Actors:
    """The repository for each principal over every transport, kept while the rules are the same: making it anew costs
    as much as a small read. Thread-safe.
    """

    def __init__(self, repository: EmbeddedRepository, authenticator: Authenticator, limits: Limits) -> None:
        self._repository = repository
        self._authenticator = authenticator
        self._limits = limits
        self._kept: tuple[Sequence[QueueRule], dict[Principal, EmbeddedRepository]] = ((), {})

    def of(self, principal: Principal) -> EmbeddedRepository:
        """The repository for whoever asks."""
        rules, kept = self._kept
        if rules is not self._repository.spec.auth.queues or len(kept) >= ACTORS_MAX:
            rules, kept = self._repository.spec.auth.queues, {}
            self._kept = rules, kept
        if principal not in kept:
            acting = acting_of(self._authenticator, principal, rules, self._limits)
            kept[principal] = self._repository.acting_for(acting)
        return kept[principal]


def bearer(header: str | None) -> str | None:
    """The token of an `Authorization` header; None without one. Unauthenticated for another scheme."""
    if header is None:
        return None
    scheme, _, token = header.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthenticated("the Authorization header must be 'Bearer' and a token")
    return token.strip()


def forbidden(principal: Principal, right: Right) -> Forbidden:
    """The refusal, in one wording for all authenticators."""
    return Forbidden(f"{principal.name} does not have the right {right}")
