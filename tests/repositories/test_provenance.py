"""What a provenance repository promises, whoever made it: all that entry points name are tried."""

import random
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

from tests.engine.provenance.history import told
from tests.support import ManualClock, RoomyFiles, spec_at
from ullage.contract import Duration, Quantity
from ullage.engine.model import EventType, FlowFileRecord, Operation, new_uuids, pack_attributes
from ullage.engine.parts import RepositoryParts
from ullage.engine.provenance.eventruns import of_new
from ullage.engine.provenance.events import EventId, ProvenanceEvent
from ullage.engine.provenance.holds import Hold
from ullage.engine.provenance.query import matches
from ullage.engine.repositories import PROVENANCE_REPOSITORIES, ProvenanceRepository
from ullage.engine.wal.serde import SerDe
from ullage.errors import EventNotFound, InvalidArgument
from ullage.wire.provenance import EventQuery

HOUR = 3_600


class Recorded:
    """A provenance repository beside a log that the test plays: what was taken, and up to where it is durable."""

    def __init__(self, name: str, path: Path) -> None:
        self.clock = ManualClock()
        self.durable = 0
        self.operations: dict[int, tuple[int, list[Operation]]] = {}
        limits = {"max_storage_time": Duration(HOUR * 1000), "max_storage_size": Quantity(1 << 20)}
        spec = spec_at(path, provenance={"repository": name, **limits})
        self._parts = RepositoryParts(RoomyFiles(), self.clock, spec, SerDe(), "r")
        path.mkdir()
        self.repository = self.opened()
        self.repository.start(0)

    def opened(self) -> ProvenanceRepository:
        make = PROVENANCE_REPOSITORIES.load(self._parts.spec.provenance.repository)
        return make(self._parts, lambda: self.durable, "queue {}".format)

    def commit(self, *ids: int, type: EventType = EventType.CREATE, events: int = 3, **attributes: str) -> None:
        """Transactions of so many events, in the order of the ids given; durable once all ids below are."""
        for id in ids:
            now, packed = self.clock.now_millis(), pack_attributes({"id": str(id), **attributes})
            records = [
                FlowFileRecord(uuid, 1, None, 0, number, now, now, number, packed)
                for number, uuid in enumerate(new_uuids(events))
            ]
            self.operations[id] = now, [*records, *of_new(type, events, f"component {id % 3}")]
            self.repository.take(id, *self.operations[id])
        while self.durable + 1 in self.operations:
            self.durable += 1

    def restarted(self, covered: int = 0) -> None:
        """The process ends. The log brings back what no snapshot covers, and the snapshot what it had to carry."""
        carried = {recorded.transaction for recorded in self.repository.undrained()}
        self.repository.close()
        self.repository = self.opened()
        for id in sorted(self.operations):
            if id > covered or id in carried:
                self.repository.take(id, *self.operations[id])
        self.repository.start(self.durable)


@pytest.fixture(params=PROVENANCE_REPOSITORIES.names(), ids=lambda name: name or "files")
def recorded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterable[Recorded]:
    """One of each kind that there is."""
    made = Recorded(request.param, tmp_path / "r")
    yield made
    assert made.repository.problems(deep=True) == []
    made.repository.close()


def everything(recorded: Recorded) -> list[ProvenanceEvent]:
    return list(recorded.repository.query(EventQuery(limit=10_000)).events)


def test_events_count_once_they_are_durable_in_the_order_of_transactions(recorded: Recorded) -> None:
    """Threads apply out of order; sequence numbers follow the ids, without a gap."""
    recorded.commit(2, 4, 3)
    assert everything(recorded) == []

    recorded.commit(1)

    events = everything(recorded)
    assert [event.sequence for event in events] == list(range(1, 13))
    assert [event.id for event in events] == [EventId(id, ordinal) for id in range(1, 5) for ordinal in range(3)]
    assert events[4].attribute_map()["id"] == "2"
    assert recorded.repository.span() == (1, 12)


