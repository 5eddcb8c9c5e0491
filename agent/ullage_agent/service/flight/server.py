"""Arrow Flight: contents and tables in bulk. docs/flight.md describes it for clients.

    DoPut    many contents; each batch is a transaction, its handles come back as metadata
    DoGet    a ticket of handles or ranges, or of a table at a snapshot
    actions  snapshot, release;  ListFlights, GetFlightInfo, GetSchema tell of the tables

gRPC gives each call a thread; how many work at a time is bounded here, streams and all other calls apart.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyarrow import flight

from ullage.contract import Right
from ullage.embedded import bulk
from ullage.embedded.bulk import ContentSink
from ullage.embedded.items import content_batches
from ullage.embedded.pace import Pace
from ullage.embedded.repository import EmbeddedRepository
from ullage.embedded.tables import schema_of
from ullage.errors import Forbidden, InvalidArgument, RequestTooLarge, Unauthenticated
from ullage.wire import tickets
from ullage.wire.needs import GETTING, PUTTING
from ullage.wire.problems import is_expected
from ullage.wire.schemas import DESCRIPTIONS, GET_SCHEMA, PUT_SCHEMA, SCHEMAS
from ullage.wire.tickets import ContentTicket, FlightAction, TableTicket, rights_of
from ullage_agent.service.access import Principal, authorize_all, bearer
from ullage_agent.service.audit import TEXT_MAX
from ullage_agent.service.flight.calls import CallEnded, FlightCall
from ullage_agent.service.flight.ipc import BatchReader, packed_stream
from ullage_agent.service.flight.messages import pack_action_type, pack_put_result, parse_flight_data
from ullage_agent.service.flight.notes import CountedSink, Note
from ullage_agent.service.flight.places import KnownPeers
from ullage_agent.service.flight.puts import PutBatch, Puts, read_put_shape
from ullage_agent.service.flight.stalls import Stalls
from ullage_agent.service.limits import DECODED_TIMES, KIB, MIB
from ullage_agent.service.listening import Terms
from ullage_agent.service.quota import Lane
from ullage_agent.service.sending import SendingRoom, Sent
from ullage_agent.service.snapshots import Batches
from ullage_agent.service.uploads import Upload, Uploads

SERVICE: Final = "arrow.flight.protocol.FlightService"

Act = Callable[[Principal, Any], object]
"""What carries an action out: who asks, its body, and the document that answers it, None for none."""

FIRST_BYTES_MAX: Final = MIB
"""The first message of a DoPut: a command, and the header of a schema."""

DESCRIPTOR_BYTES_MAX: Final = 64 * KIB
"""A path that names a table, or the command of a put."""

ENVELOPE_BYTES: Final = 4 * KIB
"""What Flight has around a ticket, or the body of an action, its name included."""

STREAMS: Final = frozenset({"DoPut", "DoGet"})
"""Methods that move data, and last as long as their client likes."""


class FlightServer:
    """What Flight's methods do. Thread-safe; `close` releases what clients held."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._repository = terms.repository
        self.known = KnownPeers(terms.limits)
        self._snapshots = terms.snapshots
        self._stalls = Stalls(terms.repository.clock, self._snapshots.expire)
        self._uploads = Uploads(terms.repository.clock)
        for held in (self._snapshots.held, self._uploads.held):
            terms.repository.held.also(held)
        bulk.hold_all_events(terms.repository)
        limits = terms.limits
        self._controls = Lane(
            "flight_controls_each", "calls over Flight", limits.flight_controls, limits.flight_controls_each
        )
        self._actions = self._acts()
        self._methods: dict[str, Callable[[FlightCall, Note], None]] = {
            "DoPut": self._put,
            "DoGet": self._get,
            "DoAction": self._action,
            "ListActions": self._list_actions,
            "ListFlights": self._list_flights,
            "GetFlightInfo": self._flight_info,
            "GetSchema": self._schema,
        }

    @property
    def methods(self) -> tuple[str, ...]:
        """Those that are served; Handshake, PollFlightInfo and DoExchange are not."""
        return tuple(self._methods)

    def serve(self, name: str, call: FlightCall) -> None:
        """One call, to its end: admitted, counted, carried out; errors of the engine and the service become its status,
        and those that nobody foresaw are logged too.
        """
        limits = self._terms.limits
        call.limit_waits(self._repository.clock, limits.stall_seconds, limits.stream_pause_seconds)
        try:
            call.principal = self._admitted(call)
            self.known.add(call.far_end, call.principal)
            note = Note(self._terms.audit, call, name)
            lane = self._terms.streams if name in STREAMS else self._controls
            with note.left(), lane.counted(call.principal), self._stalls.watched(call), self._turns(name, call):
                self._methods[name](call, note)
        except CallEnded:
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, the client waits for a status
            if not is_expected(error):
                self._terms.on_failure(f"a Flight call ({name}) failed", error)
            call.end(error)
            return
        call.end()

    @contextmanager
    def _turns(self, name: str, call: FlightCall) -> Iterator[None]:
        call.turn = self._terms.turns.of(call.principal, creates=name == "DoPut")
        try:
            yield
        finally:
            call.turn.rest()

    def close(self) -> None:
        """Release what clients held."""
        self._stalls.close()
        self._snapshots.close()

    def look(self) -> None:
        """End the calls that stand still, and forget what nobody reads any more."""
        self._stalls.look()

    def _asked_for(self, call: FlightCall, note: Note, pace: Pace) -> Batches:
        """Contents, or a table."""
        with self._read(call, flight.Ticket, tickets.TICKET.bytes_max + ENVELOPE_BYTES) as ticket:
            return self._found(call, note, ticket, pace)

    def _found(self, call: FlightCall, note: Note, ticket: Any, pace: Pace) -> Batches:
        wanted = tickets.parse_ticket(ticket.ticket)
        rights = GETTING if isinstance(wanted, ContentTicket) else rights_of(wanted)
        principal = self._permitted(call, note, rights, ticket.ticket)
        if isinstance(wanted, ContentTicket):
            note.ids = wanted.handles or []
            return GET_SCHEMA, content_batches(self._terms.acting_for(principal), wanted)
        return self._snapshots.table(principal, wanted, pace)

    def _acts(self) -> dict[str, Act]:
        snapshots = self._snapshots
        return {
            tickets.SNAPSHOT.name: snapshots.take,
            tickets.RENEW.name: snapshots.renew,
            tickets.RELEASE.name: snapshots.release,
            tickets.SCAN.name: snapshots.scan,
            tickets.BIND.name: snapshots.bind,
            tickets.ABOUT.name: lambda _, __: bulk.node_identity(self._repository, self._terms.listening.socket_path),
            tickets.SKIPPED.name: self._skipped,
            **{name: partial(self._act, act) for name, act in bulk.ACTS.items()},
        }

    def _skipped(self, _: Principal, request: tickets.SkippedNodes) -> tickets.Nothing:
        self._terms.on_skipped(request.nodes)
        return tickets.Nothing()

    def _act(self, act: Callable[[EmbeddedRepository, Any], object], principal: Principal, request: Any) -> object:
        return act(self._terms.acting_for(principal), request)

    def _put(self, call: FlightCall, note: Note) -> None:
        """Store a stream of contents."""
        first = parse_flight_data(call.message(FIRST_BYTES_MAX))
        if (size := len(first.descriptor)) > DESCRIPTOR_BYTES_MAX:
            raise RequestTooLarge(f"a descriptor of {size} bytes: at most {DESCRIPTOR_BYTES_MAX} are allowed")
        descriptor = _parsed(flight.FlightDescriptor, bytes(first.descriptor)) if first.descriptor else NO_COMMAND
        principal = self._permitted(call, note, PUTTING, descriptor.command)
        command = tickets.parse_command(descriptor.command or b"")
        repository = self._terms.acting_for(principal)
        sink = CountedSink(bulk.sink_of(repository, command), note)
        limits = self._terms.limits
        reader = BatchReader(read_put_shape(first), limits.batch, limits.batch_attributes)
        sending = self._uploads.under_way(principal, note.operation)
        with sending as upload, closing(self._batches(call, reader, upload)) as batches:
            own_sink = partial(_own_sink, repository, note)
            Puts(sink, own_sink, limits, batches, lambda metadata: call.send(pack_put_result(metadata))).store()

    def _batches(self, call: FlightCall, reader: BatchReader, upload: Upload) -> Generator[PutBatch, None, None]:
        """What comes, each with room for what it becomes until the next one is asked for."""
        for message in map(parse_flight_data, call.messages()):
            if not (message.header or message.body):
                continue
            upload.bytes += len(message.body)
            sound = reader.sound(message)
            with self._terms.budget.take(call.principal, sound.cost):
                call.work()
                yield PutBatch(reader.read(sound), bytes(message.metadata))
            del message, sound  # they would be kept until the next one has come

    def _get(self, call: FlightCall, note: Note) -> None:
        with SendingRoom(call, self._terms.budget) as room:
            schema, batches = self._asked_for(call, note, room)
            sent = Sent(batches, room, call, self._repository.clock, note.count)
            for message in packed_stream(schema, sent):
                room.hold(len(message), sent.batch_bytes)
                call.send(message)
                call.work()

    def _action(self, call: FlightCall, note: Note) -> None:
        """Take, renew or release a snapshot; a step of a staged write; what the node says of itself."""
        with self._read(call, flight.Action, tickets.BODY_BYTES_MAX + ENVELOPE_BYTES) as action:
            self._carry_out(call, note, action)

    def _carry_out(self, call: FlightCall, note: Note, action: Any) -> None:
        raw = b"" if action.body is None else action.body.to_pybytes()
        note.operation = f"action {action.type}"
        known = next((each for each in tickets.ACTIONS if each.name == action.type), None)
        principal = self._permitted(call, note, () if known is None else known.rights, raw)
        if known is None:
            names = ", ".join(each.name for each in tickets.ACTIONS)
            raise InvalidArgument(f"there is no action {action.type}: {names}")
        answer = self._actions[known.name](principal, known.parse(raw))
        if answer is not None:
            call.send(flight.Result(msgspec.json.encode(answer)).serialize())

    def _list_actions(self, call: FlightCall, note: Note) -> None:
        for each in tickets.ACTIONS:
            call.send(pack_action_type(each.name, _described(each)))

    def _list_flights(self, call: FlightCall, note: Note) -> None:
        for name in SCHEMAS:
            call.send(_info(name).serialize())

    def _flight_info(self, call: FlightCall, note: Note) -> None:
        """One table, by its name as the path."""
        with self._read(call, flight.FlightDescriptor, DESCRIPTOR_BYTES_MAX) as descriptor:
            call.send(_info(_named(descriptor)).serialize())

    def _schema(self, call: FlightCall, note: Note) -> None:
        """The columns of a table; of a put for the path `put`."""
        with self._read(call, flight.FlightDescriptor, DESCRIPTOR_BYTES_MAX) as descriptor:
            name = _named(descriptor)
        schema = PUT_SCHEMA if name == "put" else schema_of(TableTicket(name=name))
        call.send(flight.SchemaResult(schema).serialize())

    @contextmanager
    def _read(self, call: FlightCall, kind: Any, bytes_max: int) -> Iterator[Any]:
        """The message of a method that has no other, with room for what it becomes."""
        raw = call.message(bytes_max)
        with self._terms.budget.take(call.principal, DECODED_TIMES * len(raw)):
            call.work()
            yield _parsed(kind, raw)

    def _admitted(self, call: FlightCall) -> Principal:
        """Whose the bearer token is. Unauthenticated, AccessUnknown."""
        try:
            return self._terms.authenticator.authenticate(bearer(call.header("authorization")), call.peer)
        except Unauthenticated as error:
            self._terms.on_failure("refused over Flight", error)
            self._terms.audit.note(
                who="", via="Flight", peer=call.peer, operation="a call", allowed=False, why=str(error)
            )
            raise

    def _permitted(self, call: FlightCall, note: Note, rights: Sequence[Right], about: bytes | None) -> Principal:
        """Who makes an admitted call, if they have these rights; Forbidden."""
        note.rights, note.about = rights, bytes((about or b"")[:TEXT_MAX])  # no more of it is written down
        try:
            authorize_all(self._terms.authenticator, call.principal, rights)
        except Forbidden as error:
            self._terms.on_failure("refused over Flight", error)
            raise
        return call.principal


