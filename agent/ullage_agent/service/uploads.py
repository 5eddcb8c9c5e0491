"""A content on its way into a queue, piece by piece: what `HandlePut` is for handles."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Protocol

from ullage_agent.engine.model import FlowFile, Operation
from ullage_agent.engine.repository import Repository

COMPONENT = "service"
"""Who works in sessions that nobody gave a name, as provenance events tell it."""


class Sink(Protocol):
    """Takes content; used by one thread at a time."""

    def write(self, data: bytes) -> None: ...

    def abandon(self) -> None: ...


class QueuePut:
    """One FlowFile: `write` as often as it takes, then `commit` or `abandon`. One thread at a time."""

    def __init__(self, repository: Repository, queue: str, attributes: dict[str, str], *, forced: bool = False) -> None:
        """BackPressure if the queue is full, unless it is forced."""
        self._queue = queue
        self._session = repository.session(COMPONENT)
        if not forced:
            self._session.require_room(queue)
        self._flow_file = self._session.create(attributes=attributes)
        self._open = ExitStack()
        self._stream = self._open.enter_context(self._session.writing(self._flow_file))

    @property
    def id(self) -> str:
        """The FlowFile's uuid, known before the commit so that it can stand in the answer."""
        return self._flow_file.id

    @property
    def length(self) -> int:
        """Bytes written so far."""
        return self._stream.length

    def write(self, data: bytes) -> None:
        """Append. After an error only `abandon` is left."""
        self._stream.write(data)

    def commit(self, also: Sequence[Operation] = ()) -> FlowFile:
        """Make it durable and show it in the queue."""
        self._open.close()
        self._session.transfer(self._flow_file, self._queue)
        self._session.commit(also)
        return self._flow_file

    def abandon(self) -> None:
        """Give it up: nothing is left behind but dead bytes."""
        self._session.rollback()
