"""The check finds every contradiction, names it, and mends nothing."""

from pathlib import Path

import pytest

from tests.engine.reclaim import test_punch
from tests.engine.reclaim.test_rewrite import PLAIN, compact, fill
from tests.support import Workshop, claim_of, content_sizes, put_all
from ullage.engine.engine import Engine
from ullage.engine.model import ContentClaim

MB = 1 << 20


@pytest.fixture
def damaged(workshop: Workshop) -> Workshop:
    """A repository with a FlowFile, a handle and a swap file, which the test is about to damage."""
    repository = workshop.make(flow_file={"swap_threshold": 4, "swap_batch": 2})
    put_all(repository, "q", [b"x" * 100] * 3)
    put_all(repository, "swapped", [b"y" * 100] * 8)
    repository.handles.put(b"h" * MB)
    report = repository.check(deep=True)
    assert (report.problems, report.orphans) == ((), ())
    assert report.flow_files == 12
    assert report.bytes_verified == 300 + 800 + MB
    workshop.expects_problems = True
    return workshop


def problems_of(workshop: Workshop, *, deep: bool = False) -> str:
    before = content_sizes(workshop.path)
    problems = workshop.repository.check(deep=deep).problems
    assert content_sizes(workshop.path) == before
    return "\n".join(problems)


def largest(workshop: Workshop) -> Path:
    sizes = content_sizes(workshop.path)
    return workshop.path / max(sizes, key=lambda name: sizes[name])


def test_a_wrong_count_is_found(damaged: Workshop) -> None:
    """One claimant too many in the ledger."""
    record = next(record for record in damaged.repository.ledger.flow_files() if record.size == 100)
    entry = damaged.repository.ledger.entry(claim_of(record).resource)
    assert entry is not None
    entry.add(claim_of(record))

    assert "the ledger counts 2 claimants, the FlowFiles say 1" in problems_of(damaged)


def test_overlapping_claims_are_found(damaged: Workshop) -> None:
    """Two base claims never share bytes."""
    entry = next(damaged.repository.ledger.entries())
    entry.add(ContentClaim(entry.claim.index, 50, 100, 0))

    assert "base claims overlap" in problems_of(damaged)


def test_a_wrong_charge_is_found(damaged: Workshop) -> None:
    """A container that is charged for bytes nobody has."""
    damaged.repository.content.containers["c1"].add_bytes(7)

    assert "container c1 is charged for" in problems_of(damaged)


def test_a_missing_short_or_long_file_is_found(damaged: Workshop) -> None:
    """By the lengths alone, without reading."""
    path = largest(damaged)
    whole = path.read_bytes()
    path.unlink()
    missing = problems_of(damaged)
    path.write_bytes(whole[:-10])
    short = problems_of(damaged)
    path.write_bytes(whole + b"!")
    long = problems_of(damaged)

    assert f"{path} is missing" in missing
    assert "its claims reach to" in short
    assert "the ledger says" in long


def test_rot_is_found_by_the_deep_check_only(damaged: Workshop) -> None:
    """Every live byte is read against its checksum, swapped FlowFiles' too."""
    for name in content_sizes(damaged.path):
        path = damaged.path / name
        path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])

    assert problems_of(damaged) == ""
    assert "do not match their checksum" in problems_of(damaged, deep=True)


def test_a_relocated_file_whose_claims_lie_nowhere_is_found(workshop: Workshop) -> None:
    """An address that lives, and was not moved."""
    repository = workshop.make(**PLAIN)
    fill(repository)
    assert compact(repository) > 0
    entry = next(entry for entry in repository.ledger.entries() if entry.relocation is not None)
    entry.add(ContentClaim(entry.claim.index, MB, 100, 0))
    workshop.expects_problems = True

    assert "in use, but: " in problems_of(workshop)


def test_a_lost_file_with_holes_is_found(workshop: Workshop) -> None:
    """What was given back of it cannot be looked at, and everything else is."""
    repository = workshop.make(**test_punch.PLAIN)
    test_punch.fill(repository)
    repository.reclamation.execute(test_punch.plan_of(repository))
    path = largest(workshop)
    path.unlink()
    workshop.expects_problems = True

    assert f"{path} is missing" in problems_of(workshop, deep=True)


def test_a_lost_swap_file_is_found(damaged: Workshop) -> None:
    """By name, with the way out."""
    (path, *_) = sorted((damaged.path / "swap").glob("*.swap"))
    path.unlink()

    assert f"{path} is missing" in problems_of(damaged)


def test_progress_ends_at_all_live_bytes(repository: Engine) -> None:
    """The last call says that everything was verified."""
    put_all(repository, "q", [b"x" * 100] * 3)
    told: list[tuple[int, int]] = []

    repository.check(deep=True, on_progress=lambda done, total: told.append((done, total)))

    assert told[-1] == (300, 300)
