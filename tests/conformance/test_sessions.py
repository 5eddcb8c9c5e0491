"""What sessions promise, whichever way the repository is reached."""

import io
from collections.abc import Callable

import pytest

from ullage import EventQuery, FlowFile, Repository, Session
from ullage.errors import (
    BackPressure,
    FlowFileNotFound,
    HandleNotFound,
    InvalidArgument,
    QueueNotFound,
    RangeNotSatisfiable,
    SessionMisuse,
    TransactionTooLarge,
)
from ullage.wire.documents import ATTRIBUTES_MAX


def filled(repository: Repository, *contents: bytes) -> None:
    repository.queues.put_many("in", contents)


def texts(session: Session, queue: str) -> list[bytes]:
    """The contents of a queue, in order."""
    return [session.read(one).read() for one in session.get_many(queue)]


def test_what_is_committed_stands_in_its_queue_and_what_is_taken_leaves_it_once(repository: Repository) -> None:
    """A FlowFile goes from hand to queue to hand, with content and attributes, and then is nowhere."""
    with repository.session() as session:
        made = session.write(session.create(attributes={"filename": "a.txt"}), b"content")
        session.transfer(made, "in")
        session.commit()
        found = session.get("in")

        assert found is not None
        assert (found.id, found.size, found.attributes["filename"]) == (made.id, 7, "a.txt")
        assert found.attributes["uuid"] == made.id
        assert session.read(found).read() == b"content"
        assert session.get("in") is None
        session.remove(found)
        session.commit()
        assert session.get("in") is None


def test_reading_a_queue_that_is_not_there_does_not_make_it(repository: Repository) -> None:
    """Nothing stands in it, and it has room; only what is put somewhere makes a queue. A removed one stays removed."""
    repository.queues.put("gone", b"")
    with repository.session() as session:
        session.remove(session.get_many("gone")[0])
        session.commit()
        repository.queues.remove("gone")

        for name in ("typo", "gone"):
            assert session.get(name) is None
            assert session.get_many(name, attributes={"kind": "any"}) == []
            session.require_room(name)
            for read in (repository.queues.find, repository.queues.flow_files, repository.queues.drop):
                with pytest.raises(QueueNotFound):
                    read(name)
        session.commit()
        assert repository.queues.all() == []

        session.transfer(session.create(), "made")
        session.commit()

    assert [queue.name for queue in repository.queues.all()] == ["made"]


def test_what_a_session_holds_nobody_else_sees_until_it_goes_back(repository: Repository) -> None:
    """A rollback, and leaving the block, put everything back where it was and forget what was made."""
    filled(repository, b"one", b"two")

    with repository.session() as session, repository.session() as other:
        held = session.get_many("in", 1)
        assert texts(other, "in") == [b"two"]
        session.transfer(session.write(session.create(), b"made"), "out")
        other.rollback()
        session.put_attributes(held[0], {"kind": "changed"})
        session.rollback()
        assert texts(other, "in") == [b"one", b"two"]
        assert other.get("out") is None
    assert [one.attributes.get("kind") for one in repository.queues.flow_files("in")] == [None, None]


def test_a_rollback_may_penalize(repository: Repository) -> None:
    """What went back with a penalty is out of everybody's sight for a while."""
    filled(repository, b"one", b"two")

    with repository.session() as session:
        session.get("in")
        session.rollback(penalize=True)
        assert texts(session, "in") == [b"two"]
    assert repository.queues.find("in").penalized == 1


def test_a_commit_with_something_unsettled_changes_nothing(repository: Repository) -> None:
    """Each FlowFile is transferred or removed before the commit; until then the session goes on as it was."""
    filled(repository, b"one")

    with repository.session() as session:
        held = session.get("in")
        assert held is not None
        with pytest.raises(SessionMisuse):
            session.commit()
        session.transfer(held, "out")
        session.commit()
    assert repository.queues.find("out").flow_files == 1