@contextmanager
def _own_sink(repository: EmbeddedRepository, note: Note, raw: bytes) -> Iterator[ContentSink]:
    """Where a batch goes that has a command of its own: an operation by itself, with its own key and line."""
    part = note.part(raw[:TEXT_MAX])
    with part.left():
        command = tickets.parse_command(raw)
        if command.write is not None or command.attempt is not None:
            raise InvalidArgument(
                "the transactions of a staged write count by their stream: its command names the write"
            )
        yield CountedSink(bulk.sink_of(repository, command), part)


NO_COMMAND: Final = flight.FlightDescriptor.for_command(b"")


def _parsed(kind: Any, raw: bytes) -> Any:
    """A message of Flight's; InvalidArgument for what is none."""
    try:
        return kind.deserialize(raw)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidArgument(f"no {kind.__name__} of Flight's: {error}") from error


def _described(action: FlightAction[Any, Any]) -> str:
    fields = [field.name for field in msgspec.structs.fields(action.request)]
    return f"{action.effect}; its body is JSON with {', '.join(fields)}" if fields else action.effect


def _named(descriptor: Any) -> str:
    return b"/".join(descriptor.path or []).decode(errors="replace")


def _info(name: str) -> Any:
    """NotFound if there is no such table."""
    wanted = TableTicket(name=name)
    endpoint = flight.FlightEndpoint(flight.Ticket(msgspec.json.encode(wanted)), [])
    schema = schema_of(wanted).with_metadata({"description": DESCRIPTIONS[name]})
    return flight.FlightInfo(schema, flight.FlightDescriptor.for_path(name), [endpoint], -1, -1)
