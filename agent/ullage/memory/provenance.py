"""The history of the present: the newest events, as many as `spec.provenance` allows, until the process ends."""

import threading
from collections.abc import Callable, Iterator, Sequence

from ullage.engine.model import Operation
from ullage.engine.parts import RepositoryParts
from ullage.engine.provenance.events import EventId, ProvenanceEvent, RecordedTransaction, size_of
from ullage.engine.provenance.holds import Holds, Retained, expired
from ullage.engine.provenance.query import Page, event_at, page_of, possible, touches
from ullage.engine.provenance.scan import EventColumns, told_runs
from ullage.engine.provenance.series import expand
from ullage.engine.provenance.tail import Numbered, Tail
from ullage.errors import EventNotFound
from ullage.wire.provenance import EventQuery


class MemoryProvenanceRepository:
    """See `ProvenanceRepository`. Transactions stay as they were committed; a query works their events out anew."""

    is_volatile = True

    def __init__(self, parts: RepositoryParts, durable: Callable[[], int], queue_name: Callable[[int], str]) -> None:
        self.holds = Holds()
        self._clock = parts.clock
        self._settings = parts.spec.provenance
        self._durable = durable
        self._queue_name = queue_name
        self._tail = Tail()
        self._lock = threading.Lock()
        self._removed_through = 0

    def take(self, id: int, millis: int, operations: Sequence[Operation]) -> None:
        self._tail.take(id, millis, operations)

    def undrained(self) -> list[RecordedTransaction]:
        return []

    def start(self, last_id: int) -> None:
        """Nothing was kept, so that nothing can contradict it."""

    def query(self, query: EventQuery) -> Page:
        query, kept = possible(query), self._kept()
        return page_of(self._events(kept, query), query, self._removed_through)

    def columns(self, query: EventQuery) -> Iterator[EventColumns]:
        return told_runs(self._kept(), query, self._queue_name)

    def find(self, id: EventId) -> ProvenanceEvent:
        for each in self._kept():
            if each.told.transaction == id.transaction and id.ordinal < each.told.events:
                return event_at(self.query, each.first_sequence + id.ordinal)
        raise EventNotFound(f"provenance event {id} does not exist, or was removed by retention")

    def span(self) -> tuple[int, int]:
        kept = self._kept()
        return self._removed_through + 1, kept[-1].last_sequence if kept else self._removed_through

    def set_aside_by(self, keep: Callable[[RecordedTransaction, str], None]) -> None:
        """Nothing moves anywhere, so nothing can be in its way."""

    def waiting(self) -> tuple[int, int]:
        return 0, 0

    def admit(self) -> None:
        """A writer makes its own room."""
        if self._tail.bytes > self._settings.max_storage_size:
            self.retain()

    def drain(self) -> int:
        return 0

    def try_drain(self) -> None:
        """Snapshots carry no events."""

    def step(self) -> None:
        self.retain()

    def retain(self) -> int:
        with self._lock:
            now, kept = self._clock.now_millis(), self._kept()
            figures = (Retained(each.told.millis, size_of(each.told), each.last_sequence) for each in kept)
            count = expired(figures, self._tail.bytes, self._settings, now, self.holds.wanted_after(now))
            if count:
                self._removed_through = kept[count - 1].last_sequence
            self._tail.forget(count)
            return count

    def index_step(self) -> int:
        return 0

    def problems(self, *, deep: bool) -> list[str]:
        return []

    def close(self) -> None:
        """There is nothing to release."""

    def _kept(self) -> list[Numbered]:
        self._tail.settle(self._durable())
        return self._tail.numbered()

    def _events(self, kept: list[Numbered], query: EventQuery) -> Iterator[ProvenanceEvent]:
        for each in reversed(kept) if query.newest_first else kept:
            millis = each.told.millis
            if touches(query, each.first_sequence, each.last_sequence, millis, millis):
                events = list(expand(each.told, each.first_sequence, self._queue_name))
                yield from reversed(events) if query.newest_first else events
