"""Who claims what of a resource claim is read beside each run of handles, and is what the handles themselves say."""

from collections import defaultdict
from pathlib import Path

import pytest
from msgspec.structs import astuple

from tests.engine.test_cold_handles import cold_of, cool, merge, put, require, run_files
from tests.failing_files import FailingFiles
from tests.support import Workshop, flip, spec_at
from ullage.engine.engine import Engine
from ullage.engine.ledger import claimrows
from ullage.engine.ledger.claimruns import all_claims
from ullage.engine.ledger.coldhandles import ColdPart
from ullage.engine.model import ContentClaim, parse_uuid
from ullage.engine.runs.rows import BlockDamaged


def parts_of(repository: Engine) -> list[ColdPart]:
    return repository.ledger.cold.freeze().parts


def told(repository: Engine) -> dict[int, list[ContentClaim]]:
    """By resource claim: what runs of claims say."""
    claims = repository.spaces.claims
    found = {
        index: [claim for part in parts_of(repository) for claim in claims.living(part, index)]
        for index in range(1, repository.ledger.index_ceiling)
    }
    return {index: sorted(each, key=astuple) for index, each in found.items() if each}


def there(repository: Engine) -> dict[int, list[ContentClaim]]:
    """The same from the handles."""
    found: dict[int, list[ContentClaim]] = defaultdict(list)
    for part in parts_of(repository):
        for record in part.records():
            if record.claim is not None:
                found[record.claim.resource].append(record.claim)
    return {index: sorted(each, key=astuple) for index, each in found.items()}


def claim_files(workshop: Workshop) -> list[Path]:
    folder = workshop.path / "flowfile" / "runs" / "claims"
    return sorted(folder.iterdir()) if folder.exists() else []


def names(files: list[Path]) -> list[str]:
    return [file.name for file in files]


@pytest.mark.parametrize("segment_rows", [1 << 20, 32])
def test_what_is_told_follows_the_handles(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, segment_rows: int
) -> None:
    """They come, share a content, leave, rest again, in runs that become one; a start finds the same."""
    monkeypatch.setattr(claimrows, "SEGMENT_ROWS", segment_rows)
    repository = workshop.make(compaction={"deleted_retention": 0})
    ids: list[str] = []
    for number in range(5):
        ids += [*put(repository, 1_000 * number, 40), repository.handles.put(b"")]
        cool(repository)
        assert told(repository) == there(repository)
        assert names(claim_files(workshop)) == names(run_files(workshop))
    assert sum(map(len, told(repository).values())) == 200
    repository.handles.forget([parse_uuid(id) for id in ids[::3]], "not needed")
    repository.handles.set_ttl(ids[1], 3_600_000)
    assert told(repository) == there(repository)
    assert repository.spaces.handles.merge_step(1)
    repository.handles.forget([parse_uuid(ids[2])], "not needed")
    merge(repository)
    assert len(run_files(workshop)) == 1
    assert names(claim_files(workshop)) == names(run_files(workshop))
    for how in ("none", "crash", "clean"):
        repository = workshop.restart(how)
        assert told(repository) == there(repository)
        assert repository.check(deep=True).problems == ()
    repository.handles.forget([record.uuid for record in repository.ledger.everything()], "not needed")
    repository.checkpoint()
    assert claim_files(workshop) == run_files(workshop) == []


def test_a_damaged_block_leaves_its_range_unknown_until_its_handles_are_written_anew(workshop: Workshop) -> None:
    """Nobody loses a handle by it, and nobody has to do anything."""
    repository = workshop.make()
    ids = put(repository, 0)
    cool(repository)
    wanted = there(repository)
    flip(claim_files(workshop)[0], 40)
    with pytest.raises(BlockDamaged, match="block 0"):
        told(repository)
    require(repository, ids)
    workshop.expects_problems = True
    (problem,) = repository.check(deep=True).problems
    assert "written anew" in problem
    assert repository.set_aside.count == 0

    merge(repository)
    workshop.expects_problems = False
    assert repository.check(deep=True).problems == ()
    assert told(repository) == wanted
    require(workshop.restart("crash"), ids)


