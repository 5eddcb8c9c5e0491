"""What handles in runs keep alive is counted by resource claim, and the count is right whatever becomes of them."""

from functools import partial
from typing import Any

import pytest

from tests.engine.test_cold_handles import cool, merge, put, run_files, seal
from tests.engine.test_damaged_handles import damage
from tests.failing_files import FailingFiles
from tests.support import Workshop
from ullage.engine.engine import Engine
from ullage.engine.ledger.coldshares import ColdShare
from ullage.engine.model import ContentClaim, parse_uuid


def counted(repository: Engine) -> dict[int, ColdShare]:
    shares = repository.ledger.cold.shares.moment()
    assert shares is not None, "some are not counted yet"
    return dict(shares)


def there(repository: Engine) -> dict[int, ColdShare]:
    """The same from the handles themselves."""
    claims: dict[int, list[ContentClaim]] = {}
    for part in repository.ledger.cold.freeze().parts:
        for record in part.records():
            assert record.claim is not None
            claims.setdefault(record.claim.resource, []).append(record.claim)
    return {
        resource: ColdShare(len(held), sum(claim.length for claim in held), max(claim.end for claim in held))
        for resource, held in claims.items()
    }


def claimants(repository: Engine) -> int:
    return sum(share.claimants for share in counted(repository).values())


def test_the_share_of_a_file_follows_its_handles(workshop: Workshop) -> None:
    """They leave memory, come back, end, and leave again, in runs that become one meanwhile; a start finds the same."""
    repository = workshop.make(compaction={"deleted_retention": 0})
    ids: list[str] = []
    for number in range(6):
        ids += put(repository, 1_000 * number, 30)
        cool(repository)
        assert counted(repository) == there(repository)
    assert claimants(repository) == 180
    assert repository.spaces.handles.merge_step(1)
    gone = ids[::3]
    repository.handles.forget([parse_uuid(id) for id in gone], "not needed")
    repository.handles.set_ttl(ids[1], 3_600_000)
    assert claimants(repository) == 180 - len(gone) - 1
    merge(repository)
    assert len(run_files(workshop)) == 1
    for how in ("none", "crash", "clean"):
        repository = workshop.restart(how)
        assert claimants(repository) == 180 - len(gone) - 1
        assert counted(repository).keys() == there(repository).keys()
        assert repository.check().problems == ()
    repository.handles.forget([parse_uuid(id) for id in ids if id not in gone], "not needed")
    assert counted(repository) == {}


def test_a_share_does_not_fall_below_the_last_claim_that_is_left(workshop: Workshop) -> None:
    """Its end stays where it was until the last handle leaves: it is never too near."""
    repository = workshop.make()
    ids = put(repository, 0, 3)
    cool(repository)
    ((resource, before),) = counted(repository).items()
    last = max(ids, key=partial(end_of, repository))
    repository.handles.delete(last)
    after = counted(repository)[resource]
    assert (after.claimants, after.claimed_bytes, after.end) == (2, before.claimed_bytes - len(ids[last]), before.end)
    assert repository.check().problems == ()


def end_of(repository: Engine, id: str) -> int:
    record = repository.ledger.find_any(parse_uuid(id))
    assert record is not None
    assert record.claim is not None
    return record.claim.end


def test_handles_that_stay_in_memory_are_not_counted(workshop: Workshop) -> None:
    """Those with an end, and those that change while their run is written; while some are leaving nobody compares."""
    repository = workshop.make()
    ids = list(put(repository, 0, 100))
    repository.handles.put_many([b"ends"] * 10, ttl_millis=3_600_000)
    seal(repository)
    repository.spaces.handles.rows_min = 1
    repository.ledger.records.pack(0)
    published, let_go = repository.spaces.handles.published, repository.ledger.records.let_go
    compared: list[bool] = []

    def changed_first() -> None:
        for id in ids[:7]:
            repository.handles.set_ttl(id, 3_600_000)
        published()

    def seen(*leaving: Any) -> None:
        let_go(*leaving)
        compared.append(repository.ledger.cold.shares.moment() is not None)

    repository.spaces.handles.published = changed_first  # type: ignore[method-assign]
    repository.ledger.records.let_go = seen  # type: ignore[assignment, method-assign]
    repository.checkpoint()
    assert set(compared) == {False}
    assert claimants(repository) == 93
    assert counted(repository) == there(repository)
    assert repository.check().problems == ()


def test_a_run_whose_snapshot_is_not_published_counts_for_nothing(workshop: Workshop, files: FailingFiles) -> None:
    """Its handles are in memory still, and rest with the next one."""
    repository = workshop.make(files)
    put(repository, 0, 20)
    fault = files.fail("rename", "*/snapshot")
    with pytest.raises(OSError, match="Input/output"):
        cool(repository)
    assert fault.seen
    assert counted(repository) == {}
    cool(repository)
    assert claimants(repository) == 20


def test_a_check_says_where_a_share_is_wrong(workshop: Workshop) -> None:
    """Each of the three figures; where blocks cannot be read nobody can say."""
    repository = workshop.make()
    put(repository, 0, 20)
    seal(repository)
    cool(repository)
    shares = repository.ledger.cold.shares
    ((resource, share),) = counted(repository).items()
    for more in ([1, 0, 0], [0, 1, 0], [-1, 0, 0]):
        shares.settle({resource: list(more)})
        (problem,) = repository.check().problems
        assert f"resource claim {resource}: {20 + more[0]} handles in runs are counted" in problem
        shares.settle({resource: [-each for each in more]})
    shares._shares[resource] = ColdShare(share.claimants, share.claimed_bytes, share.end - 1)
    (problem,) = repository.check().problems
    assert f"up to {share.end - 1}; there are" in problem
    workshop.expects_problems = True
    damage(workshop)
    assert not [each for each in repository.check(deep=True).problems if "handles in runs" in each]
