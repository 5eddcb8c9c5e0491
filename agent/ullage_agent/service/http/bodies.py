"""Bodies of requests that carry content: taken in steps, bounded, and held against the digests that came with them."""

import asyncio
import base64
import binascii
import hashlib
import re
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from ullage_agent.service.errors import BadRequest, ClientGone, DigestMismatch, TooMuch
from ullage_agent.service.http.served import AnyRequest, Served, served_by
from ullage_agent.service.limits import STEP_BYTES
from ullage_agent.service.uploads import Sink

ATTRIBUTES_HEADER: Final = "ullage-attributes"
DIGEST_HEADERS: Final = ("repr-digest", "content-digest")
ALGORITHMS: Final = {"sha-256": "sha256", "sha-512": "sha512"}
"""Of RFC 9530 those that prove something; others are ignored, as it says."""

_MEMBER: Final = re.compile(r"\s*([a-z*][a-z0-9_.*-]*)=:([A-Za-z0-9+/=]*):\s*")


Content = TypeVar("Content", bound=Sink)
Answer = TypeVar("Answer")


class Digests:
    """What the content must come to."""

    def __init__(self, expected: list[tuple[str, bytes]]) -> None:
        self._expected = [(name, hashlib.new(ALGORITHMS[name]), value) for name, value in expected]

    def update(self, data: bytes) -> None:
        for _, hasher, _ in self._expected:
            hasher.update(data)

    def require(self) -> None:
        """DigestMismatch unless the content is the one that was announced."""
        for name, hasher, value in self._expected:
            if hasher.digest() != value:
                found = base64.b64encode(hasher.digest()).decode()
                raise DigestMismatch(f"the content's {name} is {found}: nothing was stored")


def digests_of(request: AnyRequest) -> Digests:
    """The digests in the headers; BadRequest for one that is none."""
    expected = []
    for header in DIGEST_HEADERS:
        text = request.headers.get(header)
        for member in text.split(",") if text else ():
            match = _MEMBER.fullmatch(member)
            if match is None:
                raise BadRequest(f"{header}: expected sha-256=:BASE64:, as RFC 9530 has it")
            if match[1] in ALGORITHMS:
                expected.append((match[1], _decoded(header, match[2])))
    return Digests(expected)


def attributes_of(request: AnyRequest) -> dict[str, str]:
    """Attributes of the header (a JSON object of strings) and of the query (`attribute=NAME=VALUE`)."""
    limit = served_by(request).limits.attributes_bytes
    found: dict[str, str] = {}
    text = request.headers.get(ATTRIBUTES_HEADER)
    if text is not None:
        try:
            found.update(msgspec.json.decode(text.encode("latin-1"), type=dict[str, str]))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadRequest(f"{ATTRIBUTES_HEADER}: a JSON object of strings, in ASCII: {error}") from error
    for pair in request.query_params.getall("attribute", []):
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise BadRequest(f"attribute={pair}: expected attribute=NAME=VALUE")
        found[name] = value
    return checked_attributes(found, limit)


def checked_attributes(attributes: dict[str, str], bytes_max: int) -> dict[str, str]:
    """The same, if they can be stored: `uuid` is the record's own, and text is Unicode that can be encoded."""
    if "uuid" in attributes:
        raise BadRequest("the attribute uuid belongs to the record and cannot be set")
    try:
        size = sum(len(name.encode()) + len(value.encode()) for name, value in attributes.items())
    except UnicodeEncodeError as error:
        raise BadRequest("an attribute is no Unicode text that can be encoded") from error
    if size > bytes_max:
        raise TooMuch(f"attributes of {size} bytes, at most {bytes_max} are allowed here")
    return attributes


class Body:
    """The content that a request brings, step by step."""

    def __init__(self, request: AnyRequest, served: Served) -> None:
        """TooMuch if its announced length is beyond spec.service.maxRequestBytes."""
        self.is_over = False
        self._request = request
        self._limit = int(served.host.spec.service.max_request_bytes)
        self._total = 0
        length = request.headers.get("content-length", "0")
        if self._limit and length.isdecimal() and int(length) > self._limit:
            raise _too_much(self._limit)

    async def step(self) -> bytes:
        """About STEP_BYTES, fewer at the end, then none. TooMuch as soon as it is; ClientGone if it ends early."""
        gathered: list[bytes] = []
        size = 0
        while size < STEP_BYTES and not self.is_over:
            message: Any = await self._request.receive()
            if message["type"] == "http.disconnect":
                raise ClientGone("the client went away in the middle of the content: nothing was stored")
            data: bytes = message.get("body", b"")
            gathered.append(data)
            size += len(data)
            self._total += len(data)
            if self._limit and self._total > self._limit:
                raise _too_much(self._limit)
            self.is_over = not message.get("more_body", False)
        return b"".join(gathered)


async def store(request: AnyRequest, begin: Callable[[], Content], finish: Callable[[Content], Answer]) -> Answer:
    """Take the body into what `begin` makes, and `finish` it; abandon it if that fails, or if the request does.

    A body of one step costs one hop to a thread and back.
    """
    served = served_by(request)
    digests = digests_of(request)
    body = Body(request, served)
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
        raise BadRequest(f"{header}: {error}") from error


def _too_much(limit: int) -> TooMuch:
    return TooMuch(f"more than spec.service.maxRequestBytes ({limit}): nothing was stored")
