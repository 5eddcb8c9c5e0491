"""Bodies of requests that carry content: taken in steps, bounded, and held against the digests that came with them."""

import asyncio
import base64
import binascii
import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

import msgspec

from ullage.errors import DigestMismatch, InvalidArgument, RequestIncomplete, RequestTooLarge
from ullage.interface import checks
from ullage.wire.content import ContentItem
from ullage.wire.operation import ATTRIBUTES_HEADER
from ullage_agent.service.access import ANONYMOUS
from ullage_agent.service.http.served import AnyRequest, Served, served_by
from ullage_agent.service.limits import STEP_BYTES
from ullage_agent.service.uploads import Upload

DIGEST_HEADERS: Final = ("repr-digest", "content-digest")
ALGORITHMS: Final = {"sha-256": "sha256", "sha-512": "sha512"}
"""Of RFC 9530 those that prove something; others are ignored, as it says."""

_MEMBER: Final = re.compile(r"\s*([a-z*][a-z0-9_.*-]*)=:([A-Za-z0-9+/=]*):\s*")


class Sink(Protocol):
    """Takes content; used by one thread at a time."""

    def write(self, data: bytes) -> None: ...

    def abandon(self) -> None: ...


Content = TypeVar("Content", bound=Sink)
Answer = TypeVar("Answer")


class Digests:
    """What the content must come to, as the headers of its request say; InvalidArgument for a digest that is none."""

    def __init__(self, request: AnyRequest) -> None:
        self._expected = []
        for header in DIGEST_HEADERS:
            text = request.headers.get(header)
            for member in text.split(",") if text else ():
                match = _MEMBER.fullmatch(member)
                if match is None:
                    raise InvalidArgument(f"{header}: expected sha-256=:BASE64:, as RFC 9530 has it")
                if name := ALGORITHMS.get(match[1]):
                    self._expected.append((match[1], hashlib.new(name), _decoded(header, match[2])))

    def update(self, data: bytes) -> None:
        for _, hasher, _ in self._expected:
            hasher.update(data)

    def require(self) -> None:
        """DigestMismatch unless the content is the one that was announced."""
        for name, hasher, value in self._expected:
            if hasher.digest() != value:
                found = base64.b64encode(hasher.digest()).decode()
                raise DigestMismatch(f"the content's {name} is {found}: nothing was stored")


def attributes_of(request: AnyRequest) -> dict[str, str]:
    """Attributes of the header (a JSON object of strings) and of the query (`attribute=NAME=VALUE`)."""
    limit = served_by(request).limits.attributes_bytes
    found: dict[str, str] = {}
    text = request.headers.get(ATTRIBUTES_HEADER)
    if text is not None:
        try:
            found.update(msgspec.json.decode(text.encode("latin-1"), type=dict[str, str]))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidArgument(f"{ATTRIBUTES_HEADER}: a JSON object of strings, in ASCII: {error}") from error
    for pair in request.query_params.getall("attribute", []):
        name, value = pair_of(pair)
        found[name] = value
    return checked_attributes(found, limit)


def pair_of(text: str) -> tuple[str, str]:
    """The two sides of an `attribute` of the query."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise InvalidArgument(f"attribute={text}: expected attribute=NAME=VALUE")
    return name, value


def checked_attributes(attributes: dict[str, str], bytes_max: int) -> dict[str, str]:
    """The same, if they can be stored, and come to no more than a request may bring."""
    found = checks.checked_attributes(attributes)
    size = sum(len(name.encode()) + len(value.encode()) for name, value in found.items())
    if size > bytes_max:
        raise RequestTooLarge(f"attributes of {size} bytes, at most {bytes_max} are allowed here")
    return found


def contents_of(items: Sequence[ContentItem]) -> tuple[list[bytes], list[dict[str, str]]]:
    """The contents and attributes of a batch."""
    return [item.content for item in items], [checked_attributes(item.attributes, STEP_BYTES) for item in items]


class Body:
    """The content that a request brings, step by step."""

    def __init__(self, request: AnyRequest, served: Served, upload: Upload) -> None:
        """RequestTooLarge if its announced length is beyond spec.service.maxRequestBytes."""
        self.is_over = False
        self._request = request
        self._limit = int(served.host.spec.service.max_request_bytes)
        self._upload = upload
        length = request.headers.get("content-length", "0")
        if self._limit and length.isdecimal() and int(length) > self._limit:
            raise _too_much(self._limit)

    async def step(self) -> bytes:
        """About STEP_BYTES, fewer at the end, then none. RequestTooLarge as soon as it is; RequestIncomplete if it ends
        early.
        """
        gathered: list[bytes] = []
        size = 0
        while size < STEP_BYTES and not self.is_over:
            message: Any = await self._request.receive()
            if message["type"] == "http.disconnect":
                raise RequestIncomplete("the client went away in the middle of the content: nothing was stored")
            data: bytes = message.get("body", b"")
            gathered.append(data)
            size += len(data)
            self._upload.bytes += len(data)
            if self._limit and self._upload.bytes > self._limit:
                raise _too_much(self._limit)
            self.is_over = not message.get("more_body", False)
        return b"".join(gathered)


async def store(request: AnyRequest, begin: Callable[[], Content], finish: Callable[[Content], Answer]) -> Answer:
    """Take the body into what `begin` makes, and `finish` it; abandon it if that fails, or if the request does.

    A body of one step costs one hop to a thread and back.
    """
    served, state = served_by(request), request.scope["state"]
    digests = Digests(request)
    with served.uploads.under_way(state.get("principal", ANONYMOUS), state["operation"].id) as upload:
        return await _taken(served, Body(request, served, upload), digests, begin, finish)


async def _taken(
    served: Served,
    body: Body,
    digests: Digests,
    begin: Callable[[], Content],
    finish: Callable[[Content], Answer],
) -> Answer:
    first = await body.step()
    if body.is_over:
        return await served.create(_at_once, first, begin, finish, digests)
    sink = await served.create(begin)

    def write(data: bytes) -> None:
        digests.update(data)
        sink.write(data)

    try:
        await served.create(write, first)
        while step := await body.step():
            await served.create(write, step)
        await served.call(digests.require)
    except BaseException:
        # Also when the task is cancelled: whatever was written must not stay a writer's for ever.
        await asyncio.shield(served.call(sink.abandon))
        raise
    return await served.create(finish, sink)


def _at_once(
    data: bytes, begin: Callable[[], Content], finish: Callable[[Content], Answer], digests: Digests
) -> Answer:
    digests.update(data)
    digests.require()
    sink = begin()
    try:
        sink.write(data)
    except BaseException:
        sink.abandon()
        raise
    return finish(sink)


def _decoded(header: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise InvalidArgument(f"{header}: {error}") from error


def _too_much(limit: int) -> RequestTooLarge:
    return RequestTooLarge(f"more than spec.service.maxRequestBytes ({limit}): nothing was stored")
