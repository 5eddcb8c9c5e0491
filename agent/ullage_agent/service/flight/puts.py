"""DoPut: contents in record batches, each batch one transaction, and the handles back while the stream goes on.

batch 0: 1,000 rows          | one commit | metadata: 0, 1,000 uuids
batch 1: 3 rows, the last one continues   | one commit of the first two
batch 2: 1 row, continues    | metadata: 1, two uuids
batch 3: 1 row, the end      | metadata: 2, none | one commit | metadata: 3, 1 uuid

A batch may have a command of its own instead of the stream's, as metadata: clients that put one batch now and one later
need no call for each.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Final, NamedTuple

import pyarrow as pa

from ullage.embedded.bulk import ContentSink
from ullage.errors import InvalidArgument, RequestTooLarge
from ullage.interface.checks import checked_all
from ullage.wire.schemas import ATTRIBUTES, PUT_ATTRIBUTES, PUT_CONTENT, PUT_CONTINUES, PUT_SCHEMA
from ullage.wire.tickets import pack_stored
from ullage_agent.service.flight.ipc import Shape, read_shape
from ullage_agent.service.flight.messages import FlightData
from ullage_agent.service.limits import Limits

BYTES: Final = (pa.binary(), pa.large_binary())
NOTHING: Final = memoryview(b"")

KNOWN_MAX: Final = 16
KNOWN_BYTES_MAX: Final = 4 << 10
"""So many schemas are known again, which take less than so many bytes each."""

TEXTS: Final = {pa.string(), pa.large_string()}


class Row(NamedTuple):
    """A content, or a piece of one that goes on in the next row."""

    content: bytes
    attributes: dict[str, str]
    continues: bool


class PutBatch(NamedTuple):
    """What one message brings."""

    rows: pa.RecordBatch
    command: bytes
    """Its own; empty for the stream's."""


OwnSink = Callable[[bytes], AbstractContextManager[ContentSink]]
"""Where the contents of a batch go that has this command of its own, for as long as they are stored."""


class Puts:
    """One stream's contents. Used by one thread."""

    def __init__(
        self,
        sink: ContentSink,
        own_sink: OwnSink,
        limits: Limits,
        batches: Iterator[PutBatch],
        tell: Callable[[bytes], None],
    ) -> None:
        """`tell` gets each batch's metadata once what ends in it is durable."""
        self._sink = sink
        self._own_sink = own_sink
        self._limits = limits
        self._batches = batches
        self._tell = tell
        self._number = 0
        self._stored: list[bytes] = []
        self._rows: Iterator[Row] = iter(())

    def store(self) -> None:
        """Everything that comes."""
        for batch in self._batches:
            self._store_batch(batch)
            self._end_batch()
            del batch  # it would be kept until the next one has come

    def _store_batch(self, batch: PutBatch) -> None:
        rows = batch.rows
        self._require_fit(rows)
        goes_on = PUT_CONTINUES in rows.schema.names and rows.column(PUT_CONTINUES).true_count
        if batch.command:
            if goes_on:
                raise InvalidArgument("a batch with a command of its own holds whole contents: none of them continues")
            with self._own_sink(batch.command) as sink:
                self._store_at_once(sink, rows)
        elif goes_on:
            self._rows = _rows(rows)
            self._store_rows()
        else:
            self._store_at_once(self._sink, rows)

    def _store_at_once(self, sink: ContentSink, rows: pa.RecordBatch) -> None:
        if rows.num_rows:
            self._stored += sink.batch(rows.column(PUT_CONTENT).to_pylist(), _attributes(rows))

    def _store_rows(self) -> None:
        """A batch in which a content goes on, perhaps into those that follow: `_rows` are then the rest of the last."""
        whole: list[Row] = []
        while (row := next(self._rows, None)) is not None:
            if not row.continues:
                whole.append(row)
                continue
            self._store_whole(whole)
            whole = []
            pieces = self._pieces(row)
            uuid = self._sink.stream(pieces, row.attributes)
            for _ in pieces:
                continue  # an earlier stream with this key was answered: its content is here already
            self._stored.append(uuid)  # with the batch in which it ends, not the one in which it began
        self._store_whole(whole)

    def _store_whole(self, rows: list[Row]) -> None:
        if rows:
            self._stored += self._sink.batch([row.content for row in rows], [row.attributes for row in rows])

    def _pieces(self, row: Row) -> Iterator[bytes]:
        """One content from its first row on, over as many batches as it takes."""
        yield row.content
        while row.continues:
            while (found := next(self._rows, None)) is None:
                self._end_batch()  # the client may be waiting for that before it sends the next
                self._rows = iter(())
                self._rows = self._next_rows()
            row = found
            yield row.content

    def _next_rows(self) -> Iterator[Row]:
        batch = next(self._batches, None)
        if batch is None:
            raise InvalidArgument("the stream ends in the middle of a content")
        if batch.command:
            raise InvalidArgument("a batch with a command of its own comes in the middle of a content")
        self._require_fit(batch.rows)
        return _rows(batch.rows)

    def _end_batch(self) -> None:
        self._tell(pack_stored(self._number, self._stored))
        self._number, self._stored = self._number + 1, []

    def _require_fit(self, batch: pa.RecordBatch) -> None:
        try:
            batch.validate(full=True)  # Arrow takes offsets and texts from the wire as they are
        except pa.ArrowInvalid as error:
            raise InvalidArgument(f"the batch is no valid one: {error}") from error
        if batch.column(PUT_CONTENT).null_count:
            raise InvalidArgument(f"column {PUT_CONTENT} holds nulls: an empty content is no null")
        count_max, bytes_max = self._limits.batch, self._limits.put_batch_bytes
        if batch.num_rows > count_max or batch.nbytes > bytes_max:
            raise RequestTooLarge(
                f"a batch of {batch.num_rows} contents and {batch.nbytes} bytes: at most {count_max} and {bytes_max} "
                "are allowed"
            )


