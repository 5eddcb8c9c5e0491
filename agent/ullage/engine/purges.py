"""When each handle is to be purged: at its expiry, or so long after it was deleted."""

import heapq
import threading

from ullage.clock import Clock
from ullage.engine.content.availability import Availability
from ullage.engine.ledger.ledger import Ledger
from ullage.engine.model import FlowFileRecord


class PurgeSchedule:
    """Thread-safe. An entry may have been overtaken by an undelete: what counts is the record as it is now."""

    def __init__(self, ledger: Ledger, clock: Clock, deleted_retention_millis: int, availability: Availability) -> None:
        """What can't be read now is not purged: `availability` knows."""
        self._ledger = ledger
        self._clock = clock
        self._retention = deleted_retention_millis
        self._availability = availability
        self._lock = threading.Lock()
        self._due: list[tuple[int, bytes]] = []

    def add(self, record: FlowFileRecord) -> None:
        """A handle is new, or has another end than before."""
        due = self.due_millis(record)
        if due:
            with self._lock:
                heapq.heappush(self._due, (due, record.uuid))

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
        """Up to `count` handles that are due now, and leave the schedule."""
        now = self._clock.now_millis()
        uuids: dict[bytes, None] = {}
        resting: list[tuple[int, bytes]] = []
        with self._lock:
            while self._due and self._due[0][0] <= now and len(uuids) < count:
                due, uuid = heapq.heappop(self._due)
                if self._availability and self._rests(uuid):
                    resting.append((due, uuid))
                elif self.is_due(uuid):
                    uuids[uuid] = None
            for each in resting:
                heapq.heappush(self._due, each)
        return list(uuids)

    def tombstones(self) -> list[FlowFileRecord]:
        """Deleted handles whose retention lasts: they keep their bytes, and nobody reads them."""
        return [record for record in self.scheduled() if record.deleted_millis]

    def scheduled(self) -> list[FlowFileRecord]:
        """Handles with an end, as they are now."""
        with self._lock:
            uuids = {uuid for _, uuid in self._due}
        return [record for record in map(self._ledger.find, uuids) if record is not None]
