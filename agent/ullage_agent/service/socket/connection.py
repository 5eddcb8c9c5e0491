"""One connection of the Unix socket: greeting, then requests one after the other, each with its answer.

PROVE -> PROOF, as often as TLS wants it, with HELLO and WELCOME inside; without a certificate HELLO -> WELCOME
RESOLVE_HANDLES, RESOLVE_CLAIMS -> FILES (with descriptors, none or several) -> RESOLVED
READ -> CONTENT
GIVE_BACK -> GIVEN_BACK
PUT -> STORED                     PUT_STREAM, DATA ..., END -> STORED
TABLE -> ROWS ...                 see `tables.py`
any of them -> PROBLEM            unasked: REVOKED, then the end of the stream
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from ullage.contract import QueueRule, Right
from ullage.embedded.handles import EmbeddedHandles
from ullage.embedded.lending import TRIES
from ullage.enums import Lifetime
from ullage.errors import (
    ContentMissing,
    Forbidden,
    InvalidArgument,
    LeaseLost,
    RequestIncomplete,
    RequestTooLarge,
    UllageError,
    Unauthenticated,
)
from ullage.interface.checks import checked_all
from ullage.uuids import format_uuid, parse_uuid
from ullage.wire import frames
from ullage.wire.bounded import decode_attributes
from ullage.wire.frames import FRAME_BYTES_MAX, PLACE, BadFrame, FrameKind, Header, Place
from ullage.wire.needs import FRAME_RIGHTS, REFUSALS, is_audited
from ullage.wire.problems import is_expected, problem_of
from ullage.wire.tickets import parse_table_ticket, rights_of
from ullage_agent.service.access import Principal, authorize_all
from ullage_agent.service.audit import Ids
from ullage_agent.service.listening import Certificate, Terms
from ullage_agent.service.quota import Quota
from ullage_agent.service.socket.channel import Channel
from ullage_agent.service.socket.greeting import read_greeting
from ullage_agent.service.socket.peers import Peer
from ullage_agent.service.socket.tables import TableAnswer

Attributes = dict[str, str] | list[dict[str, str]]

WINDOW_BLOCKS: Final = 4
"""Of 256 KiB, that are read and verified at a time for a READ."""

CREATING: Final = (FrameKind.PUT, FrameKind.PUT_STREAM)


class AskedFrame(NamedTuple):
    """What the audit log says of a request; `table`: what is sent of one."""

    operation: str
    rights: Sequence[Right] = ()
    table: TableAnswer | None = None


class Connection:
    """See the module's text. `serve` runs in a thread of its own; `revoke` may be called from any."""

    def __init__(
        self, channel: Channel, peer: Peer, terms: Terms, certificate: Certificate | None, quota: Quota
    ) -> None:
        """`certificate` is what the agent proves itself with, if it has one."""
        self.peer = peer
        self._channel = channel
        self._terms = terms
        self._repository, self._authenticator, self._limits, _, self._on_failure, *_ = terms
        self._mine = terms.repository
        self._rules: Sequence[QueueRule] = ()
        self._certificate = certificate
        self._quota = quota
        self._is_counted = False
        self._asked = AskedFrame(FrameKind.HELLO.name)
        self._noted: Ids = ()
        self._is_done = False
        """Whether what was asked for has been done: what the client then takes of the answer changes nothing."""

        self.lent = self._repository.lend(str(peer), self._limits.socket_files)
        self._principal = Principal("")
        self._revoked: Exception | None = None
        self._given_up: int | None = None
        self._turn = terms.turns.of(self._principal, creates=False)
        self._answers: dict[FrameKind, Callable[[Header, bytes], None]] = {
            FrameKind.RESOLVE_HANDLES: self._resolve_handles,
            FrameKind.RESOLVE_CLAIMS: self._resolve_claims,
            FrameKind.READ: self._read,
            FrameKind.GIVE_BACK: self._give_back,
            FrameKind.PUT: self._put,
            FrameKind.PUT_STREAM: self._put_stream,
            FrameKind.TABLE: self._table,
        }

    def serve(self) -> None:
        """Until the client has gone, or was told to go. Raises nothing; nothing is held afterwards."""
        try:
            if self._greet():
                self._converse()
        except BadFrame as error:
            self._refuse(0, InvalidArgument(str(error)))
        except (EOFError, OSError):
            pass  # the client is gone, or takes nothing: nobody is left to tell
        except Exception as error:  # noqa: BLE001 - one connection's failure is not the service's
            self._on_failure("a connection of the Unix socket failed", error)
        finally:
            self._end()

    @property
    def is_greeted(self) -> bool:
        """Whether it is known whose connection this is."""
        return self._is_counted

    def cut_off(self) -> None:
        """End it at once, without a word."""
        self._channel.cut_off()

    def revoke(self, error: Exception) -> None:
        """Tell the client that what it holds is lost, and end the connection."""
        self._revoked = error
        self._channel.try_send(FrameKind.REVOKED, 0, frames.pack_problem(error))
        if self._asked.table is None:
            self._channel.interrupt()
        else:  # its client may take its time, and what ends early is read again
            self._channel.cut_off()

    def _end(self) -> None:
        self._channel.close()
        if self._is_counted:
            self._quota.give_back(self._principal)
        try:
            self.lent.release()
        except Exception as error:  # noqa: BLE001 - the next start releases it; see `release_leftovers`
            self._on_failure("the lease of a connection could not be released", error)

    def _greet(self) -> bool:
        """Whether the client may stay."""
        greeting = None
        try:
            greeting = read_greeting(self._channel, self._certificate)
            if greeting is None:
                return False
            hello = greeting.hello
            if not hello.version_min <= frames.VERSION <= hello.version_max:
                raise InvalidArgument(
                    f"versions {hello.version_min} to {hello.version_max} of the protocol: this is {frames.VERSION}"
                )
            self._principal = self._authenticator.authenticate(hello.token, f"uid {self.peer.uid}")
            self._begin()
            welcome = frames.Welcome(
                frames.VERSION, FRAME_BYTES_MAX, frames.RESOLVE_MAX, self._limits.socket_files, self._limits.batch
            )
            self._channel = greeting.welcome(frames.pack_welcome(welcome))
        except (BadFrame, EOFError, OSError):
            raise
        except Exception as error:  # noqa: BLE001 - the client gets it
            self._note(0, error)
            self._refuse(0, error)
            return False
        finally:
            if greeting is not None:
                greeting.close()
        if self._revoked is not None:  # while the channel changed: it was told where nobody listens any more
            self.revoke(self._revoked)
        return True

    def _begin(self) -> None:
        """Serve whoever it is. QuotaReached."""
        self._quota.take(self._principal)
        self._is_counted = True
        self._act()

    def _act(self) -> None:
        """By the rules about queues as they are now."""
        self._rules = self._repository.spec.auth.queues
        self._mine = self._terms.acting_for(self._principal)
        self.lent.acting = self._mine.acting

    def _converse(self) -> None:
        while self._answer_one():
            pass

    def _answer_one(self) -> bool:
        """The next frame; whether more may come. It is gone afterwards: a connection that waits holds none."""
        received = self._channel.receive(FRAME_BYTES_MAX)
        if received is None:
            return False
        header, body = received
        if header.kind in (FrameKind.DATA, FrameKind.END) and header.request == self._given_up:
            return True  # the rest of a content that was refused
        answer = self._answers.get(header.kind)
        if answer is None:
            raise BadFrame(f"a {header.kind.name} is no request")
        try:
            self._asked = AskedFrame(header.kind.name, FRAME_RIGHTS[header.kind])
            self._noted, self._is_done = (), False
            self._require(header)
            self._turn = self._terms.turns.of(self._principal, creates=header.kind in CREATING)
            self._turn.take()
            answer(header, body)
            self._note(len(body))
        except (BadFrame, EOFError, OSError) as error:
            # It may have been stored, or part of it have been read, and the client have gone on purpose.
            self._note(len(body), None if self._is_done else _went_away(error))
            raise
        except LeaseLost as error:
            self._note(0, None if self._is_done else error)
            self._channel.send(FrameKind.REVOKED, 0, frames.pack_problem(error))
            return False
        except Exception as error:  # noqa: BLE001 - the client gets it
            # Descriptors may have gone out before it: 64 go in one frame.
            self._note(0, None if self._is_done else error)
            self._refuse(header.request, error)
        finally:
            self._turn.rest()
        return True

    def _send(self, kind: FrameKind, request: int, *parts: bytes, descriptors: Sequence[int] = ()) -> None:
        """The client may be slow to take it: others work meanwhile."""
        self._turn.rest()
        self._is_done = kind is not FrameKind.PROBLEM
        self._channel.send(kind, request, *parts, descriptors=descriptors)

    def _note(self, size: int, error: Exception | None = None) -> None:
        """A line of the audit log. What is read through descriptors is read by the client: its bytes are not known."""
        operation, rights, table = self._asked
        if not (is_audited(rights) or isinstance(error, REFUSALS)):
            return
        self._terms.audit.note(
            who=self._principal.name,
            via="socket",
            peer=str(self.peer),
            operation=operation,
            ids=self._noted,
            bytes=size if Right.WRITE in rights else 0 if table is None else table.bytes,
            allowed=error is None,
            why="" if error is None else f"{problem_of(error).slug}: {error}",
        )

    def _resolve_handles(self, header: Header, body: bytes) -> None:
        uuids = frames.parse_uuids(body)
        self._noted = uuids
        self._resolved(header, lambda: self.lent.handles(uuids))

    def _resolve_claims(self, header: Header, body: bytes) -> None:
        keys = frames.parse_claims(body)
        self._noted = [f"{key.resource}+{key.offset}" for key in keys]
        self._resolved(header, lambda: self.lent.claims(keys))

    def _resolved(self, header: Header, look: Callable[[], list[Place]]) -> None:
        for turn in range(TRIES):
            places = look()
            try:
                self._pass(header, places[: _fitting(places, FRAME_BYTES_MAX)])
                return
            except ContentMissing:
                if turn + 1 == TRIES:  # else a rewrite may have moved it between the look and the opening
                    raise

    def _pass(self, header: Header, places: list[Place]) -> None:
        files = self.lent.new_files(places)
        for at in range(0, len(files), frames.FILES_MAX):
            passed = files[at : at + frames.FILES_MAX]
            with self.lent.opened(passed) as descriptors:
                body = frames.pack_files([(file.index, file.generation) for file in passed])
                self._send(FrameKind.FILES, header.request, body, descriptors=descriptors)
        self._send(FrameKind.RESOLVED, header.request, *map(frames.pack_place, places))

    def _read(self, header: Header, body: bytes) -> None:
        """Bytes instead of a descriptor, of one piece: whoever wants more asks again."""
        uuid, start, size = frames.parse_read(body)
        self._noted = [uuid]
        content = self._handles.readable(format_uuid(uuid))
        start = min(start, content.size)
        size = min(size, content.size - start, frames.PIECE_BYTES_MAX)
        with content.open(start, size, WINDOW_BLOCKS) as stream:
            data = stream.read()
        self._send(FrameKind.CONTENT, header.request, frames.TOTAL.pack(content.size), data)

    def _give_back(self, header: Header, body: bytes) -> None:
        self.lent.give_back(frames.parse_numbers(body))
        self._send(FrameKind.GIVEN_BACK, header.request)

    def _table(self, header: Header, body: bytes) -> None:
        wanted = parse_table_ticket(body)
        rights = rights_of(wanted)
        answer = TableAnswer(self._terms, self._channel, header.request, self._principal, self._turn)
        self._asked = AskedFrame(f"{header.kind.name} {wanted.name}", rights, answer)
        authorize_all(self._authenticator, self._principal, rights)
        with self._terms.streams.counted(self._principal):
            answer.send(wanted)
        self._is_done = True

    def _put(self, header: Header, body: bytes) -> None:
        head, at = frames.parse_put(body, has_content=True, count_max=self._limits.batch)
        contents: list[bytes] = []
        for length in head.lengths:
            contents.append(body[at : at + length])
            at += length
        attributes, terms = _terms(head)
        uuids = self._noted = self._handles.store(contents, attributes, **terms)
        self._send(FrameKind.STORED, header.request, *uuids)

    def _put_stream(self, header: Header, body: bytes) -> None:
        """The content comes in DATA frames up to END; after a refusal what is left of it is skipped."""
        head, _ = frames.parse_put(body, has_content=False)
        attributes, terms = _terms(head)
        if isinstance(attributes, list):
            raise InvalidArgument("one content has one mapping of attributes")
        handle = self._handles.put(self._data(header.request), attributes, **terms)
        uuid = parse_uuid(handle.partition("@")[0])
        self._noted = [uuid]
        self._send(FrameKind.STORED, header.request, uuid)

    def _data(self, request: int) -> Iterator[bytes]:
        limit = int(self._repository.spec.service.max_request_bytes)
        total = 0
        while (data := self._next_data(request)) is not None:
            total += len(data)
            if limit and total > limit:
                raise RequestTooLarge(f"more than spec.service.maxRequestBytes ({limit}): nothing was stored")
            yield data
        self._given_up = None

    def _next_data(self, request: int) -> bytes | None:
        self._turn.rest()
        received = self._channel.receive(FRAME_BYTES_MAX, waits=False)
        if received is None:
            raise EOFError("the client went away in the middle of a content")
        self._turn.take()
        header, data = received
        if header.request != request or header.kind not in (FrameKind.DATA, FrameKind.END):
            raise BadFrame(f"a {header.kind.name} in the middle of a content")
        if header.kind == FrameKind.DATA:
            return data
        if data:
            # An END with a body gives the content up: the client could not read it to its end.
            self._given_up = None
            raise RequestIncomplete("the client gave the content up: nothing was stored")
        return None

    @property
    def _handles(self) -> EmbeddedHandles:
        """Those of whoever greeted: their idempotency keys."""
        return self._mine.handles

    def _require(self, header: Header) -> None:
        if header.kind == FrameKind.PUT_STREAM:
            self._given_up = header.request  # until its content has come, which is skipped after a refusal
        authorize_all(self._authenticator, self._principal, FRAME_RIGHTS[header.kind])
        if self._rules is not self._repository.spec.auth.queues:
            self._act()

    def _refuse(self, request: int, error: Exception) -> None:
        if isinstance(error, Unauthenticated | Forbidden):
            self._on_failure(f"refused: {self.peer}", error)
        elif not is_expected(error):
            self._on_failure("a request of the Unix socket failed", error)
        try:
            self._send(FrameKind.PROBLEM, request, frames.pack_problem(error))
        except OSError:
            return  # the next receive finds the client gone


