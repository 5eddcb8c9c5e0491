"""Snapshots that clients asked for: a moment each, kept for a named time, so that several tables agree."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from ullage_agent.engine.model import format_uuid, new_uuids, parse_uuid
from ullage_agent.engine.moment import Moment
from ullage_agent.engine.repository import Repository
from ullage_agent.service.access import Principal
from ullage_agent.service.errors import BadRequest, NotFound, TooManyRequests
from ullage_agent.service.flight.columns import KeptColumns, Room, keeps_nothing
from ullage_agent.service.flight.forms import BindWish, Renew, ScanWish, Snapshot, Taken
from ullage_agent.service.flight.scans import SCANS_MAX, Bound, Scan

SNAPSHOTS_MAX: Final = 8
"""Each keeps the records alive that it saw: what died meanwhile, and 8 bytes for each FlowFile; columns beside them."""


class Kept:
    """One snapshot of one principal."""

    def __init__(self, owner: str, moment: Moment, taken: Taken, room: Room) -> None:
        self.owner = owner
        self.moment = moment
        self.columns = KeptColumns(room)
        self.taken = taken
        self.scans: dict[str, Scan] = {}


class Snapshots:
    """All that are kept, with at most so many bytes of columns. Thread-safe."""

    def __init__(self, repository: Repository, columns_bytes_max: int) -> None:
        self._repository = repository
        self._room = Room(columns_bytes_max)
        self._lock = threading.Lock()
        self._kept: dict[str, Kept] = {}

    def take(self, principal: Principal, wish: Snapshot) -> Taken:
        """A new one. With a lease it is taken under the lease: nothing that it shows is reclaimed."""
        self.expire()
        with self._lock:
            if len(self._kept) >= SNAPSHOTS_MAX:
                raise TooManyRequests(f"{SNAPSHOTS_MAX} snapshots are kept already: release some, or wait")
        lease = None
        if wish.holds:
            lease = format_uuid(self._repository.leases.acquire(f"flight: {principal.name}", wish.ttl_millis).id)
        moment = self._repository.moment()
        taken = Taken(
            id=format_uuid(new_uuids(1)[0]),
            transaction=moment.transaction,
            millis=moment.millis,
            expires_millis=moment.millis + wish.ttl_millis,
            lease=lease,
        )
        with self._lock:
            self._kept[taken.id] = Kept(principal.name, moment, taken, self._room)
        return taken

    def find(self, principal: Principal, id: str | None) -> tuple[Moment, KeptColumns]:
        """The snapshot's moment, or without an id a new one, and what is kept of it. NotFound for a snapshot that is
        over, or somebody else's.
        """
        if id is None:
            return self._repository.moment(), keeps_nothing()
        kept = self._require(principal, id)
        return kept.moment, kept.columns

    def scan(self, principal: Principal, wish: ScanWish) -> None:
        """Let slots be bound under the scan's id for as long as the snapshot lasts. Nothing happens if it is known."""
        scans = self._require(principal, wish.snapshot).scans
        with self._lock:
            if wish.scan not in scans and len(scans) >= SCANS_MAX:
                raise BadRequest(f"snapshot {wish.snapshot} has {SCANS_MAX} scans already: take another one")
            scans.setdefault(wish.scan, Scan(wish.homes, wish.patience_millis / 1000))

    def bind(self, principal: Principal, wish: BindWish) -> Bound:
        """Which share a slot reads. NotFound if the scan, or its snapshot, is not there."""
        scan = self._require(principal, wish.snapshot).scans.get(wish.scan)
        if scan is None:
            raise NotFound(f"snapshot {wish.snapshot} has no scan {wish.scan}: begin it with the action scan")
        return scan.bind(wish.slot, wish.near, self._repository.clock.monotonic())

    def renew(self, principal: Principal, wish: Renew) -> Taken:
        """It lasts longer, and its lease as far as spec.leases allows; NotFound, or LeaseLost, if it is over."""
        kept = self._require(principal, wish.id)
        expires = self._repository.clock.now_millis() + wish.ttl_millis
        if kept.taken.lease is not None:
            lease = self._repository.leases.renew(parse_uuid(kept.taken.lease), wish.ttl_millis)
            expires = min(expires, lease.expires_millis)
        kept.taken = msgspec.structs.replace(kept.taken, expires_millis=expires)
        return kept.taken

    def release(self, principal: Principal, id: str) -> None:
        """Forget it, and end its lease. Nothing happens if it is gone."""
        with self._lock:
            kept = self._kept.get(id)
            if kept is None or kept.owner != principal.name:
                return
            del self._kept[id]
        self._end(kept)

    def expire(self) -> None:
        """Forget those whose time is over; their leases have ended by themselves."""
        now = self._repository.clock.now_millis()
        with self._lock:
            over = [kept for kept in self._kept.values() if kept.taken.expires_millis <= now]
            for kept in over:
                del self._kept[kept.taken.id]
        for kept in over:
            kept.columns.end()

    def close(self) -> None:
        """Forget all."""
        with self._lock:
            kept, self._kept = list(self._kept.values()), {}
        for each in kept:
            self._end(each)

    def _require(self, principal: Principal, id: str) -> Kept:
        self.expire()
        with self._lock:
            kept = self._kept.get(id)
        if kept is None or kept.owner != principal.name:
            raise NotFound(f"there is no snapshot {id}: its time is over, or it was released")
        return kept

    def _end(self, kept: Kept) -> None:
        kept.columns.end()
        if kept.taken.lease is not None:
            self._repository.leases.release(parse_uuid(kept.taken.lease))


@contextmanager
def counted(slots: threading.BoundedSemaphore, calls_max: int) -> Iterator[None]:
    """One of so many calls at a time; TooManyRequests beyond."""
    if not slots.acquire(blocking=False):
        raise TooManyRequests(f"{calls_max} calls are under way already")
    try:
        yield
    finally:
        slots.release()
