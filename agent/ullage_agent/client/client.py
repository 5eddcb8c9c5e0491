"""One client over all that a node offers; it takes the fastest path there is, and goes where a handle lives.

    reading    Unix socket (descriptors) | Flight, for many | HTTP
    writing    Unix socket               | Flight, for many | HTTP
    the rest   HTTP; tables: Flight

A path is there if the node says so in its `Node`, and for the Unix socket if its file is on this machine. A write is
repeated over the path on which it began, with its key, so that it is carried out once.
"""

import os
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Final, Self, TypeVar

import msgspec

from ullage_agent.client.documents import Head, Heads, Plan, Resource, Run, RunWish, State, Survey, Verdict
from ullage_agent.client.errors import LeaseLost, Misuse, NotReachable, Refused
from ullage_agent.client.http import HttpClient
from ullage_agent.client.provenance import Provenance
from ullage_agent.client.queues import Queues
from ullage_agent.client.retries import NEVER, Retries
from ullage_agent.client.socket import SocketClient
from ullage_agent.service.socket.frames import FRAME_BYTES_MAX

if TYPE_CHECKING:
    from ullage_agent.client.flight import FlightClient

T = TypeVar("T")

BATCH_BYTES: Final = FRAME_BYTES_MAX - (1 << 20)
"""Content of one put: what fits into a frame beside attributes, and a good size for all paths."""

BATCH_CONTENTS: Final = 10_000
MANY: Final = 16
"""From so many contents on a Flight stream is faster than HTTP."""


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """Where a node is reached. `socket` counts only on the machine where it is."""

    url: str
    flight: str | None = None
    socket: str | None = None
    token: str | None = None
    ca_file: str | None = None


Resolver = Mapping[str, Node] | Callable[[str], Node]
"""Where the node of a handle is, by its name."""


