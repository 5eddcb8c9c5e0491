"""Leases over the engine's own."""

from collections.abc import Callable, Sequence

from ullage.contract import Right
from ullage.embedded.acting import Acting
from ullage.embedded.once import Operations, nothing_else
from ullage.engine import documents
from ullage.engine.leases import LeaseManager
from ullage.engine.model import LeaseRecord, parse_uuid
from ullage.errors import Forbidden, LeaseLost
from ullage.interface.checks import checked_millis, checked_text, lease_request
from ullage.interface.leases import Leases
from ullage.wire.leases import LeaseStatus

AlsoLease = Callable[[LeaseStatus], Operations]
"""Operations from the lease as it will be."""


class EmbeddedLeases(Leases):
    """All leases of one engine; those that are taken here belong to whoever is acted for."""

    def __init__(self, leases: LeaseManager, acting: Acting) -> None:
        self._leases = leases
        self._acting = acting

    def acquire(
        self, duration_millis: int, resources: Sequence[int] = (), *, purpose: str = "", also: AlsoLease = nothing_else
    ) -> LeaseStatus:
        asked = lease_request(duration_millis=duration_millis, resources=resources, purpose=purpose)
        owner = self._acting.owner
        holder = " ".join(filter(None, (owner, asked.purpose)))
        found = self._leases.acquire(
            holder,
            asked.duration_millis,
            asked.resources,
            owner=owner,
            each_max=self._acting.leases_max,
            also=_shown(also),
        )
        return documents.lease_status(found)

    def renew(self, lease: str, duration_millis: int, *, also: AlsoLease = nothing_else) -> LeaseStatus:
        duration = checked_millis(duration_millis, "duration_millis")
        return documents.lease_status(self._leases.renew(self._own(lease), duration, _shown(also)))

    def release(self, lease: str, *, also: Operations = ()) -> None:
        try:
            id = self._own(lease)
        except LeaseLost:
            return  # as the interface has it: what is gone needs no release
        self._leases.release(id, also)

    def revoke(self, lease: str, *, also: Operations = ()) -> None:
        self._leases.revoke(_id(lease), also)

    def find(self, lease: str) -> LeaseStatus:
        return documents.lease_status(self._leases.require(_id(lease)))

    def all(self) -> list[LeaseStatus]:
        return [documents.lease_status(lease) for lease in self._leases.all()]

    def _own(self, lease: str) -> bytes:
        """Its id; Forbidden for somebody else's, unless whoever asks may end those."""
        found = self._leases.require(_id(lease))
        if found.owner != self._acting.owner and not self._acting.may(Right.REVOKE):
            raise Forbidden(f"lease {lease} is {found.owner or 'nobody'}'s: that takes the right {Right.REVOKE}")
        return found.id


def _shown(also: AlsoLease) -> Callable[[LeaseRecord], Operations]:
    return lambda record: also(documents.lease_status(record))


def _id(text: str) -> bytes:
    try:
        return parse_uuid(checked_text(text, "a lease"))
    except ValueError as error:
        raise LeaseLost(f"there is no lease {text!r}: {error}") from error
