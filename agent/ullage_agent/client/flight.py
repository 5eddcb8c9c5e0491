"""Client of Arrow Flight (docs/flight.md): contents and tables in bulk. pyarrow is imported with this module."""

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Self

import msgspec
import pyarrow as pa
from pyarrow import flight

from ullage_agent.client.documents import ProblemDetails
from ullage_agent.client.errors import ClientError, NotReachable, Refused

OUTSTANDING: Final = 4
"""Batches on their way before the metadata of the first is waited for: it keeps the node busy, and no stream full."""

RECONNECT: Final = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.min_reconnect_backoff_ms", 5_000)]
"""gRPC would refuse everything for a second after a connection that was not accepted: longer than `Retries` waits. The
second is, whatever its name says, how long a connection may take to be made: busy machines need more than a moment.
"""

UUID_BYTES: Final = 16
ATTRIBUTES: Final = pa.map_(pa.string(), pa.string())
CONTENTS: Final = pa.schema([("content", pa.binary())])
WITH_ATTRIBUTES: Final = pa.schema([("content", pa.binary()), ("attributes", ATTRIBUTES)])


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Tables that are asked for with its id agree with each other."""

    id: str
    transaction: int
    millis: int
    expires_millis: int
    lease: str | None


class SocketSeen(msgspec.Struct, frozen=True, kw_only=True):
    """What tells a node's own socket from others of the same path."""

    path: str
    inode: int
    changed_nanos: int


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What a node says of itself. `repository` changes when another one, or a restored backup, takes its place;
    sequences are those of provenance events: the oldest one kept, and the newest.
    """

    node: str
    repository: str
    millis: int
    first_sequence: int
    last_sequence: int
    socket: SocketSeen | None


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """What a slot of a scan is to do: `state` is read, wait or none. With read: share `share` of `shares` of `home`."""

    state: str
    home: str
    share: int
    shares: int
    where: str


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """`count` FlowFiles stand for a stream after the place that was asked, up to `through`; `waiting` more could."""

    through: int
    count: int
    waiting: int


class Write(msgspec.Struct, frozen=True, kw_only=True):
    """A staged write: `state` is open, prepared, committed, aborted or unknown."""

    write: str
    state: str
    expires_millis: int
    decision: str


class FlightClient:
    """One node. Thread-safe. Errors: Refused, NotReachable. Nothing is retried here."""

    def __init__(self, url: str, token: str | None = None, *, ca_file: str | None = None) -> None:
        self.url = url
        headers = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
        self._options = flight.FlightCallOptions(headers=headers)
        roots: dict[str, Any] = {"generic_options": RECONNECT}
        if ca_file is not None:
            with open(ca_file, "rb") as file:
                roots["tls_root_certs"] = file.read()
        self._client = flight.connect(url, **roots)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def put_many(
        self,
        batches: Iterable[Sequence[bytes]],
        attributes: Sequence[dict[str, str]] | None = None,
        ttl_millis: int = 0,
        key: str | None = None,
    ) -> Iterator[list[bytes]]:
        """Store batches, each in a transaction; the uuids of each come once it is durable. `attributes` go with each
        batch, one mapping a content.
        """
        command = {"ttl_millis": ttl_millis, **({} if key is None else {"key": key})}
        schema = CONTENTS if attributes is None else WITH_ATTRIBUTES

        def packed() -> Iterator[pa.RecordBatch]:
            for contents in batches:
                arrays = [pa.array(contents, pa.binary())]
                if attributes is not None:
                    arrays.append(pa.array([list(each.items()) for each in attributes], ATTRIBUTES))
                yield pa.record_batch(arrays, schema=schema)

        return self._put(command, packed(), schema)

    def _put(
        self, command: dict[str, Any], batches: Iterable[pa.RecordBatch], schema: pa.Schema
    ) -> Iterator[list[bytes]]:
        """Send batches, few outstanding at a time; the uuids of each come once it is durable."""
        descriptor = flight.FlightDescriptor.for_command(json.dumps(command).encode())
        with self._telling():
            writer, told = self._client.do_put(descriptor, schema, self._options)
            outstanding: deque[int] = deque()
            try:
                for number, batch in enumerate(batches):
                    writer.write_batch(batch)
                    outstanding.append(number)
                    if len(outstanding) > OUTSTANDING:
                        outstanding.popleft()
                        yield _uuids(told)
                writer.done_writing()
                while outstanding:
                    outstanding.popleft()
                    yield _uuids(told)
            finally:
                writer.close()

    def get_many(self, handles: Sequence[str]) -> Iterator[tuple[int, bytes]]:
        """Pieces of contents, each with its item's number, in order. Refused for the first that there is not."""
        for batch in self.get_batches(handles):
            for item, content, problem in zip(
                batch.column("item").to_pylist(),
                batch.column("content").to_pylist(),
                batch.column("problem").to_pylist(),
                strict=True,
            ):
                if problem:
                    raise Refused(404, problem, f"handle {handles[item]}")
                yield item, content

    def get_batches(
        self, handles: Sequence[str] = (), claims: Sequence[Sequence[int]] = ()
    ) -> Iterator[pa.RecordBatch]:
        """The same as record batches: nothing is copied. `claims` instead of handles: resource claim, offset, length
        and CRC-32C of a base claim, start and size in it.
        """
        wanted = {"kind": "get", "handles": list(handles)} if handles else {"kind": "get", "claims": list(claims)}
        ticket = flight.Ticket(json.dumps(wanted).encode())
        with self._telling():
            for chunk in self._client.do_get(ticket, self._options):
                yield chunk.data

    def table(
        self,
        name: str,
        snapshot: str | None = None,
        columns: Sequence[str] | None = None,
        part: tuple[int, int] = (0, 1),
        *,
        after: int = 0,
        through: int | None = None,
        feed: tuple[str, str] | None = None,
    ) -> pa.RecordBatchReader:
        """A table as a stream of record batches; of `provenance` only the sequences after one, through another; of
        `flowfiles` with a `feed`, a stream and a queue, what it has taken at these places.
        """
        wanted: dict[str, Any] = {"kind": "table", "name": name, "snapshot": snapshot, "columns": columns, "part": part}
        if name == "provenance" or feed is not None:
            wanted |= {"after": after, "through": through}
        if feed is not None:
            wanted |= {"stream": feed[0], "queue": feed[1]}
        with self._telling():
            stream = self._client.do_get(flight.Ticket(json.dumps(wanted).encode()), self._options)
            return stream.to_reader()

    def snapshot(self, ttl_millis: int = 600_000, *, holds: bool = False) -> Snapshot:
        """Take a snapshot; with `holds` its content stays readable as long."""
        (body,) = self._act("snapshot", {"ttl_millis": ttl_millis, "holds": holds})
        return msgspec.json.decode(body, type=Snapshot)

    def renew(self, id: str, ttl_millis: int = 600_000) -> Snapshot:
        """Keep a snapshot for so long from now on; Refused if it is over."""
        (body,) = self._act("renew", {"id": id, "ttl_millis": ttl_millis})
        return msgspec.json.decode(body, type=Snapshot)

    def scan(self, snapshot: str, scan: str, homes: Mapping[str, tuple[int, str]], patience_millis: int) -> None:
        """Let readers of a snapshot find their shares: of each home how many there are, and where it is."""
        named = {name: {"shares": shares, "where": where} for name, (shares, where) in homes.items()}
        self._act("scan", {"snapshot": snapshot, "scan": scan, "homes": named, "patience_millis": patience_millis})

    def bind(self, snapshot: str, scan: str, slot: int, near: Sequence[str] = ()) -> Bound:
        """Which share a slot reads: the same whenever it asks."""
        (body,) = self._act("bind", {"snapshot": snapshot, "scan": scan, "slot": slot, "near": list(near)})
        return msgspec.json.decode(body, type=Bound)

    def take(self, stream: str, queue: str, after: int, count: int, lasts_millis: int) -> Taken:
        """Let a stream have FlowFiles of a queue after a place: those that it has there, then others."""
        wish = {"stream": stream, "queue": queue, "after": after, "count": count, "lasts_millis": lasts_millis}
        (body,) = self._act("feed-take", wish)
        return msgspec.json.decode(body, type=Taken)

    def done(self, stream: str, queue: str, through: int) -> None:
        """A stream has read what stands up to a place: it is removed."""
        self._act("feed-done", {"stream": stream, "queue": queue, "through": through})

    def give_back(self, stream: str, queue: str, after: int) -> None:
        """A stream does not want what it has taken after a place."""
        self._act("feed-back", {"stream": stream, "queue": queue, "after": after})

    def hold_events(self, holder: str, after: int, lasts_millis: int) -> None:
        """Keep the events after a sequence for so long, whatever retention says; 0 lets them go."""
        self._act("hold-events", {"holder": holder, "after": after, "lasts_millis": lasts_millis})

    def about(self) -> About:
        """What the node says of itself."""
        (body,) = self._act("about", {})
        return msgspec.json.decode(body, type=About)

    def write(self, action: str, id: str, **wish: Any) -> Write:
        """A step of a staged write: find, begin, prepare, commit or abort. See docs/flight.md."""
        (body,) = self._act(f"write-{action}", {"write": id, **wish})
        return msgspec.json.decode(body, type=Write)

    def stage(self, write: str, attempt: str, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> int:
        """Stage batches of an attempt, each a transaction if no content goes on in the next; how many contents."""
        command = {"write": write, "attempt": attempt}
        return sum(len(uuids) for uuids in self._put(command, batches, schema))

    def release(self, id: str) -> None:
        """Release a snapshot."""
        self._act("release", {"id": id})

    def _act(self, action: str, body: dict[str, Any]) -> list[bytes]:
        with self._telling():
            results = self._client.do_action(flight.Action(action, json.dumps(body).encode()), self._options)
            return [result.body.to_pybytes() for result in results]

    @contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            raise _told(self.url, error) from error


def _uuids(told: Any) -> list[bytes]:
    answer = told.read()
    if answer is None:
        raise NotReachable("the node ended the stream before it had answered")
    body = answer.to_pybytes()[4:]
    return [body[at : at + UUID_BYTES] for at in range(0, len(body), UUID_BYTES)]


def _told(url: str, error: Exception) -> ClientError:
    try:
        found = msgspec.json.decode(getattr(error, "extra_info", b"") or b"", type=ProblemDetails)
    except msgspec.DecodeError:  # Flight's own: the node was not reached, or went away
        return NotReachable(f"{url}: {error}")
    return Refused(found.status, found.slug, found.detail, found.retry_after_seconds)
