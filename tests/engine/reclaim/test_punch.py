"""Punching: dead middles come back without a byte being copied."""

import errno
import random
from typing import Any

import pytest

from tests.failing_files import FailingFiles
from tests.support import RoomyFiles, Workshop, claim_of, committing, drain
from ullage.contract import CompactionTrigger, PunchSettings, Quantity
from ullage.engine.engine import Engine
from ullage.engine.model import Action, ContentClaim
from ullage.engine.reclaim.plan import ReclamationPlan
from ullage.errors import ContentReclaimed

KB = 1024
MB = 1 << 20
CLAIMS = {"max_appendable_size": Quantity(64 * MB)}
PLAIN: dict[str, Any] = {"claims": CLAIMS, "archive": {"enabled": False}}
EXTENTS = 4 * KB
"""A file of more than four pieces takes one more block on ext4, for the list of them."""

PUNCH_ONLY = frozenset({Action.PUNCH})


class NoHoles(RoomyFiles):
    """A filesystem that has no holes, and says so."""

    def can_punch(self, directory: str) -> bool:
        return False


def fill(repository: Engine) -> tuple[list[bytes], list[ContentClaim]]:
    """One sealed file of pieces of 600 KB, with dead runs of 1.2 MB; what lives, and the claims that died."""
    chooser = random.Random(1)
    kept = []
    with committing(repository) as session:
        for number in range(12):
            data = chooser.randbytes(600 * KB + number)
            queue = "keep" if number % 3 == 0 else "drop"
            kept += [data] if queue == "keep" else []
            session.transfer(session.write(session.create(), data), queue)
        session.transfer(session.write(session.create(), chooser.randbytes(2 * MB)), "end")
    number = repository.queue("drop").number
    dead = [claim_of(record) for record in repository.ledger.flow_files() if record.queue == number]
    repository.queues.drop(repository.queue("drop"))
    return kept, dead


def allocated(workshop: Workshop) -> int:
    return sum(path.stat().st_blocks * 512 for path in workshop.path.glob("c1/*/*-*"))


def plan_of(repository: Engine) -> ReclamationPlan:
    return repository.compactor.plan(policy="CompactAll", actions=PUNCH_ONLY)


@pytest.mark.parametrize("restart", ["none", "clean", "crash"])
def test_holes_give_blocks_back_and_live_content_reads(workshop: Workshop, restart: str) -> None:
    """What the report calls freed is what the filesystem says; the file keeps its length, and what lives reads."""
    repository = workshop.make(**PLAIN)
    kept, _ = fill(repository)
    before = allocated(workshop)

    plan = plan_of(repository)
    report = repository.reclamation.execute(plan)
    freed = before - allocated(workshop)
    disk = repository.reclamation.survey().containers[0].disk_bytes
    repository = workshop.restart(restart)

    assert [step.action for step in plan.steps] == [Action.PUNCH]
    assert report.freed_bytes == plan.frees_bytes > 4 * MB
    assert abs(report.freed_bytes - freed) <= EXTENTS
    assert abs(disk - allocated(workshop)) <= EXTENTS
    assert repository.reclamation.survey().containers[0].disk_bytes == disk
    assert plan_of(repository).steps == ()
    assert drain(repository, "keep") == kept


def test_a_hole_that_is_refused_leaves_the_file_as_it_is(workshop: Workshop, files: FailingFiles) -> None:
    """A filesystem whose first hole tells that it has none; what lives still reads."""
    repository = workshop.make(**PLAIN)
    kept, _ = fill(repository)
    files.fail("punch", error=errno.EOPNOTSUPP, times=1_000)

    report = repository.reclamation.execute(plan_of(repository))

    assert (report.freed_bytes, report.problems) == (0, [])
    assert drain(repository, "keep") == kept


def test_a_proof_passes_over_what_was_given_back_since_it_began(workshop: Workshop) -> None:
    """It is no damage, and what comes behind it is proved."""
    repository = workshop.make(**PLAIN)
    _, dead = fill(repository)
    live = [claim_of(record) for record in repository.ledger.flow_files()]
    repository.reclamation.execute(plan_of(repository))

    found = list(repository.reader.proved([*dead, *live]))

    assert [claim for _, claim in found if claim is not None] == []
    assert sum(count for count, _ in found) == sum(claim.length for claim in live)


def test_a_dead_address_in_a_hole_is_reclaimed_and_not_corrupt(workshop: Workshop) -> None:
    """Whoever kept an address of what was punched away learns that it was given back, and by which transaction."""
    repository = workshop.make(**PLAIN)
    _, dead = fill(repository)
    repository.reclamation.execute(plan_of(repository))

    for claim in dead:
        with pytest.raises(ContentReclaimed) as caught:
            repository.reader.read(claim, 0, 10)
        assert caught.value.transaction > 0


def test_a_filesystem_without_holes_is_named_and_rewritten(workshop: Workshop) -> None:
    """Where punching is impossible the plan says so, and rewrites instead."""
    repository = workshop.make(NoHoles(), **PLAIN)
    kept, _ = fill(repository)
    plan = repository.compactor.plan()

    repository.compactor.execute(plan, bytes_per_second=0)

    assert {step.action for step in plan.steps} == {Action.REWRITE}
    assert any("cannot punch" in note for note in plan.notes)
    assert drain(repository, "keep") == kept


@pytest.mark.parametrize(
    ("punch", "holes"),
    [
        (PunchSettings(), 4),
        (PunchSettings(max_holes_per_file=2), 2),
        (PunchSettings(min_run=Quantity(2 * MB)), 0),
        (PunchSettings(enabled=False), 0),
    ],
)
def test_the_settings_bound_the_holes(workshop: Workshop, punch: PunchSettings, holes: int) -> None:
    """Shorter runs and further holes are left to a rewrite."""
    repository = workshop.make(**PLAIN, compaction={"punch": punch})
    fill(repository)

    assert sum(len(step.holes) for step in plan_of(repository).steps) == holes


def test_a_claim_pinned_after_the_plan_is_not_punched(workshop: Workshop) -> None:
    """The executor derives the holes again; it does at most what the plan named."""
    repository = workshop.make(**PLAIN)
    fill(repository)
    plan = plan_of(repository)
    (step,) = plan.steps
    hole = step.holes[0]
    (entry,) = [e for e in repository.ledger.entries() if e.claim.index == step.resource]
    pinned = ContentClaim(step.resource, hole.offset, hole.length, 0)
    entry.pin([pinned])

    report = repository.reclamation.execute(plan)
    entry.unpin([pinned])

    assert report.freed_bytes == plan.frees_bytes - hole.length


def test_a_periodic_run_keeps_its_guards(workshop: Workshop) -> None:
    """Below minUsedPercentage nothing is punched or rewritten on its own; a person may."""
    repository = workshop.make(**PLAIN)
    fill(repository)
    compactor = repository.compactor

    periodic = compactor.run(CompactionTrigger.PERIODIC)
    admin = compactor.run(CompactionTrigger.ADMIN)

    assert periodic.freed_bytes == 0
    assert admin.freed_bytes > 4 * MB
