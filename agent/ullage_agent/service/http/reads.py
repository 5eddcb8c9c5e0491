"""The answer to a batch of reads: contents in JSON, as base64, or in MessagePack, encoded piece by piece."""

import base64
from collections.abc import Callable, Generator, Iterator
from typing import Final

import msgspec

from ullage.embedded.content import ReadableContent
from ullage.errors import HandleDeleted, HandleNotFound
from ullage.streams import ContentStream
from ullage.wire.content import HandleContent
from ullage.wire.problems import problem_of
from ullage_agent.service.limits import KIB

READ_BYTES: Final = 192 * KIB
"""Of a content so much is read and encoded in one go. Base64 has no end in the middle of three bytes."""

ROW_BYTES: Final = 200
"""Of an answer beside the content."""

EMPTY: Final = msgspec.msgpack.encode(b"")
BINARY: Final = b"\xc6"
"""Before the length of binary data, in four bytes."""

Found = list[tuple[str, ReadableContent | str]]
"""Each id, with its content before it is read, or the problem with it."""


def answer_bytes(found: Found) -> int:
    """What the answer takes, at most."""
    sizes = (0 if isinstance(content, str) else content.size for _, content in found)
    return sum(ROW_BYTES + size // 3 * 4 for size in sizes)


def read_parts(found: Found, *, is_packed: bool) -> Generator[bytes, None, None]:
    """All of it, in order."""
    if is_packed:
        yield msgspec.msgpack.encode([None] * len(found))[: -len(found)]  # each null is a byte
        for each in found:
            yield from _row(*each, msgspec.msgpack.encode, _packed)
        return
    yield b"["
    for number, each in enumerate(found):
        if number:
            yield b","
        yield from _row(*each, msgspec.json.encode, _written)
    yield b"]"


def _row(
    id: str,
    content: ReadableContent | str,
    encode: Callable[[HandleContent], bytes],
    encode_large: Callable[[str, ContentStream], Iterator[bytes]],
) -> Iterator[bytes]:
    if isinstance(content, str):
        yield encode(HandleContent(id=id, problem=content))
        return
    try:
        stream = content.open(0, content.size, 1)
    except (HandleNotFound, HandleDeleted) as error:
        yield encode(HandleContent(id=id, problem=problem_of(error).slug))
        return
    with stream:
        if content.size <= READ_BYTES:
            yield encode(HandleContent(id=id, content=stream.read()))
        else:
            yield from encode_large(id, stream)


def _packed(id: str, stream: ContentStream) -> Iterator[bytes]:
    head, _, tail = msgspec.msgpack.encode(HandleContent(id=id, content=b"")).partition(EMPTY)
    yield head + BINARY + stream.size.to_bytes(4, "big")
    while piece := stream.read(READ_BYTES):
        yield piece
    yield tail


def _written(id: str, stream: ContentStream) -> Iterator[bytes]:
    head, _, tail = msgspec.json.encode(HandleContent(id=id, content=b"")).partition(b'""')
    yield head + b'"'
    while piece := stream.read(READ_BYTES):
        yield base64.b64encode(piece)
    yield b'"' + tail
