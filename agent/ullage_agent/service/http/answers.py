"""Answers: JSON, bodies that were remembered, and RFC 9457 problem details."""

from email.utils import formatdate
from typing import Any, Final

import msgspec
from litestar import Response
from litestar.exceptions import HTTPException

from ullage_agent.service.errors import BadRequest, RangeRefused, WindowClosed
from ullage_agent.service.http.served import REPEATED, AnyRequest
from ullage_agent.service.log import logger
from ullage_agent.service.problems import Problem, is_expected, problem_of

PROBLEM_TYPE: Final = "application/problem+json"
PROBLEM_URI: Final = "https://ullage.dev/problems/"
"""Names a problem; docs/api.md lists them."""

_log = logger("http")

SLUGS: Final[dict[int, str]] = {
    400: "bad-request",
    401: "unauthenticated",
    404: "not-found",
    405: "method-not-allowed",
    413: "too-much",
}


class ProblemDetails(msgspec.Struct, frozen=True, kw_only=True):
    """RFC 9457. `retry_after_seconds` says the same as the header Retry-After."""

    type: str
    title: str
    status: int
    detail: str
    slug: str
    retry_after_seconds: int | None = None


def details_of(problem: Problem) -> ProblemDetails:
    """A problem as a document."""
    return ProblemDetails(
        type=PROBLEM_URI + problem.slug,
        title=problem.title,
        status=problem.status,
        detail=problem.detail,
        slug=problem.slug,
        retry_after_seconds=problem.retry_after_seconds,
    )


def headers_of(problem: Problem, error: Exception | None = None) -> dict[str, str]:
    """Headers that go with a problem."""
    headers: dict[str, str] = {}
    if problem.retry_after_seconds is not None:
        headers["Retry-After"] = str(problem.retry_after_seconds)
    if problem.status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="ullage"'
    if isinstance(error, RangeRefused):
        headers["Content-Range"] = f"bytes */{error.size}"
    if isinstance(error, WindowClosed) and error.opens_millis is not None:
        headers["Retry-After"] = formatdate(error.opens_millis / 1000, usegmt=True)
    return headers


def refuse(request: AnyRequest, error: Exception) -> Response[bytes]:
    """The answer to an error, whoever raised it."""
    if isinstance(error, RecursionError):
        problem = problem_of(BadRequest("the body is nested too deeply"))
    elif isinstance(error, HTTPException):
        problem = _of_framework(error)
    else:
        problem = problem_of(error)
        if not is_expected(error):
            _log.error("unexpected error", path=request.url.path, exc_info=error)
        elif problem.status == 500:
            _log.error("engine error", path=request.url.path, slug=problem.slug, detail=problem.detail)
    request.scope["state"]["slug"] = problem.slug
    body = msgspec.json.encode(details_of(problem))
    return Response(body, status_code=problem.status, media_type=PROBLEM_TYPE, headers=headers_of(problem, error))


def _of_framework(error: HTTPException) -> Problem:
    """What Litestar refused before a resource saw it: no such path, a body or parameter that does not decode."""
    status = error.status_code
    detail = error.detail
    extra: Any = error.extra
    if isinstance(extra, list):
        detail = "; ".join([detail, *(f"{item.get('key', '')}: {item.get('message', '')}" for item in extra)])
    slug = SLUGS.get(status, "bad-request" if status < 500 else "unexpected")
    return Problem(status, slug, "The request is wrong" if status < 500 else "Something went wrong here", detail)


def json(body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> Response[bytes]:
    """A body that is encoded already."""
    return Response(body, status_code=status, media_type="application/json", headers=headers)


def repeated(first: bytes, status: int = 200) -> Response[bytes]:
    """The first answer, given again."""
    return json(first, status, REPEATED)
