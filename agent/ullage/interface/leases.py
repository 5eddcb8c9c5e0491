"""Leases: promises that what is read is not reclaimed meanwhile."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from ullage.wire.leases import LeaseStatus


class Leases(ABC):
    """All leases of a repository. Thread-safe.

    A lease holds resource claims, or everything that lived when it was taken. It ends when it is released, when its
    time is over, or when somebody revokes it; whoever reads under one looks whether it still stands *after* the read.

    >>> lease = repository.leases.acquire(60_000, purpose="nightly copy")
    >>> repository.leases.release(lease.id)

    All methods that name a lease raise LeaseLost if it has ended: it is never revived.
    """

    @abstractmethod
    def acquire(self, duration_millis: int, resources: Sequence[int] = (), *, purpose: str = "") -> LeaseStatus:
        """A lease on these resource claims (up to 10,000), or on everything that lives now. Durable when it returns.

        LeaseRefused beyond `spec.leases`, which bounds how long and how many; ClaimGone if nothing lives in a resource
        claim that is named.

        >>> repository.leases.acquire(60_000).resources
        []
        """

    @abstractmethod
    def renew(self, lease: str, duration_millis: int) -> LeaseStatus:
        """A heartbeat: it lasts so long from now on, within `spec.leases.maxDuration` of its beginning.

        >>> lease = repository.leases.acquire(60_000)
        >>> repository.leases.renew(lease.id, 120_000).expires_millis > lease.expires_millis
        True
        """

    @abstractmethod
    def release(self, lease: str) -> None:
        """The holder is done. Nothing happens if it has ended already.

        >>> repository.leases.release(repository.leases.acquire(60_000).id)
        """

    @abstractmethod
    def revoke(self, lease: str) -> None:
        """End somebody's lease against their will: what they read from now on they must discard.

        >>> repository.leases.revoke(repository.leases.acquire(60_000).id)
        """

    @abstractmethod
    def find(self, lease: str) -> LeaseStatus:
        """One lease that stands.

        >>> repository.leases.find(repository.leases.acquire(60_000).id).transaction > 0
        True
        """

    @abstractmethod
    def all(self) -> list[LeaseStatus]:
        """Every lease that stands, by its beginning.

        >>> repository.leases.all()
        []
        """
