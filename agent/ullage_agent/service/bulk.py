"""Arrow Flight and the Unix socket of one service, started and stopped together."""

from collections.abc import Callable
from contextlib import ExitStack

from ullage_agent.engine.repository import Repository
from ullage_agent.service.access import Authenticator
from ullage_agent.service.errors import Forbidden, Unauthenticated
from ullage_agent.service.flight.listener import FlightListener
from ullage_agent.service.flight.server import FlightServer, Shared
from ullage_agent.service.limits import Limits
from ullage_agent.service.listening import Listening
from ullage_agent.service.log import logger
from ullage_agent.service.runs import Run
from ullage_agent.service.socket.server import SocketServer
from ullage_agent.windows import Verdict


class Bulk:
    """Listens from its construction on, where the contract says; CannotListen, and nothing listens, if it cannot."""

    def __init__(
        self,
        repository: Repository,
        authenticator: Authenticator,
        limits: Limits,
        listening: Listening,
        node: str,
        runs: Callable[[], list[Run]],
        verdicts: Callable[[], list[Verdict]],
    ) -> None:
        self.flight: FlightListener | None = None
        self.socket: SocketServer | None = None
        self._log = logger("bulk")
        self._audit = logger("audit")
        with ExitStack() as stack:
            if listening.flight_port is not None:
                self.flight = FlightListener(
                    lambda port, shared: FlightServer(
                        repository,
                        authenticator,
                        limits,
                        listening.address,
                        port,
                        node=node,
                        socket_path=listening.socket_path or "",
                        tls=listening.tls,
                        runs=lambda: [_run_row(run) for run in runs()],
                        windows=lambda: [_verdict_row(verdict) for verdict in verdicts()],
                        on_failure=self._failed,
                        shared=shared,
                    ),
                    listening.flight_port,
                    Shared(repository, limits),
                )
                stack.callback(self.flight.stop)
            if listening.socket_path:
                self.socket = SocketServer(
                    repository, authenticator, limits, listening.socket_path, on_failure=self._failed
                )
                self.socket.start()
                stack.callback(self.socket.stop)
            self._stack = stack.pop_all()

    @property
    def addresses(self) -> dict[str, str]:
        """Where each is reached: a URL, and a path."""
        found = {} if self.flight is None else {"flight": self.flight.url}
        return found if self.socket is None else {**found, "socket": self.socket.path}

    def renew(self, generation: int) -> None:
        """Serve with the certificate that is in the files now; CannotListen as `FlightListener.renew` says."""
        if self.flight is not None:
            self.flight.renew(generation)

    def stop(self) -> None:
        """Refuse what is new, end what is under way, release what clients hold. Safe to call twice."""
        self._stack.close()

    def _failed(self, what: str, error: Exception) -> None:
        if isinstance(error, Unauthenticated | Forbidden):
            self._audit.warning("refused", where=what, reason=str(error))
        else:
            self._log.error(what, exc_info=error)


def _verdict_row(verdict: Verdict) -> tuple[object, ...]:
    """What the windows say of an operation in the columns of the table `windows`."""
    return (
        *(str(verdict.operation), verdict.is_allowed, verdict.may_start, verdict.closes_millis, str(verdict.overrun)),
        *(verdict.opens_millis, verdict.reason),
    )


def _run_row(run: Run) -> tuple[object, ...]:
    """A run in the columns of the table `runs`."""
    return (
        *(run.id, run.owner, run.reason, run.began_millis, run.ended_millis, run.steps_done, run.freed_bytes),
        *(0 if run.report is None else run.report.copied_bytes, None if run.error is None else str(run.error)),
    )
