"""The ways to one node: HTTP for everything, and the Unix socket and Arrow Flight where they are there and faster.

reading    Unix socket (descriptors) | Flight, for many | HTTP
writing    Unix socket               | Flight, for many | HTTP
the rest   HTTP; tables: Flight
"""

import json
import os
import threading
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ullage.client.http import HttpBody, HttpClient, Query
from ullage.client.node import Node
from ullage.client.proof import identity_of, require_encrypted
from ullage.client.retries import NEVER, Retries
from ullage.client.socket import SocketClient
from ullage.enums import Lifetime
from ullage.errors import LeaseLost, NotReachable, RangeNotSatisfiable, RepositoryClosed, RequestTooLarge
from ullage.interface.checks import checked_lifetime
from ullage.interface.values import AnyContent
from ullage.streams import ContentStream, pieces_of
from ullage.wire import operations
from ullage.wire.documents import LifetimeName
from ullage.wire.operation import ATTRIBUTES_HEADER, KEY_HEADER, A, OctetStream, Operation

if TYPE_CHECKING:
    from ullage.client.flight import FlightClient

ATTRIBUTES_BYTES_MAX: Final = 56 << 10
"""What a node's bound on a request's head, 64 KiB, leaves: beyond it a node hangs up rather than answers."""


PieceSource = HttpBody | Generator[bytes, None, None]
"""Pieces of a content on their way."""

Opened = Callable[[int, int | None], tuple[int, PieceSource | None]]
"""From a start and a size on: how many bytes the content has in all, and the pieces of the range."""


class NodeLink:
    """One node. Thread-safe. What is transient is tried again; a write goes with a key, so that it happens once."""

    def __init__(self, node: Node, retries: Retries, name: str = "") -> None:
        """`name` is the node's own; without one, HTTP tells it."""
        self.node = node
        self.retries = retries
        self._name = name
        self._lock = threading.Lock()
        self._stack = ExitStack()
        self._http = self._stack.enter_context(closing(HttpClient(node.url, node.token, ca_file=node.ca_file)))
        if node.flight is not None:  # told at once, not when Flight is first of use
            require_encrypted(node.flight, node.token)
        self._flight: FlightClient | None = None
        self._socket: SocketClient | None = None
        if node.socket is not None and os.path.exists(node.socket):
            client = SocketClient(node.socket, node.token, identity=identity_of(node.url, node.ca_file))
            self._socket = self._stack.enter_context(client)
        self.is_closed = False

    def close(self) -> None:
        """Close all connections."""
        self.is_closed = True
        self._stack.close()

    @property
    def http(self) -> HttpClient:
        """The way that is always there. RepositoryClosed once it is closed."""
        if self.is_closed:
            raise RepositoryClosed("the repository is closed")
        return self._http

    @property
    def socket(self) -> SocketClient | None:
        """The Unix socket, if it is there."""
        return None if self.is_closed else self._socket  # one that is closed would connect anew

    @property
    def name(self) -> str:
        """What the node calls itself in handles."""
        if not self._name:
            self._name = self.ask(operations.GET_NODE).node
        return self._name

    @property
    def flight(self) -> "FlightClient | None":
        """Arrow Flight, if the node's address of it is known."""
        if self.node.flight is None or self.is_closed:
            return None
        with self._lock:
            if self._flight is None:
                # pyarrow takes half a second to import, and HTTP needs none of it.
                from ullage.client.flight import FlightClient  # noqa: PLC0415

                made = FlightClient(self.node.flight, self.node.token, ca_file=self.node.ca_file)
                self._flight = self._stack.enter_context(made)
            return self._flight

    def ask(
        self,
        operation: Operation[A],
        body: object = None,
        /,
        *,
        headers: Mapping[str, str] | None = None,
        query: Query | None = None,
        key: str | None = None,
        retries: Retries | None = None,
        **names: str | int,
    ) -> A:
        """What an operation answers; `body` is a document, or content as it is. `names` stand in its path. A change
        happens once, however often it is sent.
        """
        content: Any = msgspec.json.encode(body) if isinstance(body, msgspec.Struct) else body
        keyed = {KEY_HEADER: key or new_key()} if operation.is_keyed else {}
        said, path = {**keyed, **(headers or {})}, operation.path_of(**names)
        return (retries or self.retries).run(lambda: self.http.ask(operation, path, content, headers=said, query=query))

    def send(
        self,
        operation: Operation[A],
        content: AnyContent,
        /,
        *,
        attributes: dict[str, str] | None = None,
        query: Query | None = None,
        key: str | None = None,
        **names: str,
    ) -> A:
        """Send a content. Files and pieces are read once, so they are not sent again."""
        # Headers are ASCII: JSON has escapes for the rest.
        said = json.dumps(attributes).replace("\x7f", "\\u007f") if attributes else ""
        if len(said) > ATTRIBUTES_BYTES_MAX:
            raise RequestTooLarge(
                f"attributes of {len(said)} bytes as a header, at most {ATTRIBUTES_BYTES_MAX} go with a content: "
                "put what is longer into the content, or store several small contents with put_many"
            )
        headers = {ATTRIBUTES_HEADER: said} if said else {}
        retries = self.retries if isinstance(content, bytes) else NEVER
        data: bytes | Iterable[bytes] = content if isinstance(content, bytes) else pieces_of(content)
        return self.ask(operation, data, headers=headers, query=query, key=key, retries=retries, **names)

    def stream(
        self,
        operation: Operation[OctetStream],
        start: int = 0,
        size: int | None = None,
        /,
        query: Query | None = None,
        **names: str | int,
    ) -> ContentStream:
        """The content that an operation answers, or a range of it. RangeNotSatisfiable beyond its end."""
        path = operation.path_of(**names)
        return self.resumed(start, size, lambda at, count: self.http.open(path, at, count, query))

    def resumed(self, start: int, size: int | None, opened: Opened) -> ContentStream:
        """A range of a content; after a break it goes on where it was."""
        try:
            total, first = self.retries.run(lambda: opened(start, size))
        except RangeNotSatisfiable as error:
            total, first = error.size, None  # told below, in the words of every other entrance
        count = total - start if size is None else size
        bodies = [first]
        if not 0 <= start <= start + count <= total:
            _close(bodies)
            raise RangeNotSatisfiable(f"range {start}+{count} lies outside the content of {total} bytes", total)

        def pieces() -> Iterator[bytes]:
            at, attempts = start, self.retries.attempts
            while at < start + count:
                try:
                    if not bodies:
                        bodies.append(opened(at, start + count - at)[1])
                    for piece in bodies[0] or ():
                        yield piece
                        at += len(piece)
                        attempts = self.retries.attempts
                    if at < start + count:
                        raise NotReachable(f"the content ended {start + count - at} bytes before its end")
                except (LeaseLost, NotReachable):
                    _close(bodies)
                    attempts -= 1
                    if attempts <= 0:
                        raise
                    self.retries.sleep(self.retries.first_seconds)

        return ContentStream(pieces(), count, lambda: _close(bodies))


def _close(bodies: list[PieceSource | None]) -> None:
    """Let go of the one that is open, if any."""
    while bodies:
        if (body := bodies.pop()) is not None:
            body.close()


def new_key() -> str:
    """An idempotency key of its own."""
    return str(uuid.uuid4())


def name_of(lifetime: Lifetime) -> LifetimeName:
    """A lifetime class as the documents and parameters call it."""
    found: LifetimeName = msgspec.convert(checked_lifetime(lifetime).name.lower(), LifetimeName)
    return found