def test_content_comes_as_bytes_files_and_pieces(repository: Repository) -> None:
    """Each kind of content is stored whole, replaced, appended to, and read in ranges."""
    with repository.session() as session:
        one = session.create()
        for content in (b"abc", io.BytesIO(b"abc"), iter([b"a", b"bc"])):
            one = session.write(one, content)
            assert (one.size, session.read(one).read()) == (3, b"abc")
        one = session.append(session.append(one, b"de"), iter([b"f"]))

        with session.read(one.id, 2, 3) as part:
            assert (part.size, part.read(1), list(part)) == (3, b"c", [b"de"])
        with pytest.raises(RangeNotSatisfiable):
            session.read(one, 4, 3)
        large = session.write(one, b"large" * 500_000)
        assert session.read(large, 1_000_000, 10).read() == b"largelarge"
        session.transfer(large, "in")
        session.commit()
        found = session.get("in")
        assert found is not None
        assert session.read(found).read() == b"large" * 500_000


def test_clone_split_and_merge_share_bytes(repository: Repository) -> None:
    """Slices are FlowFiles of their own, marked as fragments; merged ones have header, demarcator and footer."""
    filled(repository, b"headtail")

    with repository.session() as session:
        whole = session.get("in")
        assert whole is not None
        part = session.clone(whole, 4)
        head, tail = session.split(whole, [4, 4])
        merged = session.merge([tail, head.id], header=b"<", demarcator=b"|", footer=b">")
        assert [session.read(one).read() for one in (part, head, tail, merged)] == [
            b"tail",
            b"head",
            b"tail",
            b"<tail|head>",
        ]
        marks = ("fragment.index", "fragment.count", "fragment.identifier", "segment.original.filename")
        assert [tail.attributes[name] for name in marks] == ["1", "2", whole.id, whole.attributes["filename"]]
        assert (part.parents, merged.parents) == ([whole.id], [tail.id, head.id])
        for wrong in (lambda: session.clone(whole, 4, 5), lambda: session.split(whole, [4, 5])):
            with pytest.raises(InvalidArgument):
                wrong()
        session.transfer([part, head, tail, merged], "out")
        session.remove(whole)
        session.commit()
        assert sorted(texts(session, "out")) == [b"<tail|head>", b"head", b"tail", b"tail"]


def test_attributes_are_set_inherited_and_removed(repository: Repository) -> None:
    """What a verb changes is in what it returns, and after the commit in the queue."""
    with repository.session() as session:
        one = session.create(attributes={"kind": "a", "color": "red"})
        two = session.create([one], attributes={"kind": "b"})
        assert (two.attributes["kind"], two.attributes["color"]) == ("b", "red")
        one = session.remove_attributes(session.put_attributes(one, {"kind": "c", "größe": "1"}), ["color", "none"])
        assert {name: one.attributes.get(name) for name in ("kind", "color", "größe")} == {
            "kind": "c",
            "color": None,
            "größe": "1",
        }
        session.remove(two)
        session.transfer(one, "in")
        session.commit()
        (found,) = session.get_many("in", 10, attributes={"kind": "c"})
        assert found.attributes == one.attributes
        assert session.get_many("in", attributes={"kind": "a"}) == []


@pytest.mark.parametrize("attributes", [{"uuid": "mine"}, {"text": "\ud800"}])
def test_attributes_that_cannot_be_are_refused(repository: Repository, attributes: dict[str, str]) -> None:
    """The uuid is the record's own, and text is Unicode; nothing is changed by what is refused."""
    with repository.session() as session:
        one = session.create()
        refused: list[Callable[[], object]] = [
            lambda: session.create(attributes=attributes),
            lambda: session.put_attributes(one, attributes),
            lambda: session.ingest("in", [b""], attributes),
            lambda: repository.handles.put(b"", attributes),
            lambda: repository.queues.put("in", b"", attributes),
        ]
        for call in refused:
            with pytest.raises(InvalidArgument):
                call()
        session.remove(one)
        session.commit()
    assert [queue.flow_files for queue in repository.queues.all()] in ([], [0])


