"""Rows of block checksums that are of another history of the volume, or that cannot be had now: no content suffers."""

import errno
import shutil
from pathlib import Path

import pytest

from tests.engine.test_block_runs import claim_of, content, known, merge, put, run_files, runs, with_runs
from tests.support import Workshop, spec_at
from ullage.engine.engine import Engine
from ullage.engine.ledger import blockrows
from ullage.engine.maintenance import MaintenanceRunner
from ullage.engine.model import BLOCK_BYTES
from ullage.errors import ContentCorrupt


def test_a_row_that_is_wrong_costs_one_pass_over_the_claim(workshop: Workshop) -> None:
    """The claim's own CRC decides. Where that fails too, the block that was read first is named."""
    repository = workshop.make()
    id = put(repository, 1)
    claim = claim_of(repository, id)
    with repository.ledger.lock:
        repository.ledger.blocks.set((claim.resource, claim.offset), bytes(12))

    assert repository.reader.read(claim, BLOCK_BYTES + 3, 10) == content(1)[BLOCK_BYTES + 3 :][:10]
    assert known(repository, claim) == [True]

    with repository.ledger.lock:
        repository.ledger.blocks.set((claim.resource, claim.offset), bytes(12))
    entry = repository.ledger.entry(claim.resource)
    assert entry is not None
    path = Path(repository.content.path_of(entry.claim))
    data = bytearray(path.read_bytes())
    data[claim.offset + BLOCK_BYTES] ^= 1
    path.write_bytes(data)
    workshop.expects_problems = True
    with pytest.raises(ContentCorrupt, match=f"offset {claim.offset + BLOCK_BYTES} "):
        repository.reader.read(claim, BLOCK_BYTES + 3, 10)


def test_a_backup_tells_runs_of_one_number_apart(workshop: Workshop, tmp_path: Path) -> None:
    """A volume is put back as it was, and other contents of the same sizes are put: their run has the same number, the
    same keys and the same length as the one that the backup has.
    """
    repository = workshop.make(provenance={"enabled": False})
    put(repository, 0)
    repository.checkpoint()
    repository.backup(str(tmp_path / "backup"))
    workshop.close()
    shutil.copytree(workshop.path, tmp_path / "as it was")
    repository = workshop.open()
    put(repository, 1)
    repository.checkpoint()
    before = repository.ledger.blocks.runs()[-1]
    repository.backup(str(tmp_path / "backup"))
    workshop.close()
    shutil.rmtree(workshop.path)
    shutil.copytree(tmp_path / "as it was", workshop.path)
    workshop.clock.advance(5)
    repository = workshop.open()
    id = put(repository, 2)
    repository.checkpoint()

    after = repository.ledger.blocks.runs()[-1]
    assert (after.number, after.rows, after.first) == (before.number, before.rows, before.first)
    assert after.crc != before.crc
    repository.backup(str(tmp_path / "backup"))
    spec = spec_at(tmp_path / "restored", provenance={"enabled": False})
    Engine.restore_backup(str(tmp_path / "backup"), spec)
    with Engine.open(spec) as restored:
        assert restored.reader.read(claim_of(restored, id), BLOCK_BYTES, 10) == content(2)[BLOCK_BYTES:][:10]
        assert restored.check(deep=True).problems == ()


def test_a_merge_without_a_descriptor_left_throws_nothing_away(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That a run cannot be opened then says nothing of the run."""
    ids = with_runs(workshop, 4)
    repository = workshop.restart("clean")
    files = repository.spaces.blocks.files._files
    opening = files.open

    def no_descriptor(path: str, *, writable: bool = False) -> object:
        if "/runs/blocks/" in path:
            raise OSError(errno.EMFILE, "Too many open files", path)
        return opening(path, writable=writable)

    monkeypatch.setattr(files, "open", no_descriptor)
    with pytest.raises(OSError, match="Too many open files"):
        merge(repository)
    monkeypatch.undo()

    assert len(runs(repository)) == 4
    assert known(repository, *(claim_of(repository, id) for id in ids)) == [True] * 4


def test_what_waits_to_be_removed_while_a_backup_is_made_is_no_problem(workshop: Workshop, tmp_path: Path) -> None:
    """The backup's own checkpoint leaves the runs that were merged for the next one."""
    with_runs(workshop, 4)
    repository = workshop.repository
    assert merge(repository)
    repository.backup(str(tmp_path / "backup"))
    assert len(run_files(workshop)) == 5

    assert repository.check().problems == ()
    put(repository, 9)
    repository.checkpoint()
    assert len(run_files(workshop)) == 2


def test_checksums_that_were_worked_out_leave_memory_though_nothing_is_committed(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after all runs were lost, when everything is read once."""
    ids = with_runs(workshop, 3)
    for path in run_files(workshop):
        path.unlink()
    workshop.expects_problems = True
    repository = workshop.restart("clean")
    repository.checkpoint()
    for id in ids:
        repository.reader.read(claim_of(repository, id), BLOCK_BYTES, 10)
    monkeypatch.setattr(blockrows, "BYTES_LARGE", 100)
    assert repository.ledger.blocks.is_large

    upkeep = MaintenanceRunner(repository)
    workshop.clock.advance(3_600)
    upkeep.run_due()

    assert len(repository.ledger.blocks) == 0
    assert known(repository, *(claim_of(repository, id) for id in ids)) == [True] * 3
