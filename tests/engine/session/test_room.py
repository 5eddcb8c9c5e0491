"""What a session may hold in memory, where that is bounded: nothing that is refused leaves half of itself."""

import errno
from collections.abc import Callable

import pytest

from tests.support import Workshop, content_sizes
from ullage.engine.content.writer import ContentWriter
from ullage.engine.counters import Counters
from ullage.engine.engine import Engine
from ullage.engine.session import ProcessSession
from ullage.engine.working import RECORD_BYTES
from ullage.enums import EventType
from ullage.errors import QuotaReached, TransactionTooLarge
from ullage.sessionroom import FREE_BYTES, STEP_BYTES, SessionRoom
from ullage.uuids import parse_uuid
from ullage.wire.provenance import EventQuery

LARGE = "v" * 100_000
ROOM = 1 << 20


def bounded(repository: Engine) -> ProcessSession:
    return repository.session(room=SessionRoom(lambda _: None, ROOM))


def fill(repository: Engine, count: int, attribute: str = "") -> None:
    with repository.session() as session:
        session.ingest("in", [b""] * count, {"a": attribute})
        session.commit()


def waiting(repository: Engine, queue: str = "in") -> int:
    return repository.queues.find(queue).figures().flow_files


def test_an_attribute_set_on_everything_is_refused_where_the_room_ends(workshop: Workshop) -> None:
    """What was set before stands, what was refused is as it was, and the session goes on."""
    repository = workshop.make()
    fill(repository, 50)
    with bounded(repository) as session:
        held = session.get_many("in", 50)
        with pytest.raises(TransactionTooLarge, match="would hold"):
            [session.put_attribute(record, "a", LARGE) for record in held]
        for record in held:  # those that were set shrink again, and there is room for another
            session.remove_attributes(record, ["a"])
        session.put_attribute(held[-1], "a", LARGE)
        with pytest.raises(TransactionTooLarge):
            [session.put_attribute(record, "b", LARGE) for record in held]
        kept = {record.uuid: record.attribute_map() for record in session.unsettled()}
        session.transfer_many(held, "out")
        session.commit()

    with repository.session() as session:
        stored = {record.uuid: record.attribute_map() for record in session.get_many("out", 50)}
    assert stored == kept
    assert 1 < sum("b" in attributes for attributes in stored.values()) < 12


def fails(*_: object) -> None:
    raise OSError(errno.ENOSPC, "the disk is full")


