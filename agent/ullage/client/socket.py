"""Client of the Unix socket (docs/protocol.md): content through descriptors, puts in frames.

Every read ends with a look at the connection: as long as it stands, nobody changes the bytes. If it does not, what was
read is discarded, and read again over a new connection.
"""

import os
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Final, NoReturn, TypeVar

import msgspec

from ullage.client.descriptors import (
    Address,
    ApartClaim,
    Neighbours,
    Question,
    answered,
    pieces,
    question_of,
    questions,
    read_born,
    read_neighbours,
    read_places,
)
from ullage.client.proof import Identity, greet, require_private
from ullage.client.stream import FrameStream
from ullage.errors import (
    ContentCorrupt,
    ContentMissing,
    DescriptorRefused,
    InvalidArgument,
    LeaseLost,
    LeaseRefused,
    NotReachable,
    UllageError,
)
from ullage.streams import Closable
from ullage.wire import frames
from ullage.wire.frames import BadFrame, ClaimKey, FrameKind, Place
from ullage.wire.problems import error_of_slug, problem_of

T = TypeVar("T")

TIMEOUT_SECONDS: Final = 60.0
"""For an answer: a writer may wait for room a while."""

DATA_BYTES: Final = 1 << 20
"""Of one DATA frame."""

HELD_SECONDS: Final = 30.0
"""How long the files of what is read by handle are held, for the next content that lies in one of them. A program that
reads all day would otherwise keep the node from reclaiming what is dead in every file that it ever saw.
"""

AS_BYTES: Final = problem_of(DescriptorRefused()).slug
"""Of a content whose file the agent does not pass to this client."""

Attributes = dict[str, str] | Sequence[dict[str, str]] | None


