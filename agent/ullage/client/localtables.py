"""Tables over the Unix socket of a node on the same machine: what Flight gives, without gRPC, which takes more of the
processor than all the rest of a table whose columns the node has kept. pyarrow is imported with this module.
"""

import io
from collections.abc import Callable, Iterator
from itertools import chain, islice

import msgspec
import pyarrow as pa

from ullage.client.arriving import RECEIVED_BYTES_MAX, require_schema, require_sound, schema_wanted
from ullage.client.socket import SocketClient
from ullage.errors import NotReachable
from ullage.wire.tickets import TableTicket


class FramedStream(io.RawIOBase):
    """Bytes that come in frames, as a file for Arrow: what lies in one frame is not copied."""

    def __init__(self, where: str, following: Callable[[], bytes]) -> None:
        """`following` gives the next piece, an empty one at the end and never again."""
        self._where = where
        self._following = following
        self._rest = memoryview(b"")
        self._has_ended = False

    def readable(self) -> bool:
        """It is."""
        return True

    def read(self, size: int = -1) -> memoryview:
        """So many bytes, fewer at the end. NotReachable for a message that no node sends."""
        if not 0 <= size <= RECEIVED_BYTES_MAX:
            raise NotReachable(f"{self._where}: the node sent a message of {size} bytes")
        if size > len(self._rest):
            self._gather(size)
        found, self._rest = self._rest[:size], self._rest[size:]
        return found

    def _gather(self, size: int) -> None:
        parts, got = [self._rest], len(self._rest)
        while got < size and not self._has_ended:
            piece = self._following()
            self._has_ended = not piece
            parts.append(memoryview(piece))
            got += len(piece)
        parts = [part for part in parts if part]
        self._rest = parts[0] if len(parts) == 1 else memoryview(b"".join(parts))


def local_table(client: SocketClient, wanted: TableTicket) -> pa.RecordBatchReader:
    """A table, or what the ticket wants of it. The client is for this alone, and is closed when all has come, or the
    reader is. Errors as of `FlightClient.table`, those up to the first batch at once.
    """
    try:
        stream = FramedStream(client.path, client.rows(msgspec.json.encode(wanted)))
        schema = schema_wanted(wanted)
        try:
            reader = pa.ipc.open_stream(pa.PythonFile(stream, mode="r"))
        except (pa.ArrowException, OSError) as error:
            raise NotReachable(f"{client.path}: the node sent no table: {error}") from error
        require_schema(client.path, reader.schema, schema)
    except BaseException:
        client.close()
        raise
    batches = _batches(client, reader)
    # At once: a table for whose first batch there is no room is told of here, and the client is closed with its reader
    # also if nobody ever reads.
    first = list(islice(batches, 1))
    return pa.RecordBatchReader.from_batches(schema, chain(first, batches))


def _batches(client: SocketClient, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    with client:
        while True:
            try:
                batch = reader.read_next_batch()
            except StopIteration:
                return
            except (pa.ArrowException, OSError) as error:
                raise NotReachable(f"{client.path}: {error}") from error
            require_sound(client.path, batch)
            yield batch
