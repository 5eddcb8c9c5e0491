"""Logs: events with fields, lines for people on a terminal, JSON everywhere else.

No field ever holds a token or content. The audit log is the logger `audit`: who was refused what, and who reclaimed out
of hours; it cannot be turned down.
"""

import logging
import sys
from typing import Any, Final, TextIO

import structlog

from ullage.clock import Clock

TOLD_AGAIN_SECONDS: Final = 60.0
"""How often the same failure is told. Some are tried each second, and a log may lie on the disk that is full."""


def configure(stream: TextIO | None = None, *, level: int = logging.INFO) -> None:
    """Send this process's logs from a level on to `stream`, stderr if none."""
    out = stream or sys.stderr
    is_terminal = out.isatty()
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
        logger_factory=structlog.PrintLoggerFactory(out),
        cache_logger_on_first_use=False,
    )
    # What libraries log stays theirs, from warnings on.
    logging.basicConfig(stream=out, level=logging.WARNING, format="%(levelname)s %(name)s %(message)s", force=True)


def logger(name: str) -> Any:
    """A logger that says where its events come from."""
    return structlog.get_logger().bind(logger=name)


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
