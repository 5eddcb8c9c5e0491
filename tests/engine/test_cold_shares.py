"""What handles in runs keep alive is counted by resource claim, and the count is right whatever becomes of them."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest

from tests.engine.test_cold_handles import cool, merge, put, run_files, seal
from tests.engine.test_damaged_handles import damage
from tests.failing_files import FailingFiles
from tests.support import Workshop, entry_of
from ullage.engine.engine import Engine
from ullage.engine.ledger import coldshares, handleruns
from ullage.engine.ledger.coldshares import SHARE_SHARDS, ColdShare, packed_shares, shares_of
from ullage.engine.ledger.view import LedgerView
from ullage.engine.model import ContentClaim, Operation, RestingShares, Update, parse_uuid


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
    at_first: list[int] = []
    shares = repository.ledger.cold.shares
    record = repository.ledger.find_any(parse_uuid(ids[0]))
    assert record is not None
    entry = entry_of(repository, record)
    resource = entry.claim.index

    def changed_first() -> None:
        for id in ids[:7]:
            repository.handles.set_ttl(id, 3_600_000)
        published()

    def seen(*leaving: Any) -> None:
        at_first.append(shares.of(resource).claimants)
        let_go(*leaving)
        compared.append(repository.ledger.cold.shares.moment() is not None)

    repository.spaces.handles.published = changed_first  # type: ignore[method-assign]
    repository.ledger.records.let_go = seen  # type: ignore[assignment, method-assign]
    before = entry.version
    repository.checkpoint()
    assert set(compared) == {False}
    assert at_first[0] == 100  # nobody's file looks unneeded while they leave
    assert claimants(repository) == 93
    assert entry.version > before
    before = entry.version
    with repository.ledger.staying([parse_uuid(ids[-1])]):
        assert (claimants(repository), entry.version > before) == (92, True)
    cool(repository)
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
    shares._shards[resource % SHARE_SHARDS][resource] = ColdShare(share.claimants, share.claimed_bytes, share.end - 1)
    (problem,) = repository.check().problems
    assert f"up to {share.end - 1}; there are" in problem
    workshop.expects_problems = True
    damage(workshop)
    assert not [each for each in repository.check(deep=True).problems if "handles in runs" in each]


def test_a_snapshot_says_what_they_keep_alive_as_of_its_moment(workshop: Workshop) -> None:
    """Also of handles that it moves into a run, and whatever leaves while it is written; a start comes to the same."""
    repository = workshop.make()
    ids = [*put(repository, 0, 30), *put(repository, 1_000, 30)]
    cool(repository)
    before = there(repository)
    ids += put(repository, 2_000, 30)
    repository.ledger.records.pack(0)
    written = repository.spaces.handles.written
    said: list[RestingShares] = []

    def changing(view: LedgerView) -> Iterator[Sequence[Operation]]:
        repository.handles.set_ttl(ids[0], 3_600_000)
        for block in written(view):
            said.extend(each for each in block if isinstance(each, RestingShares))
            yield block
            if said:
                repository.handles.set_ttl(ids[len(said)], 3_600_000)

    repository.spaces.handles.written = changing  # type: ignore[method-assign]
    repository.checkpoint()
    runs = {run.number for run in repository.ledger.runs_of("handles")}
    shares = shares_of(said, runs)
    assert shares is not None
    found = dict(shares.shares)
    assert {resource: found.pop(resource) for resource in before} == before
    assert [share.claimants for share in found.values()] == [30]
    for part, others in ((said[:-1], runs), (said[1:], runs), (said, runs | {99}), (said, {min(runs)})):
        assert shares_of(part, others) is None
    assert claimants(repository) < 90
    for how in ("crash", "clean"):
        assert workshop.restart(how).check(deep=True).problems == ()


def test_a_snapshot_whose_totals_are_wrong_is_told_of_until_the_next(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the handles say counts, of files that are named wrong and of those that are not named."""
    repository = workshop.make()
    put(repository, 0, 30)
    put(repository, 1_000, 30)
    wrongs: list[Callable[[dict[int, ColdShare]], dict[int, ColdShare]]] = [
        lambda shares: {resource: ColdShare(1, 2, 3) for resource in shares},
        lambda shares: {resource: share for resource, share in shares.items() if resource != min(there(repository))},
    ]
    for wrong in wrongs:
        with monkeypatch.context() as patched:
            patched.setattr(coldshares, "packed_shares", lambda shares, wrong=wrong: packed_shares(wrong(shares)))
            cool(repository)
        repository = workshop.restart("clean")
        workshop.expects_problems = True
        problems = repository.check().problems
        assert problems
        assert all("the snapshot of the last start is wrong" in each for each in problems)
        assert counted(repository) == there(repository)
        repository.checkpoint()
        assert repository.check().problems == ()
        workshop.expects_problems = False


@pytest.mark.parametrize("how", ["said", "not said", "too low"])
def test_no_place_is_given_twice_that_a_handle_in_a_run_has(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A start takes the last place from the snapshot, though its block cannot be read; else from the runs."""
    repository = workshop.make()
    ids = sorted(map(parse_uuid, put(repository, 0, 300)), reverse=True)
    first = repository.queues.take_positions(300) + (1 << 40)  # as of a clock that was ahead
    repository.committer.commit([Update(uuid, queued=first + at) for at, uuid in enumerate(ids)], creates=False)
    with monkeypatch.context() as patched:
        if how == "not said":
            patched.setattr(handleruns, "listed_shares", lambda *_: iter(()))
        elif how == "too low":
            patched.setattr(handleruns, "RestingShares", lambda queued, runs: RestingShares(queued=1, runs=runs))
        cool(repository)
    if how == "said":
        damage(workshop)
    workshop.expects_problems = how != "not said"
    repository = workshop.restart("clean")
    assert repository.ledger.cold.queued_max == first + 299
    assert repository.queues.take_positions(1) > repository.ledger.cold.queued_max
    wrong = [each for each in repository.check().problems if "is said to be the last" in each]
    assert len(wrong) == (how == "too low")


def test_totals_of_what_cannot_be_read_are_not_said(workshop: Workshop) -> None:
    """Nor compared: nobody has counted all of it."""
    repository = workshop.make()
    ids = put(repository, 0, 300)
    cool(repository)
    damage(workshop)
    workshop.expects_problems = True
    for _ in range(2):
        repository = workshop.restart("clean")
        assert not [each for each in repository.check().problems if "of the last start" in each]
        repository.handles.set_ttl(max(ids), 3_600_000)
        repository.checkpoint()
