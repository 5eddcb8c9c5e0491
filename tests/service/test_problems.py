"""One mapping from errors to answers, for all transports."""

import errno
import inspect
import re
from pathlib import Path

import pytest

from ullage_agent.engine import errors as engine
from ullage_agent.service import errors as service
from ullage_agent.service.problems import KINDS, problem_of


def test_every_error_has_an_answer() -> None:
    """A new class of error takes its place in the mapping first."""
    known = {
        kind
        for module in (engine, service)
        for _, kind in inspect.getmembers(module, inspect.isclass)
        if issubclass(kind, Exception) and kind not in (engine.UllageError, service.ServiceError, service.CannotListen)
    }

    assert known == set(KINDS)
    assert len({kind.slug for kind in KINDS.values()}) == len(KINDS)


@pytest.mark.parametrize("status", [429, 503, 507])
def test_whoever_may_come_again_is_told_when(status: int) -> None:
    """Answers that ask for patience say how much."""
    kinds = [kind for kind in KINDS.values() if kind.status == status]

    assert kinds
    assert all(kind.retry_after_seconds for kind in kinds)


def test_a_subclass_is_answered_as_itself() -> None:
    """ClaimTruncated is a ClaimGone with an answer of its own."""
    assert problem_of(engine.ClaimTruncated("x")).slug == "claim-truncated"
    assert problem_of(engine.ClaimGone("x")).slug == "claim-gone"


def test_an_unforeseen_error_keeps_its_message_to_the_log() -> None:
    """It may name files, or worse."""
    problem = problem_of(RuntimeError("/secret/path"))

    assert problem.status == 500
    assert "secret" not in problem.detail


def test_a_full_volume_is_named_whoever_found_it() -> None:
    """ENOSPC from the system reads like DiskFull."""
    assert problem_of(OSError(errno.ENOSPC, "no space")).slug == "disk-full"


def test_the_documentation_names_every_slug() -> None:
    """The table in docs/api.md has those of the mapping and of the framework, with their statuses."""
    text = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([0-9, ]+) \| (`[^|]+) \|", text, flags=re.MULTILINE)
    documented = {
        (slug, status.strip())
        for statuses, slugs in rows
        for slug in re.findall("`([a-z-]+)`", slugs)
        for status in statuses.split(",")
    }
    expected = {(kind.slug, str(kind.status)) for kind in KINDS.values()} | {("unexpected", "500")}

    assert expected - documented == set()
    assert {slug for slug, _ in documented} == {slug for slug, _ in expected} | {"method-not-allowed"}
