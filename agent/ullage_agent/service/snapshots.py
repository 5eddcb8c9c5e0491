"""Snapshots that clients asked for: a moment each, kept for a named time, so that several tables agree. They are taken
over Flight; tables at them are read over Flight and over the Unix socket.

Scans are who reads which share of one, settled when a reader asks, so that it may be one that lies near it.

    slot 7, near b  ->  a share of b's that nobody has      written down: whoever runs slot 7 again gets the same
                        none of b's is left: wait, or one of a home whose own readers stay away

It is the delay scheduling of Zaharia et al. (EuroSys 2010), turned around: there a scheduler that knows the places of
tasks waits with offering; here readers whose scheduler does not know them wait with taking.

A reader goes away with nothing only once no share is left. So with as many slots as shares, or more, each share is
read, and by one slot.
"""

import threading
from collections.abc import Collection, Iterator, Mapping
from typing import Final

import msgspec
import pyarrow as pa

from ullage.contract import Right
from ullage.embedded.keptcolumns import Room
from ullage.embedded.outgoing import OutgoingBatch
from ullage.embedded.pace import Pace
from ullage.embedded.repository import EmbeddedRepository
from ullage.embedded.tables import Moment, bytes_of_now, feed_batches, schema_of
from ullage.enums import HolderKind
from ullage.errors import InvalidArgument, NotFound, QuotaReached, ServiceBusy
from ullage.uuids import format_uuid, new_uuids
from ullage.wire.holders import HolderStatus
from ullage.wire.tickets import (
    ScanHome,
    ScanRequest,
    SlotRequest,
    SlotShare,
    SlotState,
    SnapshotRelease,
    SnapshotRenewal,
    SnapshotRequest,
    TableSnapshot,
    TableTicket,
)
from ullage_agent.service.access import Actors, Principal
from ullage_agent.service.limits import Limits

Batches = tuple[pa.Schema, Iterator[OutgoingBatch]]
"""Of a table, or of contents."""

PURPOSE: Final = "for a snapshot over Flight"
"""Of its lease."""

SCANS_MAX: Final = 1_000
"""Scans of one snapshot: tables that a program reads in turn, each some hundred bytes for each home."""

SNAPSHOT_BYTES: Final = 64 << 10
"""Of one in which there is nothing: its lease, its client's heartbeats, and tables that are looked up."""

HOME_BYTES: Final = 500
"""Of a home of a scan, beside the text that says where it is."""

SLOT_BYTES: Final = 200
"""Of a slot that has its share."""


class Scan:
    """One reading of a snapshot. Thread-safe."""

    def __init__(self, homes: Mapping[str, ScanHome], patience_seconds: float) -> None:
        self._homes = dict(homes)
        self._homes_bytes = sum(HOME_BYTES + len(home.where) for home in homes.values())
        self._patience_seconds = patience_seconds
        self._lock = threading.Lock()
        self._given = dict.fromkeys(homes, 0)
        self._bound: dict[int, tuple[str, int]] = {}
        self._seen: dict[str, float] = {}
        self._began: float | None = None

    @property
    def held_bytes(self) -> int:
        """What it takes in memory."""
        return self._homes_bytes + SLOT_BYTES * len(self._bound)

    def knows(self, slot: int) -> bool:
        """Whether it has its share already."""
        return slot in self._bound

    def bind(self, slot: int, near: Collection[str], now: float) -> SlotShare:
        """The slot's share: the one it got before, else the next of a home that is `near`, else of one whose own
        readers have not asked for a while. `now` is monotonic, in seconds.
        """
        with self._lock:
            if self._began is None:
                self._began = now
            self._seen.update((name, now) for name in near if name in self._homes)
            if slot not in self._bound:
                home = self._choose(near, now)
                if home is None:
                    return SlotShare(state=SlotState.WAIT if self._left() else SlotState.NONE)
                self._bound[slot] = (home, self._given[home])
                self._given[home] += 1
            home, share = self._bound[slot]
        found = self._homes[home]
        return SlotShare(state=SlotState.READ, home=home, share=share, shares=found.shares, where=found.where)

    def _left(self) -> dict[str, int]:
        """Homes of which shares are left, and how many."""
        left = {name: home.shares - self._given[name] for name, home in self._homes.items()}
        return {name: count for name, count in left.items() if count}

    def _choose(self, near: Collection[str], now: float) -> str | None:
        """Of several homes the one that has most left. A reader that is near none of them waits for nobody."""
        left = self._left()
        mine = [name for name in left if name in near]
        if not mine:
            is_anywhere = not any(name in self._homes for name in near)
            began = now if self._began is None else self._began
            mine = [n for n in left if is_anywhere or now - self._seen.get(n, began) >= self._patience_seconds]
        return max(mine, key=lambda name: (left[name], name)) if mine else None


