"""Leases: a reader's promise that what it reads is not reclaimed.

A lease holds resource claims, or a snapshot: everything that lived when it was given. It stands in the log with its
expiry, so that a restart honours it; the holder renews it by a heartbeat, an admin may revoke it. Dead space that waits
for a lease counts as disk.

A lease may end while its holder reads, so whoever reads under one asks again *after* the read, and throws away what it
got if the lease is lost: `LeaseManager.read` does that. Where descriptors of files were handed out nobody can take them
back: such files are never changed in place, until the holder says that it has closed them, however long ago its lease
ended.
"""

import threading
from collections.abc import Callable, Iterable, Sequence

import msgspec

from ullage.contract import LeaseSettings
from ullage.engine.committer import ChangingParts
from ullage.engine.model import ContentClaim, LeaseEnd, LeaseRecord, Operation, format_uuid, new_uuids
from ullage.engine.uninterrupted import uninterrupted
from ullage.errors import ClaimGone, LeaseLost, LeaseRefused

Also = Callable[[LeaseRecord], Sequence[Operation]]
"""What else the transaction of a lease holds: the answer that remembers it, for one."""

RESOURCES_MAX = 10_000
"""Resource claims one lease may name: more are what a snapshot is for."""

NAMED_MAX = 500_000
"""Resource claims that all leases of one owner with a quota may name, 40 bytes each: fifty of the largest."""


