"""Calls over gRPC: nothing of a call is read before it is known whose it is, and each ends with a status of its own.

Every method is a stream in both directions for grpcio, whatever Flight calls it: of a unary method gRPC would take the
request, up to the bound on a message, before anybody has seen the token. On the wire there is no difference.

    headers -> token -> one of so many calls -> first message -> rights -> work -> status
"""

import threading
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Final, NamedTuple
from urllib.parse import unquote

import grpc
import msgspec

from ullage.clock import Clock
from ullage.errors import InvalidArgument, RequestTooLarge, TransferStalled
from ullage.wire.problems import problem_of
from ullage_agent.service.access import ANONYMOUS, Principal
from ullage_agent.service.addresses import bare
from ullage_agent.service.fairness import Turn
from ullage_agent.service.flight.strangers import FarEnd

DETAIL_CHARACTERS_MAX: Final = 500
"""An error travels twice in gRPC's headers, of 8 KiB in all, where a character takes up to 12 bytes. A message that
quotes what it refuses would end the stream instead, without a reason.
"""

STATUSES: Final = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    405: grpc.StatusCode.UNIMPLEMENTED,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    409: grpc.StatusCode.FAILED_PRECONDITION,
    410: grpc.StatusCode.NOT_FOUND,
    413: grpc.StatusCode.INVALID_ARGUMENT,
    416: grpc.StatusCode.OUT_OF_RANGE,
    421: grpc.StatusCode.FAILED_PRECONDITION,
    422: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.UNAVAILABLE,
    503: grpc.StatusCode.UNAVAILABLE,
    507: grpc.StatusCode.RESOURCE_EXHAUSTED,
}
"""What gRPC has for the status of a problem; for any other one INTERNAL."""

PROBLEM_TRAILER: Final = "grpc-status-details-bin"
ARROW_TRAILER: Final = ("x-arrow-status", "5")
"""pyarrow's client gives its caller the problem only beside a status of Arrow's own: 5, an error of input or output."""


class Wait(NamedTuple):
    """For the client: until when (monotonic, in seconds), and how long that is."""

    until: float
    seconds: float
    is_sending: bool


class CallEnded(Exception):
    """The client has cancelled the call, or is gone: nobody waits for anything."""


