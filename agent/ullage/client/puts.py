"""Streams of DoPut that stay open from one put to the next: to begin a call takes as long as to store a small content.

    put -> idle stream, or a new one -> the batch, with its command -> its uuids -> idle for KEPT_SECONDS, then ended

Whoever puts one batch after the other pays for the call once. Whoever does not holds none of the node's few places for
streams: an idle stream ends before anybody misses its place.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyarrow import flight

from ullage.client.waits import BoundedWait, Waits
from ullage.errors import NotReachable
from ullage.wire.tickets import UUID_BYTES, PutCommand, parse_stored

KEPT_SECONDS: Final = 0.05
"""How long a stream waits for the next put. A node has 32 places for streams: programs that put something now and then
would take all of them by waiting.
"""

AGE_SECONDS_MAX: Final = 10.0
"""A node looks at a token, and at what it may do, when a stream begins. So none lasts for longer."""

OpenStream = Callable[[pa.Schema], tuple[Any, Any]]
"""Begins a DoPut without a command; its writer, and the reader of its metadata."""


class PutStream:
    """One DoPut. Used by one thread at a time."""

    def __init__(self, open_stream: OpenStream, schema: pa.Schema) -> None:
        self.schema = schema
        self._writer, self._told = open_stream(schema)
        self._began = time.monotonic()
        self.wait: BoundedWait | None = None
        """For as long as it is idle."""

    @property
    def is_old(self) -> bool:
        """Whether it should take no other put."""
        return time.monotonic() - self._began > AGE_SECONDS_MAX

    def put(self, batch: pa.RecordBatch, command: PutCommand) -> list[bytes]:
        """Store a batch in one transaction; its uuids once it is durable. It always has a command of its own: so the
        node's audit log has its line at once, and not when the stream ends.
        """
        self._writer.write_with_metadata(batch, pa.py_buffer(msgspec.json.encode(command)))
        return read_stored(self._told)

    def end(self) -> None:
        """Errors are the node's: why it has ended the stream."""
        self._writer.close()


class PutStreams:
    """Those of one client. Thread-safe."""

    def __init__(self, open_stream: OpenStream) -> None:
        self._open_stream = open_stream
        self._lock = threading.Lock()
        self._idle: list[PutStream] = []
        self._waits = Waits(KEPT_SECONDS)

    @contextmanager
    def one(self, schema: pa.Schema) -> Iterator[PutStream]:
        """A stream for one put, which is ended if the put fails."""
        stream = self._taken(schema) or PutStream(self._open_stream, schema)
        try:
            yield stream
        except BaseException:
            stream.end()  # what this raises says more: the node's reason comes with the end of the stream
            raise
        if stream.is_old:
            _end_idle(stream)
        else:
            self._keep(stream)

    def close(self) -> None:
        """End those that are idle."""
        self._waits.close()
        with self._lock:
            idle, self._idle = self._idle, []
        for stream in idle:
            _end_idle(stream)

    def _taken(self, schema: pa.Schema) -> PutStream | None:
        """The one that was used last: those before it get old enough to end."""
        with self._lock:
            found = next((each for each in reversed(self._idle) if each.schema is schema), None)
            if found is not None:
                self._idle.remove(found)
        if found is not None and found.wait is not None:
            self._waits.remove(found.wait)
        return found

    def _keep(self, stream: PutStream) -> None:
        stream.wait = self._waits.ended_by(lambda: self._expire(stream), KEPT_SECONDS)
        with self._lock:
            self._idle.append(stream)
        self._waits.add(stream.wait)

    def _expire(self, stream: PutStream) -> None:
        with self._lock:
            if stream not in self._idle:  # somebody puts something with it
                return
            self._idle.remove(stream)
        _end_idle(stream)


def read_stored(told: Any) -> list[bytes]:
    """The uuids that a node tells of a batch; NotReachable."""
    answer = told.read()
    if answer is None:
        raise NotReachable("the node ended the stream before it had answered")
    uuids = parse_stored(answer.to_pybytes())
    if uuids and len(uuids[-1]) < UUID_BYTES:  # the others are pieces of that length
        raise NotReachable("the node answered a batch with something else than uuids")
    return uuids


def _end_idle(stream: PutStream) -> None:
    # Everything that was put is durable and answered: why the node has ended it first, if it has, concerns nobody.
    with suppress(flight.FlightError, pa.ArrowException, OSError):
        stream.end()
