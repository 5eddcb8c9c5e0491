"""What a program drops without an end: sessions, puts and content streams that are collected and hold something.

What they hold is given back: FlowFiles to their queues, pins, and the files they have written to. A finalizer runs in
whatever thread, at whatever point, also where that thread holds one of the engine's locks, which are not reentrant:

    takes the ledger's lock | allocates: a stream is collected | its finalizer unpins: the thread waits for itself

So it takes none. It notes here what there is to give back, and that is done where somebody comes by who holds no lock
below those of runs and queues: who begins a session, polls, looks at queues, surveys or closes, and maintenance each
second.
"""

import os
import sys
import warnings
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from types import CodeType
from typing import Final
from weakref import ref

from ullage.engine.forking import Inherited, refuse_in_child

PACKAGE: Final = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")

Place = tuple[CodeType, int]
"""A line of a program, as code and instruction: which line that is costs more, and is worked out when it is asked."""


class Forgotten:
    """Of one repository. `noted` is how many there were since the open, `failure` what could not be given back;
    `holders` are told in a forked child, each by its own `id` until its finalizer takes it out.

    Thread-safe without a lock: single steps of a deque and of a dict are. In a forked child, behind the close, and once
    the interpreter ends, there is nobody to give back to: nothing is noted, and nobody warned.
    """

    def __init__(self) -> None:
        self.noted = 0
        self.failure: Exception | None = None
        self._numbers = count(1)
        self._waiting: deque[Callable[[], object]] = deque()
        self.holders: dict[int, ref[Inherited]] = {}
        self._is_over = False
        refuse_in_child(self)

    def begun(self, holder: Inherited) -> None:
        """It is told in a forked child, until it has ended."""
        self.holders[id(holder)] = ref(holder)

    def note(self, what: str, begun: Place, give_back: Callable[[], object]) -> None:
        """Called by a finalizer: have this given back, and warn of it."""
        if self._is_over or sys.is_finalizing():
            return
        self.later(give_back)
        self.noted = next(self._numbers)
        code, line = begun[0], line_of(begun)
        warnings.warn_explicit(
            f"{what} opened at {code.co_filename}:{line} was forgotten, and what it held is given back: end it, best "
            "as a context manager",
            ResourceWarning,
            code.co_filename,
            line,
        )

    def later(self, give_back: Callable[[], object]) -> None:
        """The same without a warning: for what is ended by a finalizer as often as not."""
        if not self._is_over:
            self._waiting.append(give_back)

    def give_back(self) -> None:
        """Give back what waits. Called by whoever holds no lock that this takes; that it fails is not their failure."""
        if not self._waiting:
            return
        with suppress(IndexError):  # none is left: other threads take some, too
            while True:
                work = self._waiting.popleft()
                try:
                    work()
                except Exception as error:  # noqa: BLE001 - told by `tend`, and not to whoever happened to come by
                    self.failure = error
                except BaseException:
                    self._waiting.appendleft(work)
                    raise

    def tend(self) -> None:
        """The same, as a task: raises what could not be given back since the last time."""
        self.give_back()
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Give back what waits. What is collected from now on is left to the next start, which finds nothing held."""
        self.give_back()
        self._is_over = True

    def forked(self) -> None:
        """Called in a forked child, which has nothing to give back."""
        self._is_over = True
        for each in list(self.holders.values()):
            holder = each()
            if holder is not None:
                holder.forked()


def place(depth: int) -> Place:
    """Where a program called this package, at least so many calls above the caller: each one that is looked at costs as
    much as all the rest.
    """
    try:
        frame = sys._getframe(depth + 1)  # noqa: SLF001 - what `inspect` makes of a stack reads source files
    except ValueError:  # a thread that begins with this call
        frame = sys._getframe()  # noqa: SLF001
    while (code := frame.f_code).co_filename.startswith(PACKAGE) and frame.f_back is not None:
        frame = frame.f_back
    return code, frame.f_lasti


def line_of(begun: Place) -> int:
    """The number of the line."""
    code, instruction = begun
    for start, end, line in code.co_lines():
        if start <= instruction < end and line is not None:
            return line
    return code.co_firstlineno
