"""What cannot be read of runs of handles is unknown: nothing that it may claim goes, and all else goes on."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.engine.test_cold_handles import cool, merge, put, require, run_files, seal
from tests.failing_files import FailingFiles
from tests.support import Workshop, flip, spec_at
from ullage.embedded.repository import EmbeddedRepository
from ullage.engine.engine import Engine
from ullage.engine.model import format_uuid, parse_uuid
from ullage.errors import HandleDeleted, HandleNotFound, RepositoryDamaged


def damage(workshop: Workshop, run: int = 0, offset: int = 40) -> bytes:
    """Flip a byte in a run's first block; what was there."""
    path = run_files(workshop)[run]
    before = path.read_bytes()
    flip(path, offset)
    return before


def listed_before_an_error(repository: Engine) -> tuple[list[str], bool]:
    """Handles that people are shown, and whether an error behind the last one says that there are others."""
    shown: list[str] = []
    try:
        for head in EmbeddedRepository(repository).handles.all():
            shown.append(head.id.partition("@")[0])  # noqa: PERF401 - what came before an error counts
    except RepositoryDamaged as error:
        return shown, "there are more handles" in str(error)
    return shown, False


@pytest.mark.parametrize("at_start", [False, True])
def test_a_damaged_block_leaves_its_handles_unknown_and_no_others(workshop: Workshop, *, at_start: bool) -> None:
    """Lookups and changes say so, listings go on, check and the list of what is set aside name it."""
    repository = workshop.make(truncation={"mode": "Eager"}, compaction={"deleted_retention": 0})
    ids = put(repository, 0)
    dead = repository.handles.put(b"dead")
    seal(repository)
    cool(repository)
    if at_start:
        workshop.close()
        before = damage(workshop)
        repository = workshop.open()
        # Nobody has counted what it keeps alive, so it stays unknown in this process.
        run_files(workshop)[0].write_bytes(before)
        with pytest.raises(RepositoryDamaged, match="nobody can tell"):
            repository.handles.delete(min(ids))
    damage(workshop)
    workshop.expects_problems = True
    there = {record.id for record in repository.ledger.everything()}
    assert set() < there < {*ids, dead}
    report = repository.check(deep=True)
    assert len(report.problems) == 1
    assert "block 0" in report.problems[0]
    (listed,) = repository.set_aside.listed(10)
    assert repository.set_aside.count == 1
    first = format_uuid(repository.ledger.cold.runs[0].listed.first)
    for call in (repository.handles.head, repository.handles.delete, repository.handles.undelete):
        with pytest.raises(RepositoryDamaged, match="nobody can tell"):
            call(first)
    with pytest.raises(HandleNotFound):
        repository.handles.head(format_uuid(bytes(16)))
    assert len(repository.handles.page(b"", 1_000)) == len(there)
    assert listed_before_an_error(repository) == (sorted(there), True)
    with pytest.raises(RepositoryDamaged):
        list(repository.snapshot().flow_files)
    assert repository.ledger.set_aside.may_mean(1) is at_start

    assert repository.set_aside.drop([listed.id], "somebody") == 1
    assert repository.set_aside.count == 0
    assert not repository.ledger.set_aside.may_mean(1)
    with pytest.raises(HandleNotFound):
        repository.handles.head(first)
    assert listed_before_an_error(repository) == (sorted(there), False)
    for how in ("crash", "clean"):
        repository = workshop.restart(how)
        assert repository.set_aside.count == 0
        assert {record.id for record in repository.ledger.everything()} == there
        assert not repository.ledger.set_aside.may_mean(1)
    workshop.expects_problems = False
    assert repository.check(deep=True).problems == ()
    put(repository, 10_000)
    cool(repository)
    merge(repository)
    assert repository.check(deep=True).problems == ()


def reclaim(workshop: Workshop) -> None:
    """Give back all that may be, from the archive too."""
    repository = workshop.repository
    repository.reclamation.clean()
    repository.reclamation.truncate()
    repository.compactor.execute(repository.compactor.plan(policy="CompactAll"))
    workshop.clock.advance(40 * 24 * 3_600)
    repository.reclamation.clean()


def content_bytes(workshop: Workshop) -> int:
    return sum(path.stat().st_size for path in workshop.path.glob("c*/**/*-*"))


