"""Content that cannot be written or synced: a definite failure, and nothing half done stays behind."""

import errno

import pytest

from tests.failing_files import FailingFiles
from tests.support import (
    TWO,
    Workshop,
    claim_of,
    committing,
    content_sizes,
    drain,
    entry_of,
    put_all,
    put_each,
)
from tests.threads import in_thread
from ullage.engine.engine import Engine
from ullage.errors import ContentWriteFailed, DiskFull, SessionMisuse

MB = 1 << 20
CONTENT = "*/c[12]/[0-9]*/*"


def test_a_failed_write_is_definite_and_seals_the_file(workshop: Workshop, files: FailingFiles) -> None:
    """The session fails, its bytes are cut off again, and the next one writes to another file."""
    repository = workshop.make()
    first = put_all(repository, "q", [b"first"])[0]
    files.fail("write*", CONTENT)
    files.fail("write", CONTENT, keeps=3)

    with pytest.raises(ContentWriteFailed, match="offset 5"):
        put_all(repository, "q", [b"second"])

    third = put_all(repository, "q", [b"third"])[0]
    assert claim_of(third).resource != claim_of(first).resource
    repository.reclamation.truncate()
    entry = entry_of(repository, first)
    assert (entry.claim.sealed, entry.claim.length) == (True, 5)
    assert drain(workshop.reopen(), "q") == [b"first", b"third"]


def test_a_file_that_cannot_be_cut_back_stops_its_container(workshop: Workshop, files: FailingFiles) -> None:
    """Where it ends nobody knows before the next start, which seals it there."""
    repository = workshop.make()
    put_all(repository, "q", [b"first"])
    files.fail("write", CONTENT, keeps=3)
    files.fail("truncate", CONTENT, times=1_000)

    with pytest.raises(ContentWriteFailed, match="offset 5"):
        put_all(repository, "q", [b"second"])
    repository.content.retire_idle()

    assert repository.content.containers["c1"].failure is not None
    assert drain(workshop.reopen(), "q") == [b"first"]


def test_a_failed_write_amid_a_batch_dooms_the_sessions_commit(workshop: Workshop, files: FailingFiles) -> None:
    """Claims in the lost bytes were handed out already, so catching the error does not make the commit possible."""
    repository = workshop.make()
    files.fail("write_vector", CONTENT, error=errno.ENOSPC)

    with repository.session() as session:
        session.ingest("q", [b"x" * 1024] * 200)
        with pytest.raises(DiskFull):
            session.ingest("q", [b"x" * 1024] * 600)
        with pytest.raises(ContentWriteFailed):
            session.commit()

    assert list(repository.ledger.flow_files()) == []
    assert content_sizes(workshop.path) == {}


def test_a_failed_stream_leaves_no_claim_with_a_hole(workshop: Workshop, files: FailingFiles) -> None:
    """Whoever catches the error and goes on gets an error again; the rest of the session can be committed."""
    repository = workshop.make()
    put_all(repository, "q", [b"first"])
    files.fail("write", CONTENT, at=2, keeps=1000)

    with committing(repository) as session:
        lost, kept = session.create(), session.create()
        context = session.writing(lost)  # kept: it ends with its last reference
        out = context.__enter__()
        out.write(b"x" * MB)
        with pytest.raises(ContentWriteFailed):
            out.write(b"y" * MB)
        with pytest.raises(SessionMisuse):
            out.write(b"z" * MB)
        with pytest.raises(SessionMisuse):
            out.close()
        kept = session.write(kept, b"kept")
        session.remove(lost)
        session.transfer(kept, "q")

    assert drain(workshop.reopen(), "q") == [b"first", b"kept"]


def test_a_file_that_cannot_be_created_is_a_definite_failure(repository: Engine, files: FailingFiles) -> None:
    """No room is DiskFull, anything else ContentWriteFailed, and the next attempt works."""
    files.fail("create", CONTENT, error=errno.ENOSPC)
    with pytest.raises(DiskFull):
        put_all(repository, "q", [b"x"])
    files.fail("create", CONTENT, error=errno.EACCES)
    with pytest.raises(ContentWriteFailed):
        put_all(repository, "q", [b"x"])
    put_all(repository, "q", [b"y"])

    assert drain(repository, "q") == [b"y"]


def test_a_file_ahead_that_cannot_be_made_fails_nobody(workshop: Workshop, files: FailingFiles) -> None:
    """What is put meanwhile has its own file; whoever needs the next one is told, if it fails then too."""
    repository = workshop.make(claims={"max_flow_files": 1})
    put_each(repository, "q", [b"1", b"2"])
    made = files.count("create", CONTENT)

    files.fail("create", CONTENT, at=2)
    put_all(repository, "q", [b"3"])
    assert files.count("create", CONTENT) == made + 2
    files.fail("create", CONTENT)
    with pytest.raises(ContentWriteFailed):
        put_all(repository, "q", [b"4"])
    put_all(repository, "q", [b"5"])

    assert drain(repository, "q") == [b"1", b"2", b"3", b"5"]


