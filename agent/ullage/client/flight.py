"""Client of Arrow Flight (docs/flight.md): contents and tables in bulk. pyarrow is imported with this module."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import flight

from ullage.client.arriving import RECEIVED_BYTES_MAX, require_schema, require_sound, schema_wanted
from ullage.client.proof import is_secret, require_encrypted
from ullage.client.puts import PutStreams, read_stored
from ullage.client.waits import Waits
from ullage.errors import NotReachable, UllageError
from ullage.streams import Closable
from ullage.wire.problems import ProblemDetails, error_of, error_of_slug
from ullage.wire.schemas import (
    ATTRIBUTES,
    GET_SCHEMA,
    PUT_ATTRIBUTES,
    PUT_CONTENT,
    PUT_SCHEMA,
)
from ullage.wire.tickets import (
    ClaimAddress,
    ContentTicket,
    FlightAction,
    PutCommand,
    TableTicket,
)

Q = TypeVar("Q")
A = TypeVar("A")

OUTSTANDING: Final = 4
"""Batches on their way before the metadata of the first is waited for: it keeps the node busy, and no stream full."""

RECONNECT: Final = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.min_reconnect_backoff_ms", 5_000)]
"""gRPC would refuse everything for a second after a connection that was not accepted: longer than `Retries` waits. The
second is, whatever its name says, how long a connection may take to be made: busy machines need more than a moment.
"""

KEEPALIVE: Final = [
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 15_000),
    ("grpc.http2.ping_timeout_ms", 15_000),  # else it is a minute, whatever the line before says
    ("grpc.http2.max_pings_without_data", 0),
]
"""A node that is stopped, or cut off without a word, leaves its connections standing: TCP itself would wait for hours.
So while a call is under way the node is asked for a sign of life, and without one the call ends as not reachable. A
machine that is busy gives it within seconds: gRPC's own threads do.
"""

ANSWER_SECONDS: Final = 300.0
"""How long a node that gives signs of life may take for one answer: longer than any step of a write takes, and than a
disk that still works.
"""

PUT_SCHEMAS: Final = (
    pa.schema([PUT_SCHEMA.field(PUT_CONTENT)]),
    pa.schema([PUT_SCHEMA.field(PUT_CONTENT), PUT_SCHEMA.field(PUT_ATTRIBUTES)]),
)
"""Contents alone, and with attributes."""


class FlightClient(Closable):
    """One node. Thread-safe. Errors: whatever the node refuses, NotReachable. Nothing is retried here. InvalidArgument
    for a token that would go in the clear to another machine.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        ca_file: str | None = None,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self.url = url
        self._answer_seconds = answer_seconds
        require_encrypted(url, token)
        headers = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
        self._headers = headers
        self._options = flight.FlightCallOptions(headers=headers)
        self._waits = Waits()
        options = [*RECONNECT, *KEEPALIVE, ("grpc.max_receive_message_length", RECEIVED_BYTES_MAX)]
        if not is_secret(url, token):
            options.append(("grpc.enable_http_proxy", 0))
        roots: dict[str, Any] = {"generic_options": options}
        if ca_file is not None:
            with open(ca_file, "rb") as file:
                roots["tls_root_certs"] = file.read()
        self._client = flight.connect(url, **roots)
        self._puts = PutStreams(lambda schema: self._do_put(PutCommand(), schema))

    def close(self) -> None:
        """Close the connection."""
        self._puts.close()
        self._waits.close()
        self._client.close()

    def put(
        self,
        contents: Sequence[bytes],
        attributes: Sequence[dict[str, str]] | None = None,
        ttl_millis: int = 0,
        key: str | None = None,
        lifetime: int = 2,
    ) -> list[bytes]:
        """Store contents in one transaction; their uuids, once it is durable. `attributes`: one mapping a content."""
        schema = PUT_SCHEMAS[attributes is not None]
        command = PutCommand(ttl_millis=ttl_millis, lifetime=lifetime, key=key)
        batch = _packed(contents, attributes, schema)
        with self._telling(), self._puts.one(schema) as stream:
            return stream.put(batch, command)

    def put_many(
        self,
        batches: Iterable[Sequence[bytes]],
        attributes: Sequence[dict[str, str]] | None = None,
        ttl_millis: int = 0,
        key: str | None = None,
        lifetime: int = 2,
    ) -> Iterator[list[bytes]]:
        """Store batches, each in a transaction; the uuids of each come once it is durable. `attributes` go with each
        batch, one mapping a content.
        """
        schema = PUT_SCHEMAS[attributes is not None]
        packed = (_packed(contents, attributes, schema) for contents in batches)
        return self._put(PutCommand(ttl_millis=ttl_millis, lifetime=lifetime, key=key), packed, schema)

    def _do_put(self, command: PutCommand, schema: pa.Schema) -> tuple[Any, Any]:
        descriptor = flight.FlightDescriptor.for_command(msgspec.json.encode(command))
        writer, told = self._client.do_put(descriptor, schema, self._options)
        return writer, told

    def _put(self, command: PutCommand, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[list[bytes]]:
        """Send batches, few outstanding at a time; the uuids of each come once it is durable."""
        with self._telling():
            writer, told = self._do_put(command, schema)
            sent = 0
            try:
                for sent, batch in enumerate(batches, start=1):
                    writer.write_batch(batch)
                    if sent > OUTSTANDING:
                        yield read_stored(told)
                writer.done_writing()
                for _ in range(min(sent, OUTSTANDING)):
                    yield read_stored(told)
            finally:
                writer.close()

    def get_many(self, handles: Sequence[str]) -> list[bytes]:
        """Whole contents, in order. HandleNotFound or HandleDeleted for the first that there is not."""
        found: list[list[bytes]] = [[] for _ in handles]
        for item, piece, problem in self.get_rows(handles):
            if problem:
                raise error_of_slug(problem, f"handle {handles[item]}")
            found[item].append(piece)
        if missing := next((handle for handle, pieces in zip(handles, found, strict=True) if not pieces), None):
            raise NotReachable(f"{self.url}: the node ended the stream without handle {missing}")
        return [b"".join(pieces) for pieces in found]

    def get_rows(
        self,
        handles: Sequence[str] = (),
        claims: Sequence[ClaimAddress] = (),
        seals: Sequence[bytes] | None = None,
        ranges: Sequence[tuple[int, int]] | None = None,
    ) -> Iterator[tuple[int, bytes, str | None]]:
        """Pieces of contents, each with its item's number, in order; of one that cannot be read the problem's slug."""
        count = len(handles or claims)
        last, end = 0, 0
        for batch in self.get_batches(handles, claims, seals, ranges):
            columns = (batch.column(name).to_pylist() for name in GET_SCHEMA.names)
            for item, offset, piece, problem in zip(*columns, strict=True):
                expected = end if item == last else 0
                if not last <= item < count or (offset != expected and not problem):
                    raise NotReachable(f"{self.url}: the node sent row {item} at {offset}, which was not asked for")
                last, end = item, offset + len(piece or b"")
                yield item, piece, problem

    def get_batches(
        self,
        handles: Sequence[str] = (),
        claims: Sequence[ClaimAddress] = (),
        seals: Sequence[bytes] | None = None,
        ranges: Sequence[tuple[int, int]] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The same as record batches: nothing is copied. `claims` instead of handles: resource claim, offset, length
        and CRC-32C of a base claim, start and size in it; `seals` is what the rows have that told of them. `ranges`:
        where in each content to begin, and how many bytes of it.
        """
        cut = None if ranges is None else list(ranges)
        if handles:
            wanted = ContentTicket(handles=list(handles), ranges=cut)
        else:
            wanted = ContentTicket(claims=list(claims), seals=None if seals is None else list(seals), ranges=cut)
        with self._telling():
            reader = self._get(wanted, GET_SCHEMA)
        for batch in self._batches(reader):
            absent = [batch.column(name).is_null() for name in ("content", "problem")]
            if batch.num_rows and not pc.all(pc.xor(*absent)).as_py():
                raise NotReachable(f"{self.url}: the node sent a row that has not one of content and problem")
            yield batch

    def table(self, wanted: TableTicket) -> pa.RecordBatchReader:
        """A table, or what the ticket wants of it, as a stream of record batches."""
        schema = schema_wanted(wanted)
        with self._telling():
            reader = self._get(wanted, schema)
        return pa.RecordBatchReader.from_batches(schema, self._batches(reader))

    def act(self, action: FlightAction[Q, A], request: Q, *, timeout_seconds: float | None = None) -> A:
        """What one of `tickets.ACTIONS` answers. NotReachable if that takes longer than so long."""
        seconds = self._answer_seconds if timeout_seconds is None else timeout_seconds
        options = flight.FlightCallOptions(timeout=seconds, headers=self._headers)
        with self._telling():
            body = msgspec.json.encode(request)
            results = self._client.do_action(flight.Action(action.name, body), options)
            answers = [result.body.to_pybytes() for result in results]
        try:
            return msgspec.json.decode(answers[0] if answers else b"{}", type=action.answer)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise NotReachable(f"{self.url}: the node answered {action.name} with something else: {error}") from error

    def stage(
        self,
        write: str,
        attempt: str,
        batches: Iterable[pa.RecordBatch],
        schema: pa.Schema,
        on_told: Callable[[], object] = lambda: None,
    ) -> int:
        """Stage batches of an attempt, each a transaction if no content goes on in the next; how many contents.
        `on_told` is called whenever the node has told of one.
        """
        count = 0
        for uuids in self._put(PutCommand(write=write, attempt=attempt), batches, schema):
            count += len(uuids)
            on_told()
        return count

    def _get(self, wanted: ContentTicket | TableTicket, schema: pa.Schema) -> Any:
        """The stream that answers a ticket. NotReachable if it is of another schema."""
        reader = self._client.do_get(flight.Ticket(msgspec.json.encode(wanted)), self._options)
        require_schema(self.url, reader.schema, schema)
        return reader

    def _batches(self, reader: Any) -> Iterator[pa.RecordBatch]:
        """What comes, if it is sound; NotReachable."""
        with self._telling():
            while True:
                try:
                    with self._waits.ended_by(reader.cancel, self._answer_seconds):
                        batch = reader.read_chunk().data
                except StopIteration:
                    return
                if batch is None:
                    continue
                require_sound(self.url, batch)
                yield batch

    @contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            raise _told(self.url, error) from error


def _packed(
    contents: Sequence[bytes], attributes: Sequence[dict[str, str]] | None, schema: pa.Schema
) -> pa.RecordBatch:
    arrays = [pa.array(contents, pa.binary())]
    if attributes is not None:
        arrays.append(pa.array([list(each.items()) for each in attributes], ATTRIBUTES))
    return pa.record_batch(arrays, schema=schema)


def _told(url: str, error: Exception) -> UllageError:
    try:
        found = msgspec.json.decode(getattr(error, "extra_info", b"") or b"", type=ProblemDetails)
    except msgspec.DecodeError:  # Flight's own: the node was not reached, or went away
        return NotReachable(f"{url}: {error}")
    return error_of(found)
