"""When each handle is to be purged: at its expiry, or so long after it was deleted."""

import heapq
import threading
from collections.abc import Iterable
from typing import Final

from ullage.clock import Clock
from ullage.engine.content.availability import Availability
from ullage.engine.ledger.ledger import Ledger
from ullage.engine.model import FlowFileRecord

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

    def add(self, record: FlowFileRecord) -> None:
        """A handle is new, or has another end than before."""
        due = self.due_millis(record)
        if not due:
            return
        birth = _birth(record)
        with self._lock:
            heapq.heappush(self._due, (due, record.uuid, birth))
            if birth != NO_BIRTH:
                self._by_birth.setdefault(birth, set()).add(record.uuid)
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
            uuids = list(self._by_birth.get(birth, ()))
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

    def _drop(self, uuid: bytes, birth: int) -> None:
        for by_birth in (self._by_birth, self._tombstones):
            uuids = by_birth.get(birth)
            if uuids is not None:
                uuids.discard(uuid)
                if not uuids:
                    del by_birth[birth]


def _birth(record: FlowFileRecord) -> int:
    return NO_BIRTH if record.claim is None else record.claim.resource