@pytest.mark.parametrize("has_archive", [False, True])
@pytest.mark.parametrize("at_start", [False, True])
def test_what_a_damaged_block_keeps_alive_is_not_reclaimed(
    workshop: Workshop, *, at_start: bool, has_archive: bool
) -> None:
    """Before it is given up: all else may be deleted and reclaimed, and a block that is mended has all it had."""
    repository = workshop.make(
        archive={"enabled": has_archive}, truncation={"mode": "Eager"}, compaction={"deleted_retention": 0}
    )
    ids = put(repository, 0)
    cool(repository)
    workshop.expects_problems = True
    before = damage(workshop)
    if at_start:
        repository = workshop.restart("clean")
    others = {record.id for record in repository.ledger.everything()}
    unknown = {id: content for id, content in ids.items() if id not in others}
    assert others
    assert unknown
    repository.handles.forget([parse_uuid(id) for id in others], "not needed")
    reclaim(workshop)
    repository.checkpoint()
    reclaim(workshop)
    run_files(workshop)[0].write_bytes(before)
    repository = workshop.restart("crash")
    require(repository, unknown)
    assert repository.check(deep=True).problems == ()

    damage(workshop)
    repository = workshop.restart("clean")
    reclaim(workshop)
    assert content_bytes(workshop) >= sum(map(len, unknown.values()))
    (listed,) = repository.set_aside.listed(10)
    assert repository.set_aside.drop([listed.id], "somebody") == 1
    reclaim(workshop)
    assert content_bytes(workshop) == 0
    workshop.expects_problems = False


@pytest.mark.parametrize("length", [None, 50])
def test_a_repair_leaves_alone_what_a_damaged_block_may_claim(workshop: Workshop, length: int | None) -> None:
    """A content file that is gone or cut has its record still: mended, the block's handles are unavailable, no more."""
    repository = workshop.make()
    ids = put(repository, 0, 20)
    cool(repository)
    workshop.expects_problems = True
    before = damage(workshop)
    repository = workshop.restart("clean")
    (content,) = workshop.path.glob("c*/*/*-*")
    kept = content.read_bytes()
    if length is None:
        content.unlink()
    else:
        content.write_bytes(kept[:length])
    repository.repair.execute(repository.repair.plan(deep=True))
    repository.checkpoint()
    run_files(workshop)[0].write_bytes(before)
    content.write_bytes(kept)
    workshop.expects_problems = False
    require(workshop.restart("crash"), ids)


def test_a_log_that_changes_what_cannot_be_read_starts(workshop: Workshop) -> None:
    """The change is set aside, and all other changes count."""
    repository = workshop.make(compaction={"deleted_retention": 0})
    ids = put(repository, 0)
    cool(repository)
    first, *others, last = sorted(ids)
    repository.handles.delete(first)
    repository.handles.delete(last)
    repository.handles.forget([parse_uuid(id) for id in others[:2]], "not needed")
    workshop.expects_problems = True
    damage(workshop)
    repository = workshop.restart("crash")
    assert [aside.reason for aside in repository.set_aside.listed(10) if "nobody can tell" in aside.reason]
    with pytest.raises(HandleDeleted):
        repository.handles.get(last)
    with pytest.raises(RepositoryDamaged):
        repository.handles.get(first)
    with repository.handles.get(others[-1]) as stream:
        assert stream.read() == ids[others[-1]]
    repository = workshop.restart("clean")
    assert repository.handles.put(b"more")


def test_a_block_that_can_be_read_again_is_in_doubt_no_more(workshop: Workshop) -> None:
    """Nobody is asked to give up what is there."""
    repository = workshop.make()
    ids = put(repository, 0)
    cool(repository)
    before = damage(workshop)
    with pytest.raises(RepositoryDamaged, match="nobody can tell"):
        repository.handles.head(min(ids))
    assert repository.set_aside.count == 1
    run_files(workshop)[0].write_bytes(before)
    require(repository, ids)
    assert repository.set_aside.count == 0


def test_damage_keeps_a_run_from_being_merged(workshop: Workshop) -> None:
    """What it holds may be mended yet."""
    repository = workshop.make()
    ids: dict[str, bytes] = {}
    for number in range(6):
        ids |= put(repository, 1_000 * number)
        cool(repository)
    before = damage(workshop, 2)
    path = run_files(workshop)[2]
    merge(repository)
    assert repository.set_aside.count == 1
    assert path in run_files(workshop)
    repository.checkpoint()
    assert len(run_files(workshop)) < 6
    path.write_bytes(before)
    repository = workshop.restart("clean")
    require(repository, ids)


def test_a_backup_names_what_of_a_run_cannot_be_read(workshop: Workshop, tmp_path: Path) -> None:
    """One that had the run before keeps it as it was, and lacks nothing."""
    repository = workshop.make()
    ids = put(repository, 0)
    cool(repository)
    assert not repository.backup(str(tmp_path / "older")).lost
    damage(workshop)
    workshop.expects_problems = True
    assert not repository.backup(str(tmp_path / "older")).lost
    report = repository.backup(str(tmp_path / "newer"))
    assert [(each.path, "handles are in a run" in each.reason) for each in report.lost] == [
        (str(run_files(workshop)[0]), True)
    ]
    assert report.damaged_files == 1
    for name, is_whole in (("older", True), ("newer", False)):
        Engine.restore_backup(str(tmp_path / name), spec_at(tmp_path / "of" / name))
        with Engine.open(spec_at(tmp_path / "of" / name), clock=workshop.clock) as again:
            there = {record.id for record in again.ledger.everything()}
            assert there == set(ids) if is_whole else set() < there < set(ids)