@pytest.mark.parametrize("millis", [0, 253_402_300_800_000, (1 << 63) // 1000, (1 << 63) - 1])
def test_an_event_of_any_time_is_found(recorded: Recorded, millis: int) -> None:
    """Before it is drained and after; no calendar has to know the time."""
    recorded.clock.millis = millis
    recorded.commit(1)
    for _ in range(2):
        assert [(event.millis, event.entry_millis) for event in everything(recorded)] == [(millis, millis)] * 3
        assert recorded.repository.query(EventQuery(since_millis=millis)).events[0].sequence == 1
        assert recorded.repository.query(EventQuery(until_millis=millis)).events == ()
        recorded.repository.drain()
        recorded.repository.index_step()


def test_every_event_is_found_by_its_id(recorded: Recorded) -> None:
    """Wherever it is kept by now; what never was is an error."""
    recorded.commit(1, 2)
    recorded.repository.drain()
    recorded.commit(3)

    for event in everything(recorded):
        assert recorded.repository.find(event.id) == event
    for missing in (EventId(3, 3), EventId(9, 0)):
        with pytest.raises(EventNotFound):
            recorded.repository.find(missing)


@pytest.mark.parametrize("newest_first", [False, True])
def test_pages_hold_exactly_the_events_that_match(recorded: Recorded, newest_first: bool) -> None:
    """Each query is answered as by looking at every event, page by page, in both directions."""
    chooser = random.Random(5)
    for id in range(1, 41):
        recorded.commit(id, type=chooser.choice([EventType.CREATE, EventType.RECEIVE]), kind=chooser.choice("xy"))
        recorded.clock.advance(1)
        if id % 9 == 0:
            recorded.repository.drain()
            recorded.repository.index_step()
    events = everything(recorded)
    someone = events[50]
    queries = [
        EventQuery(types=["RECEIVE"]),
        EventQuery(component="component 1", attributes={"kind": "x"}),
        EventQuery(related=[someone.flow_file]),
        EventQuery(filename=someone.filename),
        EventQuery(since_millis=events[20].millis, until_millis=events[90].millis, size_min=1),
        EventQuery(after=17, before=71),
    ]
    for query in queries:
        expected = [event for event in events if matches(query, event)]
        found = _all_pages(recorded.repository, msgspec.structs.replace(query, limit=7, newest_first=newest_first))
        assert found == (expected[::-1] if newest_first else expected)
    with pytest.raises(InvalidArgument):
        recorded.repository.query(EventQuery(limit=0))


def _all_pages(repository: ProvenanceRepository, query: EventQuery) -> list[ProvenanceEvent]:
    found: list[ProvenanceEvent] = []
    while True:
        page = repository.query(query)
        assert len(page.events) <= query.limit
        found += page.events
        if page.next is None:
            return found
        query = msgspec.structs.replace(query, **{"before" if query.newest_first else "after": page.next})


def test_retention_takes_the_oldest_and_says_through_where(recorded: Recorded) -> None:
    """By age; what a reader holds is spared, and what is not told any more is removed, never in between."""
    recorded.commit(1, 2)
    recorded.repository.drain()
    recorded.clock.advance(2 * HOUR)
    recorded.commit(3)
    recorded.repository.drain()
    expiry = recorded.clock.now_millis() + 1
    assert recorded.repository.holds.set("reader", Hold(0, expiry), recorded.clock.now_millis())
    assert recorded.repository.retain() == 0

    recorded.clock.advance(1)
    recorded.repository.step()

    page = recorded.repository.query(EventQuery())
    assert (page.removed_through, [event.sequence for event in page.events]) == (6, [7, 8, 9])
    assert recorded.repository.span() == (7, 9)
    with pytest.raises(EventNotFound):
        recorded.repository.find(EventId(1, 0))


def test_what_is_kept_has_a_bound_in_bytes(recorded: Recorded) -> None:
    """However much happens: writers and maintenance keep it there, and what is told is the newest without a gap."""
    for id in range(1, 200):
        recorded.repository.admit()
        recorded.commit(id, events=1, load=random.Random(id).randbytes(16 << 10).hex())
        if id % 10 == 0:
            recorded.repository.drain()
            recorded.repository.step()

    first, last = recorded.repository.span()
    assert 1 < first <= last == 199
    assert [event.sequence for event in everything(recorded)] == list(range(first, last + 1))


def test_a_restart_tells_the_same_events_or_none(recorded: Recorded) -> None:
    """What is drained, what a snapshot carried and what the log brings back make up the history, none of it twice.

    A volatile one begins anew, with what the log brings back, and no snapshot carries anything for it.
    """
    recorded.commit(1, 2)
    recorded.repository.drain()
    recorded.commit(3, 4)
    before = everything(recorded)
    is_volatile = recorded.repository.is_volatile

    recorded.restarted(covered=3)

    expected = [event for event in before if event.transaction > 3] if is_volatile else before
    assert [told(event)[1:] for event in everything(recorded)] == [told(event)[1:] for event in expected]
    first, last = recorded.repository.span()
    assert [event.sequence for event in everything(recorded)] == list(range(first, last + 1))
    recorded.commit(5)
    assert recorded.repository.find(EventId(5, 0)).sequence == last + 1