def test_batches_are_ingested_in_order(repository: Repository) -> None:
    """The ids are those of the FlowFiles, and attributes are one mapping for all, or one each."""
    with repository.session() as session:
        ids = session.ingest("in", [b"one", b"two"], [{"n": "1"}, {"n": "2"}])
        ids += session.ingest("in", [b"three"], {"n": "3"})
        with pytest.raises(InvalidArgument):
            session.ingest("in", [b"one", b"two"], [{}])
        session.commit()
        found = session.get_many("in")
        assert [(one.id, one.attributes["n"]) for one in found] == list(zip(ids, "123", strict=True))


def test_a_handle_is_imported_and_outlives_it(repository: Repository) -> None:
    """The FlowFile has the handle's content and attributes, and keeps them when the handle is deleted."""
    handle = repository.handles.put(b"kept", {"kind": "a", "n": "1"})

    with repository.session() as session:
        one = session.import_handle(handle, {"n": "2"})
        assert (one.size, one.attributes["kind"], one.attributes["n"]) == (4, "a", "2")
        session.transfer(one, "in")
        session.commit()
        repository.handles.delete(handle)
        assert texts(session, "in") == [b"kept"]
        with pytest.raises(HandleNotFound):
            session.import_handle("00000000-0000-0000-0000-000000000000")


def test_what_a_session_does_not_hold_it_cannot_touch(repository: Repository) -> None:
    """Foreign and former FlowFiles are not found; what was removed is misuse."""
    with repository.session() as session, repository.session() as other:
        foreign, own = other.create(), session.create()
        verbs: list[Callable[[FlowFile], object]] = [
            session.read,
            lambda one: session.write(one, b""),
            lambda one: session.append(one, b""),
            session.clone,
            lambda one: session.split(one, []),
            lambda one: session.merge([one]),
            lambda one: session.create([one]),
            lambda one: session.put_attributes(one, {}),
            lambda one: session.remove_attributes(one, []),
            lambda one: session.transfer(one, "in"),
            session.remove,
            session.penalize,
            lambda one: session.provenance.send(one, "to:somewhere"),
        ]
        for verb in verbs:
            with pytest.raises(FlowFileNotFound):
                verb(foreign)
        session.remove(own)
        for verb in verbs:
            with pytest.raises(SessionMisuse):
                verb(own)
        session.commit()


def test_penalties_and_counters_come_with_the_commit(repository: Repository) -> None:
    """A penalized FlowFile stands in its queue and nobody gets it; counters add up."""
    with repository.session() as session:
        one = session.create()
        session.transfer(one, "in")
        session.penalize(one, 60_000)
        session.adjust_counter("seen", 2)
        session.commit()
        session.adjust_counter("seen", 3)
        session.rollback()
        session.adjust_counter("seen", -1)
        session.commit()
        assert session.get("in") is None
    assert repository.queues.find("in").penalized == 1
    assert repository.state().counters == {"seen": 1}


def test_a_full_queue_asks_sources_to_wait_and_refuses_nobody_else(repository: Repository) -> None:
    """Room is asked for; transfers into a full queue succeed."""
    repository.queues.define("in", count_max=1)

    with repository.session() as session:
        session.require_room("in")
        session.ingest("in", [b"one"])
        session.commit()
        with pytest.raises(BackPressure):
            session.require_room("in")
        session.transfer(session.create(), "in")
        session.commit()
    assert repository.queues.find("in").flow_files == 2


