"""The JSON that a request brings becomes the document of its operation: by type, in a thread and in a turn.

A decoder works in one go, and no other thread runs meanwhile. Without a type it makes objects of whatever came: 16 MiB
of `[[],[],...]` were five million, and everybody else waited a second before they were found to be no ids of a lease.
With a type that ends at the first of them; how many there may be that do fit is looked at before.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

from ullage.errors import RequestTooLarge
from ullage.wire.bounded import decoded
from ullage_agent.service.http.served import AnyRequest, served_by
from ullage_agent.service.limits import DECODED_TIMES, SMALL_BYTES

SIGNS: Final = (b",", b":", b"[", b"{")
"""There is one at least before or behind each name and value."""

ESCAPE: Final = re.compile(rb"\\.", re.DOTALL)

INLINE_BYTES: Final = 16 << 10
"""What is decoded where it came, in a millisecond at the worst: a thread and back takes a fifth of that."""


class JsonRequest(AnyRequest):
    """Says which errors are the body's. Raised by anything else, the same are the service's own.

    The bytes of the body live as long as what the scope has as its state, which the Guard ends with the request.
    """

    async def json(self) -> Any:
        """The document, for which there is room. InvalidArgument for what is none; RequestTooLarge for one of too many
        names and values; QuotaReached, ServiceBusy.
        """
        body = await self.body()
        served, state = served_by(self), self.scope["state"]
        state["arrival"].is_complete = True
        state["room"] = await served.budget.take_soon(state["principal"], DECODED_TIMES * len(body))
        state["arrival"].release()
        kind = state["operation"].body
        if len(body) <= INLINE_BYTES:
            return decoded(body, kind, "the body")
        values = ValuesIn(body, served.limits.body_values)
        await served.call_in_steps(values.steps())
        values.require()
        return await served.call(decoded, body, kind, "the body")


class ValuesIn:
    """How many names and values a body of JSON has at most."""

    def __init__(self, body: bytes, most: int) -> None:
        self._body = body
        self._most = most
        self._count = 0

    def steps(self) -> Iterator[None]:
        """Count bit by bit what stands outside of texts, up to one more than may be there."""
        at, is_inside = 0, False
        while at < len(self._body) and self._count <= self._most:
            piece = self._body[at : at + SMALL_BYTES]
            backslashes = len(piece) - len(piece.rstrip(b"\\"))
            if backslashes % 2 and len(piece) > 1:  # the sign that the last one is about comes with the next piece
                piece = piece[:-1]
            at += len(piece)
            parts = ESCAPE.sub(b"", piece).split(b'"')
            outside = b"".join(parts[is_inside::2])
            is_inside ^= len(parts) % 2 == 0
            self._count += sum(map(outside.count, SIGNS))
            yield

    def require(self) -> None:
        """RequestTooLarge if those that were counted are too many."""
        if self._count > self._most:
            raise RequestTooLarge(
                f"the body holds more than {self._most:,} names and values (body_values): send it in several requests, "
                "or over Arrow Flight; nothing was done"
            )
