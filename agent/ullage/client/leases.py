"""Leases of a remote repository, over HTTP."""

from collections.abc import Sequence

from ullage.client.link import NodeLink
from ullage.interface.checks import checked_millis, lease_request
from ullage.interface.leases import Leases
from ullage.wire import operations
from ullage.wire.leases import LeaseRenewal, LeaseStatus


class RemoteLeases(Leases):
    """Those of one node."""

    def __init__(self, link: NodeLink) -> None:
        self._link = link

    def acquire(self, duration_millis: int, resources: Sequence[int] = (), *, purpose: str = "") -> LeaseStatus:
        body = lease_request(duration_millis=duration_millis, resources=resources, purpose=purpose)
        return self._link.ask(operations.ACQUIRE_LEASE, body)

    def renew(self, lease: str, duration_millis: int) -> LeaseStatus:
        body = LeaseRenewal(duration_millis=checked_millis(duration_millis, "duration_millis"))
        return self._link.ask(operations.RENEW_LEASE, body, lease=lease)

    def release(self, lease: str) -> None:
        self._link.ask(operations.RELEASE_LEASE, lease=lease)

    def revoke(self, lease: str) -> None:
        self._link.ask(operations.REVOKE_LEASE, lease=lease)

    def find(self, lease: str) -> LeaseStatus:
        return self._link.ask(operations.GET_LEASE, lease=lease)

    def all(self) -> list[LeaseStatus]:
        return self._link.ask(operations.LIST_LEASES)
