"""Answers that carry content: whole or a range, read and checked piece by piece, in bounded memory.

A content never changes, so its ETag is strong and its digest is known before the first byte is read.
"""

import asyncio
import base64
import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from litestar.types import Receive, Scope, Send

from ullage.embedded.content import BLOCK_BYTES, ReadableContent
from ullage.errors import RangeNotSatisfiable
from ullage.streams import ContentStream
from ullage_agent.service.http.served import AnyRequest, Served, served_by
from ullage_agent.service.limits import PIECE_BYTES, WIDE_BYTES

_RANGE: Final = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)


def range_of(header: str | None, size: int) -> tuple[int, int] | None:
    """Start and size of the one range that is asked for; None: all of it. RangeNotSatisfiable if there is no such byte.

    Several ranges, and units that are not bytes, are answered with everything, as RFC 9110 allows.
    """
    match = _RANGE.fullmatch(header.strip()) if header else None
    if match is None or match.group() == "bytes=-":
        return None
    first, last = match.groups()
    if first and last and int(last) < int(first):
        return None
    if not first:
        start, end = max(0, size - int(last)), size
    else:
        start, end = int(first), min(size, int(last) + 1 if last else size)
    if start >= end:
        raise RangeNotSatisfiable(f"{header}: the content has {size} bytes", size)
    return start, end - start


@dataclass(eq=False, slots=True)
class ContentAnswer:
    """An ASGI application that sends one content, or a range of it."""

    served: Served
    content: ReadableContent
    start: int
    size: int
    status: int
    headers: dict[str, str]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_empty = scope["method"] == "HEAD" or self.size == 0  # type: ignore[typeddict-item]
        if is_empty or self.size <= PIECE_BYTES:
            data = b"" if is_empty else await self.served.call(self._whole)
            await self._begin(send)
            await send({"type": "http.response.body", "body": data, "more_body": False})
            return
        with self._width() as piece_bytes:
            blocks = piece_bytes // BLOCK_BYTES
            stream = await self.served.call(self.content.open, self.start, self.size, blocks)
            try:
                # The first piece is read before anything is promised: what cannot be read is a problem, no short body.
                first = [await self.served.call(stream.read, piece_bytes)]
                await self._begin(send)
                # Popped, or it would stay in memory as long as the stream.
                await self._send(stream, first.pop(), piece_bytes, receive, send)
            finally:
                await asyncio.shield(self.served.call(stream.close))

    @contextlib.contextmanager
    def _width(self) -> Iterator[int]:
        """How much is read at a time. Only the event loop's thread counts, so nothing comes between look and take."""
        served = self.served
        is_wide = served.wide_free > 0 and self.size > WIDE_BYTES
        served.wide_free -= is_wide
        try:
            yield WIDE_BYTES if is_wide else PIECE_BYTES
        finally:
            served.wide_free += is_wide

    def _whole(self) -> bytes:
        with self.content.open(self.start, self.size, 1) as stream:
            return stream.read()

    async def _begin(self, send: Send) -> None:
        headers = {**self.headers, "content-length": str(self.size)}
        await send(
            {
                "type": "http.response.start",
                "status": self.status,
                "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()],
            }
        )

    async def _send(self, stream: ContentStream, piece: bytes, piece_bytes: int, receive: Receive, send: Send) -> None:
        gone = asyncio.create_task(_gone(receive))
        left = self.size
        try:
            while not gone.done():
                left -= len(piece)
                following = self._following(stream, piece_bytes) if left and piece_bytes == WIDE_BYTES else None
                try:
                    await send({"type": "http.response.body", "body": piece, "more_body": left > 0})
                finally:
                    # Never leave a read behind: the stream is closed next, and one thread uses it at a time.
                    if following is not None:
                        await asyncio.wait([following])
                if not left:
                    return
                # Where many read, one ahead of each would be half of the memory, and threads have enough to do.
                piece = await (following or self._following(stream, piece_bytes))
        finally:
            gone.cancel()
            with contextlib.suppress(asyncio.CancelledError):  # it was asked for
                await gone

    def _following(self, stream: ContentStream, piece_bytes: int) -> "asyncio.Future[bytes]":
        return asyncio.ensure_future(self.served.call(stream.read, piece_bytes))


async def _gone(receive: Receive) -> None:
    while True:
        message: Any = await receive()
        if message["type"] == "http.disconnect":
            return


def content_answer(request: AnyRequest, content: ReadableContent) -> ContentAnswer:
    """The answer to GET or HEAD, as the conditions and the range in the request want it."""
    etag = f'"{content.tag}"'
    known = {"Content-Type": "application/octet-stream", "ETag": etag, "Accept-Ranges": "bytes"}
    if content.crc is not None:  # as RFC 9530 writes it
        known["Repr-Digest"] = f"crc32c=:{base64.b64encode(content.crc.to_bytes(4, 'big')).decode()}:"
    served = served_by(request)
    had = [each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(",")]
    if etag in had or "*" in had:
        return ContentAnswer(served, content, 0, 0, 304, known)
    found = None
    if request.headers.get("if-range", etag) == etag:
        found = range_of(request.headers.get("range"), content.size)
    if found is None:
        return ContentAnswer(served, content, 0, content.size, 200, known)
    start, count = found
    known["Content-Range"] = f"bytes {start}-{start + count - 1}/{content.size}"
    return ContentAnswer(served, content, start, count, 206, known)
