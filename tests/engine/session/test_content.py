import pytest

from tests.support import Workshop, committing, drain, put_all
from ullage.engine.engine import Engine
from ullage.errors import RangeNotSatisfiable

BIG = bytes(range(256)) * 8_000


def test_empty_content_needs_no_claim(workshop: Workshop, repository: Engine) -> None:
    """Nothing written is nothing kept: an empty content never shares an offset with the next one."""
    put_all(repository, "q", [b"", b"x", b"", b"y"])
    with committing(repository) as session:
        record = session.write(session.create(), b"")
        session.transfer(session.append(record, b""), "q")

    claims = [record.claim for record in repository.queue("q").records()]
    assert [claim is None for claim in claims] == [True, False, True, False, True]
    assert drain(workshop.crash(), "q") == [b"", b"x", b"", b"y", b""]


def test_ranges_are_exact(repository: Engine) -> None:
    """A range is those bytes, of uncommitted and of committed content; outside of it is an error."""
    put_all(repository, "q", [BIG])
    with repository.session() as session:
        own = session.write(session.create(), BIG)
        (committed,) = session.get_many("q", 1)
        for record in (own, committed):
            assert session.read(record, 262_140, 10).read() == BIG[262_140:262_150]
            assert session.read(record, len(BIG)).read() == b""
            with pytest.raises(RangeNotSatisfiable, match="lies outside"):
                session.read(record, len(BIG) - 1, 2)
            with pytest.raises(RangeNotSatisfiable, match="lies outside"):
                session.read(record, -1, 2)


def test_appending_leaves_the_old_content_to_others(repository: Engine) -> None:
    """`append` is copy on write: a clone taken before still has the old bytes."""
    with committing(repository) as session:
        record = session.write(session.create(), b"old")
        clone = session.clone(record)
        record = session.append(record, b" and new")
        session.transfer_many([record, clone], "q")

    assert drain(repository, "q") == [b"old and new", b"old"]


def test_an_error_while_writing_leaves_the_content(repository: Engine) -> None:
    """A source that fails in the middle changes nothing of the FlowFile."""

    def failing() -> object:
        yield b"half"
        raise LookupError

    with committing(repository) as session:
        record = session.write(session.create(), b"whole")
        with pytest.raises(LookupError):
            session.write(record, failing())  # type: ignore[arg-type]
        session.transfer(record, "q")

    assert drain(repository, "q") == [b"whole"]


def test_a_clone_may_be_a_slice(workshop: Workshop, repository: Engine) -> None:
    """A slice of a slice is the right bytes, and copies none."""
    with committing(repository) as session:
        record = session.write(session.create(), b"0123456789")
        slice_ = session.clone(record, 2, 6)
        inner = session.clone(slice_, 1, 2)
        empty = session.clone(record, 10)
        session.transfer_many([record, slice_, inner, empty], "q")

    assert (slice_.claim, inner.claim, empty.claim) == (record.claim, record.claim, None)
    assert drain(workshop.crash(), "q") == [b"0123456789", b"234567", b"34", b""]


def test_a_clone_of_a_clone_removed_in_the_session(workshop: Workshop, repository: Engine) -> None:
    """Clones born and removed in one session count nowhere, and take nothing with them (NIFI-15732, 16098)."""
    put_all(repository, "q", [b"precious"])
    with committing(repository) as session:
        (record,) = session.get_many("q", 1)
        clone = session.clone(record)
        grandchild = session.clone(clone)
        session.remove_many([clone, record])
        session.remove(session.clone(grandchild))
        session.transfer(grandchild, "q")

    (entry,) = [entry for entry in repository.ledger.entries() if entry.has_residents]
    assert entry.claimants == 1
    assert drain(workshop.crash(), "q") == [b"precious"]


def test_overwritten_content_leaves_no_checksums_behind(repository: Engine) -> None:
    """Block checksums of content that no FlowFile has in the end are not logged: nobody would drop them."""
    with committing(repository) as session:
        record = session.write(session.create(), BIG)
        session.transfer(session.write(record, b"small"), "q")
        session.remove(session.write(session.create(), BIG))

    assert not repository.ledger.blocks


@pytest.mark.parametrize("size", [5, len(BIG)], ids=["small", "big"])
def test_an_imported_handle_survives_its_purge(workshop: Workshop, size: int, repository: Engine) -> None:
    """A handle that is deleted and purged before the commit leaves its content to the session, for ever."""
    data = BIG[:size]
    id = repository.handles.put(data, {"kind": "h"})
    with committing(repository) as session:
        record = session.import_handle(bytes.fromhex(id.replace("-", "")), {"more": "m"})
        repository.handles.delete(id)
        workshop.clock.advance(8 * 86_400)
        assert repository.handles.purge() == 1
        repository.reclamation.clean()
        assert session.read(record).read() == data
        session.transfer(record, "q")
    assert (record.attribute_map()["kind"], record.attribute_map()["more"]) == ("h", "m")

    repository = workshop.crash()
    if size == len(BIG):
        claim = repository.queue("q").records()[0].claim
        assert claim is not None
        assert repository.reader.known_blocks(claim) is not None
    assert drain(repository, "q") == [data]
    assert [entry.pins for entry in repository.ledger.entries()] == [None]


def test_a_rolled_back_import_gives_its_pin_back(workshop: Workshop, repository: Engine) -> None:
    """After a rollback a purged handle's content is free."""
    id = repository.handles.put(BIG)
    with repository.session() as session:
        session.import_handle(bytes.fromhex(id.replace("-", "")))
        repository.handles.delete(id)
        workshop.clock.advance(8 * 86_400)
        repository.handles.purge()
        session.rollback()

    (entry,) = repository.ledger.entries()
    assert entry.is_free
    assert not repository.ledger.blocks
