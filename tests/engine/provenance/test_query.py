"""Searches: the same answers from the log, from event files, and through the index, in pages."""

from collections.abc import Callable

import pytest

from tests.engine.provenance.history import told
from tests.support import Workshop, put_all
from ullage.contract import IndexedField, Quantity
from ullage.engine.engine import Engine
from ullage.engine.provenance.events import EventId
from ullage.errors import EventNotFound, InvalidArgument, ProvenanceDamaged
from ullage.wire.provenance import EventQuery

Place = Callable[[Engine], None]


def in_the_log(repository: Engine) -> None:
    """Nothing is drained."""


def in_files(repository: Engine) -> None:
    """Everything is in event files, and not indexed."""
    repository.provenance.drain()


def in_the_index(repository: Engine) -> None:
    """Everything is indexed."""
    repository.provenance.drain()
    repository.provenance.index_step()


PLACES = (in_the_log, in_files, in_the_index)


def work(repository: Engine, place: Place) -> dict[str, str]:
    """Some events, half of them placed before the others; returns ids to ask for."""
    with repository.session("get", "GetHTTP") as session:
        first, second = session.ingest("in", [b"one", b"content of two"], {"kind": "page"})
        session.provenance.receive([first], "https://example.org/1")
        session.commit()
    place(repository)
    with repository.session("route", "RouteText") as session:
        for flow_file in session.get_many("in", 2):
            changed = session.put_attribute(flow_file, "filename", f"{flow_file.size}.txt")
            session.transfer(changed, "out", "matched" if flow_file.size == 3 else "unmatched")
        session.commit()
    with repository.session("split") as session:
        (parent,) = session.get_by("out", lambda flow_file: flow_file.uuid == second.uuid)
        child = session.split(parent, [4])[0]
        session.transfer(child, "done")
        session.remove(parent)
        session.commit()
    place(repository)
    return {"first": first.id, "second": second.id, "child": child.id}


@pytest.mark.parametrize("place", PLACES)
def test_every_condition_finds_its_events_wherever_they_are(workshop: Workshop, place: Place) -> None:
    """By type, uuid, relation, component, relationship, address, file name, attribute, time and size."""
    repository = workshop.make(
        provenance={"indexed_fields": tuple(IndexedField), "indexed_attributes": ("kind", "filename")}
    )
    ids = work(repository, place)
    now = workshop.clock.millis

    def found(**conditions: object) -> list[int]:
        return [event.sequence for event in repository.history.query(EventQuery(**conditions)).events]  # type: ignore[arg-type]

    assert found() == [1, 2, 3, 4, 5, 6]
    assert found(types=["ROUTE"]) == [3, 4]
    assert found(types=["ROUTE", "DROP"]) == [3, 4, 6]
    assert found(flow_file=ids["first"]) == [1, 3] or found(flow_file=ids["first"]) == [2, 3]
    assert found(related=[ids["child"]]) == [5]
    assert len(found(related=[ids["second"]])) == 4
    assert found(component="route") == [3, 4]
    assert found(component_type="GetHTTP") == [1, 2]
    assert found(relationship="matched") == [3]
    assert len(found(transit_uri="https://example.org/1")) == 1
    assert found(filename="3.txt") == [3]
    assert len(found(filename=ids["second"])) == 1
    assert found(attributes={"kind": "page"}) == [1, 2, 3, 4, 5, 6]
    assert found(attributes={"kind": "page", "filename": "14.txt"}) == [4, 5, 6]
    assert found(attributes={"kind": "other"}) == []
    assert found(since_millis=now) == [1, 2, 3, 4, 5, 6]
    assert found(since_millis=now + 1) == []
    assert found(until_millis=now) == []
    assert found(size_min=4, types=["ROUTE"]) == [4]
    assert found(size_max=3) == found(size_min=3, size_max=3)
    assert found(component="nobody") == []


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("newest_first", [False, True])
def test_pages_follow_each_other_without_gap_or_double(workshop: Workshop, place: Place, *, newest_first: bool) -> None:
    """Asking on from `next` gives every event once, in order, also while events move to files and into the index."""
    repository = workshop.make(provenance={"rollover_events": 7})
    for number in range(10):
        put_all(repository, "q", [b"x"] * 4, n=str(number % 2))
        if number % 3 == 0:
            place(repository)
    odd, created = {"attributes": {"n": "1"}}, {"types": ["CREATE"]}
    for conditions, count in (({}, 40), (odd, 20), (created, 40), (odd | created, 20)):
        seen: list[int] = []
        query = EventQuery(limit=3, newest_first=newest_first, **conditions)
        while True:
            page = repository.history.query(query)
            seen += [event.sequence for event in page.events]
            if page.next is None:
                break
            bound = {"before": page.next} if newest_first else {"after": page.next}
            query = EventQuery(limit=3, newest_first=newest_first, **conditions, **bound)  # type: ignore[arg-type]
            place(repository)
        assert len(seen) == len(set(seen)) == count
        assert seen == sorted(seen, reverse=newest_first)


