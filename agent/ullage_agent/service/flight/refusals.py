"""From an error to what Flight tells the client: the status that gRPC has for it, and the problem beside it as JSON."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import msgspec
from pyarrow import flight

from ullage_agent.service.problems import Problem, is_expected, problem_of

KINDS: Final[dict[int, Callable[..., Exception]]] = {
    401: flight.FlightUnauthenticatedError,
    403: flight.FlightUnauthorizedError,
    429: flight.FlightUnavailableError,
    503: flight.FlightUnavailableError,
}
"""The others are a FlightServerError: gRPC has no word for them."""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """The `extra_info` of an error, as JSON."""

    status: int
    slug: str
    detail: str
    retry_after_seconds: int | None = None


def refusal_of(error: Exception) -> Exception:
    """What to raise inside a Flight call."""
    problem: Problem = problem_of(error)
    told = Told(
        status=problem.status,
        slug=problem.slug,
        detail=problem.detail,
        retry_after_seconds=problem.retry_after_seconds,
    )
    kind = KINDS.get(problem.status, flight.FlightServerError)
    refusal: Exception = kind(f"{problem.slug}: {problem.detail}", extra_info=msgspec.json.encode(told))
    return refusal


@contextmanager
def telling(on_failure: Callable[[str, Exception], None], what: str) -> Iterator[None]:
    """Errors of the engine and the service become Flight's; those that nobody foresaw are logged too."""
    try:
        yield
    except flight.FlightError:
        raise
    except Exception as error:
        if not is_expected(error):
            on_failure(what, error)
        raise refusal_of(error) from error


def told(generator: Iterator[Any], on_failure: Callable[[str, Exception], None], what: str) -> Iterator[Any]:
    """The same for a stream that is made while it is sent."""
    with telling(on_failure, what):
        yield from generator
