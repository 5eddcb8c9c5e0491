"""Answers: JSON, bodies that were remembered, and RFC 9457 problem details."""

from email.utils import formatdate
from typing import Any, Final

import msgspec
from litestar import Response
from litestar.exceptions import HTTPException
from litestar.response.base import ASGIResponse
from litestar.types import Receive, Send

from ullage.wire.problems import BY_SLUG, PROBLEM_TYPE, ProblemDetails, is_expected, problem_of
from ullage_agent.service.http.rows import Pieces
from ullage_agent.service.http.served import AnyRequest
from ullage_agent.service.log import logger

SLUGS: Final[dict[int, str]] = {
    401: "unauthenticated",
    404: "not-found",
    405: "method-not-allowed",
    413: "request-too-large",
}
"""What Litestar refuses by itself; any other fault of a request is an invalid argument."""


def headers_of(problem: ProblemDetails) -> dict[str, str]:
    """Headers that go with a problem."""
    headers: dict[str, str] = {}
    if problem.retry_after_seconds is not None:
        headers["Retry-After"] = f"{problem.retry_after_seconds:g}"
    if problem.status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="ullage"'
    if problem.size is not None:
        headers["Content-Range"] = f"bytes */{problem.size}"
    if problem.opens_millis is not None:
        headers["Retry-After"] = formatdate(problem.opens_millis / 1000, usegmt=True)
    return headers


def refuse(request: AnyRequest, error: Exception) -> Response[bytes]:
    """The answer to an error, whoever raised it."""
    if isinstance(error, HTTPException):
        problem = _of_framework(error)
    else:
        problem = problem_of(error)
        if not is_expected(error):
            # Not kept from the import on: a logger that is bound before `configure` writes to stdout what it was told,
            # with the local variables of each frame; and once nobody reads that any more, the whole service waits.
            logger("http").error("unexpected error", path=request.url.path, exc_info=error)
        elif problem.status == 500:
            logger("http").error("engine error", path=request.url.path, slug=problem.slug, detail=problem.detail)
    request.scope["state"]["slug"] = problem.slug
    request.scope["state"]["detail"] = problem.detail
    body = msgspec.json.encode(problem)
    return Response(body, status_code=problem.status, media_type=PROBLEM_TYPE, headers=headers_of(problem))


async def answer(send: Send, status: int, kind: bytes, body: bytes) -> None:
    """Answer for an application that is none of Litestar's."""
    headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b'Bearer realm="ullage"'))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def _of_framework(error: HTTPException) -> ProblemDetails:
    """What Litestar refused before a resource saw it: no such path, a body or parameter that does not decode."""
    status = error.status_code
    detail = error.detail
    extra: Any = error.extra
    if isinstance(extra, list):
        detail = "; ".join([detail, *(f"{item.get('key', '')}: {item.get('message', '')}" for item in extra)])
    slug = SLUGS.get(status, "invalid-argument" if status < 500 else "unexpected")
    return msgspec.structs.replace(BY_SLUG[slug].details(detail), status=status)


def json(body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> Response[bytes]:
    """A body that is encoded already."""
    return Response(body, status_code=status, media_type="application/json", headers=headers)


class _PiecesBody(ASGIResponse):
    """Each piece goes when the one before has been taken, and is not kept."""

    __slots__ = ("pieces",)
    pieces: Pieces

    async def send_body(self, send: Send, receive: Receive) -> None:
        """See `ASGIResponse`."""
        for piece, more in self.pieces.take():
            await send({"type": "http.response.body", "body": piece, "more_body": more})


class _InPieces(Response[bytes]):
    def __init__(self, pieces: Pieces, media_type: str) -> None:
        super().__init__(b"", media_type=media_type)
        self._pieces = pieces

    def to_asgi_response(self, *_: Any, status_code: int | None = None, **__: Any) -> ASGIResponse:
        """See `Response`."""
        body = _PiecesBody(content_length=self._pieces.size, media_type=self.media_type, status_code=status_code)
        body.pieces = self._pieces
        return body


def in_pieces(pieces: Pieces, media_type: str = "application/json") -> Response[bytes]:
    """An answer of the operation's status that is encoded already, and is sent once."""
    return _InPieces(pieces, media_type)