def _went_away(error: Exception) -> UllageError:
    """What the audit log says of a request that its client broke off."""
    return InvalidArgument(str(error)) if isinstance(error, BadFrame) else RequestIncomplete(f"it broke off: {error}")


def _terms(head: frames.PutHead) -> tuple[Attributes, dict[str, Any]]:
    """The attributes, and what else is said of contents."""
    try:
        attributes = checked_all(_attributes(head))
        lifetime = Lifetime(head.lifetime) if head.lifetime else Lifetime.DEFAULT
        return attributes, {"ttl_millis": head.ttl_millis, "lifetime": lifetime, "key": head.key or None}
    except ValueError as error:
        raise InvalidArgument(f"the terms of a put: {error}") from error


def _attributes(head: frames.PutHead) -> Attributes:
    """Those of one content are decoded at a time: the interpreter runs no other thread meanwhile."""
    lines, contents = head.attributes.count(b"\n") + 1, len(head.lengths)
    if lines == 1:
        return decode_attributes(head.attributes or b"{}", "attributes")
    if lines != contents:
        raise InvalidArgument(f"{contents} contents came with attributes for {lines}")
    return [decode_attributes(line, "attributes") for line in head.attributes.split(b"\n")]


def _fitting(places: list[Place], bytes_max: int) -> int:
    """How many of the first places fit into one frame; at least one does."""
    total = 0
    for number, place in enumerate(places):
        total += PLACE.size + len(place.slug) + len(place.blocks)
        if total > bytes_max:
            return number
    return len(places)
