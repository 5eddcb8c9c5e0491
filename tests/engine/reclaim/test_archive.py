"""The archive: where free resource claims go, how long they stay, and that each step survives a crash."""

import errno
from pathlib import Path

import pytest

from tests.failing_files import FailingFiles
from tests.support import (
    TWO,
    Workshop,
    claim_of,
    committing,
    containers,
    content_sizes,
    drain,
    open_descriptors,
    put_all,
    put_each,
)
from ullage.contract import Quantity, TruncationMode
from ullage.engine.engine import Engine
from ullage.engine.model import Action, ContentClaim
from ullage.engine.reclaim import reclamation
from ullage.engine.reclaim.pacing import RunTicket
from ullage.engine.reclaim.plan import plan_release
from ullage.errors import ContentReclaimed

MB = 1 << 20
HOUR = 3600


QUOTA = containers(c1=1000 * MB)


def put_and_kill(repository: Engine, content: bytes) -> ContentClaim:
    """One content of its own file, removed again: a free resource claim."""
    (record,) = put_all(repository, "q", [content])
    drain(repository, "q")
    return claim_of(record)


def is_archived(name: str) -> bool:
    return "/archive/" in name


def test_free_resource_claims_move_to_the_archive_and_stay_readable(workshop: Workshop) -> None:
    """By the same address, small and large, until their retention ends; then reading says that they are gone."""
    repository = workshop.make(storage=QUOTA, claims={"max_flow_files": 1})
    small = put_and_kill(repository, b"small")
    large = put_and_kill(repository, b"L" * (2 * MB))

    report = repository.reclamation.clean()
    archived = content_sizes(workshop.path)
    read = [repository.reader.read(claim, 1, 3) for claim in (small, large)]
    workshop.clock.advance(12 * HOUR)
    repository.reclamation.clean()

    assert report.done == {Action.ARCHIVE: 2}
    assert len(archived) == 2
    assert all(map(is_archived, archived))
    assert read == [b"mal", b"LLL"]
    assert content_sizes(workshop.path) == {}
    with pytest.raises(ContentReclaimed):
        repository.reader.read(small, 0, 1)


def test_names_that_cannot_be_synced_keep_nothing_on_another_volume(workshop: Workshop, files: FailingFiles) -> None:
    """What was deleted there is freed; of this one only a restart can tell what the disk holds."""
    repository = workshop.make(storage=TWO, archive={"enabled": False}, claims={"max_flow_files": 1})
    put_each(repository, "q", [bytes([number]) * MB for number in range(8)])
    assert {entry.claim.container for entry in repository.ledger.entries()} == {"c1", "c2"}
    drain(repository, "q")
    files.fail("sync_directory", "*/c1/[0-9]*", times=1_000)

    with pytest.raises(OSError, match="Input/output error"):
        repository.reclamation.clean()

    assert {entry.claim.container for entry in repository.ledger.entries()} == {"c1"}
    assert [name for name in content_sizes(workshop.path) if name.startswith("c2")] == []
    files.heal()
    workshop.crash().reclamation.clean()
    assert list(workshop.repository.ledger.entries()) == []


@pytest.mark.parametrize("kind", ["make_directory", "rename"])
def test_a_full_disk_keeps_nothing_from_the_archive(workshop: Workshop, files: FailingFiles, kind: str) -> None:
    """The reserve is spent on the block that a directory or a name needs."""
    repository = workshop.make(storage=QUOTA, claims={"max_flow_files": 1})
    put_and_kill(repository, b"L" * (2 * MB))
    reserve = workshop.path / "c1" / "ballast"
    assert reserve.stat().st_size > 0
    files.fail(kind, "*/archive*", error=errno.ENOSPC)

    assert repository.reclamation.clean().done == {Action.ARCHIVE: 1}
    assert reserve.stat().st_size == 0


def test_without_an_archive_they_are_deleted(workshop: Workshop) -> None:
    """`archive.enabled: false` frees the bytes at the first cleaning, for good."""
    repository = workshop.make(archive={"enabled": False}, claims={"max_flow_files": 1})
    put_and_kill(repository, b"x" * MB)

    report = repository.reclamation.clean()

    assert (report.done, report.freed_bytes) == ({Action.DELETE: 1}, MB)
    workshop.crash()
    assert content_sizes(workshop.path) == {}


def test_a_deleted_file_is_not_kept_open_by_the_readers_before(workshop: Workshop) -> None:
    """Reported as freed means freed: no cached descriptor holds the blocks."""
    repository = workshop.make(storage=QUOTA)
    claim = put_and_kill(repository, b"x" * MB)
    repository.reclamation.clean()
    repository.reader.read(claim, 0, MB)
    held = open_descriptors(workshop.path)
    workshop.clock.advance(12 * HOUR)

    repository.reclamation.clean()

    assert any(map(is_archived, held))
    assert not any(map(is_archived, open_descriptors(workshop.path)))