@pytest.mark.parametrize("how", ["head", "lost", "other"])
def test_a_run_of_claims_that_cannot_be_read_is_made_anew(workshop: Workshop, how: str) -> None:
    """A start goes on without it."""
    repository = workshop.make()
    ids = put(repository, 0)
    cool(repository)
    (old,) = claim_files(workshop)
    wanted = there(repository)
    workshop.close()
    if how == "head":
        flip(old, old.stat().st_size - 30)
    elif how == "lost":
        old.unlink()
    else:
        old.write_bytes((run_files(workshop)[0]).read_bytes())
    workshop.expects_problems = True
    repository = workshop.open()
    assert cold_of(repository) == len(ids)
    with pytest.raises(BlockDamaged):
        told(repository)
    assert len(repository.check().problems) == 1
    merge(repository)
    workshop.expects_problems = False
    assert repository.check(deep=True).problems == ()
    assert told(repository) == wanted
    assert old not in claim_files(workshop)


def test_a_whole_run_of_claims_that_says_something_else_is_found(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a deep check, which compares it with the handles; then both are written anew."""
    repository = workshop.make()
    put(repository, 0)
    taken = claimrows.ClaimRowsWriter.take
    with monkeypatch.context() as patched:
        patched.setattr(
            claimrows.ClaimRowsWriter, "take", lambda self, claim: taken(self, claim and (*claim[:3], claim[3] ^ 1))
        )
        cool(repository)
    assert repository.check().problems == ()
    workshop.expects_problems = True
    (problem,) = repository.check(deep=True).problems
    assert "does not say what" in problem
    merge(repository)
    workshop.expects_problems = False
    assert repository.check(deep=True).problems == ()
    assert told(repository) == there(repository)


def test_one_without_the_other_is_nothing(workshop: Workshop, files: FailingFiles) -> None:
    """Whichever of the two fails last: the handles are where they were, and nothing lies there that nobody lists."""
    repository = workshop.make(files)
    ids = put(repository, 0)
    for space in ("handles", "claims"):
        fault = files.fail("sync", f"*/{space}/*.run")
        with pytest.raises(OSError, match="Input/output"):
            cool(repository)
        assert fault.seen
        assert claim_files(workshop) == run_files(workshop) == []
    cool(repository)
    assert names(claim_files(workshop)) == names(run_files(workshop)) != []
    require(repository, ids)


def test_what_a_person_gave_up_claims_nothing(workshop: Workshop) -> None:
    """Whether a block of handles, or all of them."""
    repository = workshop.make()
    put(repository, 0)
    cool(repository)
    workshop.expects_problems = True
    flip(run_files(workshop)[0], 40)
    repository.check(deep=True)
    (listed,) = repository.set_aside.listed(10)
    before = sum(map(len, told(repository).values()))
    repository.set_aside.drop([listed.id], "somebody")
    found = there(repository)
    assert told(repository) == found
    assert sum(map(len, found.values())) < before == 300
    workshop.expects_problems = False
    assert repository.check(deep=True).problems == ()


def test_a_backup_has_runs_of_claims_and_does_without_one(workshop: Workshop, tmp_path: Path) -> None:
    """Where one is lost the repository that is made of it writes it anew."""
    repository = workshop.make()
    ids = put(repository, 0)
    cool(repository)
    wanted = there(repository)
    repository.backup(str(tmp_path / "backup"))
    claim_files(workshop)[0].unlink()
    lost = tmp_path / "lost"
    workshop.expects_problems = True
    repository = workshop.restart("clean")
    repository.backup(str(lost))
    for place, are_there in ((tmp_path / "backup", True), (lost, False)):
        spec = spec_at(tmp_path / f"from {place.name}")
        Engine.restore_backup(str(place), spec)
        with Engine.open(spec, clock=workshop.clock) as again:
            assert (again.check(deep=True).problems == ()) is are_there
            merge(again)
            assert told(again) == wanted
            assert again.check(deep=True).problems == ()
            require(again, ids)
    merge(repository)
    workshop.expects_problems = False


def test_all_of_a_run_of_claims_is_read_or_refused(workshop: Workshop) -> None:
    """Its last row says how many there are."""
    repository = workshop.make()
    put(repository, 0)
    cool(repository)
    (part,) = parts_of(repository)
    beside = part.run.claims
    assert beside is not None
    assert beside.run is not None
    blocks = [beside.run.block(number) for number in range(len(beside.run))]
    found = sorted(all_claims(blocks))
    assert [each.row for each in found] == [*range(300)]
    assert [ContentClaim(*each.claim) for each in found] == [record.claim for record in part.records()]
    for others in (blocks[:-1], blocks[1:], []):
        with pytest.raises(ValueError, match=r"last row|were written"):
            list(all_claims(others))