class KeptSnapshot:
    """One snapshot of one principal."""

    def __init__(self, owner: str, moment: Moment, taken: TableSnapshot) -> None:
        self.owner = owner
        self.moment = moment
        self.taken = taken
        self.scans: dict[str, Scan] = {}

    @property
    def held_bytes(self) -> int:
        """What it takes in memory by now."""
        return SNAPSHOT_BYTES + self.moment.held_bytes + sum(scan.held_bytes for scan in list(self.scans.values()))


class Snapshots:
    """All that are kept, in at most so many bytes of memory, and of columns. Thread-safe."""

    def __init__(self, repository: EmbeddedRepository, limits: Limits, actors: Actors) -> None:
        self._repository = repository
        self._limits = limits
        self._actors = actors
        self._clock = repository.clock
        self._room = Room(self._limits.columns_bytes, self._clock)
        self._lock = threading.Lock()
        self._kept: dict[str, KeptSnapshot] = {}
        self._coming: dict[str, tuple[str, int]] = {}
        """Whose those are that are being taken, and their bytes: they count, or many at once would pass the quota."""

    def take(self, principal: Principal, request: SnapshotRequest) -> TableSnapshot:
        """A new one. With a lease it is taken under the lease: nothing that it shows is reclaimed."""
        self.expire()
        id = format_uuid(new_uuids(1)[0])
        self._reserve(principal, id)
        try:
            kept = self._taken(principal, request, id)
        except BaseException:
            with self._lock:
                del self._coming[id]
            raise
        with self._lock:
            del self._coming[id]
            self._kept[id] = kept
        return kept.taken

    def _taken(self, principal: Principal, request: SnapshotRequest, id: str) -> KeptSnapshot:
        repository = self._actors.of(principal)
        lease = repository.leases.acquire(request.ttl_millis, purpose=PURPOSE).id if request.holds else None
        try:
            moment = Moment(repository, self._room)
        except BaseException:
            if lease is not None:
                repository.leases.release(lease)
            raise
        taken = TableSnapshot(
            id=id,
            transaction=moment.transaction,
            millis=moment.millis,
            expires_millis=moment.millis + request.ttl_millis,
            lease=lease,
            live_bytes=_live_bytes(repository),
        )
        return KeptSnapshot(principal.name, moment, taken)

    def table(self, principal: Principal, wanted: TableTicket, pace: Pace) -> Batches:
        """A table, or what the ticket wants of it; its rights are looked at before. NotFound, InvalidArgument."""
        schema = schema_of(wanted)
        if wanted.stream is not None:
            return schema, feed_batches(self._actors.of(principal), wanted, pace)
        return schema, self._find(principal, wanted.snapshot).batches(wanted, pace)

    def _find(self, principal: Principal, id: str | None) -> Moment:
        """A snapshot's moment, or without an id a new one. NotFound for one that is over, or somebody else's."""
        repository = self._actors.of(principal)
        return Moment(repository) if id is None else self._require(principal, id).moment.seen_by(repository)

    def scan(self, principal: Principal, request: ScanRequest) -> None:
        """Let slots be bound under the scan's id for as long as the snapshot lasts. Nothing happens if it is known."""
        scans = self._require(principal, request.snapshot).scans
        scan = Scan(request.homes, request.patience_millis / 1000)
        with self._lock:
            if request.scan in scans:
                return
            if len(scans) >= SCANS_MAX:
                raise InvalidArgument(f"snapshot {request.snapshot} has {SCANS_MAX} scans already: take another one")
            self._require_room(principal, scan.held_bytes)
            scans[request.scan] = scan

    def bind(self, principal: Principal, request: SlotRequest) -> SlotShare:
        """Which share a slot reads. NotFound if the scan, or its snapshot, is not there."""
        scan = self._require(principal, request.snapshot).scans.get(request.scan)
        if scan is None:
            raise NotFound(f"snapshot {request.snapshot} has no scan {request.scan}: begin it with the action scan")
        if not scan.knows(request.slot):
            with self._lock:
                self._require_room(principal, SLOT_BYTES)
        return scan.bind(request.slot, request.near, self._clock.monotonic())

    def renew(self, principal: Principal, request: SnapshotRenewal) -> TableSnapshot:
        """It lasts longer, and its lease as far as spec.leases allows; NotFound, or LeaseLost, if it is over."""
        kept = self._require(principal, request.id)
        expires = self._clock.now_millis() + request.ttl_millis
        if kept.taken.lease is not None:
            lease = self._actors.of(principal).leases.renew(kept.taken.lease, request.ttl_millis)
            expires = min(expires, lease.expires_millis)
        kept.taken = msgspec.structs.replace(kept.taken, expires_millis=expires)
        return kept.taken

    def release(self, principal: Principal, request: SnapshotRelease) -> None:
        """Forget it, and end its lease. Nothing happens if it is gone."""
        with self._lock:
            kept = self._kept.get(request.id)
            if kept is None or kept.owner != principal.name:
                return
            del self._kept[request.id]
        self._end(kept)

    def held(self) -> list[HolderStatus]:
        """Whose they are, and until when."""
        self.expire()
        with self._lock:
            found = list(self._kept.values())
        return [
            HolderStatus(
                kind=HolderKind.SNAPSHOT,
                principal=each.owner,
                id=each.taken.id,
                about=f"transaction {each.taken.transaction}"
                + ("" if each.taken.lease is None else f", under lease {each.taken.lease}"),
                flow_files=None,
                bytes=None,
                since_millis=each.taken.millis,
                until_millis=each.taken.expires_millis,
            )
            for each in found
        ]

    def expire(self) -> None:
        """Forget those whose time is over, and columns that nobody reads; their leases have ended by themselves."""
        self._room.expire()
        now = self._clock.now_millis()
        with self._lock:
            over = [kept for kept in self._kept.values() if kept.taken.expires_millis <= now]
            for kept in over:
                del self._kept[kept.taken.id]
        for kept in over:
            kept.moment.kept.end()

    def close(self) -> None:
        """Forget all."""
        with self._lock:
            kept, self._kept = list(self._kept.values()), {}
        for each in kept:
            self._end(each)

    def _reserve(self, owner: Principal, id: str) -> None:
        needed = SNAPSHOT_BYTES + bytes_of_now(self._repository)
        with self._lock:
            self._require_room(owner, needed)
            self._coming[id] = owner.name, needed

    def _require_room(self, owner: Principal, needed: int) -> None:
        """ServiceBusy, QuotaReached: for a snapshot, or for more of one. The caller has the lock."""
        most, share = self._limits.snapshot_bytes, owner.share(self._limits.snapshot_bytes_each)
        taken = [(kept.owner, kept.held_bytes) for kept in self._kept.values()]
        taken += self._coming.values()
        in_all = sum(size for _, size in taken)
        if taken and in_all + needed > most:
            raise ServiceBusy(
                f"{len(taken)} snapshots are kept already, in {in_all} bytes of memory, and with {needed} more it were "
                f"more than {most}: release some, or wait"
            )
        theirs = [size for whose, size in taken if whose == owner.name]
        if share is not None and theirs and sum(theirs) + needed > share:
            held = f"{len(theirs)} snapshots and their scans in {sum(theirs)} bytes of memory"
            raise QuotaReached.of(owner.name, held, "snapshot_bytes_each", "release some")

    def _require(self, principal: Principal, id: str) -> KeptSnapshot:
        self.expire()
        with self._lock:
            kept = self._kept.get(id)
        if kept is None or kept.owner != principal.name:
            raise NotFound(f"there is no snapshot {id}: its time is over, or it was released")
        return kept

    def _end(self, kept: KeptSnapshot) -> None:
        kept.moment.kept.end()
        if kept.taken.lease is not None:
            self._repository.leases.release(kept.taken.lease)


def _live_bytes(repository: EmbeddedRepository) -> int | None:
    if not repository.acting.may(Right.SPACE):
        return None
    return sum(each.live_bytes for each in repository.engine.reclamation.survey().containers)
