"""DoPut: contents in record batches, each batch one transaction, and the handles back while the stream goes on.

batch 0: 1,000 rows          | one commit | metadata: 0, 1,000 uuids
batch 1: 3 rows, the last one continues   | one commit of the first two
batch 2: 1 row, continues    | metadata: 1, two uuids
batch 3: 1 row, the end      | metadata: 2, none | one commit | metadata: 3, 1 uuid
"""

import struct
from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa

from ullage_agent.engine.repository import Repository
from ullage_agent.service.access import Principal
from ullage_agent.service.batches import Writes
from ullage_agent.service.errors import BadRequest, TooMuch
from ullage_agent.service.flight.forms import PUT_ATTRIBUTES, PUT_CONTENT, PUT_CONTINUES, Put
from ullage_agent.service.flight.stores import store_of

NUMBER: Final = struct.Struct("<I")
"""A batch's number, before the uuids of the contents that end in it, 16 bytes each."""

Batches = Iterator[pa.RecordBatch]
Told = Callable[[bytes], None]


class Puts:
    """One stream's contents. Used by one thread."""

    def __init__(
        self, repository: Repository, principal: Principal, command: Put, batch_max: int, batch_bytes_max: int
    ) -> None:
        self._store = store_of(repository, principal, command)
        self._batch_max = batch_max
        self._batch_bytes_max = batch_bytes_max

    def store(self, batches: Batches, tell: Told) -> None:
        """Everything that comes; `tell` gets each batch's metadata once what ends in it is durable."""
        number = 0
        pending: list[bytes] = []
        rows: Iterator[_Row] | None = None
        for batch in batches:
            self._require_fit(batch)
            if not _continues(batch):
                pending += self._store_whole(batch)
            else:
                rows = _rows(batch)
                pending, number = self._store_mixed(rows, batches, pending, number, tell)
            tell(NUMBER.pack(number) + b"".join(pending))
            pending = []
            number += 1

    def _store_whole(self, batch: pa.RecordBatch) -> list[bytes]:
        if not batch.num_rows:
            return []
        contents = batch.column(PUT_CONTENT).to_pylist()
        return self._store.batch(contents, _attributes(batch))

    def _store_mixed(
        self, rows: "Iterator[_Row]", batches: Batches, pending: list[bytes], number: int, tell: Told
    ) -> tuple[list[bytes], int]:
        """A batch in which a content goes on; it may reach into the batches that follow, which are told of too."""
        whole: list[_Row] = []
        while (row := next(rows, None)) is not None:
            if not row.continues:
                whole.append(row)
                continue
            pending += self._store_rows(whole)
            whole = []

            def ended() -> None:
                """The batch is all taken: the client hears of it, for it may be waiting before it sends the next."""
                nonlocal number, pending
                tell(NUMBER.pack(number) + b"".join(pending))
                number, pending = number + 1, []

            cursor = _Cursor(rows, batches, row, ended, self._require_fit)
            uuid = self._store.stream(cursor.write_to, row.attributes)
            if not cursor.is_over:
                cursor.skip()  # an earlier stream with this key was answered: its content is here already
            pending.append(uuid)
            rows = cursor.rows
        return pending + self._store_rows(whole), number

    def _store_rows(self, rows: "list[_Row]") -> list[bytes]:
        if not rows:
            return []
        attributes = [row.attributes for row in rows]
        contents = [row.content for row in rows]
        return self._store.batch(contents, attributes)

    def _require_fit(self, batch: pa.RecordBatch) -> None:
        kind = batch.schema.field(PUT_CONTENT).type if PUT_CONTENT in batch.schema.names else None
        if kind not in (pa.binary(), pa.large_binary()) or batch.column(PUT_CONTENT).null_count:
            raise BadRequest(f"a put has a column {PUT_CONTENT} of binary without nulls")
        if unknown := set(batch.schema.names) - {PUT_CONTENT, PUT_ATTRIBUTES, PUT_CONTINUES}:
            raise BadRequest(f"unknown columns {', '.join(sorted(unknown))}")
        if batch.num_rows > self._batch_max or batch.nbytes > self._batch_bytes_max:
            raise TooMuch(
                f"a batch of {batch.num_rows} contents and {batch.nbytes} bytes: at most {self._batch_max} and "
                f"{self._batch_bytes_max} are allowed"
            )


class _Row:
    __slots__ = ("attributes", "content", "continues")

    def __init__(self, content: bytes, attributes: dict[str, str], *, continues: bool) -> None:
        self.content = content
        self.attributes = attributes
        self.continues = continues


class _Cursor:
    """The rows of one content, from `first` on, over as many batches as it takes."""

    def __init__(
        self,
        rows: Iterator[_Row],
        batches: Batches,
        first: _Row,
        on_end: Callable[[], None],
        check: Callable[[pa.RecordBatch], None],
    ) -> None:
        self.rows = rows
        self.is_over = False
        self._batches = batches
        self._first = first
        self._on_end = on_end
        self._check = check

    def write_to(self, sink: Writes) -> None:
        for content in self._contents():
            sink.write(content)

    def skip(self) -> None:
        for _ in self._contents():
            continue

    def _contents(self) -> Iterator[bytes]:
        row: _Row | None = self._first
        while row is not None:
            yield row.content
            if not row.continues:
                break
            row = self._next()
        self.is_over = True

    def _next(self) -> _Row:
        while (row := next(self.rows, None)) is None:
            self._on_end()
            batch = next(self._batches, None)
            if batch is None:
                raise BadRequest("the stream ends in the middle of a content")
            self._check(batch)
            self.rows = _rows(batch)
        return row


def batches_of(reader: Any) -> Batches:
    """The stream's batches. Whatever Flight raises when the client goes away in the middle passes through."""
    while True:
        try:
            chunk = reader.read_chunk()
        except StopIteration:
            return
        if chunk.data is not None:
            yield chunk.data


def _continues(batch: pa.RecordBatch) -> bool:
    return PUT_CONTINUES in batch.schema.names and bool(batch.column(PUT_CONTINUES).true_count)


def _attributes(batch: pa.RecordBatch) -> dict[str, str] | list[dict[str, str]]:
    if PUT_ATTRIBUTES not in batch.schema.names:
        return {}
    return [dict(pairs or ()) for pairs in batch.column(PUT_ATTRIBUTES).to_pylist()]


def _rows(batch: pa.RecordBatch) -> Iterator[_Row]:
    attributes = _attributes(batch)
    for at in range(batch.num_rows):
        yield _Row(
            batch.column(PUT_CONTENT)[at].as_py(),
            attributes if isinstance(attributes, dict) else attributes[at],
            continues=bool(batch.column(PUT_CONTINUES)[at].as_py()) if PUT_CONTINUES in batch.schema.names else False,
        )
