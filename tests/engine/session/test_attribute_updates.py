import pytest

from tests.support import Workshop, committing, put_all
from ullage.engine.engine import Engine
from ullage.engine.model import FlowFileRecord
from ullage.errors import TransactionTooLarge
from ullage.wire.documents import ATTRIBUTES_MAX

HUNDRED = {f"attribute.{number}": f"the value of attribute {number}" for number in range(100)}


def logged(repository: Engine, *changes: dict[str, str], removed: tuple[str, ...] = ()) -> tuple[int, FlowFileRecord]:
    """Bytes of log for one session that changes the first FlowFile's attributes, and what it then is."""
    before = repository.log.log_bytes
    with committing(repository) as session:
        (record,) = session.get_many("q", 1)
        for change in changes:
            record = session.put_attributes(record, change)
        if removed:
            record = session.remove_attributes(record, removed)
        session.transfer(record, "q")
    return repository.log.log_bytes - before, repository.queue("q").records()[0]


def test_one_changed_attribute_of_a_hundred_is_logged_alone(workshop: Workshop) -> None:
    """One of 100 attributes changed writes less than a tenth of the full record; its history is another matter."""
    repository = workshop.make(provenance={"enabled": False})
    repository.queue("q")
    before = repository.log.log_bytes
    put_all(repository, "q", [b""], **HUNDRED)
    whole = repository.log.log_bytes - before

    changed, record = logged(repository, {"attribute.7": "another value"})

    assert changed < whole / 10
    assert record.attribute_map()["attribute.7"] == "another value"
    repository = workshop.crash()
    (restored,) = repository.queue("q").records()
    assert restored.attribute_map() == {**record.attribute_map()}


def test_attributes_set_to_what_they_were_are_not_logged(repository: Engine) -> None:
    """Only what differs from before the session is written."""
    put_all(repository, "q", [b""], **HUNDRED)

    nothing, _ = logged(repository)
    same, record = logged(repository, {"attribute.1": "x"}, HUNDRED, removed=("unknown",))

    assert same == nothing
    assert {**HUNDRED, **record.attribute_map()} == record.attribute_map()


def test_the_last_of_several_changes_counts(workshop: Workshop, repository: Engine) -> None:
    """Setting, removing and setting again ends as the last call says, at once and after a crash."""
    put_all(repository, "q", [b""], a="1", b="2", filename="f")
    with committing(repository) as session:
        (record,) = session.get_many("q", 1)
        record = session.put_attributes(record, {"a": "9", "c": "3"})
        record = session.remove_attributes(record, ["a", "b", "c", "filename"])
        record = session.put_attribute(record, "b", "8")
        session.transfer(record, "q")
    expected = {"uuid": record.id, "filename": record.id, "path": "./", "b": "8"}
    assert record.attribute_map() == expected

    (restored,) = workshop.crash().queue("q").records()

    assert restored.attribute_map() == expected


def test_more_attributes_than_a_flowfile_may_have_are_refused_and_change_nothing(repository: Engine) -> None:
    """Updates add up over many transactions, so bytes and number have bounds of their sum; the session goes on."""
    most = {f"name {number}": "" for number in range(ATTRIBUTES_MAX)}
    put_all(repository, "q", [b"x"])
    with repository.session() as session:
        (record,) = session.get_many("q", 1)
        for refused in ({"large": "x" * (5 << 20)}, most | {"one": "more"}):
            with pytest.raises(TransactionTooLarge, match="as content"):
                session.put_attributes(record, refused)
            with pytest.raises(TransactionTooLarge, match="as content"):
                session.create(attributes=refused)
        record = session.put_attributes(record, most)
        with pytest.raises(TransactionTooLarge, match="10001 attributes"):
            session.put_attribute(record, "one", "more")
        session.put_attribute(record, "name 0", "another value")
        session.transfer(record, "q")
        session.commit()

    (record,) = repository.queue("q").records()
    core = {"uuid": record.id, "filename": record.id, "path": "./"}
    assert record.attribute_map() == {**most, "name 0": "another value", **core}