def test_usage_retention_takes_the_oldest_first(workshop: Workshop) -> None:
    """Above the archive's share of the container the oldest go, and no more than needed."""
    repository = workshop.make(storage=containers(c1=10 * MB), archive={"max_usage_percentage": 50})
    claims = []
    for _ in range(4):
        claims.append(put_and_kill(repository, b"x" * MB))
        repository.reclamation.clean()
        workshop.clock.advance(60)
    put_all(repository, "live", [b"y" * (3 * MB)])

    repository.reclamation.clean()

    left = {int(name.split("-")[1]) for name in content_sizes(workshop.path) if is_archived(name)}
    assert left == {claim.resource for claim in claims[2:]}


def test_a_container_is_relieved_of_its_own_oldest(workshop: Workshop) -> None:
    """The list of the oldest is kept for each container: one that is full does not wait for another's to go."""
    repository = workshop.make(storage=containers(c1=1000 * MB, c2=4 * MB), claims={"max_flow_files": 1})
    for _ in range(4):
        put_and_kill(repository, b"x" * MB)
        repository.reclamation.clean()
        workshop.clock.advance(60)
    repository.reclamation.clean()
    put_and_kill(repository, b"x" * MB)
    put_and_kill(repository, b"x" * MB)

    repository.reclamation.clean()

    assert repository.content.containers["c2"].usage().percentage <= 50
    assert repository.content.containers["c1"].bytes_used >= 2 * MB


