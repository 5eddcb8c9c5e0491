"""Arrow Flight: contents and tables in bulk. docs/flight.md describes it for clients.

    DoPut    many contents; each batch is a transaction, its handles come back as metadata
    DoGet    a ticket of handles or ranges, or of a table at a snapshot
    actions  snapshot, release;  ListFlights, GetFlightInfo, GetSchema tell of the tables

gRPC gives each call a thread; how many work at a time is bounded here.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import msgspec
from pyarrow import ArrowException, flight

from ullage_agent.engine.repository import Repository
from ullage_agent.service.access import Authenticator, Principal, Verb, bearer
from ullage_agent.service.errors import BadRequest, CannotListen, Forbidden, Unauthenticated
from ullage_agent.service.flight.about import about
from ullage_agent.service.flight.feeds import FEEDS, HOLD, act_on_feed, hold_all_events, hold_events, require_feed
from ullage_agent.service.flight.forms import (
    CONTENT_SCHEMA,
    PUT_SCHEMA,
    Get,
    Table,
    parse_bind,
    parse_feed,
    parse_hold,
    parse_put,
    parse_release,
    parse_renew,
    parse_scan,
    parse_snapshot,
    parse_ticket,
    parse_write,
)
from ullage_agent.service.flight.gets import read_items, require_possible
from ullage_agent.service.flight.puts import Puts, batches_of
from ullage_agent.service.flight.refusals import refusal_of, telling, told
from ullage_agent.service.flight.schemas import DESCRIPTIONS, SCHEMAS
from ullage_agent.service.flight.snapshots import Snapshots, counted
from ullage_agent.service.flight.stores import ACTIONS, act_on_write
from ullage_agent.service.flight.tables import RowsNow, Tables, columns_of, feed_batches, schema_of
from ullage_agent.service.limits import Limits
from ullage_agent.service.listening import TlsFiles

ACCESS: Final = "access"
SNAPSHOT: Final = "snapshot"
RENEW: Final = "renew"
RELEASE: Final = "release"
SCAN: Final = "scan"
BIND: Final = "bind"
ABOUT: Final = "about"

Notice = Callable[[str, Exception], None]
Act = Callable[[Principal, bytes], object]
"""An action: who asks, its body, and the document that answers it, None for none."""


class Admitted(flight.ServerMiddleware):  # type: ignore[misc]
    """Who makes this call."""

    def __init__(self, principal: Principal) -> None:
        self.principal = principal


class Admission(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Every call passes here first: its bearer token is somebody's, or it ends."""

    def __init__(self, authenticator: Authenticator, on_refusal: Notice) -> None:
        self._authenticator = authenticator
        self._on_refusal = on_refusal

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> Admitted:
        """Raises what Flight has for a refusal."""
        given = next(iter(headers.get("authorization", ())), None)
        try:
            return Admitted(self._authenticator.authenticate(bearer(given)))
        except Exception as error:
            if isinstance(error, Unauthenticated):
                self._on_refusal("refused over Flight", error)
            raise refusal_of(error) from error


class Shared:
    """What a server and its successor on the same port have in common."""

    def __init__(self, repository: Repository, limits: Limits) -> None:
        self.snapshots = Snapshots(repository, limits.columns_bytes)
        hold_all_events(repository)
        self.slots = threading.BoundedSemaphore(limits.flight_calls)


