import pytest

from tests.failing_files import FailingFiles
from tests.support import Workshop, drain, put_all
from ullage.engine.engine import Engine
from ullage.errors import (
    CommitOutcomeUnknown,
    ContentWriteFailed,
    FlowFileNotFound,
    RepositoryStopped,
    TransactionTooLarge,
)


def test_a_session_too_large_is_refused_whole(repository: Engine) -> None:
    """More FlowFiles than a transaction may carry: nothing is committed, a rollback restores all."""
    put_all(repository, "q", [b"x"])
    with repository.session() as session:
        (record,) = session.get_many("q", 1)
        session.remove(record)
        session.ingest("r", [b""] * 10_000)
        with pytest.raises(TransactionTooLarge, match="10001 FlowFiles"):
            session.commit()
        session.rollback()

    assert repository.queue("r").figures().flow_files == 0
    assert drain(repository, "q") == [b"x"]


@pytest.mark.usefixtures("_each_frame_reserves")
def test_a_failed_commit_gives_everything_back(workshop: Workshop, repository: Engine, files: FailingFiles) -> None:
    """When the log refuses the transaction its FlowFiles are in their queues as they were, and a retry works."""
    put_all(repository, "q", [b"1", b"2"])
    repository.queue("r")
    files.fail("allocate", "*.wal")
    session = repository.session()
    for record in session.get_many("q", 2):
        session.transfer(session.put_attribute(session.write(record, b"changed"), "a", "b"), "r")

    with pytest.raises(OSError, match="Input/output"):
        session.commit()

    assert repository.queue("q").figures() == (2, 2, 0, 0, 0, 0, 0)
    session.transfer_many(session.get_many("q", 2), "r")
    session.commit()
    assert drain(workshop.crash(), "r") == [b"1", b"2"]


def test_a_failed_content_sync_gives_everything_back(workshop: Workshop, files: FailingFiles) -> None:
    """Content that could not be made durable is never named by the log."""
    repository = workshop.make()
    put_all(repository, "q", [b"1"])
    repository.queue("r")
    before = repository.log.last_id
    files.fail("sync", "*/c1/*")
    with repository.session() as session:
        (record,) = session.get_many("q", 1)
        session.transfer(session.write(record, b"changed"), "r")
        with pytest.raises(ContentWriteFailed):
            session.commit()

    assert repository.log.last_id == before
    assert drain(workshop.crash(), "q") == [b"1"]


def test_an_unknown_outcome_leaves_everything_held(workshop: Workshop, files: FailingFiles) -> None:
    """When the log's sync failed nothing is shown twice and no content is removed: a restart tells."""
    repository = workshop.make()
    put_all(repository, "q", [b"1"])
    repository.queue("r")
    files.fail("sync", "*.wal")
    with repository.session() as session:
        (record,) = session.get_many("q", 1)
        session.transfer(session.write(record, b"x" * 100_000), "r")
        with pytest.raises(CommitOutcomeUnknown):
            session.commit()

    assert repository.queue("q").figures() == (1, 1, 1, 0, 0, 0, 0)
    assert repository.queue("r").figures().flow_files == 0
    with pytest.raises(RepositoryStopped):
        put_all(repository, "q", [b"y"])
    files.heal()
    assert drain(workshop.crash(), "r") == [b"x" * 100_000]


def test_an_interrupt_in_a_commit_leaves_everything_held(workshop: Workshop, files: FailingFiles) -> None:
    """Nobody can say where an interrupt struck, so the FlowFiles do not come back before a restart."""
    repository = workshop.make()
    put_all(repository, "q", [b"1"])
    files.fail("sync", "*/c1/*", error=KeyboardInterrupt())
    with repository.session() as session:
        (record,) = session.get_many("q", 1)
        session.transfer(session.write(record, b"2"), "q")
        with pytest.raises(KeyboardInterrupt):
            session.commit()

    assert repository.queue("q").figures().held == 1
    assert drain(workshop.crash(), "q") == [b"1"]


def test_a_session_can_be_used_again(repository: Engine) -> None:
    """After a commit or rollback a session is empty, and begins anew."""
    session = repository.session()
    for number in range(3):
        session.ingest("q", [str(number).encode()])
        session.commit()
        (record,) = session.get_many("q", 1)
        session.rollback()
        with pytest.raises(FlowFileNotFound, match="not held"):
            session.read(record)
    session.commit()

    assert drain(repository, "q") == [b"0", b"1", b"2"]


def test_a_rollback_that_cannot_remove_its_file_gives_back_once(repository: Engine, files: FailingFiles) -> None:
    """A failure in clearing up never puts a FlowFile into its queue twice."""
    put_all(repository, "q", [b"1"])
    files.fail("unlink", "*/c1/*", times=5)
    files.fail("close", "*/c1/*", times=5)
    session = repository.session()
    (record,) = session.get_many("q", 1)
    session.write(record, b"x" * 2_000_000)
    for _ in range(3):
        try:
            session.rollback()
        except OSError:
            continue  # what the test is about: the next one must not give back again
    files.heal()

    assert repository.queue("q").figures() == (1, 1, 0, 0, 0, 0, 0)
    assert [record.size for record in repository.queue("q").records()] == [1]
