import errno
import os
from contextlib import suppress
from pathlib import Path

import pytest

from tests.engine.flowfile.steps import SMALL, define, numbers, peek, resident
from tests.failing_files import FailingFiles
from tests.support import Workshop, committing, drain, put_all, put_each
from ullage.engine.engine import Engine
from ullage.errors import CommitOutcomeUnknown, RepositoryDamaged, RepositoryStopped


def swap_paths(repository: Engine) -> list[Path]:
    """The swap files in the order in which they will come back."""
    summaries = repository.queue("q").swap_summaries()
    return [Path(repository.swap_files.path(summary.name)) for summary in summaries]


@pytest.fixture
def repository(workshop: Workshop) -> Engine:
    return workshop.make(flow_file=SMALL)


@pytest.mark.parametrize(
    ("kind", "path", "error"),
    [
        ("create", "*.swap", errno.ENOSPC),
        ("write", "*.swap", errno.ENOSPC),
        ("write", "*.swap", errno.EIO),
        ("sync", "*.swap", errno.EIO),
        ("sync_directory", "*/swap", errno.EIO),
    ],
)
def test_a_failed_swap_out_leaves_all_in_memory(workshop: Workshop, kind: str, path: str, error: int) -> None:
    """The commit succeeds, every FlowFile is in memory and counted, no file is left; the next chance swaps out."""
    files = FailingFiles()
    repository = workshop.make(files, flow_file=SMALL)
    queue = repository.queue("q")
    put_each(repository, "q", numbers(8))
    files.fail(kind, path, error=error)

    put_all(repository, "q", numbers(2, 8))

    assert "[Errno" in str(repository.queues.swap_failure)
    assert os.listdir(repository.swap_files.directory) == []
    assert resident(queue) == 10
    assert queue.figures() == (10, 10, 0, 0, 0, 0, 0)
    assert peek(repository, "q", 6) == numbers(6)
    assert repository.check().problems == ()

    files.heal()
    repository.queues.swap_out_all()
    assert repository.queues.swap_failure is None
    assert queue.figures().swapped == 3
    assert drain(workshop.crash(), "q") == numbers(10)


def test_a_failed_swap_out_spares_the_other_queues(repository: Engine, files: FailingFiles) -> None:
    """A commit into several queues shows them all, though one of them cannot swap out."""
    put_each(repository, "q", numbers(8))
    files.fail("write", "*.swap", error=errno.ENOSPC)
    with committing(repository) as session:
        session.ingest("q", numbers(1, 8))
        session.ingest("r", [b"other"])

    assert drain(repository, "r") == [b"other"]
    assert drain(repository, "q") == numbers(9)


def test_a_file_that_cannot_be_given_up_goes_at_the_next_start(workshop: Workshop, files: FailingFiles) -> None:
    """If the remains of a failed swap-out cannot be removed either, nothing else suffers; the first error is told."""
    repository = workshop.make(flow_file=SMALL)
    put_each(repository, "q", numbers(8))
    files.fail("sync", "*.swap", error=errno.ENOSPC)
    files.fail("unlink", "*.swap", times=9)
    put_all(repository, "q", numbers(1, 8))
    assert len(os.listdir(repository.swap_files.directory)) == 1
    assert "No space left" in str(repository.queues.swap_failure)

    repository = workshop.crash()

    assert os.listdir(repository.swap_files.directory) == []
    assert drain(repository, "q") == numbers(9)


def test_a_swap_out_whose_log_fails_does_not_fail_the_commit(workshop: Workshop, files: FailingFiles) -> None:
    """The arrivals' commit is durable before swapping begins: only later work learns that the log stopped."""
    repository = workshop.make(flow_file=SMALL)
    put_each(repository, "q", numbers(8))
    files.fail("sync", "*.wal", at=2)

    put_all(repository, "q", numbers(1, 8))

    assert isinstance(repository.queues.swap_failure, CommitOutcomeUnknown)
    with pytest.raises(RepositoryStopped):
        put_all(repository, "q", numbers(1))
    files.heal()
    assert drain(workshop.crash(), "q") == numbers(9)


def test_a_missing_swap_file_is_passed_over_and_named(repository: Engine) -> None:
    """What is in memory, behind it and in other queues is served; then a poll says which it is. Back, it is read."""
    put_each(repository, "q", numbers(12))
    put_each(repository, "r", numbers(3))
    lost, other = swap_paths(repository)
    kept = lost.read_bytes()
    lost.unlink()

    assert peek(repository, "q") == [*numbers(6), *numbers(3, 9)]
    assert drain(repository, "q", 9) == [*numbers(6), *numbers(3, 9)]
    for _ in range(2):
        with repository.session() as session, pytest.raises(RepositoryDamaged, match=f"{lost.name} is missing"):
            session.get("q")
    assert drain(repository, "r") == numbers(3)
    assert any(lost.name in problem for problem in repository.check().problems)
    assert repository.queue("q").figures() == (3, 3, 0, 3, 1, 0, 3)
    ((passed_over, path),) = repository.unavailable.passed_over(10)
    assert (passed_over.summary.count, path) == (3, str(lost))

    lost.write_bytes(kept)
    assert drain(repository, "q") == numbers(3, 6)
    assert repository.unavailable.passed_over(10) == []
    assert other.name not in [path.name for path in swap_paths(repository)]


