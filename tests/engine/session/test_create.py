from tests.support import Workshop
from ullage.engine.engine import Engine


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
