"""Logs: events with fields, lines for people on a terminal, JSON everywhere else.

No field ever holds a token or content. The audit log is the logger `audit`: who was refused what, and who reclaimed out
of hours; it cannot be turned down.
"""

import logging
import sys
from typing import Any, TextIO

import structlog


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