@pytest.mark.parametrize("kind", ["sync", "sync_directory"])
def test_a_failed_sync_stops_its_container_and_the_others_go_on(workshop: Workshop, kind: str) -> None:
    """Nothing is committed from it, no new file is put there, and what was there before still reads."""
    files = FailingFiles()
    repository = workshop.make(files, storage=TWO, claims={"max_flow_files": 1})
    put_each(repository, "q", [b"before 1", b"before 2"])
    files.fail(kind, "*/c1/*" if kind == "sync" else "*/c1/[0-9]*")

    failures = 0
    for number in range(6):
        try:
            put_all(repository, "q", [b"after %d" % number])
        except ContentWriteFailed:
            failures += 1

    assert failures == 1
    assert repository.content.containers["c1"].failure is not None
    assert len([name for name in content_sizes(workshop.path) if name.startswith("c1/")]) == 1
    assert len(drain(repository, "q")) == 7
    put_all(workshop.crash(), "q", [b"again"])


def test_a_sync_failure_in_every_container_refuses_content_until_a_restart(workshop: Workshop) -> None:
    """With no container left, writers get the cause, and a restart lets them write again."""
    files = FailingFiles()
    repository = workshop.make(files)
    files.fail("sync", CONTENT)
    with pytest.raises(ContentWriteFailed):
        put_all(repository, "q", [b"x"])

    with pytest.raises(ContentWriteFailed, match="stopped after a failed sync"):
        put_all(repository, "q", [b"x"])

    repository = workshop.crash()
    put_all(repository, "q", [b"y"])
    assert drain(repository, "q") == [b"y"]


def test_a_rolled_back_session_leaves_no_file(workshop: Workshop, repository: Engine) -> None:
    """A new file that only it wrote to vanishes if it was ended, and is used again if not; nothing is charged."""
    with repository.session() as session:
        session.write(session.create(), b"L" * (2 * MB))
    large_left = content_sizes(workshop.path)
    with repository.session() as session:
        session.write(session.create(), b"small")
    put_all(repository, "q", [b"next"])

    assert large_left == {}
    assert len(content_sizes(workshop.path)) == 1
    assert repository.check(deep=True).problems == ()


def test_what_a_rolled_back_session_gathered_counts_for_nothing(workshop: Workshop, repository: Engine) -> None:
    """Bytes that never reached the file are not part of its sealed length."""
    put_all(repository, "q", [b"committed"])
    with repository.session() as session:
        session.ingest("q", [b"never flushed"] * 3)

    repository = workshop.reopen()

    (size,) = content_sizes(workshop.path).values()
    assert size == len(b"committed")
    assert repository.check(deep=True).problems == ()
    assert repository.content.containers["c1"].bytes_used == size


def test_a_seal_whose_transaction_failed_is_carried_by_the_next(
    repository: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No resource claim stays open for ever because the log was full for a moment."""
    record = put_all(repository, "q", [b"committed"])[0]
    with repository.session() as session:
        session.write(session.create(), b"L" * (2 * MB))

    def refuse(*_: object, **__: object) -> int:
        raise DiskFull("for a moment")

    with monkeypatch.context() as patch:
        patch.setattr(repository.committer, "commit", refuse)
        with pytest.raises(DiskFull):
            repository.reclamation.clean()
    repository.reclamation.clean()

    entry = entry_of(repository, record)
    assert entry.claim.sealed


def test_a_session_that_outlives_its_repository_changes_nothing(workshop: Workshop, repository: Engine) -> None:
    """Its rollback after the close neither removes a file nor disturbs the repository opened since."""
    session = repository.session()
    session.ingest("q", [b"L" * (2 * MB)])
    workshop.shut()
    workshop.open()
    before = content_sizes(workshop.path)

    session.rollback()

    assert content_sizes(workshop.path) == before


def test_a_section_directory_made_by_another_thread_is_synced_before_it_is_used(workshop: Workshop) -> None:
    """Nobody commits into a directory whose own name is not durable yet."""
    files = FailingFiles()
    repository = workshop.make(files, storage={"sections": 1})
    gate = files.hold("sync_directory", str(workshop.path / "c1"))
    done: list[str] = []

    def put(name: str) -> None:
        put_all(repository, name, [b"x"])
        done.append(name)

    repository.queue("a")
    repository.queue("b")
    with in_thread(lambda: put("a"), lambda: put("b")):
        gate.wait_until_reached()
        early = list(done), files.count("create", CONTENT)
        gate.open()

    assert early == ([], 0)
    assert sorted(done) == ["a", "b"]
