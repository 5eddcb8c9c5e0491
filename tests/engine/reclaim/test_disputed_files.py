"""A file of which handles in runs claim something else than memory knows is left as it is, and told of."""

from collections.abc import Callable

import pytest

from tests.engine.reclaim.test_liveness import when_read
from tests.engine.test_cold_handles import cool, put, require, seal
from tests.engine.test_cold_shares import counted
from tests.support import Workshop, claim_of, content_sizes, flip
from ullage.contract import TruncationMode
from ullage.engine.byteranges import ByteRange
from ullage.engine.engine import Engine
from ullage.engine.ledger.claimruns import LOOKS
from ullage.engine.ledger.resources import ResourceEntry
from ullage.engine.model import Action, ContentClaim, parse_uuid
from ullage.engine.reclaim.execute import UNKNOWN
from ullage.engine.reclaim.plan import ReclamationPlan, ReclamationStep
from ullage.errors import RepositoryDamaged

KB = 1024
CONTENTS = 24


def claims_by_id(repository: Engine, ids: dict[str, bytes]) -> dict[str, ContentClaim]:
    """In the order of their places."""
    found: list[tuple[int, str, ContentClaim]] = []
    for id in ids:
        record = repository.ledger.find_any(parse_uuid(id))
        assert record is not None
        found.append((claim_of(record).offset, id, claim_of(record)))
    return {id: claim for _, id, claim in sorted(found)}


def the_entry(repository: Engine) -> ResourceEntry:
    """Of the one file that there is in use of by handles in runs."""
    (index,) = counted(repository)
    entry = repository.ledger.entry(index)
    assert entry is not None
    return entry


def step_of(entry: ResourceEntry, action: Action, dead: list[ContentClaim]) -> ReclamationStep:
    claim = entry.claim
    holes = (ByteRange(dead[0].offset, dead[-1].end - dead[0].offset),)
    return ReclamationStep(action, claim.index, claim.container, claim.generation, dead[0].offset, 1, holes=holes)


DEAD = {
    Action.DELETE: slice(None),
    Action.ARCHIVE: slice(None),
    Action.TRUNCATE: slice(6, None),
    Action.PUNCH: slice(6, 20),
    Action.REWRITE: slice(6, 20),
}


@pytest.mark.parametrize("action", DEAD)
def test_what_a_handle_in_a_run_claims_is_not_given_back(workshop: Workshop, action: Action) -> None:
    """Though memory has lost it; after a start, which counts all anew, it is there, and given back once it is dead."""
    repository = workshop.make(truncation={"mode": TruncationMode.EAGER}, compaction={"deleted_retention": 0})
    contents = [bytes([number]) * (100 * KB) for number in range(CONTENTS)]
    ids = dict(zip(repository.handles.put_many(contents), contents, strict=True))
    seal(repository)
    cool(repository)
    claims = claims_by_id(repository, ids)
    gone = [*claims][DEAD[action]]
    dead = [claims[id] for id in gone]
    before = content_sizes(workshop.path)
    entry = the_entry(repository)
    for claim in dead:
        entry.remove(claim)

    report = repository.compactor.execute(ReclamationPlan((step_of(entry, action, dead),)), bytes_per_second=0)

    index = entry.claim.index
    assert [(left.resource, left.reason) for left in report.left] == [(index, UNKNOWN)]
    (said,) = report.problems
    assert f"resource claim {index}: a handle in a run claims 102400 bytes" in said
    assert said in repository.check().problems
    assert (report.done.total(), content_sizes(workshop.path)) == (0, before)
    workshop.expects_problems = True
    repository = workshop.restart("crash")
    workshop.expects_problems = False
    require(repository, ids)
    assert repository.check(deep=True).problems == ()
    repository.handles.forget([parse_uuid(id) for id in gone], "not needed")
    step = step_of(require_entry(repository, index), action, dead)
    assert repository.compactor.execute(ReclamationPlan((step,)), bytes_per_second=0).done == {action: 1}
    for id in gone:
        del ids[id]
    require(repository, ids, *gone)


def require_entry(repository: Engine, index: int) -> ResourceEntry:
    entry = repository.ledger.entry(index)
    assert entry is not None
    return entry


def difference(repository: Engine) -> str:
    (index,) = counted(repository)
    return repository.spaces.claims.difference(index)