def test_a_swap_file_that_the_disk_does_not_give_is_passed_over(repository: Engine, files: FailingFiles) -> None:
    """As one that is missing or damaged; once the disk gives it, it is served."""
    put_each(repository, "q", numbers(12))
    lost, _ = swap_paths(repository)
    files.fail("read", str(lost), times=1_000)

    assert drain(repository, "q", 9) == [*numbers(6), *numbers(3, 9)]
    with repository.session() as session, pytest.raises(RepositoryDamaged, match=f"{lost.name} can't be read"):
        session.get("q")

    files.heal()
    assert drain(repository, "q") == numbers(3, 6)


@pytest.mark.parametrize("priority", ["FirstInFirstOut", "NewestFirst"])
def test_what_arrives_behind_a_lost_swap_file_is_served(workshop: Workshop, repository: Engine, priority: str) -> None:
    """However much it is, swapped again where it is too much; with its places kept it comes back when the file does."""
    define(repository, "q", priority=priority)
    put_each(repository, "q", numbers(9))
    (lost,) = swap_paths(repository)
    kept = lost.read_bytes()
    lost.unlink()
    served = drain(repository, "q", 6)
    with repository.session() as session, pytest.raises(RepositoryDamaged, match="is missing"):
        session.get("q")

    put_each(repository, "q", numbers(30, 9))

    assert sorted(map(int, drain(repository, "q", 30))) == list(range(9, 39))
    assert repository.queue("q").figures()[:2] == (3, sum(map(len, numbers(9))) - sum(map(len, served)))
    lost.write_bytes(kept)
    assert sorted(drain(repository, "q") + served) == numbers(9)
    assert drain(workshop.crash(), "q") == []


def test_a_swap_file_that_is_back_is_read_though_there_is_always_more(workshop: Workshop, repository: Engine) -> None:
    """By a poll after a while, or at once on a person's word: a queue that never runs dry would else never ask."""
    for retry in (False, True):
        put_each(repository, "q", numbers(12))
        lost, _ = swap_paths(repository)
        kept = lost.read_bytes()
        lost.write_bytes(kept[:-1])
        assert drain(repository, "q", 9) == [*numbers(6), *numbers(3, 9)]
        put_each(repository, "q", numbers(4, 12))
        assert drain(repository, "q", 1) == numbers(1, 12)
        assert repository.unavailable.retry() == 0
        lost.write_bytes(kept)
        if retry:
            assert repository.unavailable.retry() == 3
        else:
            workshop.clock.advance(11)
        assert drain(repository, "q", 1) == numbers(1, 13)
        put_each(repository, "q", numbers(1, 16))
        assert drain(repository, "q", 2) == numbers(2, 14)
        assert drain(repository, "q") == [*numbers(3, 6), *numbers(1, 16)]


def test_one_lost_swap_file_keeps_no_other_from_being_looked_into(workshop: Workshop) -> None:
    """FlowFiles of other files are found by their uuids, and expire."""
    repository = workshop.make(flow_file={**SMALL})
    define(repository, "q", expiration_millis=10_000)
    put_each(repository, "q", numbers(12))
    lost, other = swap_paths(repository)
    kept = lost.read_bytes()
    (wanted, *_) = repository.swap_files.read(other.name).records
    (missed, *_) = repository.swap_files.read(lost.name).records
    lost.unlink()

    assert repository.flow_files.find(wanted.id) == wanted
    with pytest.raises(RepositoryDamaged, match="is missing"):
        repository.flow_files.find(missed.id)
    workshop.clock.advance(11)
    with pytest.raises(RepositoryDamaged, match="is missing"):
        repository.queues.expire()
    assert repository.queue("q").figures().flow_files == 3
    lost.write_bytes(kept)


def damage(path: Path, place: str) -> None:
    """Turn a bit over, or cut the file's end off."""
    whole = path.read_bytes()
    at = {"header": 9, "block": len(whole) // 2, "footer": len(whole) - 2, "end": len(whole)}[place]
    path.write_bytes(whole[:-1] if place == "end" else whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])


