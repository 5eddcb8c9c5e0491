"""Logs: events with fields, lines for people on a terminal, JSON everywhere else.

No field ever holds a token or content. The audit log is the logger `audit`: who was refused what, and who reclaimed out
of hours; it cannot be turned down.

Nobody waits for who reads them: a thread of its own writes them, and what it has no room for is dropped and counted.
Whoever has no token can make the agent log, and a terminal or a collector that stands still would stop its event loop.
"""

import atexit
import logging
import os
import threading
from collections import deque
from typing import Any, Final

import structlog

from ullage.clock import Clock

WAITING_BYTES_MAX: Final = 4 << 20
"""Of lines that wait for who reads them: 20,000 of the usual ones, so that a collector that begins anew misses none."""

END_SECONDS: Final = 2.0
"""How long the end of the process waits for lines to be read: an error that ends it is among them."""

REFUSED_LINES_MAX: Final = 20
"""Lines a second about those who were refused, as many as the audit log has of one of them."""

STDERR: Final = 2

TOLD_AGAIN_SECONDS: Final = 60.0
"""How often the same failure is told. Some are tried each second, and a log may lie on the disk that is full."""


def configure(*, level: int = logging.INFO) -> None:
    """Send this process's logs from a level on to stderr."""
    is_terminal = os.isatty(STDERR)
    out: Any = Outlet(STDERR)
    atexit.register(out.drain)
    renderer: Any = structlog.dev.ConsoleRenderer() if is_terminal else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            *([] if is_terminal else [structlog.processors.format_exc_info]),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(out),
        cache_logger_on_first_use=False,
    )
    # What libraries log stays theirs, from warnings on.
    logging.basicConfig(stream=out, level=logging.WARNING, format="%(levelname)s %(name)s %(message)s", force=True)
    # Its warnings are about what strangers send, a line or two for each request.
    logging.getLogger("uvicorn").setLevel(logging.ERROR)


def logger(name: str) -> Any:
    """A logger that says where its events come from."""
    return structlog.get_logger().bind(logger=name)


class Outlet:
    """A stream of lines that takes each at once; a thread writes them to a descriptor. Thread-safe."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._changed = threading.Condition()
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._lost = 0
        threading.Thread(target=self._write_all, name="ullage-log", daemon=True).start()

    def write(self, text: str) -> None:
        """Take it to be written, or count it as lost if too much waits already."""
        line = text.encode(errors="backslashreplace")
        with self._changed:
            if self._bytes + len(line) > WAITING_BYTES_MAX:
                self._lost += 1
                return
            self._lines.append(line)
            self._bytes += len(line)
            self._changed.notify_all()

    def flush(self) -> None:
        """Each line is written through as it is."""

    def drain(self) -> None:
        """Wait until all is written, but not for long: who reads may stand still."""
        with self._changed:
            self._changed.wait_for(lambda: not self._bytes, END_SECONDS)

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines)
                line, lost = self._lines.popleft(), self._lost
            is_written = self._is_written(line)
            told = lost if is_written and lost and self._is_written(_told(lost)) else 0
            with self._changed:
                self._lost += (not is_written) - told
                self._bytes -= len(line)  # only now: the end waits for the last one too
                self._changed.notify_all()

    def _is_written(self, line: bytes) -> bool:
        # Not through sys.stderr: the end of the process would abort at its lock, which a write that waits holds.
        view = memoryview(line)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError:  # nobody reads any more, or the disk is full
            return False
        return True


def _told(lost: int) -> bytes:
    log = structlog.wrap_logger(structlog.ReturnLogger()).bind(logger="log")
    return f"{log.error('lines of the log were lost', lines=lost)}\n".encode()


class RefusedLog:
    """Lines about those who were refused, so many a second: whoever has no token can ask a thousand times. The event
    loop makes all calls.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._log = logger("audit")
        self._second = self._count = 0

    def tell(self, **said: object) -> None:
        """Log it, with how many were left out in the second that had any last; or leave it out."""
        second = int(self._clock.monotonic())
        left_out = 0
        if second != self._second:
            left_out = max(0, self._count - REFUSED_LINES_MAX)
            self._second, self._count = second, 0
        self._count += 1
        if self._count <= REFUSED_LINES_MAX:
            self._log.warning("refused", **said, **({"left_out": left_out} if left_out else {}))


class Sparing:
    """Which failures are told: what is new of its kind at once, what stays the same every `TOLD_AGAIN_SECONDS`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._told: dict[str, tuple[str, float]] = {}

    def is_due(self, kind: str, error: Exception) -> bool:
        """Whether to tell it now; if so, it counts as told."""
        now, text = self._clock.monotonic(), repr(error)
        before, at = self._told.get(kind, ("", now))
        if text == before and now - at < TOLD_AGAIN_SECONDS:
            return False
        self._told[kind] = text, now
        return True
