"""What is alive in a file is read without the ledger's lock, and whatever came in between is seen under it."""

from collections.abc import Callable

import msgspec
import pytest

from tests.support import Workshop, claim_of, committing, content_sizes, drain, entry_of
from ullage.contract import TruncationMode
from ullage.engine.byteranges import Move, pack_moves
from ullage.engine.engine import Engine
from ullage.engine.ledger.ledger import Ledger
from ullage.engine.ledger.placement import pin_bytes
from ullage.engine.ledger.resources import Residents, ResourceEntry
from ullage.engine.ledger.state import SwapContent
from ullage.engine.model import HANDLE_QUEUE, Action, ContentClaim, Delete, FlowFileRecord, Relocation, ResourceClaim
from ullage.engine.reclaim.execute import UNKNOWN
from ullage.engine.reclaim.liveness import TRIES, LivenessScanner, covers
from ullage.engine.reclaim.plan import ReclamationPlan
from ullage.errors import RepositoryDamaged

KB = 1024
MB = 1 << 20


@pytest.fixture
def repository(workshop: Workshop) -> Engine:
    return workshop.make(truncation={"mode": TruncationMode.EAGER}, archive={"enabled": False})


def half_dead(repository: Engine) -> list[FlowFileRecord]:
    """A sealed file whose second half is dead, and its first but for a hole in the middle; what lives."""
    with committing(repository) as session:
        first = session.ingest("keep", [b"1" * (16 * KB)])
        session.ingest("drop", [b"2" * (16 * KB)])
        last = session.ingest("keep", [b"3" * (16 * KB)])
        session.ingest("drop", [b"4" * (2 * MB)])
    repository.queues.drop(repository.queue("drop"))
    return [*first, *last]


def plan_of(repository: Engine, action: Action) -> ReclamationPlan:
    if action == Action.TRUNCATE:
        return repository.reclamation.plan_truncation(eager=True)
    return repository.compactor.plan(policy="CompactAll", actions=frozenset({action}))


def scanner_of(repository: Engine) -> LivenessScanner:
    return LivenessScanner(repository.ledger, repository.swap_files.read, repository.spaces.claims.difference)


def when_read(monkeypatch: pytest.MonkeyPatch, do: Callable[[ResourceEntry], None]) -> None:
    """Have something done right after claims were read, before anybody uses them."""
    read = ResourceEntry.residents

    def reading(entry: ResourceEntry) -> Residents:
        found = read(entry)
        do(entry)
        return found

    monkeypatch.setattr(ResourceEntry, "residents", reading)


@pytest.mark.parametrize("action", [Action.TRUNCATE, Action.PUNCH, Action.REWRITE])
def test_a_file_whose_claims_do_not_add_up_to_their_total_is_left(
    workshop: Workshop, repository: Engine, action: Action
) -> None:
    """Totals choose, and authorise nothing: nobody can say what of the file is dead."""
    kept = half_dead(repository)
    plan = plan_of(repository, action)
    before = content_sizes(workshop.path)
    entry = entry_of(repository, kept[0])
    entry.live_bytes += 1

    report = repository.compactor.execute(plan, bytes_per_second=0)

    index = entry.claim.index
    assert [(left.resource, left.reason) for left in report.left] == [(index, UNKNOWN)]
    assert [problem for problem in report.problems if f"resource claim {index}" in problem]
    assert any(f"resource claim {index}" in problem for problem in repository.check().problems)
    assert (report.freed_bytes, content_sizes(workshop.path)) == (0, before)
    entry.live_bytes -= 1
    repository.ledger.forget_changed()
    assert repository.compactor.execute(plan, bytes_per_second=0).freed_bytes > 0
    assert [content[:1] for content in drain(repository, "keep")] == [b"1", b"3"]


@pytest.mark.parametrize("action", [Action.TRUNCATE, Action.PUNCH, Action.REWRITE])
def test_no_claim_is_read_under_the_lock(repository: Engine, monkeypatch: pytest.MonkeyPatch, action: Action) -> None:
    """As long as nothing changes the file: surveys, plans and what they change wait for it, and commits do not."""
    half_dead(repository)
    held: list[bool] = []
    when_read(monkeypatch, lambda _: held.append(repository.ledger.lock.locked()))

    repository.reclamation.survey()
    report = repository.compactor.execute(plan_of(repository, action), bytes_per_second=0)

    assert report.done[action] == 1
    assert held
    assert not any(held)


