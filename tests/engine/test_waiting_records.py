"""What a start sets aside because a block of handles cannot be read, the first start that reads the block takes in."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.engine.test_cold_handles import cool, put, require, run_files, seal
from tests.engine.test_damaged_handles import damage, reclaim
from tests.failing_files import FailingFiles
from tests.support import Workshop
from ullage.engine.engine import Engine
from ullage.engine.model import SetAside, format_uuid, parse_uuid
from ullage.errors import HandleDeleted, HandleNotFound


def waiting(repository: Engine) -> list[SetAside]:
    """Records that wait for blocks."""
    return [aside for aside in repository.ledger.set_aside.all() if aside.unread]


@contextmanager
def unread(workshop: Workshop, *, runs: int = 1) -> Iterator[Engine]:
    """Another process, which cannot read the first block of so many runs; then they are as they were."""
    before = {path: path.read_bytes() for path in run_files(workshop)[:runs]}
    for number in range(runs):
        damage(workshop, number)
    workshop.expects_problems = True
    yield workshop.restart("crash")
    for path, content in before.items():
        path.write_bytes(content)


def firsts(repository: Engine) -> list[str]:
    """The first handle of each run, which is in its first block."""
    return [format_uuid(run.listed.first) for run in repository.ledger.cold.runs]


@pytest.mark.parametrize("how", ["clean", "crash", "checkpoint"])
@pytest.mark.parametrize("retention", [0, 3_600_000])
def test_a_deletion_need_not_be_said_again(workshop: Workshop, how: str, retention: int) -> None:
    """It waits through any number of starts that cannot read the block, and is durable once one has."""
    repository = workshop.make(compaction={"deleted_retention": retention})
    ids = put(repository, 0)
    cool(repository)
    first, *_, last = sorted(ids)
    repository.handles.delete(first)
    repository.handles.delete(last)
    for _ in range(2):
        with unread(workshop) as repository:
            (aside,) = waiting(repository)
            assert aside.unread == ((1, 0),)
    workshop.expects_problems = False
    repository = workshop.restart(how)
    assert repository.set_aside.count == 0
    assert repository.tap.is_lost, "who ships the log would never hear of it"
    del ids[first], ids[last]
    require(repository, ids, first, last)

    with unread(workshop) as repository:
        assert waiting(repository) == []
    workshop.expects_problems = False
    require(workshop.restart("clean"), ids, first, last)


def test_changes_of_a_handle_are_made_in_their_order(workshop: Workshop) -> None:
    """A handle that was deleted and brought back is there, with the end that it got last."""
    repository = workshop.make()
    ids = put(repository, 0)
    cool(repository)
    first = min(ids)
    repository.handles.set_ttl(first, 10_000)
    repository.handles.delete(first)
    repository.handles.undelete(first)
    repository.handles.set_ttl(first, 7_200_000)
    with unread(workshop) as repository:
        assert len(waiting(repository)) == 4
    workshop.expects_problems = False
    repository = workshop.restart("clean")
    record = repository.handles.head(first)
    assert (record.deleted_millis, record.expires_millis) == (0, workshop.clock.now_millis() + 7_200_000)
    require(repository, ids)
    workshop.clock.advance(7_300)
    with pytest.raises((HandleDeleted, HandleNotFound)):
        workshop.restart("crash").handles.get(first)


def test_a_deletion_waits_for_all_blocks_that_it_needs(workshop: Workshop) -> None:
    """One of two that can be read again is not enough; the others of the deletion are gone all the while."""
    repository = workshop.make(compaction={"deleted_retention": 0})
    ids = put(repository, 0)
    cool(repository)
    ids |= put(repository, 1_000)
    cool(repository)
    gone = [*firsts(repository), max(ids)]
    assert len(gone) == 3
    repository.handles.forget([parse_uuid(id) for id in gone], "not needed")
    with unread(workshop, runs=2) as repository:
        (aside,) = waiting(repository)
        assert set(aside.unread) == {(1, 0), (2, 0)}
    with unread(workshop) as repository:
        assert len(waiting(repository)) == 1
        for id in gone[2:]:
            with pytest.raises((HandleDeleted, HandleNotFound)):
                repository.handles.get(id)
    workshop.expects_problems = False
    repository = workshop.restart("clean")
    assert repository.set_aside.count == 0
    require(repository, {id: content for id, content in ids.items() if id not in gone}, *gone)


def test_a_run_that_is_missing_is_waited_for(workshop: Workshop) -> None:
    """As a whole: nobody knows what is in which of its blocks."""
    repository = workshop.make(compaction={"deleted_retention": 0})
    ids = put(repository, 0, 20)
    cool(repository)
    first = min(ids)
    repository.handles.delete(first)
    (path,) = run_files(workshop)
    before = path.read_bytes()
    path.unlink()
    workshop.expects_problems = True
    (aside,) = waiting(workshop.restart("crash"))
    assert aside.unread == ((1, None),)
    path.write_bytes(before)
    workshop.expects_problems = False
    repository = workshop.restart("crash")
    assert repository.set_aside.count == 0
    require(repository, {id: content for id, content in ids.items() if id != first}, first)


def test_a_change_that_a_person_has_given_up_is_not_made(workshop: Workshop) -> None:
    """The handle is as it was before."""
    repository = workshop.make(compaction={"deleted_retention": 0})
    ids = put(repository, 0)
    cool(repository)
    repository.handles.delete(min(ids))
    with unread(workshop) as repository:
        (aside,) = waiting(repository)
        assert repository.set_aside.drop([aside.id], "ann") == 1
    workshop.expects_problems = False
    repository = workshop.restart("crash")
    assert repository.set_aside.count == 0
    require(repository, ids)


def test_a_change_of_what_a_person_has_given_up_is_over(workshop: Workshop) -> None:
    """With the block its handles have ceased to exist, and there is nothing left to change."""
    repository = workshop.make(compaction={"deleted_retention": 0})
    ids = put(repository, 0)
    cool(repository)
    first, second, *_ = sorted(ids)
    repository.handles.set_ttl(first, 3_600_000)
    repository.handles.delete(second)
    with unread(workshop) as repository:
        assert len(waiting(repository)) == 2
        (block,) = [aside for aside in repository.set_aside.listed(10) if aside.place.startswith("block")]
        assert repository.set_aside.drop([block.id], "ann") == 1
    workshop.expects_problems = False
    repository = workshop.restart("clean")
    assert repository.set_aside.count == 0
    with pytest.raises(HandleNotFound):
        repository.handles.head(first)


@pytest.mark.parametrize("is_whole", [False, True])
def test_what_was_reclaimed_after_a_deletion_stays_right(workshop: Workshop, *, is_whole: bool) -> None:
    """The log says that a file was cut, or is gone, and a start cannot read the block of the handle that died in it:
    once it reads, all is as the process before had left it, and what is left is given back like anything else.
    """
    repository = workshop.make(
        archive={"enabled": False}, truncation={"mode": "Eager"}, compaction={"deleted_retention": 0}
    )
    ids = put(repository, 0, 20)
    content = b"x" * 100_000
    dead = [repository.handles.put(content)]
    seal(repository)
    if not is_whole:  # in the file of others, at its end
        contents = [b"y" * 10, content]
        kept, *dead = repository.handles.put_many(contents)
        ids[kept] = contents[0]
        seal(repository)
    cool(repository)
    record = repository.ledger.find_any(parse_uuid(dead[0]))
    assert record is not None
    assert record.claim is not None
    repository.handles.forget([parse_uuid(dead[0])], "not needed")
    reclaim_at_once(repository)
    left = repository.ledger.claim(record.claim.resource)
    assert (left is None) is is_whole
    assert left is None or left.length < 100_000
    with everything_unread(workshop) as again:
        assert waiting(again)
        assert all(again.ledger.set_aside.may_mean(entry.claim.index) for entry in again.ledger.entries())
    workshop.expects_problems = False
    repository = workshop.restart("crash")
    assert repository.set_aside.count == 0
    for id, kept_content in ids.items():
        with repository.handles.get(id) as stream:
            assert stream.read() == kept_content
    with pytest.raises((HandleDeleted, HandleNotFound)):
        repository.handles.get(dead[0])
    assert repository.check(deep=True).problems == ()
    reclaim(workshop)
    assert repository.check(deep=True).problems == ()


def reclaim_at_once(repository: Engine) -> None:
    repository.reclamation.clean()
    repository.reclamation.truncate()


@contextmanager
def everything_unread(workshop: Workshop) -> Iterator[Engine]:
    """Another process, to which the disk gives nothing of runs of handles."""
    workshop.kill()
    files = FailingFiles()
    files.fail("read", "*/handles/*.run", times=1_000_000)
    workshop.expects_problems = True
    yield workshop.open(files)
    workshop.kill()


def test_a_block_that_fails_while_the_log_is_read_is_waited_for(workshop: Workshop) -> None:
    """Though it was read before, and would be again: else the handle would leave with the change that names it."""
    repository = workshop.make()
    ids = put(repository, 0, 20)
    cool(repository)
    first = min(ids)
    repository.handles.set_ttl(first, 7_200_000)
    workshop.kill()
    files = FailingFiles()
    for at in (4, 9):  # behind both looks at the head and one at the block, and so again as the start begins anew
        files.fail("read", "*/handles/*.run", at=at, times=2)
    workshop.expects_problems = True
    (aside,) = waiting(workshop.open(files))
    assert aside.unread == ((1, 0),)
    assert aside.flow_files == ()
    workshop.expects_problems = False
    repository = workshop.restart("clean")
    assert repository.set_aside.count == 0
    require(repository, ids)
    assert repository.handles.head(first).expires_millis == workshop.clock.now_millis() + 7_200_000
