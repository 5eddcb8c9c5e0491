"""Repair mends what loses nothing, and leaves and names the rest."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support import ManualClock, abandon, put_all, spec_at
from ullage.engine.check.repair import Mend, RepairPlan
from ullage.engine.engine import Engine
from ullage_agent.cli.app import app

SMALL, LARGE = 1_000, 1 << 20


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A closed repository: one FlowFile in a file with a dead tail, one in a file of its own."""
    root = tmp_path / "repository"
    with _open(root, make=True) as repository:
        put_all(repository, "kept", [bytes(range(250)) * 4])
        put_all(repository, "dead", [b"x" * SMALL])
        put_all(repository, "large", [b"y" * LARGE])
        repository.queues.drop(repository.queue("dead"))
    return root


@pytest.fixture
def repository(root: Path) -> Iterator[Engine]:
    """The same, open again after what the test's own arrangement did to its files."""
    with _open(root) as repository:
        yield repository


def _open(root: Path, *, make: bool = False) -> Engine:
    spec = spec_at(root, claims={"max_flow_files": 2})
    if make:
        Engine.initialize(spec, clock=ManualClock())
    return Engine.open(spec, clock=ManualClock())


def content(root: Path, size: int) -> Path:
    (found,) = [path for path in root.glob("c*/*/*-*") if path.stat().st_size == size]
    return found


def leave_orphan(root: Path) -> Path:
    """A file that an earlier process made and no transaction named: index 1024 belongs to section 0."""
    orphan = content(root, LARGE).parents[1] / "0" / "1700000000000-1024"
    orphan.parent.mkdir(exist_ok=True)
    orphan.write_bytes(b"left by a crash")
    return orphan


def mend(repository: Engine) -> list[Mend]:
    """Plan, do, and demand that a second plan is empty."""
    plan = repository.repair.plan(deep=True)
    repository.repair.execute(plan)
    assert repository.repair.plan(deep=True).steps == ()
    return [step.mend for step in plan.steps]


@pytest.mark.parametrize("change", [500, -500], ids=["longer", "shorter"])
def test_a_dead_tail_of_another_length_is_resealed(root: Path, change: int) -> None:
    """Bytes that no claim names may be more or fewer than recorded: the record is put right, no byte moves."""
    path = content(root, 2 * SMALL)
    path.write_bytes((path.read_bytes() + bytes(500))[: 2 * SMALL + change])

    with _open(root) as repository:
        assert len(repository.check(deep=True).problems) == 1
        assert mend(repository) == [Mend.RESEAL]
        assert repository.check(deep=True).problems == ()
    assert path.stat().st_size == 2 * SMALL + change


def test_live_content_that_is_gone_is_left_and_named(root: Path) -> None:
    """A file that ends inside a live claim is no matter for a repair, which would make the loss look right."""
    path = content(root, LARGE)
    path.write_bytes(path.read_bytes()[:-1])

    with _open(root) as repository:
        assert mend(repository) == []
        problems = repository.check(deep=True).problems

    assert problems
    assert all(str(path) in problem for problem in problems)


def test_orphans_are_adopted(root: Path) -> None:
    """A file that a crash left without a record becomes dead content, which cleaning takes away."""
    orphan = leave_orphan(root)

    with _open(root) as repository:
        assert repository.check().orphans == (str(orphan),)
        assert mend(repository) == [Mend.ADOPT]
        report = repository.check(deep=True)
        assert (report.problems, report.orphans, report.resource_claims) == ((), (), 3)


def test_a_file_of_nobody_s_is_no_orphan_of_ours(root: Path) -> None:
    """A file with a name that no process of this repository gave stays, and stays reported."""
    stranger = content(root, LARGE).with_name("notes.txt")
    stranger.write_bytes(b"somebody's")

    with _open(root) as repository:
        assert mend(repository) == []
        assert repository.check().orphans == (str(stranger),)
    assert stranger.exists()


def test_the_record_of_a_file_that_nobody_uses_is_forgotten_with_it(root: Path) -> None:
    """When a file without a live claim is gone, so is nothing but its record."""
    with _open(root) as repository:
        repository.queues.drop(repository.queue("large"))
    content(root, LARGE).unlink()

    with _open(root) as repository:
        assert len(repository.check().problems) == 1
        assert mend(repository) == [Mend.FORGET]
        assert repository.check(deep=True).problems == ()


def test_leftovers_are_removed(root: Path, repository: Engine) -> None:
    """Swap files that no transaction names, and identities that never came into force, hold nothing."""
    leftovers = [root / "ullage.json.partial", root / "swap" / "1-1-00000000-0000-4000-8000-000000000000.swap"]
    for path in leftovers:
        path.write_bytes(b"left")

    assert mend(repository) == [Mend.REMOVE, Mend.REMOVE]
    assert not any(path.exists() for path in leftovers)


def test_a_repair_that_is_cut_short_is_resumed(root: Path) -> None:
    """What was mended before a crash stays mended, and the next repair does the rest."""
    path = content(root, 2 * SMALL)
    path.write_bytes(path.read_bytes() + b"more")
    leave_orphan(root)

    repository = _open(root)
    plan = repository.repair.plan()
    repository.repair.execute(RepairPlan(plan.steps[:1], plan.report))
    abandon(repository)
    with _open(root) as repository:
        assert mend(repository) == [step.mend for step in plan.steps[1:]]


def test_the_command_plans_repairs_and_checks_again(root: Path) -> None:
    """`check --repair --dry-run` shows the mends and fails; `--repair` makes them and succeeds, here and after."""
    path = content(root, 2 * SMALL)
    path.write_bytes(path.read_bytes() + b"more")
    run = ("check", "--root", str(root), "--json", "--repair")

    planned = CliRunner().invoke(app, [*run, "--dry-run"])
    repaired = CliRunner().invoke(app, run)
    again = CliRunner().invoke(app, run)

    assert (planned.exit_code, repaired.exit_code, again.exit_code) == (1, 0, 0)
    documents = [json.loads(result.stdout) for result in (planned, repaired, again)]
    assert [[step["mend"] for step in document["repairs"]] for document in documents] == [["reseal"], ["reseal"], []]
    assert [len(document["problems"]) for document in documents] == [1, 0, 0]


def test_the_command_prints_what_it_does_not_mend(root: Path) -> None:
    """Damaged live content is named with its offset, exit code 1, and nothing is changed."""
    path = content(root, LARGE)
    path.write_bytes(b"z" + path.read_bytes()[1:])

    result = CliRunner().invoke(app, ["check", "--root", str(root), "--deep", "--repair"])

    assert result.exit_code == 1
    assert str(path) in result.stdout
    assert "offset 0" in result.stdout


def test_a_dry_run_of_nothing_is_refused(root: Path) -> None:
    """`--dry-run` without `--repair` is a mistake, said with the exit code for wrong usage."""
    assert CliRunner().invoke(app, ["check", "--root", str(root), "--dry-run"]).exit_code == 2
