"""Block checksums leave memory at a checkpoint, their runs are merged, and whatever comes, content is read."""

import itertools
import random
import threading
from pathlib import Path

import pytest

from tests.failing_files import FailingFiles
from tests.support import ManualClock, Workshop, committing, cut, drain, flip, put_each, spec_at
from tests.threads import begin
from ullage.engine.backuptally import Tally
from ullage.engine.engine import Engine
from ullage.engine.files import DiskUsage, OsFiles
from ullage.engine.ledger.blockrows import OVERHEAD_BYTES, BlockRows
from ullage.engine.ledger.blockruns import RunMerge
from ullage.engine.maintenance import MaintenanceRunner
from ullage.engine.model import BLOCK_BYTES, ClaimBlocks, ContentClaim, parse_uuid
from ullage.engine.salvaging import salvage

SIZE = 2 * BLOCK_BYTES + 5


def content(number: int) -> bytes:
    return random.Random(number).randbytes(64) * (SIZE // 64 + 1)


def put(repository: Engine, number: int) -> str:
    """A handle with a content of three blocks."""
    return repository.handles.put(content(number)[:SIZE])


def claim_of(repository: Engine, id: str) -> ContentClaim:
    record = repository.ledger.find(parse_uuid(id))
    assert record is not None
    assert record.claim is not None
    return record.claim


def known(repository: Engine, *claims: ContentClaim) -> list[bool]:
    """Whether the checksums of each are known; where they are, they must be right."""
    found = [repository.reader.known_blocks(claim) for claim in claims]
    for claim, crcs in zip(claims, found, strict=True):
        if crcs is not None:
            repository.reader.verify(claim, crcs)
    return [crcs is not None for crcs in found]


def purge(workshop: Workshop, *ids: str) -> None:
    for id in ids:
        workshop.repository.handles.delete(id)
    workshop.clock.advance(8 * 86_400)
    assert workshop.repository.handles.purge() == len(ids)


def run_files(workshop: Workshop) -> list[Path]:
    folder = workshop.path / "flowfile" / "runs" / "blocks"
    return sorted(folder.iterdir()) if folder.exists() else []


def runs(repository: Engine) -> list[tuple[int, int, int]]:
    """Number, rows and place of each that counts."""
    return [(run.number, run.rows, run.through) for run in repository.ledger.blocks.runs()]


def with_runs(workshop: Workshop, count: int) -> list[str]:
    """A repository with so many runs, of one content each; their handles."""
    repository = workshop.make()
    ids = []
    for number in range(count):
        ids.append(put(repository, number))
        repository.checkpoint()
    assert len(runs(repository)) == count
    return ids


def merge(repository: Engine, steps_max: int = 10_000) -> int:
    """Merge until there is nothing to do; how many steps."""
    for step in range(steps_max):
        if not repository.spaces.blocks.merge_step(1):
            return step
    return steps_max


def merge_of(repository: Engine, part: slice) -> RunMerge:
    """A merge of these runs, whatever their sizes."""
    files, some = repository.spaces.blocks.files, repository.ledger.blocks.runs()[part]
    return RunMerge(repository.ledger, files, some, has_oldest=part.start == 0)


@pytest.mark.parametrize("how", ["none", "clean", "crash"])
def test_checksums_leave_memory_and_snapshot_with_a_checkpoint(workshop: Workshop, how: str) -> None:
    """They are found on disk and in memory after each way to end."""
    ids = with_runs(workshop, 2)
    repository = workshop.repository
    assert len(repository.ledger.blocks) == repository.ledger.blocks.bytes == 0
    ids.append(put(repository, 2))
    small = repository.log.snapshot_bytes

    repository = workshop.restart(how)

    assert known(repository, *(claim_of(repository, id) for id in ids)) == [True] * 3
    assert repository.log.snapshot_bytes < small + 400
    for number, id in enumerate(ids):
        with repository.handles.get(id, BLOCK_BYTES + 3, 10) as stream:
            assert stream.read() == content(number)[BLOCK_BYTES + 3 :][:10]


def test_small_contents_have_no_rows_and_leave_no_deletions(workshop: Workshop) -> None:
    """Most contents are small: nothing of them stays in memory, before any run, and where runs lie on either side."""
    ids = with_runs(workshop, 1)
    repository = workshop.repository
    small = repository.handles.put(b"small")
    ids.append(put(repository, 1))
    repository.checkpoint()

    purge(workshop, small)

    assert len(repository.ledger.blocks) == 0
    assert repository.reader.known_blocks(ContentClaim(1, 0, BLOCK_BYTES, 0)) is None


def test_a_dead_claims_checksums_go_and_its_deletion_after_them(workshop: Workshop) -> None:
    """A row says so until the oldest run is merged; what came and went between two checkpoints leaves none."""
    ids = with_runs(workshop, 5)
    repository = workshop.repository
    claims = [claim_of(repository, id) for id in ids]
    purge(workshop, put(repository, 9))
    assert len(repository.ledger.blocks) == 0

    purge(workshop, ids[1])
    assert known(repository, *claims) == [True, False, True, True, True]
    repository.checkpoint()
    assert runs(repository)[-1] == (6, 1, 6)

    for how in ("none", "clean", "crash"):
        repository = workshop.restart(how)
        assert known(repository, *claims) == [True, False, True, True, True]
    while merge(repository):
        repository.checkpoint()
    assert runs(repository) == [(7, 4, 6)]
    assert known(repository, *claims) == [True, False, True, True, True]


def test_a_merge_without_the_oldest_run_keeps_deletions(workshop: Workshop) -> None:
    """Else what they hide would be found again. A large oldest run is not merged with small ones."""
    repository = workshop.make()
    id = put(repository, 0)
    gone = claim_of(repository, id)
    more = [ClaimBlocks(gone.resource, 1 << 40 | number, b"1234") for number in range(200)]
    repository.committer.commit(more, creates=True)
    repository.checkpoint()
    kept = [put(repository, 1)]  # or the resource claim would be gone
    purge(workshop, id)
    for number in range(2, 7):
        kept.append(put(repository, number))
        repository.checkpoint()
    assert known(repository, gone) == [False]

    merge(repository)

    assert [number for number, *_ in runs(repository)] == [1, 7]
    for how in ("none", "checkpoint", "crash"):
        assert known(repository, gone, *(claim_of(repository, id) for id in kept)) == [False, *[True] * 6]
        repository.checkpoint()
        repository = workshop.restart(how)


def test_a_merged_run_is_as_old_as_what_it_was_merged_from(workshop: Workshop) -> None:
    """Its number is above that of a newer run, which says what is deleted by now; so it stays over a start."""
    ids = with_runs(workshop, 4)
    repository = workshop.repository
    claims = [claim_of(repository, id) for id in ids]
    purge(workshop, ids[2])
    repository.checkpoint()

    repository.spaces.blocks._merge = merge_of(repository, slice(0, 4))
    repository.spaces.blocks.merge_step()

    assert runs(repository) == [(6, 4, 4), (5, 1, 5)]
    for how in ("none", "checkpoint", "crash"):
        assert known(repository, *claims) == [True, True, False, True]
        repository.checkpoint()
        repository = workshop.restart(how)
        assert runs(repository) == [(6, 4, 4), (5, 1, 5)]


def test_rows_of_a_resource_claim_that_is_gone_go_with_any_merge(workshop: Workshop) -> None:
    """Also those of FlowFiles that were dropped with their swap file, of which nobody knew the claims."""
    repository = workshop.make(flow_file={"swap_threshold": 1, "swap_batch": 1}, archive={"enabled": False})
    for number in range(4):
        put_each(repository, "q", [content(number)[:SIZE]])
        repository.checkpoint()
    assert repository.queue("q").figures().swapped == 3
    claims = [entry.claim.index for entry in repository.ledger.entries()]
    repository.queues.drop(repository.queue("q"))
    repository.reclamation.clean()
    assert {entry.claim.index for entry in repository.ledger.entries()}.isdisjoint(claims)
    assert sum(rows for _, rows, _ in runs(repository)) >= 4

    merge(repository)

    assert runs(repository) == []
    repository.checkpoint()
    assert run_files(workshop) == []


def test_checksums_stay_while_a_swapped_flow_file_has_the_claim(workshop: Workshop) -> None:
    """A resident clone that goes takes nothing from the swapped one; once that is back and gone, they go."""
    repository = workshop.make(flow_file={"swap_threshold": 1, "swap_batch": 1})
    put_each(repository, "q", [b"first"])
    with committing(repository) as session:
        record = session.write(session.create(), content(1)[:SIZE])
        session.transfer(session.clone(record), "other")
        session.transfer(record, "q")
    repository.checkpoint()
    claim = repository.queue("other").records()[0].claim
    assert claim is not None
    assert repository.queue("q").figures().swapped == 1

    drain(repository, "other")
    assert known(repository, claim) == [True]
    repository = workshop.restart("crash")
    assert known(repository, claim) == [True]

    assert drain(repository, "q") == [b"first", content(1)[:SIZE]]
    assert known(repository, claim) == [False]


def test_merging_goes_on_in_steps_and_is_listed_by_the_next_checkpoint(workshop: Workshop) -> None:
    """Its runs stay on disk until then, and a start that finds none of it listed begins again."""
    ids = with_runs(workshop, 4)
    repository = workshop.repository
    claims = [claim_of(repository, id) for id in ids]
    before = run_files(workshop)

    assert repository.spaces.blocks.merge_step(1)
    assert len(runs(repository)) == 4
    assert len(run_files(workshop)) == 5
    assert repository.check().problems == ()
    repository.checkpoint()  # in which a merge is under way
    assert len(run_files(workshop)) == 5
    assert merge(repository) == 4
    assert runs(repository) == [(5, 4, 4)]
    assert known(repository, *claims) == [True] * 4
    assert len(run_files(workshop)) == 5
    assert repository.check(deep=True).problems == ()

    repository = workshop.restart("crash")
    assert run_files(workshop) == before
    assert merge(repository) == 5
    repository.checkpoint()
    assert [path.name for path in run_files(workshop)] == [f"{5:020d}.run"]
    for how in ("none", "clean", "crash"):
        repository = workshop.restart(how)
        assert runs(repository) == [(5, 4, 4)]
        assert known(repository, *claims) == [True] * 4


def test_a_merge_during_a_checkpoint_takes_nothing_that_either_snapshot_lists(workshop: Workshop) -> None:
    """The one that is being written lists the runs of before, the next one what they have become."""
    ids = with_runs(workshop, 4)
    repository = workshop.repository
    claims = [claim_of(repository, id) for id in ids]

    def progress(_bytes: int) -> None:
        merge(repository)

    repository.checkpoint(progress)

    assert [number for number, *_ in runs(repository)] == [5]
    assert len(run_files(workshop)) == 5
    assert repository.check(deep=True).problems == ()
    repository = workshop.restart("crash")
    assert len(runs(repository)) == len(run_files(workshop)) == 4
    assert known(repository, *claims) == [True] * 4
    repository.checkpoint(progress)
    repository.checkpoint()
    assert len(runs(repository)) == len(run_files(workshop)) == 1
    assert known(workshop.restart("crash"), *claims) == [True] * 4


def test_readers_keep_the_runs_that_they_hold(workshop: Workshop) -> None:
    """Whoever looked the runs up before a merge reads by them, or looks again where their files are gone."""
    ids = with_runs(workshop, 4)
    repository = workshop.repository
    claims = [claim_of(repository, id) for id in ids]
    held = repository.ledger.blocks.runs()
    opened = repository.spaces.blocks.files.run(held[0])
    merge(repository)
    repository.checkpoint()
    assert len(run_files(workshop)) == 1

    assert len(opened.block(0)) == 1
    looked = itertools.chain([held], itertools.repeat(repository.ledger.blocks.runs()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BlockRows, "runs", lambda _: next(looked))
        assert repository.reader.known_blocks(claims[2]) is not None


def test_checksums_are_found_at_each_moment_of_checkpoints_and_merges(workshop: Workshop) -> None:
    """Whoever asks while they go from memory to disk, and from run to run, finds them."""
    repository = workshop.make()
    claims = [claim_of(repository, put(repository, number)) for number in range(3)]
    is_over = threading.Event()

    def ask() -> set[bool]:
        found: set[bool] = set()
        while not is_over.is_set():
            found |= {repository.reader.known_blocks(claim) is not None for claim in claims}
        return found

    asking = [begin(ask) for _ in range(2)]
    for number in range(24):
        repository.committer.commit([ClaimBlocks(claims[0].resource, 1 << 40 | number, b"1234")], creates=True)
        repository.checkpoint()
        merge(repository)
    is_over.set()

    assert [each.result() for each in asking] == [{True}] * 2
    assert len(repository.ledger.blocks.runs()) < 8


@pytest.mark.parametrize("how", ["block", "head", "missing", "another"])
def test_whatever_happens_to_a_run_its_contents_are_read(workshop: Workshop, how: str) -> None:
    """They are verified as a whole, once: what was worked out is written anew. A merge ends damage; `check` tells."""
    ids = with_runs(workshop, 4)
    workshop.close()
    first, second, *_ = run_files(workshop)
    if how == "block":
        flip(first, 30)
    elif how == "head":
        cut(first, 10)
    elif how == "missing":
        first.unlink()
    else:
        first.write_bytes(second.read_bytes())
    workshop.expects_problems = True

    repository = workshop.open()

    claims = [claim_of(repository, id) for id in ids]
    assert [repository.reader.known_blocks(claim) is not None for claim in claims] == [False, True, True, True]
    assert len(repository.check(deep=how == "block").problems) == 1
    assert str(first) in repository.check(deep=True).problems[0]
    for number, id in enumerate(ids):
        with repository.handles.get(id, 3, 10) as stream:
            assert stream.read() == content(number)[3:13]
    assert known(repository, *claims) == [True] * 4
    merge(repository)
    repository.checkpoint()
    workshop.expects_problems = False
    for again in ("none", "crash"):
        repository = workshop.restart(again)
        assert repository.check(deep=True).problems == ()
        assert known(repository, *claims) == [True] * 4


def test_a_merge_that_fails_leaves_nothing_and_waits_for_other_runs(tmp_path: Path) -> None:
    """A full disk, say: what was read by is read by still, and it is not tried each second."""
    files = FailingFiles()
    spec = spec_at(tmp_path / "r")
    Engine.initialize(spec, files, ManualClock())
    with Engine.open(spec, files, ManualClock()) as repository:
        claims = []
        for number in range(4):
            claims.append(claim_of(repository, put(repository, number)))
            repository.checkpoint()
        for kind in ("create", "write", "sync", "sync_directory"):
            numbers = repository.spaces.blocks.files.numbers()
            files.fail(kind, "*runs/blocks*")
            with pytest.raises(OSError, match="Input/output error"):
                merge(repository)
            assert merge(repository) == 0
            assert repository.spaces.blocks.files.numbers() == numbers
            assert known(repository, *claims) == [True] * len(claims)
            claims.append(claim_of(repository, put(repository, len(claims))))
            repository.checkpoint()
        assert merge(repository) > 0
        assert known(repository, *claims) == [True] * len(claims)
        assert repository.check(deep=True).problems == ()


def test_runs_are_not_merged_where_the_room_is_for_commits(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half as much again as a merge may take must be free."""
    with_runs(workshop, 4)
    repository = workshop.repository
    size = sum(run.length for run in repository.ledger.blocks.runs())
    for free, steps in ((size, 0), (2 * size, 5)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(OsFiles, "usage", lambda _files, _path, free=free: DiskUsage(1 << 40, free))
            assert merge(repository) == steps


def test_maintenance_merges_within_the_rate_of_reclamation(workshop: Workshop) -> None:
    """A step each second, half the rate since it reads and writes; closing gives an unfinished merge up."""
    with_runs(workshop, 4)
    repository = workshop.repository
    repository.adopt(spec_at(workshop.path, compaction={"bytes_per_second": 2}))
    runner = MaintenanceRunner(repository)
    workshop.clock.advance(1)
    assert "merge" in runner.run_due()
    assert len(run_files(workshop)) == 5
    assert len(runs(repository)) == 4
    workshop.close()
    assert len(run_files(workshop)) == 4
    assert repository.spaces.blocks.merge_step() is False

    repository = workshop.open()
    runner = MaintenanceRunner(repository)
    workshop.clock.advance(1)
    runner.run_due()
    assert runner.failures == []
    assert len(runs(repository)) == 1


def test_much_in_memory_makes_a_checkpoint_due(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once: after it little is in memory."""
    repository = workshop.make()
    runner = MaintenanceRunner(repository)
    put(repository, 1)
    monkeypatch.setattr("ullage.engine.ledger.blockrows.BYTES_LARGE", OVERHEAD_BYTES)
    assert "checkpoint" in runner.run_due()
    assert "checkpoint" not in runner.run_due()


def test_what_a_failed_checkpoint_froze_is_written_by_the_next(workshop: Workshop) -> None:
    """With what came since, deletions too."""
    ids = with_runs(workshop, 1)
    repository = workshop.repository
    ids += [put(repository, 1), put(repository, 2)]
    claims = [claim_of(repository, id) for id in ids]
    repository.ledger.blocks.freeze()
    purge(workshop, ids[0], ids[1])
    ids.append(put(repository, 3))
    claims.append(claim_of(repository, ids[3]))
    assert known(repository, *claims) == [False, False, True, True]

    repository.checkpoint()

    assert len(repository.ledger.blocks) == 0
    assert runs(repository)[1:] == [(2, 4, 2)]
    assert known(workshop.restart("crash"), *claims) == [False, False, True, True]


def test_a_backup_carries_runs_and_does_without_one_that_is_gone(workshop: Workshop, tmp_path: Path) -> None:
    """A restored repository finds the checksums, or works them out: nothing is lost."""
    ids = with_runs(workshop, 2)
    repository = workshop.repository
    claims = [claim_of(repository, id) for id in ids]
    repository.backup(str(tmp_path / "whole"))
    repository.spaces.blocks.files.close()
    run_files(workshop)[0].unlink()
    report = repository.backup(str(tmp_path / "less"))
    assert (report.lost, report.damaged_files) == ((), 0)
    workshop.expects_problems = True

    for name, found in (("whole", [True, True]), ("less", [False, True])):
        spec = spec_at(tmp_path / f"copy of {name}")
        Engine.restore_backup(str(tmp_path / name), spec)
        with Engine.open(spec, clock=ManualClock()) as copy:
            assert [copy.reader.known_blocks(claim) is not None for claim in claims] == found
            for number, id in enumerate(ids):
                with copy.handles.get(id) as stream:
                    assert stream.read() == content(number)[:SIZE]


def test_a_backup_keeps_merged_runs_that_it_is_about_to_copy(workshop: Workshop, tmp_path: Path) -> None:
    """The next checkpoint after it removes them."""
    with_runs(workshop, 4)
    repository = workshop.repository

    def progress(_: Tally) -> None:
        merge(repository)
        repository.checkpoint()

    repository.backup(str(tmp_path / "b"), progress)

    assert len([path for path in (tmp_path / "b" / "runs").iterdir() if path.name.startswith("blocks-")]) == 4
    repository.checkpoint()
    assert len(run_files(workshop)) == 1


def test_a_salvage_does_without_runs(workshop: Workshop, tmp_path: Path) -> None:
    """It writes every content anew, and knows its checksums from then on."""
    ids = with_runs(workshop, 2)
    workshop.close()
    spec = spec_at(tmp_path / "new")

    assert salvage(str(workshop.path), spec, clock=ManualClock()).damaged == ()

    with Engine.open(spec, clock=ManualClock()) as new:
        assert known(new, *(claim_of(new, id) for id in ids)) == [True, True]