class Client:
    """See the module's text. Thread-safe. Errors are those of `client.errors`."""

    def __init__(
        self, node: Node | str, *, resolver: Resolver | None = None, retries: Retries | None = None, name: str = ""
    ) -> None:
        """`name` is the node's own, so that its handles need no resolver; without one, HTTP tells it."""
        self.node = Node(url=node) if isinstance(node, str) else node
        self.name = name
        self._resolver = resolver
        self._retries = retries or Retries()
        self._lock = threading.Lock()
        self._stack = ExitStack()
        self._http = self._stack.enter_context(HttpClient(self.node.url, self.node.token, ca_file=self.node.ca_file))
        self._flight: FlightClient | None = None
        self._others: dict[str, Client] = {}
        path = self.node.socket
        self._socket: SocketClient | None = None
        if path is not None and os.path.exists(path):
            self._socket = self._stack.enter_context(SocketClient(path, self.node.token))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        for other in self._others.values():
            other.close()
        self._stack.close()

    def put(
        self,
        content: bytes | Iterable[bytes],
        attributes: dict[str, str] | None = None,
        ttl_millis: int = 0,
        key: str | None = None,
    ) -> str:
        """Store one content; its handle, with the node's name. An iterable is read once, so it is not retried."""
        if isinstance(content, bytes) and len(content) <= BATCH_BYTES:
            return self.put_many([content], None if attributes is None else [attributes], ttl_millis, key)[0]
        key = key or _new_key()
        pieces = [content] if isinstance(content, bytes) else content
        retries = self._retries if isinstance(content, bytes) else NEVER
        if (local := self._socket) is not None:
            return self._named(retries.run(lambda: local.put_stream(pieces, attributes, ttl_millis, key)))
        return retries.run(lambda: self._http.put(content, attributes, ttl_millis, key)).handle

    def put_many(
        self,
        contents: Sequence[bytes],
        attributes: Sequence[dict[str, str]] | None = None,
        ttl_millis: int = 0,
        key: str | None = None,
    ) -> list[str]:
        """Store contents, in as few transactions as their size allows; their handles. Large ones go by `put`."""
        mappings: Sequence[dict[str, str]] = [{}] * len(contents) if attributes is None else attributes
        if len(mappings) != len(contents):
            raise Misuse(f"{len(contents)} contents came with attributes for {len(mappings)}")
        key = key or _new_key()
        handles: list[str] = []
        for number, (start, end) in enumerate(_batches(contents)):
            handles += self._put_batch(contents[start:end], mappings[start:end], ttl_millis, f"{key}-{number}")
        return handles

    def get(self, handle: str) -> bytes:
        """A whole content."""
        return b"".join(self.stream(handle))

    def get_many(self, handles: Sequence[str]) -> list[bytes]:
        """Contents in order, from all their nodes. Refused for the first that there is not."""
        contents: dict[int, bytes] = {}
        for client, items in self._by_node(handles).items():
            found = client._get_own([_id(handles[item]) for item in items])  # noqa: SLF001 - another one of us
            contents.update(zip(items, found, strict=True))
        return [contents[item] for item in range(len(handles))]

    def stream(self, handle: str, start: int = 0, size: int | None = None) -> Iterator[bytes]:
        """A content, or a range of it, in pieces; after a break it goes on where it was."""
        client = self._client_of(handle)
        if client is not self:
            yield from client.stream(_id(handle), start, size)
            return
        attempts = self._retries.attempts
        while True:
            try:
                for piece in self._stream_once(_id(handle), start, size):
                    yield piece
                    start += len(piece)
                    size = None if size is None else size - len(piece)
                    attempts = self._retries.attempts
                return
            except (LeaseLost, NotReachable):
                attempts -= 1
                if attempts <= 0:
                    raise
                self._retries.sleep(self._retries.first_seconds)

    def head(self, handle: str) -> Head:
        """Size, attributes and dates."""
        client = self._client_of(handle)
        return client._retries.run(lambda: client._http.head(_id(handle)))  # noqa: SLF001

    def handles(self, after: str = "", limit: int = 100) -> Heads:
        """A page of this node's handles, by id."""
        return self._retries.run(lambda: self._http.handles(after, limit))

    def delete(self, handle: str) -> None:
        """Delete a handle; until its retention ends it can be undeleted."""
        client, key = self._client_of(handle), _new_key()
        client._retries.run(lambda: client._http.delete(_id(handle), key))  # noqa: SLF001

    def undelete(self, handle: str) -> None:
        """Bring a deleted handle back."""
        client, key = self._client_of(handle), _new_key()
        client._retries.run(lambda: client._http.undelete(_id(handle), key))  # noqa: SLF001

    def survey(self) -> Survey:
        """How full each container is, and of what."""
        return self._retries.run(self._http.survey)

    def resources(self) -> Iterator[Resource]:
        """All resource claims by index."""
        after: int | None = 0
        while after is not None:
            page = self._retries.run(partial(self._http.resources, after))
            yield from page.resources
            after = page.next

    def windows(self) -> list[Verdict]:
        """For each operation whether the windows allow it now, and why."""
        return self._retries.run(self._http.windows)

    def plan(self, policy: str | None = None, *, respects_guards: bool = False) -> Plan:
        """What a run of reclamation would do."""
        return self._retries.run(lambda: self._http.plan(policy, respects_guards=respects_guards))

    def reclaim(
        self,
        policy: str | None = None,
        *,
        override: bool = False,
        bytes_per_second: int | None = None,
        respects_guards: bool = False,
        on_progress: Callable[[Run], bool] = lambda _: True,
        poll_seconds: float = 0.2,
    ) -> Run:
        """Run reclamation and wait for its end. Refused (`window-closed`) out of hours, unless it overrides them.

        `on_progress` is told now and then; once it says False the run is stopped after its present action.
        """
        wish = RunWish(
            policy=policy, override=override, bytes_per_second=bytes_per_second, respects_guards=respects_guards
        )
        key = _new_key()
        run = self._retries.run(lambda: self._http.begin_run(wish, key))
        is_stopped = False
        while run.ended_millis is None:
            if not (is_stopped or on_progress(run)):
                self._retries.run(partial(self._http.stop_run, run.id))
                is_stopped = True
            self._retries.sleep(poll_seconds)
            run = self._retries.run(partial(self._http.run, run.id))
        return run

    @property
    def queues(self) -> Queues:
        """The node's queues, over HTTP."""
        return Queues(self._http, self._retries)

    @property
    def provenance(self) -> Provenance:
        """What happened on the node, over HTTP."""
        return Provenance(self._http, self._retries)

    def state(self) -> State:
        """The node's name and its repository."""
        return self._retries.run(self._http.state)

    @property
    def tables(self) -> "FlightClient":
        """The node's tables and snapshots, over Flight. Misuse if the node says no address of it."""
        flight = self._own_flight()
        if flight is None:
            raise Misuse("tables come over Arrow Flight: name its address in Node.flight")
        return flight

    def _put_batch(
        self, contents: Sequence[bytes], attributes: Sequence[dict[str, str]], ttl_millis: int, key: str
    ) -> list[str]:
        local, flight = self._socket, self._own_flight() if len(contents) >= MANY else None
        if len(contents) == 1 and len(contents[0]) > BATCH_BYTES:
            return [self.put(contents[0], attributes[0], ttl_millis, key)]
        if local is not None:
            found = self._retries.run(lambda: local.put_many(contents, attributes, ttl_millis, key))
        elif flight is not None:
            (found,) = self._retries.run(lambda: list(flight.put_many([contents], attributes, ttl_millis, key)))
        elif len(contents) == 1:  # bytes as they are, rather than base64
            return [self._retries.run(lambda: self._http.put(contents[0], attributes[0], ttl_millis, key)).handle]
        else:
            stored = self._retries.run(lambda: self._http.put_many(contents, attributes, ttl_millis, key))
            return [f"{id}@{stored.node}" for id in stored.ids]
        return [self._named(each) for each in found]

    def _get_own(self, ids: Sequence[str]) -> list[bytes]:
        if (local := self._socket) is not None:
            return self._retries.run(lambda: local.read_all([uuid.UUID(id).bytes for id in ids]))
        if len(ids) >= MANY and (flight := self._own_flight()) is not None:
            return self._retries.run(lambda: _gathered(flight.get_many(ids), len(ids)))
        return [b"".join(self.stream(id)) for id in ids]

    def _stream_once(self, id: str, start: int, size: int | None) -> Iterator[bytes]:
        if self._socket is not None:
            return self._socket.stream(uuid.UUID(id).bytes, start, size)
        if start and size is None and self._http.head(id).size == start:
            return iter(())
        return self._http.stream(id, start, size)

    def _own_flight(self) -> "FlightClient | None":
        if self.node.flight is None:
            return None
        with self._lock:
            if self._flight is None:
                # pyarrow takes half a second to import, and HTTP needs none of it.
                from ullage_agent.client.flight import FlightClient  # noqa: PLC0415

                made = FlightClient(self.node.flight, self.node.token, ca_file=self.node.ca_file)
                self._flight = self._stack.enter_context(made)
            return self._flight

    def _client_of(self, handle: str) -> "Client":
        """Whoever speaks to the handle's node."""
        name = handle.partition("@")[2]
        if not name or name == self._own_name():
            return self
        resolver = self._resolver
        if resolver is None:
            raise Refused(421, "elsewhere", f"handle {handle}: this is {self.name}, and there is no resolver to ask")
        with self._lock:
            if name not in self._others:
                try:
                    node = resolver(name) if callable(resolver) else resolver[name]
                except KeyError as error:
                    raise NotReachable(f"handle {handle}: no node {name} is known") from error
                self._others[name] = Client(node, retries=self._retries, name=name)
            return self._others[name]

    def _by_node(self, handles: Sequence[str]) -> "dict[Client, list[int]]":
        found: dict[Client, list[int]] = {}
        for item, handle in enumerate(handles):
            found.setdefault(self._client_of(handle), []).append(item)
        return found

    def _named(self, raw: bytes) -> str:
        """A handle as it goes over the network."""
        return f"{uuid.UUID(bytes=raw)}@{self._own_name()}"

    def _own_name(self) -> str:
        if not self.name:
            self.name = self.state().node
        return self.name


def _batches(contents: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    start, size = 0, 0
    for at, content in enumerate(contents):
        if at > start and (size + len(content) > BATCH_BYTES or at - start >= BATCH_CONTENTS):
            yield start, at
            start, size = at, 0
        size += len(content)
    if start < len(contents):
        yield start, len(contents)


def _gathered(pieces: Iterable[tuple[int, bytes]], count: int) -> list[bytes]:
    found: list[list[bytes]] = [[] for _ in range(count)]
    for item, piece in pieces:
        found[item].append(piece)
    return [each[0] if len(each) == 1 else b"".join(each) for each in found]


def _id(handle: str) -> str:
    id = handle.partition("@")[0]
    try:
        return str(uuid.UUID(id))
    except ValueError as error:
        raise Refused(404, "no-such-handle", f"{handle!r} is not a handle") from error


def _new_key() -> str:
    return str(uuid.uuid4())