@pytest.mark.parametrize("place", ["header", "block", "footer", "end"])
def test_a_damaged_swap_file_is_named(repository: Engine, place: str) -> None:
    """Rot anywhere in a swap file is found when it is needed: file and offset, and not one wrong FlowFile."""
    put_each(repository, "q", numbers(9))
    (path,) = swap_paths(repository)
    whole = path.read_bytes()
    damage(path, place)
    drain(repository, "q", 6)

    with repository.session() as session, pytest.raises(RepositoryDamaged, match=rf"{path.name}.*(offset|ends)"):
        session.get("q")

    path.write_bytes(whole)
    assert drain(repository, "q") == numbers(3, 6)


@pytest.mark.parametrize("place", ["header", "block", "footer", "end", "gone"])
def test_a_damaged_swap_file_is_known_before_polls_need_it(workshop: Workshop, repository: Engine, place: str) -> None:
    """Each that a start found is read once in the background, step by step; a damaged one is passed over from then."""
    put_each(repository, "q", numbers(15))
    first, path, last = swap_paths(repository)
    workshop.shut()
    whole = path.read_bytes()
    if place == "gone":
        path.unlink()
    else:
        damage(path, place)
    files = FailingFiles()
    repository = workshop.open(files)
    files.fail("open", str(last), error=errno.EMFILE)

    for _ in range(4):
        with suppress(OSError):  # the one above, which says nothing of the file
            repository.swap_proof.step(bytes_max=1)

    assert [files.count("open", str(each)) for each in (first, path, last)] == [1, 1, 2]
    ((passed_over, named),) = repository.unavailable.passed_over(10)
    assert (passed_over.summary.name, named) == (path.name, str(path))
    assert drain(repository, "q", 12) == [*numbers(6), *numbers(3, 6), *numbers(3, 12)]
    path.write_bytes(whole)
    assert drain(repository, "q") == numbers(3, 9)


def test_the_proof_passes_by_a_swap_file_that_is_over(workshop: Workshop, repository: Engine) -> None:
    """A poll, or a drop, was faster; that the file is gone then is no damage."""
    put_each(repository, "q", numbers(12))
    repository = workshop.reopen()

    assert drain(repository, "q") == numbers(12)
    repository.checkpoint()

    assert list(repository.swap_files.names()) == []
    repository.swap_proof.run()
    assert repository.unavailable.passed_over(10) == []


def test_a_lost_swap_file_can_be_dropped(workshop: Workshop, repository: Engine) -> None:
    """Dropping needs no file, so that the rest of a damaged queue can be saved and the loss be ended."""
    put_each(repository, "q", numbers(9))
    swap_paths(repository)[0].unlink()
    saved = drain(repository, "q", 6)

    assert repository.queues.drop(repository.queue("q")) == 3

    assert saved == numbers(6)
    assert drain(workshop.crash(), "q") == []


def test_an_expiring_queue_with_a_lost_file_spares_the_others(workshop: Workshop) -> None:
    """`expire` works through all queues and raises what it could not do at the end."""
    repository = workshop.make(flow_file={**SMALL})
    for name in ("a", "q", "z"):
        define(repository, name, expiration_millis=10_000)
        put_each(repository, name, numbers(9))
    swap_paths(repository)[0].unlink()
    workshop.clock.advance(11)

    with pytest.raises(RepositoryDamaged, match="is missing"):
        repository.queues.expire()

    assert [repository.queue(name).figures().flow_files for name in ("a", "q", "z")] == [0, 3, 0]
    repository.queues.drop(repository.queue("q"))
    repository.checkpoint()  # until then the next start would look for the file


@pytest.mark.usefixtures("_each_frame_reserves")
def test_a_swap_in_that_cannot_be_logged_changes_nothing(repository: Engine, files: FailingFiles) -> None:
    """When the log refuses a swap-in the file stays swapped, and the next poll gets it."""
    put_each(repository, "q", numbers(9))
    drain(repository, "q", 6)
    files.fail("allocate", "*.wal")

    with repository.session() as session, pytest.raises(OSError, match="Input/output"):
        session.get("q")

    assert repository.queue("q").figures() == (3, 3, 0, 3, 1, 0, 0)
    assert repository.ledger.swap_contents == {}
    assert drain(repository, "q") == numbers(3, 6)


def test_a_poll_keeps_what_it_has_when_a_swap_in_fails(repository: Engine, files: FailingFiles) -> None:
    """An error on the way to more never costs a poll what it already held."""
    put_each(repository, "q", numbers(9))
    files.fail("open", "*.swap", error=errno.EMFILE)

    with repository.session() as session:
        assert [session.read(record).read() for record in session.get_many("q", 9)] == numbers(6)
        assert repository.queue("q").figures().held == 6

    assert drain(repository, "q") == numbers(9)
