import pytest

from tests.support import Workshop, committing, drain, put_all
from ullage.engine.engine import Engine
from ullage.engine.model import Lifetime
from ullage.errors import FlowFileNotFound, InvalidArgument, SessionMisuse


def test_create_sets_the_core_attributes(workshop: Workshop, repository: Engine) -> None:
    """A new FlowFile has uuid, filename and path, is empty, and entered the flow now."""
    with repository.session() as session:
        created = session.create(attributes={"color": "red"})

    assert created.attribute_map() == {"uuid": created.id, "filename": created.id, "path": "./", "color": "red"}
    assert (created.size, created.entry_millis, created.lineage_millis) == (
        0,
        workshop.clock.millis,
        workshop.clock.millis,
    )


def test_a_child_of_one_parent_inherits_everything(workshop: Workshop, repository: Engine) -> None:
    """All attributes of a single parent are inherited, but for those that say something of it alone."""
    with repository.session() as session:
        parent = session.create(attributes={"a": "1", "filename": "p.txt", "alternate.identifier": "x"})
        workshop.clock.advance(5)

        child = session.create([parent], {"b": "2"})

    assert child.parent_ids == [parent.id]
    expected = {"uuid": child.id, "filename": "p.txt", "path": "./", "a": "1", "b": "2"}
    assert child.attribute_map() == expected
    assert (child.entry_millis - parent.entry_millis, child.lineage_millis) == (5_000, parent.lineage_millis)


def test_a_child_of_several_parents_inherits_what_they_share(workshop: Workshop, repository: Engine) -> None:
    """Attributes on which all parents agree are inherited; the lineage starts where the oldest one's did."""
    with repository.session() as session:
        first = session.create(attributes={"a": "1", "b": "2", "c": "3"})
        workshop.clock.advance(5)
        second = session.create(attributes={"a": "1", "b": "other"})

        child = session.create([second, first])

    assert child.parent_ids == [second.id, first.id]
    assert {name: child.attribute_map().get(name) for name in "abc"} == {"a": "1", "b": None, "c": None}
    assert child.lineage_millis == first.lineage_millis


def test_a_batch_is_ingested_with_attributes_for_each(workshop: Workshop, repository: Engine) -> None:
    """`ingest` takes one mapping for all, or one for each content."""
    with committing(repository) as session:
        records = session.ingest("q", [b"1", b"2"], [{"n": "1"}, {"n": "2"}], Lifetime.SHORT)

    assert [record.attribute_map()["n"] for record in records] == ["1", "2"]
    assert drain(workshop.reopen(), "q") == [b"1", b"2"]


@pytest.mark.parametrize("count", [1, 3])
def test_attributes_for_another_number_of_contents_are_refused(repository: Engine, count: int) -> None:
    """No content is dropped in silence because its attributes are missing."""
    with repository.session() as session, pytest.raises(InvalidArgument, match=f"2 contents .* for {count}"):
        session.ingest("q", [b"1", b"2"], [{}] * count)


def test_a_flow_file_of_another_session_is_refused(repository: Engine) -> None:
    """A session works on what it got or created, nothing else."""
    (record,) = put_all(repository, "q", [b"x"])
    with repository.session() as holder, repository.session() as other:
        holder.get("q")
        assert other.get("q") is None
        for work in (
            lambda: other.read(record),
            lambda: other.write(record, b""),
            lambda: other.clone(record),
            lambda: other.create([record]),
            lambda: other.remove(record),
            lambda: other.transfer(record, "r"),
            lambda: other.transfer_many([record], "r"),
            lambda: other.put_attribute(record, "a", "b"),
        ):
            with pytest.raises(FlowFileNotFound, match=f"{record.id} is not held by this session"):
                work()


def test_a_removed_flow_file_is_out_of_reach(repository: Engine) -> None:
    """What a session has removed it cannot use any more."""
    with repository.session() as session:
        record = session.create()
        session.remove(record)

        with pytest.raises(SessionMisuse, match="was removed in this session"):
            session.write(record, b"x")


def test_the_uuid_cannot_be_set(repository: Engine) -> None:
    """An attribute that would lie about the identity is refused."""
    with repository.session() as session, pytest.raises(InvalidArgument, match="uuid"):
        session.put_attribute(session.create(), "uuid", "x")