def test_what_a_component_reports_stands_in_its_events(repository: Repository) -> None:
    """Reports carry who reported, where data came from and went, and SEND the attributes of its moment."""
    with repository.session("fetcher", "HTTP source") as session:
        one = session.create(attributes={"n": "1"})
        session.provenance.receive(one, "http://from/", duration_millis=5, alternate_identifier="x")
        session.provenance.send(one, "http://to/", details="a copy")
        one = session.put_attributes(one, {"n": "2"})
        session.provenance.associate(one, "isbn", "12")
        session.provenance.fetch(session.write(one, b"later"), "http://more/")
        session.transfer(one, "in", "success")
        (ingested,) = session.ingest("in", [b"two"])
        session.provenance.receive(ingested, "http://from/")
        session.commit()

    events = repository.provenance.search(EventQuery(flow_file=one.id)).events
    told = {event.type: event for event in events}
    assert [event.type for event in events] == ["RECEIVE", "SEND", "ADDINFO", "FETCH", "ROUTE"]
    assert {(event.component, event.component_type) for event in events} == {("fetcher", "HTTP source")}
    assert (told["RECEIVE"].transit_uri, told["RECEIVE"].duration_millis) == ("http://from/", 5)
    assert (told["RECEIVE"].alternate_identifier, told["RECEIVE"].attributes["n"]) == ("x", "2")
    assert (told["SEND"].attributes["n"], told["SEND"].details, told["SEND"].duration_millis) == ("1", "a copy", None)
    assert told["ADDINFO"].alternate_identifier == "isbn:12"
    assert told["ROUTE"].relationship == "success"
    assert [event.type for event in repository.provenance.search(EventQuery(flow_file=ingested)).events] == ["RECEIVE"]


def test_reports_that_cannot_be_are_refused(repository: Repository) -> None:
    """A text of more than 64 KiB and a duration below zero are misuse, and nothing is reported."""
    with repository.session() as session:
        one = session.create()
        with pytest.raises(InvalidArgument):
            session.provenance.send(one, "x" * 65_537)
        with pytest.raises(InvalidArgument):
            session.provenance.send(one, "to:", duration_millis=-1)
        session.transfer(one, "in")
        session.commit()
    assert [event.type for event in repository.provenance.search().events] == ["CREATE"]


def test_a_flowfile_with_more_attributes_than_one_may_have_is_refused_at_each_way_in(repository: Repository) -> None:
    """Nothing is stored, and the most that one may have is found as it was."""
    most = {f"{number}": "" for number in range(ATTRIBUTES_MAX)}
    more = most | {"one": "more"}
    with repository.session() as session:
        for refused in (
            lambda: repository.queues.put_many("in", [b"1", b"2"], [{}, more]),
            lambda: repository.handles.put_many([b"1", b"2"], [{}, more]),
            lambda: session.create(attributes=more),
            lambda: session.ingest("in", [b"1"], more),
        ):
            with pytest.raises(TransactionTooLarge, match="10001 attributes"):
                refused()
        repository.queues.put_many("in", [b"1"], most)
        (found,) = session.get_many("in")

        assert most.items() <= found.attributes.items()


def test_what_is_compared_is_named_once(repository: Repository) -> None:
    """A parent, or what is merged: ten thousand times the same one would be compared as often."""
    with repository.session() as session:
        one, other = (session.write(session.create(), text) for text in (b"1", b"2"))
        for make in (session.create, session.merge):
            with pytest.raises(InvalidArgument, match="twice"):
                make([one, other, one])

        assert session.read(session.merge([one, other])).read() == b"12"


def test_flowfiles_are_found_by_what_they_are_called_without_having_been_named(repository: Repository) -> None:
    """Core attributes follow from the record where nobody set them; part of a value is no value."""
    filled(repository, b"1", b"2")
    with repository.session() as session:
        first, second = session.get_many("in")
        session.transfer(session.put_attributes(first, {"kind": "ab"}), "in")
        session.transfer(session.put_attributes(second, {"a": "kind"}), "in")
        session.commit()

        assert session.get_many("in", attributes={"kind": "a"}) == []
        assert [one.id for one in session.get_many("in", attributes={"filename": second.id, "path": "./"})] == [
            second.id
        ]
        assert [one.id for one in session.get_many("in", attributes={"kind": "ab", "uuid": first.id})] == [first.id]