def test_a_share_that_is_not_what_runs_say_holds_back_too(workshop: Workshop) -> None:
    """Whether it is too great or too small; and where nobody seems to need a file of which a handle is counted."""
    repository = workshop.make(compaction={"deleted_retention": 0})
    ids = put(repository, 0, 5)
    cool(repository)
    shares, index = repository.ledger.cold.shares, the_entry(repository).claim.index
    for more in ([1, 0, 0], [0, -1, 0]):
        shares.settle({index: list(more)})
        with pytest.raises(RepositoryDamaged, match="5 handles in runs claim 15 bytes of it, and"):
            repository.reclamation._parts.scanner.require_undisputed(index)
        shares.settle({index: [-each for each in more]})
    assert difference(repository) == ""
    assert repository.check().problems == ()
    repository.handles.forget([parse_uuid(id) for id in ids], "not needed")
    entry = require_entry(repository, index)
    plan = ReclamationPlan((step_of(entry, Action.DELETE, [ContentClaim(index, 0, 15, 0)]),))
    shares.settle({index: [1, 0, 0]})
    repository.reclamation._parts.scanner._difference = lambda _: ""  # as it was before the share was wrong
    report = repository.compactor.execute(plan)
    assert (report.done.total(), report.skipped) == (0, 1)
    shares.settle({index: [-1, 0, 0]})
    assert repository.compactor.execute(plan).done == {Action.DELETE: 1}


def test_handles_that_move_meanwhile_are_no_difference(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some come back and die, others leave for another run; where they do so all the time nobody can tell."""
    repository = workshop.make(compaction={"deleted_retention": 0})
    ids = [parse_uuid(id) for id in put(repository, 0, 12)]
    cool(repository)
    index = the_entry(repository).claim.index
    waiting: list[Callable[[], object]] = []

    def some(_: ResourceEntry) -> None:
        if waiting:
            waiting.pop()()

    def leave() -> None:
        repository.handles.forget([ids.pop()], "not needed")

    def move() -> None:
        put(repository, 1_000, 3)
        cool(repository)

    with monkeypatch.context() as patched:
        when_read(patched, some)
        for meanwhile, is_told in (([leave], False), ([move], False), ([leave, move], False), ([move] * LOOKS, True)):
            waiting[:] = meanwhile
            assert bool(repository.spaces.claims.difference(index)) is is_told
            assert not waiting
    assert repository.spaces.claims.difference(index) == ""
    assert repository.check(deep=True).problems == ()


def test_what_cannot_be_read_beside_a_run_is_no_difference(workshop: Workshop) -> None:
    """Memory has all of it; and what nobody has counted, because it could not be read at a start, is held anyway."""
    repository = workshop.make()
    put(repository, 0)
    cool(repository)
    (claims,) = (workshop.path / "flowfile" / "runs" / "claims").iterdir()
    flip(claims, 40)
    assert difference(repository) == ""
    flip(claims, 40)
    assert difference(repository) == ""
    (handles,) = (workshop.path / "flowfile" / "runs" / "handles").iterdir()
    flip(handles, 40)
    workshop.expects_problems = True
    repository = workshop.restart("crash")
    index = max(entry.claim.index for entry in repository.ledger.entries())
    assert repository.spaces.claims.difference(index) == ""


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_repair_neither_forgets_nor_seals_what_is_disputed(workshop: Workshop, *, is_gone: bool) -> None:
    """It says so instead; who finds file and memory as they were has all of it."""
    repository = workshop.make(compaction={"deleted_retention": 0})
    ids = put(repository, 0, 20)
    cool(repository)
    entry = the_entry(repository)
    for claim in [*claims_by_id(repository, ids).values()][0 if is_gone else 10 :]:
        entry.remove(claim)
    (content,) = workshop.path.glob("c*/*/*-*")
    before = content.read_bytes()
    if is_gone:
        content.unlink()
    else:
        content.write_bytes(before[:-5])
    workshop.expects_problems = True

    plan = repository.repair.plan()

    assert plan.steps == ()
    assert [each for each in plan.report.problems if "a handle in a run claims" in each]
    repository.repair.execute(plan)
    content.write_bytes(before)
    workshop.expects_problems = False
    require(workshop.restart("crash"), ids)