class SocketClient(Closable):
    """One connection, made when it is first needed. Thread-safe; requests go one after the other.

    `close` gives everything back. Errors: whatever the node refuses, NotReachable (also for one that does not prove
    that it is the node), LeaseLost, ContentCorrupt; InvalidArgument where a token must not be sent.
    """

    def __init__(
        self,
        path: str,
        token: str | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        now: Callable[[], float] = time.monotonic,
        *,
        identity: Identity | None = None,
    ) -> None:
        """With an `identity` the agent proves that it is meant, before it is told anything. Without one a token is only
        sent where `require_private` holds.
        """
        self.path = path
        self._token = token
        self._identity = identity
        self._timeout_seconds = timeout_seconds
        self._now = now
        self._held_since = 0.0
        self._lock = threading.RLock()
        self._stream: FrameStream | None = None
        self._request = 0
        self._resolve_max = 0
        self._descriptors: OrderedDict[int, int] = OrderedDict()
        self._known: dict[Question, Place | None] = {}

    def close(self) -> None:
        """Close the descriptors, then the connection; the next call makes a new one."""
        with self._lock:
            self._let_go()

    def leave_to_parent(self) -> None:
        """In the child of a fork: close its copies, so that what the parent's agent deletes is gone, and say nothing
        over the connection, which is the parent's. The lock may be held by a thread that did not come along.
        """
        self._let_go()

    def _let_go(self) -> None:
        stream, self._stream = self._stream, None
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()
        self._known.clear()
        if stream is not None:
            stream.close()

    @property
    def descriptors(self) -> int:
        """How many are open."""
        return len(self._descriptors)

    def resolve(self, uuids: Sequence[bytes]) -> list[Place]:
        """Where the contents of the first so many handles are, of one at least; a place with a slug says why not."""
        return self._resolve(FrameKind.RESOLVE_HANDLES, frames.UUID_BYTES, b"".join(uuids))

    def resolve_claims(self, claims: Sequence[ClaimKey]) -> list[Place]:
        """The same for base claims by their address."""
        return self._resolve(FrameKind.RESOLVE_CLAIMS, frames.CLAIM.size, frames.pack_claims(claims))

    def read(self, places: Sequence[Place]) -> list[bytes]:
        """The contents at places that were resolved last. LeaseLost if they cannot be trusted any more."""
        with self._lock:
            return self._guarded(lambda: read_places(self._descriptors, places))

    def expect(self, addresses: Sequence[Address]) -> None:
        """Ask at once for what `read_born` is about to read, as far as it is not known and held.

        The node leases what is new in a question in one transaction: one sync for all of them, not one for each.
        Errors of `resolve_claims`.
        """
        with self._lock:
            asked = {each: key for each, key in questions(addresses).items() if each not in self._known}
            places = self.resolve_claims(list(asked.values()))
            for (each, key), place in zip(asked.items(), places, strict=False):
                self._known[each] = answered(key, place)

    def read_born(self, addresses: Sequence[Address]) -> list[bytes | None]:
        """The contents of many claims, in order, for one question a resource claim, and one for each large claim; none
        for what `expect` has asked for. None for those that are to be resolved one by one. Sorted by address they cost
        least. Errors of `resolve_claims` and `read`.
        """
        contents: list[bytes | None] = []
        with self._lock:
            while len(contents) < len(addresses):
                rest = addresses[len(contents) :]
                asked = set(map(question_of, rest))
                if not asked <= self._known.keys():
                    self.expect(rest)
                end = len(rest)
                if not asked <= self._known.keys():
                    # Not all were answered at once. The files of those that were are given back with the next question,
                    # and so may be those that were held before.
                    end = next(at for at, address in enumerate(rest) if question_of(address) not in self._known)
                contents += self._guarded(lambda: read_born(self._descriptors, rest[:end], self._known))  # noqa: B023 - at once
        return contents

    def read_neighbours(self, runs: Sequence[Neighbours], apart: Sequence[ApartClaim]) -> list[bytes]:
        """The contents of runs and of claims apart, in order, of which no more is asked than `expect` has: none where
        not all of them are known to lie where they were born, or one does not read back. Errors of `read`.
        """
        with self._lock:
            if not all(map(self._known.get, {one[0] for each in (runs, apart) for one in each})):
                return []
            return self._guarded(lambda: read_neighbours(self._descriptors, runs, apart))

    def read_all(self, uuids: Sequence[bytes]) -> list[bytes]:
        """Contents of handles, in order. HandleNotFound or HandleDeleted for the first that there is not. A lost
        lease is tried once more.
        """
        contents: list[bytes] = []
        with self._lock:
            while len(contents) < len(uuids):
                rest = uuids[len(contents) :]
                contents += self._again(lambda rest=rest: self._contents(rest))  # type: ignore[misc]
        return contents

    def open(self, uuid: bytes, start: int = 0, size: int | None = None) -> tuple[int, Generator[bytes, None, None]]:
        """How many bytes a content has in all, and a range of it in pieces. LeaseLost in the middle: what came before
        is good, go on from there.
        """
        with self._lock:
            (place,) = self._again(lambda: self._found([uuid]))
            if place.slug:
                return self._asked(uuid, start, size)
            connection = self._stream
            found = pieces(self._descriptors, place, start, place.size - start if size is None else size)

        def guarded() -> Generator[bytes, None, None]:
            while True:
                with self._lock:
                    if self._stream is not connection:
                        raise LeaseLost("the connection under which this was read is closed")
                    if place.length and place.file not in self._descriptors:
                        raise LeaseLost("the file that was read was given back meanwhile")
                    piece = self._guarded(lambda: next(found, None))
                if piece is None:
                    return
                yield piece

        return place.size, guarded()

    def _contents(self, uuids: Sequence[bytes]) -> list[bytes]:
        """Of the first so many handles, through descriptors or as bytes."""
        places = self._found(uuids)
        found = iter(self.read([place for place in places if not place.slug]))
        return [
            b"".join(self._asked(uuid, 0, None)[1]) if place.slug else next(found)
            for place, uuid in zip(places, uuids, strict=False)
        ]

    def _asked(self, uuid: bytes, start: int, size: int | None) -> tuple[int, Generator[bytes, None, None]]:
        """How many bytes a content has in all, and a range of it in pieces, as the agent reads it."""

        def ask(at: int, count: int) -> tuple[int, bytes]:
            with self._lock:
                request = self._ask(FrameKind.READ, frames.READ.pack(uuid, at, count))
                try:
                    return frames.parse_content(self._answer(request, FrameKind.CONTENT))
                except BadFrame as error:
                    self._lose(error)

        wanted = frames.PIECE_BYTES_MAX if size is None else min(size, frames.PIECE_BYTES_MAX)
        total, first = ask(start, wanted)
        end = total if size is None else min(total, start + size)

        def following() -> Generator[bytes, None, None]:
            piece, at = first, start
            while at < end:
                if not piece:
                    raise NotReachable(f"{self.path}: the content ended {end - at} bytes before its end")
                yield piece
                at += len(piece)
                piece = ask(at, min(end - at, frames.PIECE_BYTES_MAX))[1] if at < end else b""

        return total, following()

    def put_many(
        self,
        contents: Sequence[bytes],
        attributes: Attributes = None,
        ttl_millis: int = 0,
        key: str | None = None,
        lifetime: int = 0,
    ) -> list[bytes]:
        """Store contents in one transaction; their uuids. InvalidArgument if they do not fit into one frame."""
        head = _packed_head(attributes, ttl_millis, key, lifetime, tuple(map(len, contents)))
        if len(head) + sum(map(len, contents)) > frames.FRAME_BYTES_MAX:
            raise InvalidArgument(
                f"more than {frames.FRAME_BYTES_MAX} bytes in one put: put fewer, or stream the large ones"
            )
        with self._lock:
            request = self._ask(FrameKind.PUT, head, *contents)
            return frames.parse_uuids(self._answer(request, FrameKind.STORED))

    def put_stream(
        self,
        source: Iterable[bytes],
        attributes: dict[str, str] | None = None,
        ttl_millis: int = 0,
        key: str | None = None,
        lifetime: int = 0,
    ) -> bytes:
        """Store one content of any size; its uuid. If the source fails, nothing is stored."""
        with self._lock:
            request = self._ask(FrameKind.PUT_STREAM, _packed_head(attributes, ttl_millis, key, lifetime, ()))
            try:
                for piece in source:
                    for at in range(0, len(piece), DATA_BYTES):
                        self._transmit(FrameKind.DATA, request, piece[at : at + DATA_BYTES])
            except BaseException:
                self.close()  # in the middle of a content: this ends it
                raise
            self._transmit(FrameKind.END, request)
            (uuid,) = frames.parse_uuids(self._answer(request, FrameKind.STORED))
            return uuid

    def rows(self, ticket: bytes) -> Callable[[], bytes]:
        """Ask for a table; what gives the next piece of it, an Arrow IPC stream, and at its end an empty one. Nothing
        else may be asked for before it has ended. Errors of the table come with a piece.
        """
        with self._lock:
            request = self._ask(FrameKind.TABLE, ticket)

        def following() -> bytes:
            with self._lock:
                try:
                    return self._answer(request, FrameKind.ROWS)
                except LeaseLost as error:  # no lease is needed: the agent ends the connection
                    raise NotReachable(f"{self.path}: {error}") from error

        return following

    def give_back(self, files: Sequence[int] | None = None) -> None:
        """Close descriptors, all of them without a choice, and say so: what lies there may be reclaimed."""
        with self._lock:
            held = [file for file in (self._descriptors if files is None else files) if file in self._descriptors]
            for file in held:
                os.close(self._descriptors.pop(file))
            if held:
                self._known.clear()
                self._answer(self._ask(FrameKind.GIVE_BACK, frames.pack_numbers(held)), FrameKind.GIVEN_BACK)

    def _found(self, uuids: Sequence[bytes]) -> list[Place]:
        """Where contents are, once what was held for long enough is given back: what is still read comes again. One
        with a slug is to be asked for as bytes.
        """
        with self._lock:
            if self._descriptors and self._now() - self._held_since > HELD_SECONDS:
                self.give_back()
        places = self.resolve(uuids)
        for place, uuid in zip(places, uuids, strict=False):
            if place.slug and place.slug != AS_BYTES:
                raise error_of_slug(place.slug, f"handle {uuid.hex()}")
        return places

    def _resolve(self, kind: FrameKind, item_bytes: int, body: bytes) -> list[Place]:
        if not body:
            return []
        with self._lock:
            self._connect()
            if not self._descriptors:
                self._held_since = self._now()
            most = self._resolve_max
            while True:
                request = self._ask(kind, body[: most * item_bytes])
                try:
                    places = list(frames.parse_places(self._answer(request, FrameKind.RESOLVED)))
                except LeaseRefused:
                    # Too many files at once: without those that are held it may be few enough, else ask for less.
                    if self._descriptors:
                        self.give_back()
                    elif most == 1:
                        raise
                    else:
                        most = max(1, min(most, len(body) // item_bytes) // 2)
                    continue
                except BadFrame as error:
                    self._lose(error)
                self._require_descriptors(places)
                return places

    def _require_descriptors(self, places: Sequence[Place]) -> None:
        for file in {place.file for place in places if place.length and not place.slug}:
            if file not in self._descriptors:
                self._lose(BadFrame(f"no descriptor came for resource claim {file}"))
        if not places:
            self._lose(BadFrame("an answer without a place"))

    def _again(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except (LeaseLost, NotReachable):
            self.close()
            return work()

    def _guarded(self, read: Callable[[], T]) -> T:
        """Read, then look whether the connection still stands: only then is it what it seems to be."""
        try:
            found = read()
        except (ContentCorrupt, ContentMissing, OSError):
            self._require_standing()  # without the lease it may well be wrong, and this says why
            raise
        except KeyError as error:
            self._require_standing()
            raise LeaseLost(f"the file of resource claim {error} was given back meanwhile") from error
        self._require_standing()
        return found

    def _require_standing(self) -> None:
        if self._stream is not None and self._stream.stands():
            return
        try:
            while True:
                self._answer(0, FrameKind.REVOKED)
        except NotReachable as error:
            raise LeaseLost(f"{error}: what was read is discarded") from error

    def _connect(self) -> None:
        if self._stream is not None:
            return
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(self._timeout_seconds)
        try:
            connection.connect(self.path)
        except OSError as error:
            connection.close()
            raise NotReachable(f"{self.path}: {error}") from error
        self._stream = FrameStream(connection, self._timeout_seconds)
        try:
            welcome = self._greet()
        except (BadFrame, OSError) as error:
            self._lose(error)
        except UllageError:
            self.close()
            raise
        self._resolve_max = max(1, min(welcome.resolve_max, frames.RESOLVE_MAX))

    def _greet(self) -> frames.Welcome:
        hello = frames.pack_hello(frames.Hello(frames.VERSION, frames.VERSION, self._token))
        if self._identity is None:
            if self._token is not None:
                require_private(self.path)
            self._transmit(FrameKind.HELLO, 0, hello)
            return frames.parse_welcome(self._answer(0, FrameKind.WELCOME))

        def send(records: bytes, descriptors: Sequence[int]) -> None:
            self._transmit(FrameKind.PROVE, 0, records, descriptors=descriptors)

        private, welcome = greet(
            self._identity, hello, send, lambda: self._answer(0, FrameKind.PROOF), self._timeout_seconds
        )
        if self._stream is not None:
            self._stream.close()
        self._stream = FrameStream(private, self._timeout_seconds)
        return frames.parse_welcome(welcome)

    def _ask(self, kind: FrameKind, *parts: bytes) -> int:
        self._connect()
        self._request = self._request % 0xFFFF + 1
        self._transmit(kind, self._request, *parts)
        return self._request

    def _transmit(self, kind: FrameKind, request: int, *parts: bytes, descriptors: Sequence[int] = ()) -> None:
        if self._stream is None:
            raise NotReachable(f"{self.path}: the connection was closed")
        try:
            self._stream.send(kind, request, *parts, descriptors=descriptors)
        except OSError as error:
            try:  # perhaps it said why, before it closed
                self._answer(request, FrameKind.PROBLEM)
            finally:
                self.close()
            raise NotReachable(f"{self.path}: {error}") from error

    def _answer(self, request: int, kind: FrameKind) -> bytes:
        """The body of the answer; files that come before it are kept. LeaseLost, or another error, if it says so."""
        while True:
            if self._stream is None:
                raise NotReachable(f"{self.path}: the connection was closed")
            try:
                header, body, files = self._stream.receive()
                problem = frames.parse_problem(body) if header.kind in (FrameKind.PROBLEM, FrameKind.REVOKED) else None
            except (OSError, EOFError, BadFrame) as error:
                self._lose(error)
            for resource, descriptor in files:
                self._keep(resource, descriptor)
            if problem is not None and header.kind == FrameKind.REVOKED:
                self.close()
                raise LeaseLost(str(problem))
            if problem is not None:
                raise problem
            if header.request != request or header.kind not in (kind, FrameKind.FILES):
                self._lose(BadFrame(f"a {header.kind.name} where a {kind.name} belongs"))
            if header.kind == kind:
                return body

    def _keep(self, resource: int, descriptor: int) -> None:
        before = self._descriptors.pop(resource, None)
        if before is not None:
            os.close(before)
        self._descriptors[resource] = descriptor

    def _lose(self, error: Exception) -> NoReturn:
        self.close()
        raise NotReachable(f"{self.path}: {error}") from error


def _packed_head(
    attributes: Attributes, ttl_millis: int, key: str | None, lifetime: int, lengths: tuple[int, ...]
) -> bytes:
    mappings = [attributes] if isinstance(attributes, dict) else attributes or ()
    packed = b"\n".join(map(msgspec.json.encode, mappings))
    return frames.pack_put(frames.PutHead(ttl_millis, lifetime, packed, key or "", lengths))