def test_splits_clones_and_what_is_ingested_count_as_what_is_created(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each copies the attributes; a commit gives all of the room back."""
    repository = workshop.make()
    with bounded(repository) as session:
        whole = session.write(session.create(attributes={"a": LARGE}), b"x" * 100)
        with pytest.raises(TransactionTooLarge):
            session.split(whole, [1] * 100)
        session.rollback()
        for _ in range(3):
            session.ingest("out", [b"x"] * 900)
            before = content_sizes(workshop.path)
            with pytest.raises(TransactionTooLarge):
                session.ingest("out", [b"much more than a file's tail" * 100_000] * 900)
            assert content_sizes(workshop.path) == before  # nothing was written for it
            session.commit()
        with monkeypatch.context() as patch:
            patch.setattr(ContentWriter, "put_many", fails)
            with pytest.raises(OSError, match="full"):
                session.ingest("out", [b""] * 900)
        session.ingest("out", [b""] * 900)  # what came to nothing has no room
        session.rollback()
        with pytest.raises(TransactionTooLarge):
            [session.create() for _ in range(2_000)]
    assert waiting(repository, "out") == 3 * 900


def test_a_poll_takes_what_there_is_room_for_and_the_rest_keeps_its_place(workshop: Workshop) -> None:
    """With nothing left the next one is refused, rather than that it looks as if the queue were empty."""
    repository = workshop.make()
    fill(repository, 30, LARGE)
    before = [record.uuid for record in repository.flow_files.listed(repository.queues.find("in"), 0, 30)]
    with bounded(repository) as session:
        first = session.get_many("in", 30)
        assert len(first) == ROOM // (RECORD_BYTES + len(first[0].attributes))
        with pytest.raises(TransactionTooLarge):
            session.get_many("in", 30)
        session.remove_many(first)
        session.commit()
        second = session.get_many("in", 30)
        assert [record.uuid for record in [*first, *second]] == before[: len(first) + len(second)]
    assert waiting(repository) == 30 - len(first)


def test_room_is_asked_for_in_steps_and_what_is_refused_is_not_held(workshop: Workshop) -> None:
    """Most sessions need not ask; one that is refused has what it had."""
    asked: list[int] = []

    def grant(size: int) -> None:
        if len(asked) == 2:
            raise QuotaReached("no more")
        asked.append(size)

    room = SessionRoom(grant)
    room.take(FREE_BYTES)
    assert asked == []
    room.take(STEP_BYTES + 1)
    assert asked == [STEP_BYTES, STEP_BYTES]
    with pytest.raises(QuotaReached):
        room.take(STEP_BYTES)
    room.take(STEP_BYTES - 1)
    room.take(-STEP_BYTES)
    room.take(STEP_BYTES)
    assert room.granted == FREE_BYTES + 2 * STEP_BYTES
    room.clear()
    assert room.granted == FREE_BYTES


def test_a_name_of_a_counter_is_somebodys_once() -> None:
    """However often it is asked for before it is first used, and whoever uses it then."""
    counters = Counters()
    for _ in range(3):
        counters.reserve("a", "one", 1)
    with pytest.raises(QuotaReached, match="counters_each"):
        counters.reserve("b", "one", 1)
    counters.add({"b": 2})
    counters.reserve("b", "one", 1)
    counters.reserve("c", "other", 1)
    assert counters.all() == {"b": 2}


def test_everything_that_a_session_keeps_has_its_room(workshop: Workshop) -> None:
    """Each of these could be done for ever, in one session; what it had before stays."""
    repository = workshop.make()
    fill(repository, 1)
    handle = parse_uuid(repository.handles.put_many([b"x"])[0])
    parents = bytes(16) * 2_000
    text = "t" * 60_000
    with bounded(repository) as session:
        held = session.get_many("in", 1)

        def emit(number: int) -> None:
            session.put_attribute(held[0], "a", f"{number}{LARGE}")  # the event keeps it as it is now
            session.provenance.send(held[0], "there")

        def transfer(number: int) -> None:
            session.transfer(session.create(), "out", text)

        ways: list[Callable[[int], object]] = [
            emit,
            transfer,
            lambda number: session.provenance.report(EventType.ADDINFO, held, details=text),
            lambda number: session.adjust_counter(f"{number}{text}", 1),
            lambda number: session.remove_attributes(held[0], [f"{number}{text}"]),
            lambda number: session.put_attributes(held[0], {f"{number}.{name}": "" for name in range(300)}),
            lambda number: session.create([session.create()] * (len(parents) // 16)),
        ]
        contents: list[Callable[[int], object]] = [
            lambda number: session.write(held[0], b"x"),
            lambda number: session.write(held[0], [b"x"]),
            lambda number: session.append(held[0], b""),
            lambda number: session.import_handle(handle),
        ]
        for way in (*ways, *contents):
            with pytest.raises(TransactionTooLarge):
                [way(number) for number in range(100 if way in ways else 3_000)]
            session.rollback()
            held = session.get_many("in", 1)
            assert held[0].attribute_map()["a"] == ""


def test_what_is_refused_halfway_is_not_held(workshop: Workshop) -> None:
    """Parts of which nobody was told would go wherever the rest goes; and a way that was refused leads nowhere."""
    repository = workshop.make()
    with bounded(repository) as session:
        whole = session.write(session.create(attributes={"a": LARGE}), b"x" * 100)
        with pytest.raises(TransactionTooLarge):
            session.split(whole, [1] * 100)
        others = [session.create() for _ in range(200)]
        assert len(session.unsettled()) == 201
        with pytest.raises(TransactionTooLarge):
            session.transfer_many(others, "out", "r" * 60_000)
        assert len(session.unsettled()) == 201


def test_nothing_is_left_of_what_failed_as_a_whole(workshop: Workshop) -> None:
    """Whatever was said: attributes, ways, removals, penalties, reports, counters, new FlowFiles, and their room."""
    repository = workshop.make()
    fill(repository, 2)
    room = SessionRoom(lambda _: None, ROOM)
    with repository.session(room=room) as session:
        one, other = session.get_many("in", 2)
        session.provenance.send(one, "before")
        session.adjust_counter("before", 1)
        held = room.begin_request()

        def change() -> None:
            with session.as_a_whole():
                session.remove_attributes(session.put_attribute(one, "b", LARGE), ["a"])
                session.provenance.send(one, "there")
                session.transfer(one, "out", "a way")
                session.penalize(one)
                session.remove(other)
                session.adjust_counter("before", 1)
                session.adjust_counter("another", 1)
                session.create([one])
                fails()

        with pytest.raises(OSError, match="full"):
            change()
        assert room.begin_request() == held
        assert [record.uuid for record in session.unsettled()] == [one.uuid, other.uuid]
        session.transfer_many([one, other], "out")
        session.commit()

    with repository.session() as session:
        assert session.get_many("out", 2)[0].attribute_map() == one.attribute_map()
    assert repository.counters.all() == {"before": 1}
    events = repository.history.query(EventQuery(flow_file=one.id)).events
    assert [event.transit_uri for event in events if event.type == EventType.SEND] == ["before"]


def test_what_a_commit_has_ended_is_not_brought_back(workshop: Workshop) -> None:
    """What fails behind it is not its own; the room is free."""
    repository = workshop.make()
    fill(repository, 1)
    room = SessionRoom(lambda _: None, ROOM)
    with repository.session(room=room) as session:
        held = session.get_many("in", 1)

        def commit() -> None:
            with session.as_a_whole():
                session.transfer_many(held, "out")
                session.commit()
                fails()

        with pytest.raises(OSError, match="full"):
            commit()
        assert session.is_empty
        assert room.begin_request() == (0, FREE_BYTES)
    assert waiting(repository, "out") == 1


@pytest.mark.parametrize("what", ["attributes", "texts"])
def test_events_that_no_transaction_has_room_for_are_refused_before_they_are_written_down(
    workshop: Workshop, what: str
) -> None:
    """Each repeats what it tells, where others stand between: one request of a megabyte made gigabytes of it."""
    repository = workshop.make()
    with repository.session() as session:
        if what == "attributes":
            record = session.create(attributes={"a": LARGE})
            session.provenance.send([record] * 1_000, "there")
            session.transfer(session.put_attribute(record, "a", ""), "out")
        else:
            records = [session.create() for _ in range(1_000)]
            session.transfer_many(records, "out")
            session.provenance.report(EventType.ADDINFO, records[::-1], details="t" * 60_000)
        with pytest.raises(TransactionTooLarge, match="provenance events"):
            session.commit()
        assert session.is_empty