def test_what_is_pinned_while_claims_are_read_is_seen(repository: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read again."""
    kept = half_dead(repository)
    entry = entry_of(repository, kept[0])
    dead = ContentClaim(entry.claim.index, 16 * KB, 16 * KB, 0)
    pins = [dead]

    def pin(_: ResourceEntry) -> None:
        if pins:
            pin_bytes(repository.ledger, pins.pop())

    when_read(monkeypatch, pin)

    liveness = scanner_of(repository).examine(entry.claim.index)

    assert liveness is not None
    assert dead.offset in liveness.births[entry.claim.index]
    repository.ledger.unpin([dead])


def test_a_file_that_never_rests_is_examined_all_the_same(repository: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """After some tries the lock is held for one."""
    kept = half_dead(repository)
    entry = entry_of(repository, kept[0])
    reads: list[bool] = []

    def change(_: ResourceEntry) -> None:
        reads.append(repository.ledger.lock.locked())
        if not reads[-1]:
            repository.ledger.pin([claim_of(kept[0])])
            repository.ledger.unpin([claim_of(kept[0])])

    when_read(monkeypatch, change)

    liveness = scanner_of(repository).examine(entry.claim.index)

    assert liveness is not None
    assert [survivor.offset for survivor in liveness.survivors] == [0, 32 * KB]
    assert reads == [False] * TRIES + [True]


def test_what_came_to_life_since_is_not_covered_and_a_death_changes_nothing(repository: Engine) -> None:
    """A change alone spoils nothing that was found; a new claim in use does."""
    kept = half_dead(repository)
    entry = entry_of(repository, kept[0])
    liveness = scanner_of(repository).examine(entry.claim.index)
    assert liveness is not None
    dead = ContentClaim(entry.claim.index, 16 * KB, 16 * KB, 0)

    assert covers(repository.ledger, entry, liveness)
    with committing(repository) as session:
        session.remove_many(session.get_many("keep", 1))
    assert covers(repository.ledger, entry, liveness)
    pin_bytes(repository.ledger, dead)
    assert not covers(repository.ledger, entry, liveness)
    repository.ledger.unpin([dead])
    assert covers(repository.ledger, entry, liveness)


@pytest.mark.parametrize("pinned", [False, True])
def test_a_tail_that_is_pinned_under_a_plan_is_not_cut(workshop: Workshop, repository: Engine, *, pinned: bool) -> None:
    """Between the look at the claims and the promise, too."""
    kept = half_dead(repository)
    plan = plan_of(repository, Action.TRUNCATE)
    entry = entry_of(repository, kept[0])
    tail = ContentClaim(entry.claim.index, 48 * KB, 2 * MB, 0)
    if pinned:
        pin_bytes(repository.ledger, tail)

    report = repository.reclamation.execute(plan)

    assert report.done[Action.TRUNCATE] == (not pinned)
    assert (sum(content_sizes(workshop.path).values()) > 2 * MB) == pinned
    if pinned:
        repository.ledger.unpin([tail])


@pytest.mark.parametrize("count", [1, 2])
def test_a_tail_that_comes_to_life_under_a_plan_is_not_cut(
    workshop: Workshop, repository: Engine, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """While the claims of its file are read, or after that those of the next file."""
    (kept, *_) = [half_dead(repository)[0] for _ in range(count)]
    plan = plan_of(repository, Action.TRUNCATE)
    read: list[int] = []

    def replay(entry: ResourceEntry) -> None:
        read.append(entry.claim.index)
        if len(read) == count:
            tail = ContentClaim(read[0], 48 * KB, 2 * MB, 0)
            replayed = msgspec.structs.replace(kept, uuid=bytes(16), queue=HANDLE_QUEUE, claim=tail)
            repository.ledger.apply(0, 0, [replayed])

    when_read(monkeypatch, replay)

    report = repository.reclamation.execute(plan)

    assert (report.skipped, report.done.total()) == (1, count - 1)
    assert sum(content_sizes(workshop.path).values()) > 2 * MB
    repository.ledger.apply(0, 0, [Delete(bytes(16))])


def test_a_claim_that_a_move_has_left_behind_keeps_everything(repository: Engine) -> None:
    """What is known to live, and lies nowhere, is dead to nobody."""
    (kept, *_) = half_dead(repository)
    claim = claim_of(kept)
    output = ResourceClaim(claim.resource + 1_000, "c1", 1, length=4 * KB, sealed=True)
    moves = pack_moves([Move(32 * KB, 4 * KB, 0)])
    ledger = Ledger(lambda _: SwapContent([]))
    ledger.load([entry_of(repository, kept).claim, output, kept, Relocation(claim.resource, output.index, moves)])
    scanner = LivenessScanner(ledger, lambda _: SwapContent([]), lambda _: "")

    with pytest.raises(RepositoryDamaged, match="content at offset 0 was not"):
        scanner.examine(output.index)