class LeaseManager:
    """All leases of a repository. Thread-safe."""

    def __init__(self, parts: ChangingParts, settings: LeaseSettings) -> None:
        self._parts = parts
        self._settings = settings
        self._lock = threading.Lock()

    def adopt(self, settings: LeaseSettings) -> None:
        """New limits, for what is asked from now on."""
        self._settings = settings

    @uninterrupted
    def acquire(
        self,
        holder: str,
        duration_millis: int,
        resources: Iterable[int] = (),
        *,
        holds_files: bool = False,
        owner: str = "",
        each_max: int | None = None,
        also: Also = lambda _: (),
    ) -> LeaseRecord:
        """A lease on these resource claims; on a snapshot if there are none. Durable when it is returned.

        `holds_files`: descriptors of the files are handed out. LeaseRefused beyond spec.leases; ClaimGone if nothing in
        a resource claim lives. `each_max` bounds those of this owner.
        """
        named = tuple(sorted(set(resources)))
        if len(named) > RESOURCES_MAX:
            raise LeaseRefused(f"{len(named)} resource claims in one lease, at most {RESOURCES_MAX} are allowed")
        self._require_duration(duration_millis)
        with self._lock:
            self.purge()
            if len(self._parts.ledger.leases) >= self._settings.max_count:
                raise LeaseRefused(
                    f"{self._settings.max_count} leases stand already (spec.leases.maxCount): release some, or wait "
                    "for their end"
                )
            if each_max is not None:
                self._require_room(owner, each_max, len(named))
            now = self._parts.clock.now_millis()
            lease = LeaseRecord(new_uuids(1)[0], holder, named, 0, now, now + duration_millis, holds_files, owner)
            id = self._parts.committer.commit(
                [lease, *also(lease)], creates=True, validate=lambda: self._require_live(named)
            )
        return msgspec.structs.replace(lease, transaction=id)

    @uninterrupted
    def renew(self, id: bytes, duration_millis: int, also: Also = lambda _: ()) -> LeaseRecord:
        """A heartbeat: the lease lasts so long from now on, within spec.leases.maxDuration of its beginning.

        LeaseLost if it has ended: it is never revived, because what it held may be gone.
        """
        self._require_duration(duration_millis)
        with self._lock:
            lease = self.require(id)
            latest = lease.created_millis + self._settings.max_duration
            expires = min(self._parts.clock.now_millis() + duration_millis, latest)
            renewed = msgspec.structs.replace(lease, expires_millis=expires)
            self._parts.committer.commit([renewed, *also(renewed)], creates=False)
        return renewed

    @uninterrupted
    def hold(self, id: bytes, resources: Iterable[int]) -> LeaseRecord:
        """From now on the lease is on these resource claims; durable when it is returned. Those left out are given
        back, with every descriptor of their files.

        LeaseLost if it has ended; ClaimGone if nothing lives in one that is new to it; LeaseRefused for too many, and
        for none: that would be a lease on a snapshot.
        """
        named = tuple(sorted(set(resources)))
        if not 0 < len(named) <= RESOURCES_MAX:
            raise LeaseRefused(f"a lease on {len(named)} resource claims: 1 to {RESOURCES_MAX} are allowed")
        with self._lock:
            lease = self.require(id)
            if not lease.resources:
                raise LeaseRefused(f"lease {format_uuid(id)} is on a snapshot: acquire another on resource claims")
            fresh = set(named).difference(lease.resources)
            held = msgspec.structs.replace(lease, resources=named)
            self._parts.committer.commit([held], creates=bool(fresh), validate=lambda: self._require_live(fresh))
        return held

    @uninterrupted
    def release(self, id: bytes, also: Sequence[Operation] = ()) -> None:
        """The holder is done, and has closed what it was handed. Nothing happens if the lease is gone."""
        with self._lock:
            if id in self._parts.ledger.leases:
                self._parts.committer.commit([LeaseEnd(id), *also], creates=False)

    @uninterrupted
    def revoke(self, id: bytes, also: Sequence[Operation] = ()) -> None:
        """End a lease against its holder's will: its reads fail from now on. LeaseLost if it has ended."""
        with self._lock:
            lease = self.require(id)
            ended = msgspec.structs.replace(lease, expires_millis=0) if lease.holds_files else LeaseEnd(id)
            self._parts.committer.commit([ended, *also], creates=False)

    @uninterrupted
    def purge(self) -> int:
        """Forget leases that have expired, but for those whose descriptors may still be open; returns how many."""
        now = self._parts.clock.now_millis()
        over = [
            lease.id
            for lease in list(self._parts.ledger.leases.values())
            if lease.expires_millis <= now and not lease.holds_files
        ]
        if over:
            self._parts.committer.commit([LeaseEnd(id) for id in over], creates=False)
        return len(over)

    def all(self) -> list[LeaseRecord]:
        """Every lease that stands, by its beginning."""
        now = self._parts.clock.now_millis()
        standing = [lease for lease in list(self._parts.ledger.leases.values()) if lease.expires_millis > now]
        return sorted(standing, key=lambda lease: lease.transaction)

    def require(self, id: bytes) -> LeaseRecord:
        """The lease, if it stands; LeaseLost if it has expired, was revoked or released, or never was."""
        lease = self._parts.ledger.leases.get(id)
        if lease is None or lease.expires_millis <= self._parts.clock.now_millis():
            raise LeaseLost(f"lease {format_uuid(id)} has ended: discard what was read under it, and acquire another")
        return lease

    def read(self, id: bytes, claim: ContentClaim, start: int, size: int) -> bytes:
        """Bytes of a claim that the lease holds, alive or dead by now. LeaseLost if it ended meanwhile."""
        self.require(id)
        try:
            return self._parts.reader.read(claim, start, size)
        finally:
            self.require(id)  # also where the read failed: without the lease it may, and this says why

    def _require_room(self, owner: str, each_max: int, count: int) -> None:
        """LeaseRefused if an owner has too many leases for one more on so many resource claims."""
        standing = [lease for lease in self._parts.ledger.leases.values() if lease.owner == owner]
        if len(standing) >= each_max:
            raise LeaseRefused(
                f"{owner} has {len(standing)} leases already, of {each_max} that one principal may have (leases_each): "
                "release some, or wait for their end"
            )
        named = sum(len(lease.resources) for lease in standing)
        if named + count > NAMED_MAX:
            raise LeaseRefused(
                f"leases of {owner} name {named} resource claims already, of {NAMED_MAX} that those of one principal "
                "may: release some, or take one on a snapshot"
            )

    def _require_duration(self, duration_millis: int) -> None:
        longest = self._settings.max_duration
        if not 0 < duration_millis <= longest:
            raise LeaseRefused(f"a lease of {duration_millis} ms: between 1 ms and spec.leases.maxDuration ({longest})")

    def _require_live(self, resources: Iterable[int]) -> None:
        with self._parts.ledger.lock:
            for index in resources:
                entry = self._parts.ledger.entry(index)
                if entry is None or entry.is_free:
                    raise ClaimGone(f"resource claim {index} holds nothing that lives")
