"""Arrow Flight: contents and tables in bulk. docs/flight.md describes it for clients.

    DoPut    many contents; each batch is a transaction, its handles come back as metadata
    DoGet    a ticket of handles or ranges, or of a table at a snapshot
    actions  snapshot, release;  ListFlights, GetFlightInfo, GetSchema tell of the tables

gRPC gives each call a thread; how many work at a time is bounded here.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import msgspec
from pyarrow import ArrowException, flight

from ullage.contract import Right
from ullage.embedded import bulk
from ullage.embedded.items import content_batches
from ullage.embedded.repository import EmbeddedRepository
from ullage.embedded.tables import feed_batches, schema_of
from ullage.errors import Forbidden, InvalidArgument, ServiceBusy, Unauthenticated
from ullage.wire import tickets
from ullage.wire.needs import GETTING, PUTTING
from ullage.wire.problems import is_expected, problem_of
from ullage.wire.schemas import DESCRIPTIONS, GET_SCHEMA, PUT_SCHEMA, SCHEMAS
from ullage.wire.tickets import ContentTicket, FlightAction, TableTicket, rights_of
from ullage_agent.service.access import Principal, authorize_all, bearer
from ullage_agent.service.errors import CannotListen
from ullage_agent.service.flight.calls import ACCESS, Admitted, CountedSink, FlightCall
from ullage_agent.service.flight.puts import Puts
from ullage_agent.service.flight.snapshots import Snapshots
from ullage_agent.service.listening import Terms, TlsFiles
from ullage_agent.service.quota import Quota

DETAIL_CHARACTERS_MAX: Final = 500
"""An error travels twice in gRPC's headers, of 8 KiB in all, where a character takes up to 12 bytes. A message that
quotes what it refuses would end the stream instead, without a reason.
"""

KINDS: Final[dict[int, Callable[..., Exception]]] = {
    401: flight.FlightUnauthenticatedError,
    403: flight.FlightUnauthorizedError,
    429: flight.FlightUnavailableError,
    503: flight.FlightUnavailableError,
}
"""What gRPC has for the status of a problem. The others are a FlightServerError: it has no word for them."""

Act = Callable[[Principal, Any], object]
"""What carries an action out: who asks, its body, and the document that answers it, None for none."""


class Admission(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Every call passes here first: its bearer token is somebody's, or it ends."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> Admitted:
        """Raises what Flight has for a refusal."""
        given = next(iter(headers.get("authorization", ())), None)
        try:
            return Admitted(self._terms.authenticator.authenticate(bearer(given)))
        except Exception as error:
            if isinstance(error, Unauthenticated):
                self._terms.on_failure("refused over Flight", error)
                self._terms.audit.note(who="", via="Flight", operation="a call", allowed=False, why=str(error))
            raise _refusal_of(error) from error


class Shared:
    """What a server and its successor on the same port have in common."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.snapshots = Snapshots(terms)
        bulk.hold_all_events(terms.repository)
        self._slots = threading.BoundedSemaphore(terms.limits.flight_calls)
        self._quota = Quota("flight_calls_each", "calls over Flight", terms.limits.flight_calls_each)

    @contextmanager
    def counted(self, principal: Principal) -> Iterator[None]:
        """One of so many calls at a time; ServiceBusy beyond, QuotaReached for too many of one principal."""
        if not self._slots.acquire(blocking=False):
            raise ServiceBusy(f"{self.terms.limits.flight_calls} calls are under way already")
        try:
            with self._quota.counted(principal.name):
                yield
        finally:
            self._slots.release()


