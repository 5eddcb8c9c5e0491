"""Streams of record batches to a client, over whichever transport: what of one goes out, as the bytes of Arrow's IPC
format, and what it takes of the memory and of the turns of others while it is made and sent.
"""

import io
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Protocol, Self

import pyarrow as pa

from ullage.clock import Clock
from ullage.embedded.outgoing import OutgoingBatch
from ullage.embedded.pace import Pace
from ullage_agent.service.access import Principal
from ullage_agent.service.budget import ByteBudget, Grant
from ullage_agent.service.limits import SMALL_BYTES

SENT_BYTES_MAX: Final = 4 << 20
"""A batch that is larger goes in several: a client may bound what it receives, and each is held twice, beside the
batch, until its client has taken it.
"""

IPC_END: Final = b"\xff\xff\xff\xff\0\0\0\0"
"""Of an Arrow IPC stream: a message without a header."""

SILENCE_SECONDS: Final = 10.0
"""Clients give up a stream that says nothing for minutes."""


class Taker(Protocol):
    """Whose stream it is, and the turn of the one who makes it."""

    @property
    def principal(self) -> Principal: ...

    def work(self) -> None:
        """Return when it is this one's turn."""

    def rest(self) -> None:
        """Let others have the turn."""

    def breathe(self) -> None:
        """Let others who wait go first. Raises what ends the stream, if nobody takes it any more."""


class SendingRoom(Pace):
    """Of one stream, used by its thread. It has one grant at a time: who waits for room has none, and keeps no turn.
    Leaving it gives back what there is.
    """

    def __init__(self, taker: Taker, budget: ByteBudget) -> None:
        self._taker = taker
        self._budget = budget
        self._grant: Grant | None = None

    def step(self) -> None:
        """Raises what ends the stream."""
        self._taker.breathe()

    def make(self, size: int) -> None:
        """Take room for a batch that is made of parts, or is sent, one message at a time; each is there twice.
        QuotaReached, ServiceBusy.
        """
        self._take(max(2 * size, size + 2 * min(size, SENT_BYTES_MAX)))
        self._taker.work()

    def hold(self, message_bytes: int, batch_bytes: int) -> None:
        """Have room for a message, which is there twice, and for the batch that it was made of. As `make`."""
        size = 2 * message_bytes + batch_bytes
        if self._grant is None:
            self._take(size)
        elif size < SMALL_BYTES:
            self.release()
        else:
            self._grant.resize(size)

    def _take(self, size: int) -> None:
        """Instead of what there was; nothing for what is small. What is large counts beside all else that waits."""
        self.release()
        if size >= SMALL_BYTES:
            self._grant = self._budget.take_now(self._taker.principal, size)
            if self._grant is None:
                self._taker.rest()
                self._grant = self._budget.take(self._taker.principal, size)

    def release(self) -> None:
        """Give it back: the batch is sent."""
        if self._grant is not None:
            self._grant.release()
            self._grant = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


class Sent:
    """The batches of a stream as they are sent: without those that have no rows, but for one now and then, which tells
    the client that there is work.
    """

    def __init__(
        self,
        batches: Iterator[OutgoingBatch],
        room: SendingRoom,
        taker: Taker,
        clock: Clock,
        count: Callable[[int], None],
    ) -> None:
        """`count` is told of each how many bytes it is."""
        self._batches = batches
        self._room = room
        self._taker = taker
        self._clock = clock
        self._count = count
        self.batch_bytes = 0
        """Of the one that is being sent."""

    def __iter__(self) -> Iterator[OutgoingBatch]:
        sent = self._clock.monotonic()
        for batch in self._batches:
            if not batch.batch.num_rows and self._clock.monotonic() - sent < SILENCE_SECONDS:
                self._taker.breathe()
                continue
            self.batch_bytes = batch.batch.nbytes
            self._count(self.batch_bytes)
            yield batch
            self._room.release()  # for who waits, before more is taken for the next one
            sent = self._clock.monotonic()


class _Collected(io.RawIOBase):
    """A file for Arrow that keeps what is written to it as it is: views of a batch's own buffers."""

    def __init__(self) -> None:
        self._parts: list[Any] = []

    def writable(self) -> bool:
        return True

    def write(self, part: Any) -> int:
        self._parts.append(part)
        return len(part)

    def taken(self) -> list[Any]:
        """What was written since the last time."""
        found, self._parts = self._parts, []
        return found


def ipc_stream(schema: pa.Schema, batches: Iterable[OutgoingBatch]) -> Iterator[list[Any]]:
    """The messages of an Arrow IPC stream, each in parts that are to be joined: the schema, then a batch each, or
    several for one that is large. IPC_END belongs behind them. Contents of a batch stand in it without a copy.
    """
    collected = _Collected()
    with pa.ipc.new_stream(pa.PythonFile(collected, mode="w"), schema) as writer:
        begun = schema.serialize()
        yield [begun]
        left = begun.size  # the writer begins with the schema, which has gone out already
        for batch in batches:
            for piece in _pieces(batch):
                writer.write_batch(piece.batch)
                parts = collected.taken()
                while left:
                    left -= len(parts.pop(0))
                yield piece.filled(parts)


def _pieces(whole: OutgoingBatch) -> Iterator[OutgoingBatch]:
    """Itself, or parts of what is large, as a batch of contents never is."""
    batch = whole.batch
    rows = max(1, batch.num_rows * SENT_BYTES_MAX // max(SENT_BYTES_MAX, batch.nbytes))
    if whole.contents or rows >= batch.num_rows:
        yield whole
        return
    for at in range(0, batch.num_rows, rows):
        yield OutgoingBatch(batch.slice(at, rows))