def read_put_shape(first: FlightData) -> Shape:
    """The schema that a put's stream begins with; InvalidArgument says what it lacks.

    A client begins each of its streams with the same bytes: those of a few that were taken are known again, because to
    read them takes as long as to read and validate a batch of one content.
    """
    if first.body or len(first.header) > KNOWN_BYTES_MAX:
        return _put_shape(first)
    return _known_shape(bytes(first.header))


@lru_cache(KNOWN_MAX)
def _known_shape(header: bytes) -> Shape:
    return _put_shape(FlightData(NOTHING, memoryview(header), NOTHING, NOTHING))


def _put_shape(first: FlightData) -> Shape:
    try:
        shape = read_shape(first)
        _require_columns(shape.schema)
    except UnicodeDecodeError as error:  # Arrow takes names from the wire as they are
        raise InvalidArgument("the name of a column, or of what is in it, is not UTF-8") from error
    return shape


def _require_columns(schema: pa.Schema) -> None:
    kinds = {field.name: field.type for field in schema}
    if len(kinds) < len(schema) or kinds.keys() - PUT_SCHEMA.names:
        raise InvalidArgument(f"columns that a put does not have, or has once: {', '.join(schema.names)}")
    if kinds.get(PUT_CONTENT) not in BYTES:
        raise InvalidArgument(f"a put has a column {PUT_CONTENT} of binary")
    pairs = kinds.get(PUT_ATTRIBUTES, ATTRIBUTES)
    if not pa.types.is_map(pairs) or not {pairs.key_type, pairs.item_type} <= TEXTS:
        raise InvalidArgument(f"column {PUT_ATTRIBUTES} is a map of string to string, not {pairs}")
    if kinds.get(PUT_CONTINUES, pa.bool_()) != pa.bool_():
        raise InvalidArgument(f"column {PUT_CONTINUES} is of bool, not {kinds[PUT_CONTINUES]}")


def _attributes(batch: pa.RecordBatch) -> dict[str, str] | list[dict[str, str]]:
    if PUT_ATTRIBUTES not in batch.schema.names:
        return {}
    listed = [pairs or () for pairs in batch.column(PUT_ATTRIBUTES).to_pylist()]
    found = [dict(pairs) for pairs in listed]
    if any(len(mapping) < len(pairs) for mapping, pairs in zip(found, listed, strict=True)):
        raise InvalidArgument(f"column {PUT_ATTRIBUTES} names an attribute of one content twice")
    try:
        return checked_all(found)
    except TypeError as error:  # a value that is null
        raise InvalidArgument(f"column {PUT_ATTRIBUTES}: {error}") from error


def _rows(batch: pa.RecordBatch) -> Iterator[Row]:
    attributes = _attributes(batch)
    for at in range(batch.num_rows):
        yield Row(
            batch.column(PUT_CONTENT)[at].as_py(),
            attributes if isinstance(attributes, dict) else attributes[at],
            continues=bool(batch.column(PUT_CONTINUES)[at].as_py()),
        )