class FlightCall:
    """One call. Used by one thread; another one may end it."""

    def __init__(
        self, context: grpc.ServicerContext, requests: Iterator[bytes], send: Callable[[bytes | None], None]
    ) -> None:
        self._context = context
        self._requests = requests
        self._send = send
        self._clock = Clock()
        self._patience = self._pause = float("inf")
        self._lock = threading.Lock()
        self._wait: Wait | None = None
        self._stalled = ""
        self._is_over = False
        self.principal: Principal = ANONYMOUS
        self.turn: Turn | None = None
        """What work on the call has, and waits for its client have not."""

    def limit_waits(self, clock: Clock, first_seconds: float, pause_seconds: float) -> None:
        """How long the client may take until its first message, and then for each, sent or taken."""
        self._clock, self._patience, self._pause = clock, first_seconds, pause_seconds

    @cached_property
    def peer(self) -> str:
        """The address of the client."""
        return self.far_end.address

    @cached_property
    def far_end(self) -> FarEnd:
        """The other end of its connection: gRPC has it as `ipv4:10.0.0.7:40312` or `ipv6:%5B2001:db8::7%5D:40312`."""
        place = unquote(str(self._context.peer())).partition(":")[2]
        address, _, port = place.rpartition(":")
        return FarEnd(bare(address.strip("[]")), port)

    def header(self, name: str) -> str | None:
        """The first of this name."""
        for key, value in self._context.invocation_metadata() or ():
            if key == name:
                return value if isinstance(value, str) else value.decode(errors="replace")
        return None

    def messages(self) -> Iterator[bytes]:
        """What the client sends, each when it is asked for. CallEnded if it goes away before it has ended,
        TransferStalled if it sends nothing for too long.
        """
        while True:
            try:
                # Not by a name: a message would be kept until the next one has come.
                yield self._next()
            except StopIteration:
                return

    def _next(self) -> bytes:
        self._begin_wait(self._patience, is_sending=False)
        try:
            return next(self._requests)
        except grpc.RpcError as error:
            raise CallEnded from error
        finally:
            self._patience = self._pause
            self._end_wait()

    def work(self) -> None:
        """Return when it is this call's turn, which it has until it waits for its client or has ended."""
        if self.turn is not None:
            self.turn.take()

    def rest(self) -> None:
        """Let others have the turn."""
        if self.turn is not None:
            self.turn.rest()

    def breathe(self) -> None:
        """Amid work of which nothing is sent: others who wait go first. CallEnded if the client is gone."""
        self.rest()
        if not self._context.is_active():
            raise CallEnded
        self.work()

    def _begin_wait(self, seconds: float, *, is_sending: bool) -> None:
        """From now on it is the client's turn."""
        self.rest()
        self._wait = Wait(self._clock.monotonic() + seconds, seconds, is_sending)

    def _end_wait(self) -> None:
        """TransferStalled if it was too long, however it ended."""
        with self._lock:  # or it could be found too long afterwards
            self._wait = None
        if self._stalled:
            raise TransferStalled(self._stalled)

    def end_if_stalled(self, now: float) -> None:
        """End it if the client has let it wait for too long; `now` is monotonic, in seconds. Called by another thread:
        the call's own one is waiting, and does not see to it.
        """
        with self._lock:
            wait = self._wait
            if wait is None or now < wait.until or self._stalled:
                return
            what = "taken" if wait.is_sending else "sent"
            self._stalled = f"nothing was {what} for {wait.seconds:g} s"
        if wait.is_sending:
            self._context.cancel()  # a status would wait behind what nobody takes
        else:
            self.end(TransferStalled(self._stalled))

    def message(self, bytes_max: int) -> bytes:
        """The first one, of a method that has no other. InvalidArgument, RequestTooLarge, CallEnded."""
        found = next(self.messages(), None)
        if found is None:
            raise InvalidArgument("the call has no message")
        if len(found) > bytes_max:
            raise RequestTooLarge(f"a message of {len(found)} bytes: at most {bytes_max} are allowed")
        return found

    def send(self, message: bytes) -> None:
        """Returns when gRPC has taken it, which waits for a slow client. CallEnded if it is gone."""
        self._begin_wait(self._pause, is_sending=True)
        try:
            self._send(message)
        finally:
            self._end_wait()
        if not self._context.is_active():
            raise CallEnded

    def end(self, error: Exception | None = None) -> None:
        """The status, and for an error the problem beside it as JSON. What comes after the first one is not sent."""
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
        if error is not None:
            problem = problem_of(error)
            if len(problem.detail) > DETAIL_CHARACTERS_MAX:
                problem = msgspec.structs.replace(problem, detail=f"{problem.detail[:DETAIL_CHARACTERS_MAX]} ...")
            self._context.set_code(STATUSES.get(problem.status, grpc.StatusCode.INTERNAL))
            self._context.set_details(f"{problem.slug}: {problem.detail}")
            self._context.set_trailing_metadata((ARROW_TRAILER, (PROBLEM_TRAILER, msgspec.json.encode(problem))))
        self._send(None)


Serve = Callable[[str, FlightCall], None]
"""Carries a method of a name out, to its end; raises nothing."""


class Methods(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Those of a service, by their names."""

    def __init__(self, service: str, names: tuple[str, ...], serve: Serve) -> None:
        self._handlers = {f"/{service}/{name}": _handler(name, serve) for name in names}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """Asked in the one thread that takes calls: it must not wait."""
        return self._handlers.get(handler_call_details.method)


def _handler(name: str, serve: Serve) -> grpc.RpcMethodHandler:
    def behave(requests: Iterator[bytes], context: grpc.ServicerContext, send: Callable[[bytes | None], None]) -> None:
        serve(name, FlightCall(context, requests, send))

    # An answer is sent when there is one, rather than asked for by a generator: what a DoPut tells of a batch comes out
    # of the middle of the engine's reading of the next.
    behave.experimental_non_blocking = True  # type: ignore[attr-defined]
    return grpc.stream_stream_rpc_method_handler(behave)
