"""A table over the Unix socket: what Flight sends, as an Arrow IPC stream in frames.

TABLE -> ROWS ..., an empty ROWS    or a PROBLEM, after however many ROWS

gRPC takes most of the processor time of a table whose columns are kept: a reader on the same machine, which Spark's
tasks mostly are, gets it without.
"""

from collections.abc import Sequence
from typing import Any

from ullage.wire.frames import FRAME_BYTES_MAX, FrameKind
from ullage.wire.tickets import TableTicket
from ullage_agent.service.access import Principal
from ullage_agent.service.fairness import Turn
from ullage_agent.service.listening import Terms
from ullage_agent.service.sending import IPC_END, SendingRoom, Sent, ipc_stream
from ullage_agent.service.socket.channel import Channel


class TableAnswer:
    """The answer to one TABLE. Used by one thread."""

    def __init__(self, terms: Terms, channel: Channel, request: int, principal: Principal, turn: Turn) -> None:
        self._terms = terms
        self._channel = channel
        self._request = request
        self.principal = principal
        self._turn = turn
        self.bytes = 0
        """Sent so far."""

    def send(self, wanted: TableTicket) -> None:
        """All of it. Errors of the table; QuotaReached, ServiceBusy where there is no room for a batch; OSError if the
        client takes nothing for too long, EOFError if it is gone.
        """
        with SendingRoom(self, self._terms.budget) as room:
            schema, batches = self._terms.snapshots.table(self.principal, wanted, room)
            sent = Sent(batches, room, self, self._terms.repository.clock, self._count)
            for parts in ipc_stream(schema, sent):
                room.hold(sum(map(len, parts)), sent.batch_bytes)
                self._send(parts)
                self.work()
        self._send([IPC_END])
        self._send([])

    def work(self) -> None:
        """Return when it is this one's turn."""
        self._turn.take()

    def rest(self) -> None:
        """Let others have the turn."""
        self._turn.rest()

    def breathe(self) -> None:
        """Let others who wait go first. EOFError if the client is gone, or was told to go."""
        self.rest()
        if self._channel.is_left():
            raise EOFError("the client went away in the middle of a table")
        self.work()

    def _count(self, size: int) -> None:
        self.bytes += size

    def _send(self, parts: Sequence[Any]) -> None:
        """A message, in as many frames as it takes. The client may be slow to take it: others work meanwhile."""
        self.rest()
        pieces: list[Sequence[Any]] = [parts]
        if sum(map(len, parts)) > FRAME_BYTES_MAX:
            whole = memoryview(b"".join(parts))
            pieces = [[whole[at : at + FRAME_BYTES_MAX]] for at in range(0, len(whole), FRAME_BYTES_MAX)]
        patience = self._terms.limits.stream_pause_seconds
        for piece in pieces:
            self._channel.send(FrameKind.ROWS, self._request, *piece, patience_seconds=patience)