def test_events_are_paged_through_over_restart_and_retention(workshop: Workshop, repository: Engine) -> None:
    """A program that ships events elsewhere goes on where it was, and is told what retention removed before it came."""
    for _ in range(3):
        put_all(repository, "q", [b"x"] * 3)
        repository.provenance.drain()
        workshop.clock.advance(3600)
    shipped = [event.sequence for event in repository.history.query(EventQuery(limit=4)).events]
    repository = workshop.crash()
    shipped += [event.sequence for event in repository.history.query(EventQuery(after=4, limit=3)).events]
    assert shipped == [1, 2, 3, 4, 5, 6, 7]
    workshop.clock.advance(21.5 * 3600)
    repository.provenance.retain()
    put_all(repository, "q", [b"x"])

    page = repository.history.query(EventQuery(after=0))

    assert page.removed_through == 3
    assert [event.sequence for event in page.events] == [4, 5, 6, 7, 8, 9, 10]
    with pytest.raises(EventNotFound, match="removed by retention"):
        repository.history.event(2)


def test_one_event_is_found_by_number_and_by_id(repository: Engine) -> None:
    """In the log and in a file; unknown ones are said to be."""
    for place in (in_files, in_the_log):
        put_all(repository, "q", [b"x"] * 2)
        place(repository)
    events = [repository.history.event(sequence) for sequence in (1, 2, 3, 4)]
    assert [event.sequence for event in events] == [1, 2, 3, 4]
    assert [told(repository.history.find(event.id)) for event in events] == [told(event) for event in events]
    for missing in (EventId(0, 0), EventId(10_000, 0), EventId(events[-1].transaction, 7)):
        with pytest.raises(EventNotFound):
            repository.history.find(missing)
    with pytest.raises(EventNotFound, match="does not exist"):
        repository.history.event(5)


def test_an_impossible_query_is_refused(repository: Engine) -> None:
    """No limit, too large a limit, and what is no uuid."""
    for query in (EventQuery(limit=0), EventQuery(limit=10_001), EventQuery(flow_file="x"), EventQuery(related=["y"])):
        with pytest.raises(InvalidArgument):
            repository.history.query(query)


def test_a_lost_or_damaged_index_is_made_again(workshop: Workshop, repository: Engine) -> None:
    """Queries go on meanwhile, and the next step indexes the files anew: after a restart, or under our hands."""
    index = workshop.path / "provenance" / "index"

    def answers() -> bool:
        page = repository.history.query(EventQuery(types=["CREATE"]))
        return [event.sequence for event in page.events] == [1, 2, 3, 4, 5, 6]

    put_all(repository, "q", [b"x"] * 6)
    in_the_index(repository)
    next(index.iterdir()).unlink()
    assert answers()
    assert repository.provenance.index_step() == 6
    assert answers()
    for damage in (lambda data: b"", lambda data: data[:-1], lambda data: b"x" + data[1:], lambda data: data + data):
        workshop.shut()
        (path,) = index.iterdir()
        path.write_bytes(damage(path.read_bytes()))
        repository = workshop.open()
        assert answers()
        assert repository.provenance.index_step() == 6
        assert repository.provenance.index_step() == 0
        assert answers()


def test_other_settings_make_the_index_anew(workshop: Workshop, repository: Engine) -> None:
    """An attribute that is indexed from now on is found through the index in old events too."""
    put_all(repository, "q", [b"x"] * 6, kind="a")
    in_the_index(repository)

    repository = workshop.reopen(provenance={"indexed_attributes": ("kind",)})

    assert repository.provenance.index_step() == 6
    assert len(repository.history.query(EventQuery(attributes={"kind": "a"})).events) == 6


def test_shards_are_bounded_and_dropped_whole(workshop: Workshop) -> None:
    """Each covers event files up to its size, and goes when the last of them has gone."""
    repository = workshop.make(provenance={"index_shard_size": Quantity(1)})
    index = workshop.path / "provenance" / "index"
    for _ in range(3):
        put_all(repository, "q", [b"x"])
        in_the_index(repository)
        workshop.clock.advance(3600)
    assert len(list(index.iterdir())) == 3

    workshop.clock.advance(21.5 * 3600)
    repository.provenance.retain()
    repository.provenance.index_step()

    assert len(list(index.iterdir())) == 2
    assert [event.sequence for event in repository.history.query(EventQuery(types=["CREATE"])).events] == [2, 3]


def test_a_search_over_an_unreadable_file_says_so(workshop: Workshop, repository: Engine) -> None:
    """No answer is given that would leave events out in silence; others are answered."""
    for _ in range(2):
        put_all(repository, "q", [b"x"] * 3)
        repository.provenance.drain()
    first, _ = sorted((workshop.path / "provenance" / "events").iterdir())
    data = bytearray(first.read_bytes())
    data[10 : len(data) // 2] = bytes(len(data) // 2 - 10)
    first.write_bytes(data)
    workshop.expects_problems = True

    page = repository.history.query(EventQuery())
    assert ([event.sequence for event in page.events], [each[:2] for each in page.unreadable]) == ([4, 5, 6], [(1, 3)])
    assert str(first) in page.unreadable[0].problem
    assert [event.sequence for event in repository.history.query(EventQuery(after=3)).events] == [4, 5, 6]
    with pytest.raises(ProvenanceDamaged, match=first.name):
        repository.provenance.index_step()
    assert [event.sequence for event in repository.history.query(EventQuery(after=3)).events] == [4, 5, 6]
