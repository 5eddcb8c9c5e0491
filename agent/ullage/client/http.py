"""Client of the HTTP interface (docs/api.md): everything but tables, and the one that every network lets through."""

import ssl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import msgspec

from ullage.client.proof import is_secret, require_encrypted
from ullage.errors import InvalidArgument, NotReachable, RangeNotSatisfiable, Refused, UllageError
from ullage.interface.checks import checked_text
from ullage.interface.values import CheckedAttributes
from ullage.streams import PIECE_BYTES, batches
from ullage.wire.content import ContentItem
from ullage.wire.operation import A, OctetStream, Operation
from ullage.wire.problems import ProblemDetails, error_of

TIMEOUT_SECONDS: Final = 60.0
ATTRIBUTE_BYTES: Final = 72
"""What an attribute counts beside the bytes of contents that go as JSON: a node takes 300,000 names and values in one
request, which are 10,000 contents with 110,000 attributes among them.
"""

JSON, MSGPACK, BYTES = "application/json", "application/x-msgpack", "application/octet-stream"

Query = Mapping[str, str | int | bool | Sequence[str] | None]
"""Parameters; a list is repeated; None, and a text that is empty, are left out."""


class HttpBody:
    """Content on its way. NotReachable in the middle: what came before is good."""

    def __init__(self, answer: httpx.Response, url: str) -> None:
        self._answer = answer
        self._url = url

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._answer.iter_raw(PIECE_BYTES)
        except httpx.HTTPError as error:
            raise NotReachable(f"{self._url}: {_text(error)}") from error

    def close(self) -> None:
        """Let go of the connection."""
        self._answer.close()


class HttpClient:
    """One node. Thread-safe. Errors: what the node refuses, NotReachable. Nothing is retried here. InvalidArgument
    for a token that would go in the clear to another machine. Redirects are not followed: it goes nowhere else.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        ca_file: str | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        self.url = _checked_url(url).rstrip("/")
        require_encrypted(self.url, token)
        headers = {} if token is None else {"Authorization": f"Bearer {_checked_token(token)}"}
        verify: ssl.SSLContext | bool = True
        if ca_file is not None:
            verify = ssl.create_default_context(cafile=ca_file)
        trusts_proxies = is_secret(self.url, token)
        self._client = httpx.Client(
            base_url=self.url, headers=headers, timeout=timeout_seconds, verify=verify, trust_env=trusts_proxies
        )

    def close(self) -> None:
        """Close its connections."""
        self._client.close()

    def ask(
        self,
        operation: Operation[A],
        path: str,
        content: bytes | Iterable[bytes] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        query: Query | None = None,
    ) -> A:
        """One request, and the document that answers it. `content` is what the operation takes, encoded."""
        types = {"Accept": f"{MSGPACK}, {JSON}", "Content-Type": BYTES if operation.body is OctetStream else JSON}
        timeout = httpx.Timeout(TIMEOUT_SECONDS, read=None) if operation.is_long else httpx.USE_CLIENT_DEFAULT
        answer = self._send(operation.method, path, {**types, **(headers or {})}, query, content, timeout)
        if answer.headers.get("Content-Type") == MSGPACK:  # where bytes would be base64 in JSON
            return msgspec.msgpack.decode(answer.content, type=operation.answer)
        return msgspec.json.decode(answer.content, type=operation.answer)

    def content(self, path: str, query: Query | None = None) -> bytes:
        """A whole content."""
        return self._send("GET", path, None, query).content

    def open(self, path: str, start: int, size: int | None, query: Query | None = None) -> tuple[int, HttpBody | None]:
        """How many bytes a content has in all, and a range of it; None if that is empty.

        RangeNotSatisfiable if there is no byte of the range; what lies beyond the end is left out.
        """
        headers = {}
        if start or size is not None:
            headers["Range"] = f"bytes={start}-{'' if size is None else max(start, start + size - 1)}"
        try:
            answer = self._send("GET", path, headers, query, stream=True)
        except RangeNotSatisfiable as refused:
            if start == refused.size and not size:
                return refused.size, None
            raise
        total = answer.headers.get("Content-Range", answer.headers["Content-Length"]).rpartition("/")[2]
        return int(total), HttpBody(answer, self.url)

    def _send(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        query: Query | None = None,
        content: bytes | Iterable[bytes] | None = None,
        timeout: Any = httpx.USE_CLIENT_DEFAULT,
        *,
        stream: bool = False,
    ) -> httpx.Response:
        """The answer, if it is none of refusal; with `stream`, its content is still to come."""
        said = {name: value for name, value in (query or {}).items() if value not in (None, "")}
        try:
            request = self._client.build_request(
                method, path, headers=headers, params=said, content=content, timeout=timeout
            )
            answer = self._client.send(request, stream=stream)
            if answer.is_error:
                answer.read()
        except httpx.HTTPError as error:
            raise NotReachable(f"{self.url}: {_text(error)}") from error
        if answer.is_error:
            raise _refused(answer)
        return answer


def _checked_url(url: str) -> str:
    try:
        parts = urlsplit(checked_text(url, "a service's address"))
        is_one = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        is_one = False
    if not is_one:
        raise InvalidArgument(f"{url!r} is no address of a service, such as http://127.0.0.1:8480 or https://node:8480")
    return url


def _checked_token(token: str) -> str:
    """Without a word of what it is: messages are logged."""
    if not (checked_text(token, "a token").isascii() and token.isprintable() and " " not in token and token):
        raise InvalidArgument("a token is printable ASCII without blanks: leave out the end of line that its file has")
    return token


def _refused(answer: httpx.Response) -> UllageError:
    try:
        found = msgspec.json.decode(answer.content, type=ProblemDetails)
    except msgspec.DecodeError:  # not from a node: a proxy in between, perhaps
        return Refused(answer.reason_phrase, status=answer.status_code)
    return error_of(found)


def of_each(contents: Sequence[bytes], attributes: CheckedAttributes) -> list[dict[str, str]]:
    """The attributes of each content of a batch."""
    return [attributes] * len(contents) if isinstance(attributes, dict) else attributes


def json_batches(contents: Sequence[bytes], attributes: CheckedAttributes, bytes_max: int) -> Iterator[tuple[int, int]]:
    """The bounds of parts that each fit into one request over HTTP."""
    return batches(contents, bytes_max, [ATTRIBUTE_BYTES * len(each) for each in of_each(contents, attributes)])


def items_of(contents: Sequence[bytes], attributes: CheckedAttributes) -> list[ContentItem]:
    """Contents of a batch, each with its attributes."""
    mappings = of_each(contents, attributes)
    return [ContentItem(content=each, attributes=mapping) for each, mapping in zip(contents, mappings, strict=True)]


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__
