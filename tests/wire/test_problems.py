"""One table between errors and answers, for all transports."""

import errno
import inspect

import msgspec
import pytest

from ullage import errors
from ullage.wire.frames import pack_problem, parse_problem
from ullage.wire.problems import BY_SLUG, PROBLEMS, Problem, ProblemDetails, error_of, problem_of

OF_THE_CLIENT = {errors.UllageError, errors.NotReachable, errors.RepositoryClosed, errors.ForkedRepository}
"""What never crosses a network."""


def test_every_error_has_an_answer() -> None:
    """A new class of error takes its place in the table first, with a slug of its own."""
    classes = {kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.UllageError)}

    assert classes - OF_THE_CLIENT == {problem.error for problem in PROBLEMS}
    assert len(BY_SLUG) == len(PROBLEMS)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.slug)
def test_an_error_is_the_same_at_the_other_end(problem: Problem) -> None:
    """Class, text, patience and what else it carries cross HTTP and Flight, and all but the last cross the socket."""
    is_refused = problem.error is errors.Refused
    extra = {name: "truncated" if name == "reason" else 7 for name in problem.extra}
    error = errors.Refused("why", problem.slug, problem.status) if is_refused else problem.error("why", **extra)

    sent = msgspec.json.encode(problem.details("why", error))
    found = error_of(msgspec.json.decode(sent, type=ProblemDetails))

    for each in (found, parse_problem(pack_problem(error))) if not is_refused else (found,):
        assert (type(each), str(each)) == (problem.error, str(error))
        assert each.retry_after_seconds == problem.error.retry_after_seconds
    assert {name: getattr(found, name) for name in extra} == extra


def test_a_slug_of_a_newer_node_is_told_as_it_is() -> None:
    """It becomes a Refused that has the slug, the status, and how long to wait."""
    details = ProblemDetails(type="", title="", status=418, detail="short", slug="teapot", retry_after_seconds=2)

    error = error_of(details)

    assert isinstance(error, errors.Refused)
    assert (error.slug, error.status, error.retry_after_seconds, str(error)) == ("teapot", 418, 2, "teapot: short")


@pytest.mark.parametrize("status", [429, 503, 507])
def test_whoever_may_come_again_is_told_when(status: int) -> None:
    """Answers that ask for patience say how much."""
    assert all(problem.error.retry_after_seconds for problem in PROBLEMS if problem.status == status)


def test_a_subclass_is_answered_as_itself() -> None:
    """ClaimTruncated is a ClaimGone with an answer of its own; a class that nobody has listed has that of its base."""

    class Unlisted(errors.ClaimTruncated):
        pass

    assert problem_of(Unlisted("x")).slug == "claim-truncated"
    assert problem_of(errors.ClaimGone("x")).slug == "claim-gone"


def test_an_unforeseen_error_keeps_its_message_to_the_log() -> None:
    """It may name files, or worse."""
    problem = problem_of(RuntimeError("/secret/path"))

    assert problem.status == 500
    assert "secret" not in problem.detail


def test_a_full_volume_is_named_whoever_found_it() -> None:
    """ENOSPC from the system reads like DiskFull."""
    assert problem_of(OSError(errno.ENOSPC, "no space")).slug == "disk-full"
