"""Handles: stored and fetched by id, deleted with a tombstone, purged in the end."""

import pytest

from tests.support import Workshop, committing, content_sizes
from tests.threads import together
from ullage.engine.engine import Engine
from ullage.errors import DiskFull, HandleDeleted, HandleNotDeleted, HandleNotFound

MB = 1 << 20
DAY = 24 * 3600


def test_an_empty_batch_is_no_transaction(repository: Engine) -> None:
    """Nothing is stored and nothing logged."""
    before = repository.log.last_id

    assert repository.handles.put_many([]) == []
    assert repository.log.last_id == before


def test_a_flow_file_in_a_queue_is_no_handle(repository: Engine) -> None:
    """Its id cannot be used to read or delete it behind its queue's back."""
    with committing(repository) as session:
        record = session.ingest("q", [b"x"])[0]

    with pytest.raises(HandleNotFound):
        repository.handles.delete(record.id)


@pytest.mark.parametrize("restart", [False, True])
def test_a_deleted_handle_keeps_its_bytes_and_comes_back(workshop: Workshop, restart: bool) -> None:
    """The tombstone is a claimant: reclamation takes nothing, and undelete brings everything back."""
    repository = workshop.make(archive={"enabled": False})
    id = repository.handles.put(b"x" * MB, {"a": "b"})
    repository.handles.delete(id)
    if restart:
        repository = workshop.crash()

    repository.reclamation.clean()
    repository.reclamation.truncate()
    with pytest.raises(HandleDeleted):
        repository.handles.get(id)
    with pytest.raises(HandleDeleted):
        repository.handles.delete(id)
    assert repository.handles.head(id).deleted_millis == workshop.clock.millis
    repository.handles.undelete(id)

    assert repository.handles.get(id).read() == b"x" * MB
    assert repository.handles.head(id).deleted_millis == 0
    with pytest.raises(HandleNotDeleted):
        repository.handles.undelete(id)


@pytest.mark.parametrize("restart", [False, True])
def test_a_purged_handle_is_unknown_and_its_bytes_go(workshop: Workshop, restart: bool) -> None:
    """After `deletedRetention`, and only then; undelete answers HandleNotFound from the end of the retention on."""
    repository = workshop.make(archive={"enabled": False})
    id = repository.handles.put(b"x" * MB)
    repository.handles.delete(id)
    workshop.clock.advance(7 * DAY - 1)
    assert repository.handles.purge() == 0
    if restart:
        repository = workshop.reopen()
    workshop.clock.advance(1)

    with pytest.raises(HandleNotFound):
        repository.handles.undelete(id)
    assert repository.handles.purge() == 1
    repository.reclamation.clean()

    with pytest.raises(HandleNotFound):
        repository.handles.head(id)
    assert content_sizes(workshop.path) == {}


def test_an_undelete_overtakes_the_purge_it_was_due_for(workshop: Workshop, repository: Engine) -> None:
    """The old due time means nothing any more; a second deletion starts the retention anew."""
    id = repository.handles.put(b"x")
    repository.handles.delete(id)
    workshop.clock.advance(6 * DAY)
    repository.handles.undelete(id)
    repository.handles.delete(id)
    workshop.clock.advance(2 * DAY)

    assert repository.handles.purge() == 0
    repository.handles.undelete(id)
    workshop.clock.advance(30 * DAY)
    assert repository.handles.purge() == 0
    assert repository.handles.get(id).read() == b"x"


@pytest.mark.parametrize("restart", [False, True])
def test_a_ttl_ends_a_handle(workshop: Workshop, restart: bool, repository: Engine) -> None:
    """Expired it cannot be read, deleted or undeleted, and the next purge forgets it."""
    id = repository.handles.put(b"x", ttl_millis=1000)
    other = repository.handles.put(b"y", ttl_millis=5000)
    if restart:
        repository = workshop.crash()
    workshop.clock.advance(1)

    for operation in (repository.handles.get, repository.handles.delete):
        with pytest.raises(HandleDeleted, match="expired"):
            operation(id)
    assert repository.handles.purge() == 1
    with pytest.raises(HandleNotFound):
        repository.handles.head(id)
    assert repository.handles.get(other).read() == b"y"


@pytest.mark.parametrize("archive", [False, True])
def test_a_reader_holds_its_bytes_across_delete_purge_and_cleaning(workshop: Workshop, archive: bool) -> None:
    """Opened before, not yet read at all: every byte still comes, verified, and goes only after the close."""
    repository = workshop.make(archive={"enabled": archive})
    id = repository.handles.put(b"x" * (3 * MB))
    stream = repository.handles.get(id)
    repository.handles.delete(id)
    workshop.clock.advance(8 * DAY)
    repository.handles.purge()

    repository.reclamation.clean()
    repository.reclamation.truncate()

    assert stream.read() == b"x" * (3 * MB)
    stream.close()
    stream.close()
    repository.reclamation.clean()
    assert all("/archive/" in name for name in content_sizes(workshop.path))


def test_two_purges_at_once_forget_each_handle_once(workshop: Workshop, repository: Engine) -> None:
    """A handle that is due twice, deleted, undeleted and deleted again, is purged by one of them."""
    ids = [repository.handles.put(b"x") for _ in range(20)]
    for id in ids:
        repository.handles.delete(id)
        repository.handles.undelete(id)
        repository.handles.delete(id)
    workshop.clock.advance(8 * DAY)
    purged: list[int] = []

    together(*[lambda: purged.append(repository.handles.purge())] * 4)

    assert sum(purged) == 20
    assert repository.log.is_running


def test_a_purge_that_fails_is_made_up_for(workshop: Workshop, repository: Engine) -> None:
    """What was due stays due."""
    repository.handles.put(b"x", ttl_millis=1)
    workshop.clock.advance(1)
    commit = repository.committer.commit

    def refuse(*_: object, **__: object) -> int:
        raise DiskFull("for a moment")

    repository.committer.commit = refuse  # type: ignore[method-assign]
    with pytest.raises(DiskFull):
        repository.handles.purge()
    repository.committer.commit = commit  # type: ignore[method-assign]

    assert repository.handles.purge() == 1


def test_a_put_that_fails_leaves_nothing(workshop: Workshop, repository: Engine) -> None:
    """One that is given up in the middle stores no handle and no file."""
    put = repository.handles.begin()
    put.write(b"x" * (2 * MB))
    assert content_sizes(workshop.path) != {}
    put.abandon()

    assert content_sizes(workshop.path) == {}
    assert list(repository.ledger.flow_files()) == []


def test_a_put_whose_attributes_cannot_be_stored_leaves_nothing(workshop: Workshop, repository: Engine) -> None:
    """They are known when its content is written already."""
    put = repository.handles.begin()
    put.write(b"x" * (2 * MB))
    with pytest.raises(UnicodeEncodeError):
        put.commit({"a": "\ud800"})

    assert content_sizes(workshop.path) == {}
    assert list(repository.ledger.flow_files()) == []