class FlightServer(flight.FlightServerBase):  # type: ignore[misc]
    """Serves from its construction on, in gRPC's own threads; `shutdown` ends it once its calls have ended."""

    def __init__(self, shared: Shared, port: int) -> None:
        """CannotListen if the address is not to be had, or the certificate not to be used."""
        self._shared = shared
        self._terms = shared.terms
        self._repository = shared.terms.repository
        self._actions = self._acts()
        listening, tls = shared.terms.listening, shared.terms.listening.tls
        scheme = "grpc" if tls is None else "grpc+tls"
        try:
            super().__init__(
                f"{scheme}://{listening.host}:{port}",
                middleware={ACCESS: Admission(self._terms)},
                tls_certificates=None if tls is None else [_certificate(tls)],
            )
        except (OSError, flight.FlightError, ArrowException) as error:
            raise CannotListen(
                f"spec.service.flightPort: cannot listen on {listening.address} port {port}: {error}"
            ) from error
        self.url = f"{scheme}://{listening.host}:{self.port}"

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Store a stream of contents."""
        with self._call(context, PUTTING, "DoPut", descriptor.command) as call:
            command = tickets.parse_command(descriptor.command or b"")
            sink = CountedSink(bulk.sink_of(self._terms.acting_for(call.principal), command), call)
            batches = (chunk.data for chunk in reader if chunk.data is not None)
            Puts(sink, self._terms.limits, batches, writer.write).store()

    def do_get(self, context: Any, ticket: Any) -> Any:
        """Contents, or a table."""
        with self._call(context, (), "DoGet", ticket.ticket) as call:
            wanted, principal = tickets.parse_ticket(ticket.ticket), call.principal
            call.rights = GETTING if isinstance(wanted, ContentTicket) else rights_of(wanted)
            self._authorize(principal, call.rights)
            call.is_stream = True
            if isinstance(wanted, ContentTicket):
                call.ids = wanted.handles or []
                return self._streamed(GET_SCHEMA, content_batches(self._terms.acting_for(principal), wanted), call)
            schema = schema_of(wanted)
            if wanted.stream is not None:
                return self._streamed(schema, feed_batches(self._terms.acting_for(principal), wanted), call)
            found = self._shared.snapshots.find(principal, wanted.snapshot)
            return self._streamed(schema, found.batches(wanted), call)

    def do_action(self, context: Any, action: Any) -> Iterator[bytes]:
        """Take, renew or release a snapshot; a step of a staged write; what the node says of itself."""
        raw = b"" if action.body is None else action.body.to_pybytes()
        known = next((each for each in tickets.ACTIONS if each.name == action.type), None)
        with self._call(context, () if known is None else known.rights, f"action {action.type}", raw) as call:
            if known is None:
                names = ", ".join(each.name for each in tickets.ACTIONS)
                raise InvalidArgument(f"there is no action {action.type}: {names}")
            answer = self._actions[known.name](call.principal, known.parse(raw))
            return iter([] if answer is None else [msgspec.json.encode(answer)])

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        """What `do_action` does."""
        return [(each.name, _described(each)) for each in tickets.ACTIONS]

    def list_flights(self, context: Any, criteria: bytes) -> Iterator[Any]:
        """The tables."""
        with self._call(context, (), "ListFlights"):
            return iter([_info(name) for name in SCHEMAS])

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        """One table, by its name as the path."""
        with self._call(context, (), "GetFlightInfo"):
            return _info(_named(descriptor))

    def get_schema(self, context: Any, descriptor: Any) -> Any:
        """The columns of a table; of a put for the path `put`."""
        with self._call(context, (), "GetSchema"):
            name = _named(descriptor)
            return flight.SchemaResult(PUT_SCHEMA if name == "put" else schema_of(TableTicket(name=name)))

    def _acts(self) -> dict[str, Act]:
        snapshots = self._shared.snapshots
        return {
            tickets.SNAPSHOT.name: snapshots.take,
            tickets.RENEW.name: snapshots.renew,
            tickets.RELEASE.name: snapshots.release,
            tickets.SCAN.name: snapshots.scan,
            tickets.BIND.name: snapshots.bind,
            tickets.ABOUT.name: lambda _, __: bulk.node_identity(self._repository, self._terms.listening.socket_path),
            **{name: partial(self._act, act) for name, act in bulk.ACTS.items()},
        }

    def _act(self, act: Callable[[EmbeddedRepository, Any], object], principal: Principal, request: Any) -> object:
        return act(self._terms.acting_for(principal), request)

    def _streamed(self, schema: Any, batches: Iterator[Any], call: FlightCall) -> Any:
        return flight.GeneratorStream(schema, self._bounded(batches, call))

    def _bounded(self, batches: Iterator[Any], call: FlightCall) -> Iterator[Any]:
        """The same while they are sent: counted as a call, their errors told."""
        with self._telling("a Flight stream failed"), call.noted(), self._shared.counted(call.principal):
            for batch in batches:
                call.bytes += batch.nbytes
                yield batch

    @contextmanager
    def _call(self, context: Any, rights: Sequence[Right], name: str, about: bytes = b"") -> Iterator[FlightCall]:
        """One call: admitted, permitted, counted; its errors told."""
        with self._telling("a Flight call failed"):
            call = FlightCall(self._terms.audit, context, rights, name, about)
            with call.noted(is_begin=True):
                self._authorize(call.principal, rights)
                with self._shared.counted(call.principal):
                    yield call

    def _authorize(self, principal: Principal, rights: Iterable[Right]) -> None:
        try:
            authorize_all(self._terms.authenticator, principal, rights)
        except Forbidden as error:
            self._terms.on_failure("refused over Flight", error)
            raise

    @contextmanager
    def _telling(self, what: str) -> Iterator[None]:
        """Errors of the engine and the service become Flight's; those that nobody foresaw are logged too."""
        try:
            yield
        except flight.FlightError:
            raise
        except Exception as error:
            if not is_expected(error):
                self._terms.on_failure(what, error)
            raise _refusal_of(error) from error


def _refusal_of(error: Exception) -> Exception:
    """What to raise inside a Flight call: the status that gRPC has for it, and the problem beside it as JSON."""
    problem = problem_of(error)
    if len(problem.detail) > DETAIL_CHARACTERS_MAX:
        problem = msgspec.structs.replace(problem, detail=f"{problem.detail[:DETAIL_CHARACTERS_MAX]} ...")
    kind = KINDS.get(problem.status, flight.FlightServerError)
    refusal: Exception = kind(f"{problem.slug}: {problem.detail}", extra_info=msgspec.json.encode(problem))
    return refusal


def _certificate(files: TlsFiles) -> tuple[bytes, bytes]:
    with open(files.certificate, "rb") as certificate, open(files.key, "rb") as key:
        return certificate.read(), key.read()


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