class FlightServer(flight.FlightServerBase):  # type: ignore[misc]
    """Serves from its construction on, in gRPC's own threads; `shutdown` ends it once its calls have ended."""

    def __init__(
        self,
        repository: Repository,
        authenticator: Authenticator,
        limits: Limits,
        address: str,
        port: int,
        *,
        node: str = "",
        tls: TlsFiles | None = None,
        socket_path: str = "",
        runs: RowsNow = lambda: (),
        windows: RowsNow = lambda: (),
        on_failure: Notice = lambda _what, _error: None,
        shared: Shared | None = None,
    ) -> None:
        """CannotListen if the address is not to be had, or the certificate not to be used."""
        self._repository = repository
        self._authenticator = authenticator
        self._limits = limits
        self._node = node
        self._socket_path = socket_path
        self._runs = runs
        self._windows = windows
        self._on_failure = on_failure
        shared = shared or Shared(repository, limits)
        self._snapshots = shared.snapshots
        self._slots = shared.slots
        self._actions = self._acts()
        host = f"[{address}]" if ":" in address else address
        scheme = "grpc" if tls is None else "grpc+tls"
        try:
            super().__init__(
                f"{scheme}://{host}:{port}",
                middleware={ACCESS: Admission(authenticator, on_failure)},
                tls_certificates=None if tls is None else [_certificate(tls)],
            )
        except (OSError, flight.FlightError, ArrowException) as error:
            raise CannotListen(f"spec.service.flightPort: cannot listen on {address} port {port}: {error}") from error
        self.url = f"{scheme}://{host}:{self.port}"

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Store a stream of contents."""
        with self._call(context, Verb.CREATE) as principal:
            command = parse_put(descriptor.command or b"")
            puts = Puts(self._repository, principal, command, self._limits.batch, self._limits.batch_read_bytes)
            puts.store(batches_of(reader), writer.write)

    def do_get(self, context: Any, ticket: Any) -> Any:
        """Contents, or a table."""
        with self._call(context, Verb.GET) as principal:
            wanted = parse_ticket(ticket.ticket)
            if isinstance(wanted, Get):
                require_possible(wanted)
                return self._streamed(CONTENT_SCHEMA, read_items(self._repository, wanted, self._node))
            return self._table(principal, wanted)

    def do_action(self, context: Any, action: Any) -> Iterator[bytes]:
        """Take, renew or release a snapshot; a step of a staged write; what the node says of itself."""
        raw = b"" if action.body is None else action.body.to_pybytes()
        verb = Verb.CREATE if action.type in ACTIONS else Verb.DELETE if action.type in FEEDS else Verb.GET
        with self._call(context, verb) as principal:
            act = self._actions.get(action.type)
            if act is None:
                known = ", ".join(name for name, _ in self.list_actions(context))
                raise BadRequest(f"there is no action {action.type}: {known}")
            answer = act(principal, raw)
            return iter([] if answer is None else [msgspec.json.encode(answer)])

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        """What `do_action` does."""
        return [
            (SNAPSHOT, "take a snapshot; body: JSON with ttl_millis and holds; answers its id"),
            (RENEW, "keep a snapshot for longer; body: JSON with id and ttl_millis"),
            (RELEASE, "release a snapshot; body: JSON with id"),
            (SCAN, "let readers of a snapshot find their shares; body: JSON with snapshot, scan, homes"),
            (BIND, "the share that a slot of a scan reads; body: JSON with snapshot, scan, slot, near"),
            (HOLD, "keep events that are not read yet; body: JSON with holder, after, lasts_millis"),
            *FEEDS.items(),
            (ABOUT, "the node's name, epoch, newest provenance event and socket"),
            *ACTIONS.items(),
        ]

    def list_flights(self, context: Any, criteria: bytes) -> Iterator[Any]:
        """The tables."""
        with self._call(context, Verb.GET):
            return iter([_info(name) for name in SCHEMAS])

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        """One table, by its name as the path."""
        with self._call(context, Verb.GET):
            name = b"/".join(descriptor.path or []).decode(errors="replace")
            columns_of(Table(name=name))
            return _info(name)

    def get_schema(self, context: Any, descriptor: Any) -> Any:
        """The columns of a table; of a put for the path `put`."""
        with self._call(context, Verb.GET):
            name = b"/".join(descriptor.path or []).decode(errors="replace")
            if name == "put":
                return flight.SchemaResult(PUT_SCHEMA)
            columns_of(Table(name=name))
            return flight.SchemaResult(SCHEMAS[name])

    def _acts(self) -> dict[str, Act]:
        snapshots = self._snapshots
        return {
            SNAPSHOT: lambda principal, raw: snapshots.take(principal, parse_snapshot(raw)),
            RENEW: lambda principal, raw: snapshots.renew(principal, parse_renew(raw)),
            RELEASE: lambda principal, raw: snapshots.release(principal, parse_release(raw).id),
            SCAN: lambda principal, raw: snapshots.scan(principal, parse_scan(raw)),
            BIND: lambda principal, raw: snapshots.bind(principal, parse_bind(raw)),
            ABOUT: lambda _, __: about(self._repository, self._node, self._socket_path),
            HOLD: lambda principal, raw: hold_events(self._repository, principal, parse_hold(raw)),
            **{name: self._feed_act(name) for name in FEEDS},
            **{name: self._write_act(name) for name in ACTIONS},
        }

    def _feed_act(self, name: str) -> Act:
        return lambda _, raw: act_on_feed(self._repository, name, parse_feed(raw))

    def _write_act(self, name: str) -> Act:
        return lambda principal, raw: act_on_write(self._repository, principal, name, parse_write(raw))

    def _table(self, principal: Principal, wanted: Table) -> Any:
        columns = columns_of(wanted)
        if wanted.stream is not None:
            require_feed(wanted)
            return self._streamed(schema_of(wanted.name, columns), feed_batches(self._repository, wanted, columns))
        moment, kept = self._snapshots.find(principal, wanted.snapshot)
        tables = Tables(self._repository, moment, kept, wanted, self._runs, self._windows)
        return self._streamed(schema_of(wanted.name, columns), tables.batches(wanted.name, columns))

    def _streamed(self, schema: Any, batches: Iterator[Any]) -> Any:
        return flight.GeneratorStream(schema, told(self._bounded(batches), self._on_failure, "a Flight stream failed"))

    def _bounded(self, batches: Iterator[Any]) -> Iterator[Any]:
        with counted(self._slots, self._limits.flight_calls):
            yield from batches

    @contextmanager
    def _call(self, context: Any, verb: Verb) -> Iterator[Principal]:
        """One call: admitted, permitted, counted; its errors told."""
        with telling(self._on_failure, f"a Flight call ({verb}) failed"):
            principal: Principal = context.get_middleware(ACCESS).principal
            try:
                self._authenticator.authorize(principal, verb)
            except Forbidden as error:
                self._on_failure("refused over Flight", error)
                raise
            with counted(self._slots, self._limits.flight_calls):
                yield principal


def _certificate(files: TlsFiles) -> tuple[bytes, bytes]:
    with open(files.certificate, "rb") as certificate, open(files.key, "rb") as key:
        return certificate.read(), key.read()


def _info(name: str) -> Any:
    ticket = flight.Ticket(msgspec.json.encode(Table(name=name)))
    descriptor = flight.FlightDescriptor.for_path(name)
    schema = SCHEMAS[name].with_metadata({"description": DESCRIPTIONS[name]})
    return flight.FlightInfo(schema, descriptor, [flight.FlightEndpoint(ticket, [])], -1, -1)