@pytest.mark.parametrize(("kind", "at"), [("open", 1), ("read", 1), ("read", 2)])
def test_a_disk_that_fails_once_at_a_start_costs_no_run(workshop: Workshop, kind: str, at: int) -> None:
    """A head is looked at twice, as blocks are: else its handles would be unknown for as long as the process lives."""
    repository = workshop.make()
    ids = put(repository, 0, 20)
    cool(repository)
    workshop.close()
    files = FailingFiles()
    fault = files.fail(kind, "*/handles/*.run", at=at)
    repository = workshop.open(files)
    assert fault.seen > at
    assert repository.set_aside.count == 0
    require(repository, ids)


@pytest.mark.parametrize("how", ["merging", "merged", "written", "failed"])
def test_what_is_given_up_does_not_come_back_with_a_merge(
    workshop: Workshop, files: FailingFiles, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Nor does a start fail to know what it was: it comes to the same handles, and nothing is set aside."""
    repository = workshop.make(files)
    runs = repository.spaces.handles
    gone, ids = put(repository, 1_000), put(repository, 0)
    cool(repository)
    repository.handles.forget(list(map(parse_uuid, gone)), "not needed")
    while runs.merge_step(1) and how != "merging":
        continue
    damage(workshop)
    workshop.expects_problems = True
    repository.check(deep=True)
    (listed,) = repository.set_aside.listed(10)
    dropped: list[int] = []

    def drop() -> None:
        dropped.append(repository.set_aside.drop([listed.id], "somebody"))

    if how == "written":
        with monkeypatch.context() as patched:
            _while_published(repository, patched, drop)
    elif how == "failed":
        files.fail("sync_directory", str(workshop.path / "flowfile"))
        with pytest.raises(OSError, match="Input/output"):
            repository.checkpoint()
        drop()
    else:
        drop()
    # The new run has all of it, and where a snapshot may list that one by now nobody has to do without.
    is_lost = how in ("merging", "merged")
    assert dropped == [is_lost]
    there = {record.id for record in repository.ledger.everything()}
    assert (0 < len(there) < len(ids)) is is_lost
    for later in ("now", "merged", "restarted"):
        if later == "merged":
            merge(repository)
            assert repository.spaces.handles.hollow() == frozenset()
        elif later == "restarted":
            repository = workshop.restart("crash")
        assert {record.id for record in repository.ledger.everything()} == there
        assert repository.set_aside.count == 0
        assert repository.check(deep=True).problems == ()


def _while_published(repository: Engine, patched: pytest.MonkeyPatch, work: Callable[[], None]) -> None:
    """Do this while a checkpoint has written its snapshot, as far as it can be done then, and end both."""
    under_way, published = threading.Event(), repository.spaces.handles.published
    waited = repository.committer.between_checkpoints

    def waiting() -> AbstractContextManager[None]:
        under_way.set()
        return waited()

    def worked() -> None:
        work()
        under_way.set()

    thread = threading.Thread(target=worked)

    def publishing() -> None:
        thread.start()
        assert under_way.wait(60)
        published()

    patched.setattr(repository.committer, "between_checkpoints", waiting)
    patched.setattr(repository.spaces.handles, "published", publishing)
    repository.checkpoint()
    thread.join()


@pytest.mark.parametrize("lost", ["block", "run"])
def test_a_start_that_reads_what_was_given_up_needs_none_of_its_contents(workshop: Workshop, lost: str) -> None:
    """They may have been given back since, by who could not read it."""
    repository = workshop.make(archive={"enabled": False}, compaction={"deleted_retention": 0})
    ids = put(repository, 0, 20)
    cool(repository)
    before = damage(workshop, offset=40 if lost == "block" else run_files(workshop)[0].stat().st_size - 30)
    workshop.expects_problems = True
    repository = workshop.restart("clean")
    (listed,) = repository.set_aside.listed(10)
    assert repository.set_aside.drop([listed.id], "somebody") == 1
    kept = put(repository, 1_000, 5)
    reclaim(workshop)
    assert content_bytes(workshop) == sum(map(len, kept.values()))
    run_files(workshop)[0].write_bytes(before)
    workshop.expects_problems = False

    for how in ("crash", "clean"):
        repository = workshop.restart(how)
        require(repository, kept, *ids)
        assert repository.set_aside.count == 0
        assert repository.check(deep=True).problems == ()


def test_what_is_given_up_while_somebody_has_found_it_is_counted_out_once(workshop: Workshop) -> None:
    """Twice, a run counted as empty with a handle in it: the next snapshot left that one out."""
    repository = workshop.make()
    put(repository, 0, 20)
    cool(repository)
    cold = repository.ledger.cold
    found = cold.find(cold.runs[0].listed.first)
    assert found is not None
    damage(workshop)
    workshop.expects_problems = True
    assert repository.check(deep=True).problems
    (listed,) = repository.set_aside.listed(10)
    assert repository.set_aside.drop([listed.id], "somebody") == 1
    workshop.expects_problems = False

    with repository.ledger.lock:
        repository.ledger._take_in(found)

    assert cold.count == 0
    assert repository.ledger.records.find(found.record.uuid) is None
