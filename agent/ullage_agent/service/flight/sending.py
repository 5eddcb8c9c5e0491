"""What a stream to a client takes of the memory and of the turns of others, while its batches are made and sent."""

from typing import Self

from ullage.embedded.pace import Pace
from ullage_agent.service.budget import ByteBudget, Grant
from ullage_agent.service.flight.calls import FlightCall
from ullage_agent.service.flight.ipc import SENT_BYTES_MAX
from ullage_agent.service.limits import SMALL_BYTES


class SendingRoom(Pace):
    """Of one stream, used by its thread. It has one grant at a time: who waits for room has none, and keeps no turn.
    Leaving it gives back what there is.
    """

    def __init__(self, call: FlightCall, budget: ByteBudget) -> None:
        self._call = call
        self._budget = budget
        self._grant: Grant | None = None

    def step(self) -> None:
        """CallEnded if the client is gone."""
        self._call.breathe()

    def make(self, size: int) -> None:
        """Take room for a batch that is made of parts, or is sent, one message at a time; each is there twice.
        QuotaReached, ServiceBusy.
        """
        self._take(max(2 * size, size + 2 * min(size, SENT_BYTES_MAX)))
        self._call.work()

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
            self._grant = self._budget.take_now(self._call.principal, size)
            if self._grant is None:
                self._call.rest()
                self._grant = self._budget.take(self._call.principal, size)

    def release(self) -> None:
        """Give it back: the batch is sent."""
        if self._grant is not None:
            self._grant.release()
            self._grant = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()
