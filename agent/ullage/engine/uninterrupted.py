"""Calls into which no signal falls.

Python runs signal handlers in the main thread, between any two instructions of what it does there, and what a handler
raises (KeyboardInterrupt, the TimeoutError of an alarm) goes up from that point. In the middle of a commit that would
leave a transaction that half of the memory knows of:

    main   | id taken, frame written | KeyboardInterrupt            session rolls back: its FlowFiles are polled again
    log    |                         | synced by the next commit    and yet the transaction stands

So while the main thread is at what must not be cut in two, another handler stands in the place of each of the
program's: it only notes that the signal came. When the work is done the program's handlers are back, and are called for
what came meanwhile; what they raise says what became of the work. Other threads run no handlers: there, and within such
work, a call is an ordinary call. In the main thread it costs some 5 microseconds, where having the work done by
another thread took 70 to 200 of a commit: the other processor has to wake up. A handler that a library written in C put
over one of Python's, behind Python's back, is lost.
https://docs.python.org/3/library/signal.html#execution-of-python-signal-handlers
"""

import _signal  # type: ignore[import-not-found]
import os
import threading
import time
from collections.abc import Callable
from functools import wraps
from itertools import compress
from threading import get_ident
from types import FrameType
from typing import Any, Final, ParamSpec, TypeVar

from ullage.errors import CommitOutcomeUnknown

P = ParamSpec("P")
R = TypeVar("R")
Handler = Callable[[int, FrameType | None], Any]

SIGNALS: Final = range(1, 65)
"""All of Linux. Before each call the handler of every one is asked for, of the module that `signal` itself asks: it
makes an enum of each answer, which takes twenty times as long.
"""

PATIENCE_SECONDS = 30.0
"""From the first signal on, how long others wait for the work as well: far longer than a sync takes on a disk that
answers at all, and short enough that a second Ctrl-C still ends a wait for one that never will.
"""


def uninterrupted(call: Callable[P, R]) -> Callable[P, R]:
    """The same call, but what a signal handler raises falls before it or after it, and never into it.

    CommitOutcomeUnknown, from what was raised, if a signal comes `PATIENCE_SECONDS` after the first and the work is
    still under way: it is given up.
    """

    @wraps(call)
    def whole(*arguments: P.args, **options: P.kwargs) -> R:
        if get_ident() != _main or not _last.is_over:
            return call(*arguments, **options)
        failure: BaseException | None = None
        deferral = _Deferral()
        try:
            deferral.begin()
            return call(*arguments, **options)
        except BaseException as error:
            failure = error
            raise
        finally:
            interrupt = deferral.end(call.__qualname__, failure)
            try:
                if interrupt is not None:
                    raise interrupt
            finally:
                del interrupt, failure  # or their tracebacks would keep what the call was given in a cycle

    return whole


class _Deferral:
    """The program's signal handlers, and which of them are to be called once the work is done."""

    def __init__(self) -> None:
        self._handlers: dict[int, Handler] = {}
        self._came: dict[int, float] = {}
        self._is_given_up = False
        self.is_over = True
        """What may still stand in a handler's place calls it at once."""

    def begin(self) -> None:
        """From now on signals are noted. What came before is raised here."""
        global _last
        _last = self
        self.is_over = False
        # By map and compress, in half the time of a loop: SIG_DFL is 0, and what was not set in Python is None.
        for number in compress(SIGNALS, map(_signal.getsignal, SIGNALS)):
            handler = _signal.getsignal(number)
            if callable(handler):
                self._handlers[number] = handler
                _signal.signal(number, self._note)

    def end(self, name: str, failure: BaseException | None) -> BaseException | None:
        """The program's handlers are back, and were called for what came meanwhile; what the last of them raised."""
        try:
            interrupt = self._restore()
            self.is_over = True
        finally:
            self.is_over = True  # a handler that is back may raise at any line: also at this one, when it was done
        for number in self._came:
            try:
                self._handlers[number](number, None)
            except BaseException as error:  # noqa: BLE001 - the others are called as well, as Python does it
                interrupt = error
        if self._is_given_up and failure is not None:
            interrupt = CommitOutcomeUnknown(
                f"{name} was interrupted ({failure!r}), {PATIENCE_SECONDS:.0f} seconds after an earlier signal, before "
                "it had come to its end: what it was to do may or may not be done; reopen the repository to find out"
            )
            interrupt.__cause__ = failure
        elif interrupt is not None:
            outcome = "was carried out" if failure is None else f"failed: {failure}"
            interrupt.add_note(f"This fell into {name}, which was let come to its end first: it {outcome}.")
        return interrupt

    def _restore(self) -> BaseException | None:
        """Put the program's handlers back. What one that is back already raises keeps none of the others away."""
        interrupt: BaseException | None = None
        left = list(self._handlers.items())
        while left:
            try:
                while left:
                    _signal.signal(*left[-1])
                    left.pop()
            except BaseException as error:  # noqa: BLE001 - it is raised when all are back
                interrupt = error
        return interrupt

    def _note(self, number: int, frame: FrameType | None) -> None:
        """What stands in a handler's place."""
        now = time.monotonic()
        if self._came and now - min(self._came.values()) > PATIENCE_SECONDS:
            self._is_given_up = self.is_over = True
        if self.is_over:
            self._handlers[number](number, frame)
        else:
            self._came.setdefault(number, now)


_last = _Deferral()
"""The main thread's. There is one in a process, and it does one thing at a time."""

_main = threading.main_thread().ident
"""Kept, because to ask for it takes longer than all else that a call in another thread costs."""


def _forked() -> None:
    """Another thread forked while the main thread was at such work: that goes on in the parent alone. In the child the
    thread that forked is the main one.
    """
    global _main
    _main = threading.main_thread().ident
    _last.is_over = True


os.register_at_fork(after_in_child=_forked)
