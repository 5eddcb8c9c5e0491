"""Errors at chosen lines of the engine: of its own, as one for want of memory, or of a signal's handler."""

import dis
import linecache
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from ullage.engine import engine

ENGINE = engine.__file__.removesuffix("engine.py")


class Alarm(TimeoutError):
    """What somebody's signal handler raises: an OSError without an errno."""


class Strike:
    """Raises before the `at`-th line of the engine that the current thread comes to."""

    def __init__(self, at: int, error: type[BaseException]) -> None:
        self.error = error
        self.where = ""
        self._left = at

    @contextmanager
    def armed(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(before)

    def _fall(self) -> None:
        raise self.error(self.where)

    def _enter(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        # What is raised in a finalizer reaches nobody: Python hands it to `sys.unraisablehook`.
        is_final = any(each is not None and each.f_code.co_name == "__del__" for each in (frame, frame.f_back))
        return self._line if frame.f_code.co_filename.startswith(ENGINE) and not is_final else None

    def _line(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        if event == "line" and not self.where and not is_between(frame):
            self._left -= 1
            if self._left == 0:
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                self._fall()
        return self._line


class SignalStrike(Strike):
    """A real signal comes there, of which the main thread calls the handler, and that raises."""

    @contextmanager
    def armed(self) -> Iterator[None]:
        before = signal.signal(signal.SIGUSR1, self._handle)
        try:
            with super().armed():
                yield
        finally:
            signal.signal(signal.SIGUSR1, before)

    def _fall(self) -> None:
        signal.raise_signal(signal.SIGUSR1)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        super()._fall()


def is_between(frame: FrameType) -> bool:
    """What a tracer sees as a line and the interpreter lets no interrupt into: a `try`, and the end of a `with` before
    its release.
    """
    code = frame.f_code
    name = dis.opname[code.co_code[frame.f_lasti]]
    if name == "NOP":
        return True
    is_with = linecache.getline(code.co_filename, frame.f_lineno).lstrip().startswith("with ")
    return is_with and name in ("LOAD_CONST", "SWAP", "PUSH_EXC_INFO")


def strikes(error: type[BaseException], step: int) -> Iterator[SignalStrike]:
    """A signal for every `step` lines, until one finds nothing left to strike."""
    at = 0
    while True:
        at += step
        strike = SignalStrike(at, error)
        yield strike
        if not strike.where:
            return