def test_the_list_of_the_oldest_is_bounded_and_scanned_again_when_it_runs_out(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With room for two of ten, one run still deletes all whose retention is over, and none too many."""
    repository = workshop.make(storage=QUOTA, claims={"max_flow_files": 1})
    monkeypatch.setattr(reclamation, "OLDEST_MAX", 2)
    for _ in range(10):
        put_and_kill(repository, b"x")
    repository.reclamation.clean()
    workshop.clock.advance(6 * HOUR)
    for _ in range(3):
        put_and_kill(repository, b"y")
    repository.reclamation.clean()
    workshop.clock.advance(6 * HOUR)

    report = repository.reclamation.clean()

    assert report.done == {Action.DELETE: 10}
    assert len(content_sizes(workshop.path)) == 3


def prepare(workshop: Workshop, action: Action) -> Engine:
    """A repository with one thing to do: archive, delete or truncate."""
    archive = {"enabled": action == Action.ARCHIVE}
    repository = workshop.make(storage=QUOTA, archive=archive, truncation={"mode": TruncationMode.EAGER})
    put_all(repository, "keep" if action == Action.TRUNCATE else "q", [b"k" * 100])
    put_all(repository, "q", [b"x" * MB])
    drain(repository, "q")
    return repository


def run(repository: Engine, action: Action) -> None:
    if action == Action.TRUNCATE:
        repository.reclamation.truncate()
    else:
        repository.reclamation.clean()


def expected(workshop: Workshop, action: Action) -> bool:
    sizes = content_sizes(workshop.path)
    if action == Action.ARCHIVE:
        return len(sizes) == 1 and is_archived(next(iter(sizes)))
    return list(sizes.values()) == ([100] if action == Action.TRUNCATE else [])


STEPS = [
    (Action.ARCHIVE, "make_directory", "*/archive"),
    (Action.ARCHIVE, "rename", "*/archive/*"),
    (Action.ARCHIVE, "sync_directory", "*/archive"),
    (Action.ARCHIVE, "sync_directory", "*/c1/[0-9]*"),
    (Action.DELETE, "unlink", "*/c1/*-*"),
    (Action.DELETE, "sync_directory", "*/c1/[0-9]*"),
    (Action.TRUNCATE, "open", "*/c1/*-*"),
    (Action.TRUNCATE, "truncate", "*/c1/*-*"),
    (Action.TRUNCATE, "sync", "*/c1/*-*"),
]


@pytest.mark.parametrize(("action", "kind", "path"), STEPS)
def test_a_crash_at_any_step_is_finished_by_the_next_start(
    workshop: Workshop, files: FailingFiles, action: Action, kind: str, path: str
) -> None:
    """The intent is durable, so the change happens, whatever of it had happened before."""
    repository = prepare(workshop, action)
    files.fail(kind, path, error=KeyboardInterrupt())

    with pytest.raises(KeyboardInterrupt):
        run(repository, action)
    repository = workshop.crash()

    assert expected(workshop, action)
    assert repository.check(deep=True).problems == ()
    assert not any(figures.has_intent for figures in repository.reclamation.survey().resources)


@pytest.mark.parametrize("action", [Action.ARCHIVE, Action.DELETE, Action.TRUNCATE])
@pytest.mark.parametrize("at", [1, 2])
def test_a_crash_around_the_transactions_frees_all_or_nothing(workshop: Workshop, action: Action, at: int) -> None:
    """Before the intent nothing has happened; after the change, before its `done`, the start says so again."""
    repository = prepare(workshop, action)
    commit = repository.committer.commit
    calls: list[int] = []

    def dying(*arguments: object, **options: object) -> int:
        calls.append(1)
        if len(calls) == at:
            raise KeyboardInterrupt
        return commit(*arguments, **options)  # type: ignore[arg-type]

    repository.committer.commit = dying  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        run(repository, action)
    repository = workshop.crash()

    assert expected(workshop, action) is (at == 2)
    run(repository, action)
    assert expected(workshop, action)


@pytest.mark.parametrize(("action", "kind", "path"), STEPS)
def test_a_failure_in_a_running_repository_is_tried_again(
    workshop: Workshop, files: FailingFiles, action: Action, kind: str, path: str
) -> None:
    """No intent stays for ever: the next run finishes it, or the next start where a failed sync leaves doubt."""
    repository = prepare(workshop, action)
    files.fail(kind, path)

    with pytest.raises(OSError, match="Input/output"):
        run(repository, action)
    assert repository.check(deep=True).problems == ()
    run(repository, action)
    if kind.startswith("sync") and repository.content.containers["c1"].failure is not None:
        repository = workshop.crash()

    assert expected(workshop, action)
    assert repository.check(deep=True).problems == ()


def test_one_failure_does_not_keep_the_others_from_being_finished(workshop: Workshop, files: FailingFiles) -> None:
    """Nine of ten files go, the tenth at the next run, and the freed bytes are counted once."""
    repository = workshop.make(archive={"enabled": False}, claims={"max_flow_files": 1})
    for _ in range(10):
        put_and_kill(repository, b"x" * 1000)
    files.fail("unlink", "*/c1/*-1025", error=errno.EPERM)

    with pytest.raises(PermissionError):
        repository.reclamation.clean()
    left = content_sizes(workshop.path)
    repository.reclamation.clean()

    assert list(left.values()) == [1000]
    assert content_sizes(workshop.path) == {}
    assert repository.content.containers["c1"].bytes_used == 0


def test_intents_count_as_gone_for_readers(workshop: Workshop, files: FailingFiles) -> None:
    """From the durable intent on a read says that the claim was reclaimed, though the bytes are still there."""
    repository = prepare(workshop, Action.TRUNCATE)
    record = put_all(repository, "other", [b"o"])[0]
    dead = ContentClaim(1, 4096, MB, 0)
    files.fail("truncate", "*/c1/*-*")

    with pytest.raises(OSError, match="Input/output"):
        repository.reclamation.truncate()

    with pytest.raises(ContentReclaimed, match="was reclaimed"):
        repository.reader.read(dead, 0, 10)
    assert repository.reader.read(claim_of(record), 0, 1) == b"o"


@pytest.mark.parametrize("action", [Action.ARCHIVE, Action.DELETE])
def test_a_free_file_that_is_missing_is_simply_gone(workshop: Workshop, action: Action) -> None:
    """Somebody removed it by hand: the ledger forgets it, and its bytes are no longer charged."""
    repository = prepare(workshop, action)
    workshop.content_file(1).unlink()

    repository.reclamation.clean()

    assert repository.check().problems == ()
    assert repository.content.containers["c1"].bytes_used == 0


def test_a_missing_file_with_live_content_does_not_stop_reclamation_or_the_start(workshop: Workshop) -> None:
    """It is reported, and what else there is to truncate is truncated."""
    repository = prepare(workshop, Action.TRUNCATE)
    (name,) = content_sizes(workshop.path)
    with committing(repository) as session:
        session.ingest("keep", [b"k" * 100])
        session.ingest("q", [b"x" * MB])
    drain(repository, "q")
    Path(workshop.path, name).unlink()

    report = repository.reclamation.truncate()

    assert len(report.problems) == 1
    assert name in report.problems[0]
    assert list(content_sizes(workshop.path).values()) == [100]
    workshop.expects_problems = True


def test_a_mass_deletion_is_paced_in_slices_and_stops_when_asked(workshop: Workshop) -> None:
    """Each slice is a transaction of its own, and progress is told after each."""
    repository = workshop.make(
        archive={"enabled": False}, claims={"max_batch_file": Quantity(1), "max_appendable_size": Quantity(1)}
    )
    put_all(repository, "q", [b"x"] * 450)
    drain(repository, "q")
    plan = plan_release(repository.reclamation.survey().resources, repository.spec.archive)
    told: list[int] = []
    report = repository.reclamation.execute(
        plan, RunTicket(is_revoked=lambda: len(told) == 2), lambda steps, _: told.append(steps)
    )

    assert told == [200, 400]
    assert (report.is_stopped, report.freed_bytes, len(report.left)) == (True, 400 * 4096, 50)
    assert len(content_sizes(workshop.path)) == 50
