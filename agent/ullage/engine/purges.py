"""When each handle is to be purged: at its expiry, or so long after it was deleted.

Of those whose time is far only the uuids are kept, by the minute and by where their content was written: 16 bytes each.
When their minute comes, each is looked up, and waits for its own moment.

    later: (minute, resource claim) -> uuids | the minute has begun | due: (moment, uuid, resource claim), first first
"""

import heapq
import threading
from collections.abc import Iterable
from typing import Final

from ullage.clock import Clock
from ullage.engine.content.availability import Availability
from ullage.engine.ledger.ledger import Ledger
from ullage.engine.model import UUID_BYTES, FlowFileRecord, split_uuids

MINUTE_BITS: Final = 16
"""Of milliseconds: what is called a minute here has 65 seconds."""

LOOKED_AT_ONCE: Final = 1_000
"""Uuids that are looked up under the lock: some milliseconds."""

NO_BIRTH: Final = -1
"""Of a handle without content."""


class PurgeSchedule:
    """Thread-safe. An entry may have been overtaken by an undelete: what counts is the record as it is now."""

    def __init__(self, ledger: Ledger, clock: Clock, deleted_retention_millis: int, availability: Availability) -> None:
        """What can't be read now is not purged: `availability` knows."""
        self._ledger = ledger
        self._clock = clock
        self._retention = deleted_retention_millis
        self._availability = availability
        self._lock = threading.Lock()
        self._due: list[tuple[int, bytes, int]] = []
        self._by_birth: dict[int, set[bytes]] = {}
        self._tombstones: dict[int, set[bytes]] = {}
        self._later: dict[tuple[int, int], bytearray] = {}
        self._minutes: list[tuple[int, int]] = []
        self._minutes_of: dict[int, set[int]] = {}

    def __len__(self) -> int:
        """How many wait, some of them more than once."""
        return len(self._due) + sum(len(uuids) // UUID_BYTES for uuids in self._later.values())

    def add(self, record: FlowFileRecord) -> None:
        """A handle is new, or has another end than before."""
        due = self.due_millis(record)
        if not due:
            return
        birth = _birth(record)
        with self._lock:
            self._add_later(due >> MINUTE_BITS, birth, record.uuid)
        if record.deleted_millis and birth != NO_BIRTH:
            with self._ledger.lock:
                with self._lock:
                    self._tombstones.setdefault(birth, set()).add(record.uuid)
                # Once more: a survey that came behind the transaction, and before this, has not seen the tombstone.
                if (entry := self._ledger.entry(birth)) is not None:
                    self._ledger.note_changed(entry)

    def drop(self, records: Iterable[FlowFileRecord]) -> None:
        """These handles are there no more: to be called after the ledger has forgotten them, or for a moment nobody
        would know that they are tombstones.
        """
        with self._lock:
            for record in records:
                self._drop(record.uuid, _birth(record))

    def ending_in(self, birth: int) -> list[FlowFileRecord]:
        """Handles with an end whose content was written to this resource claim, as they are now. Under the ledger's
        lock it leaves out none whose deletion was acknowledged.
        """
        with self._lock:
            uuids = dict.fromkeys(self._by_birth.get(birth, ()))
            for minute in self._minutes_of.get(birth, ()):
                uuids |= dict.fromkeys(split_uuids(bytes(self._later[minute, birth])))
        return [record for record in map(self._ledger.find, uuids) if record is not None]

    def due_millis(self, record: FlowFileRecord) -> int:
        """When the handle is to be purged; 0: never."""
        ends = [record.expires_millis] if record.expires_millis else []
        if record.deleted_millis:
            ends.append(record.deleted_millis + self._retention)
        return min(ends, default=0)

    def is_due(self, uuid: bytes) -> bool:
        record = self._ledger.find(uuid)
        return record is not None and 0 < self.due_millis(record) <= self._clock.now_millis()

    def _rests(self, uuid: bytes) -> bool:
        """Whether its time stands still: it could not be read, which nobody may have noticed yet."""
        record = self._ledger.find(uuid)
        return record is not None and self._availability.damage(record.claim) is not None

    def take_due(self, count: int) -> list[bytes]:
        """Up to `count` handles that are due now, and leave the schedule; `ending_in` has them until `drop`."""
        now = self._clock.now_millis()
        uuids: dict[bytes, None] = {}
        resting: list[tuple[int, bytes, int]] = []
        while self._look_at_some(now >> MINUTE_BITS):
            pass
        with self._lock:
            while self._due and self._due[0][0] <= now and len(uuids) < count:
                due, uuid, birth = heapq.heappop(self._due)
                if self._availability and self._rests(uuid):
                    resting.append((due, uuid, birth))
                elif self.is_due(uuid):
                    uuids[uuid] = None
                elif (record := self._ledger.find(uuid)) is None or not self.due_millis(record):
                    self._drop(uuid, birth)
            for each in resting:
                heapq.heappush(self._due, each)
        return list(uuids)

    def tombstones_in(self, birth: int) -> list[FlowFileRecord]:
        """Deleted handles whose retention lasts, and whose content was written to this resource claim: they keep their
        bytes, and nobody reads them.
        """
        with self._lock:
            uuids = list(self._tombstones.get(birth, ()))
        found = (record for record in map(self._ledger.find, uuids) if record is not None)
        return [record for record in found if record.deleted_millis]

    def _add_due(self, due: int, uuid: bytes, birth: int) -> None:
        heapq.heappush(self._due, (due, uuid, birth))
        if birth != NO_BIRTH:
            self._by_birth.setdefault(birth, set()).add(uuid)

    def _add_later(self, minute: int, birth: int, uuid: bytes) -> None:
        uuids = self._later.get((minute, birth))
        if uuids is not None:
            uuids += uuid
            return
        self._later[minute, birth] = bytearray(uuid)
        heapq.heappush(self._minutes, (minute, birth))
        if birth != NO_BIRTH:
            self._minutes_of.setdefault(birth, set()).add(minute)

    def _look_at_some(self, now: int) -> bool:
        """Some of those whose minute has begun; False: that was all. Whoever deletes waits for no more than these: a
        million handles that were put at once end at once, and looking each up takes some microseconds.
        """
        with self._lock:
            if not self._minutes or self._minutes[0][0] > now:
                return False
            minute, birth = self._minutes[0]
            waiting = self._later[minute, birth]
            for uuid in dict.fromkeys(split_uuids(bytes(waiting[-LOOKED_AT_ONCE * UUID_BYTES :]))):
                record = self._ledger.find(uuid)
                due = 0 if record is None else self.due_millis(record)
                if not due:
                    self._drop(uuid, birth)
                elif due >> MINUTE_BITS <= now:  # else it has another end by now, and is in another minute, too
                    self._add_due(due, uuid, birth)
            del waiting[-LOOKED_AT_ONCE * UUID_BYTES :]
            if not waiting:
                heapq.heappop(self._minutes)
                del self._later[minute, birth]
                if birth != NO_BIRTH:
                    self._minutes_of[birth].discard(minute)
                    if not self._minutes_of[birth]:
                        del self._minutes_of[birth]
            return True

    def _drop(self, uuid: bytes, birth: int) -> None:
        for by_birth in (self._by_birth, self._tombstones):
            uuids = by_birth.get(birth)
            if uuids is not None:
                uuids.discard(uuid)
                if not uuids:
                    del by_birth[birth]


def _birth(record: FlowFileRecord) -> int:
    return NO_BIRTH if record.claim is None else record.claim.resource
