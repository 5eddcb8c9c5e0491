"""Calls into which no signal falls.

Python runs signal handlers in the main thread, between any two instructions of what it does there, and what a handler
raises (KeyboardInterrupt, the TimeoutError of an alarm) goes up from that point. In the middle of a commit that would
leave a transaction that half of the memory knows of:

    main   | id taken, frame written | KeyboardInterrupt            session rolls back: its FlowFiles are polled again
    log    |                         | synced by the next commit    and yet the transaction stands

So what must not be cut in two is done by another thread, in which no handler ever runs, while the main thread waits.
An interrupt that comes meanwhile is raised once the work is done, and says what became of it. In all other threads, and
within such work, a call is an ordinary call; in the main thread it costs two changes of thread, 20 microseconds.
https://docs.python.org/3/library/signal.html#execution-of-python-signal-handlers
"""

import os
import threading
from _thread import allocate_lock
from collections.abc import Callable
from functools import partial, wraps
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

from ullage.errors import CommitOutcomeUnknown, ForkedRepository

P = ParamSpec("P")
R = TypeVar("R")

PATIENCE_SECONDS = 30.0
"""How long an interrupt waits for the work it fell into: far longer than a sync takes on a disk that answers at all,
and short enough that a watchdog's alarm still ends a call on one that never will.
"""


def uninterrupted(call: Callable[P, R]) -> Callable[P, R]:
    """The same call, but what a signal handler raises falls before it or after it, and never into it.

    CommitOutcomeUnknown, from what was raised: after `PATIENCE_SECONDS` it is still under way, and goes on.
    """

    @wraps(call)
    def whole(*arguments: P.args, **options: P.kwargs) -> R:
        if threading.get_ident() != threading.main_thread().ident:
            return call(*arguments, **options)
        return _Job(partial(call, *arguments, **options), call.__qualname__).run()  # type: ignore[no-any-return]

    return whole


class _Job:
    """One call that the main thread waits for."""

    def __init__(self, work: Callable[[], object], name: str) -> None:
        self._work = work
        self._name = name
        self._begun = allocate_lock()
        self._over = allocate_lock()
        self._over.acquire()
        self.is_over = False
        self._outcome: tuple[Any, BaseException | None] = None, None

    def run(self) -> Any:
        """What the work returns, or raises, once it is done."""
        interrupt: BaseException | None = None
        is_given = False
        while not self.is_over:
            try:
                if not is_given:
                    _helper.give(self)
                    is_given = True
                if not self._over.acquire(timeout=-1 if interrupt is None else PATIENCE_SECONDS):
                    _helper.desert()
                    break
            except BaseException as error:  # noqa: BLE001 - it is raised below, when nothing is half done any more
                interrupt = error
        _helper.forget()
        result, failure = self._outcome
        try:
            if interrupt is not None:
                raise self._told(interrupt, failure)
            if failure is not None:
                raise failure
            return result
        finally:
            del (
                self,
                interrupt,
                failure,
            )  # or the traceback would keep what the call was given in a cycle

    def do(self) -> None:
        """Called by the helper; a second time if an interrupt hid that it had been asked to."""
        if self._begun.acquire(blocking=False):
            try:
                self.end(self._work(), None)
            except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
                self.end(None, error)

    def end(self, result: object, error: BaseException | None) -> None:
        """Wake the main thread."""
        self._outcome = result, error
        self.is_over = True
        self._over.release()

    def _told(self, interrupt: BaseException, error: BaseException | None) -> BaseException:
        if self.is_over:
            outcome = "was carried out" if error is None else f"failed: {error}"
            interrupt.add_note(f"This fell into {self._name}, which was let come to its end first: it {outcome}.")
            return interrupt
        unknown = CommitOutcomeUnknown(
            f"{self._name} was interrupted ({interrupt!r}), and is still under way {PATIENCE_SECONDS:.0f} seconds "
            "later: it may or may not come to its end; reopen the repository to find out"
        )
        unknown.__cause__ = interrupt
        return unknown


class _Helper:
    """The thread that does it, begun with the first job. There is one main thread in a process, so this is one, too."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[_Job] | None = None
        self._last: _Job | None = None

    def give(self, job: _Job) -> None:
        """Begin a job when those before it are done: should an interrupt ever get past the wait for one, what the main
        thread asks for next still finds it done.
        """
        self._last = job
        if self._jobs is None:
            jobs: SimpleQueue[_Job] = SimpleQueue()
            try:
                threading.Thread(target=_serve, args=(jobs,), name="ullage-uninterrupted", daemon=True).start()
            except RuntimeError:  # the interpreter ends, or there are too many threads: an interrupt may fall into it
                job.do()
                return
            self._jobs = jobs
        self._jobs.put(job)

    def forget(self) -> None:
        """Nobody waits any more, and what the last call was given may be collected."""
        self._last = None

    def desert(self) -> None:
        """The job under way may never end: whatever comes next gets another thread."""
        self._jobs = None

    def forked(self) -> None:
        """A child has no such thread. If a handler forked while the main thread waited, nobody does its job here."""
        last, self._jobs, self._last = self._last, None, None
        if last is not None and not last.is_over:
            last.end(None, ForkedRepository("this process was forked while its parent was in the middle of this call"))


def _serve(jobs: "SimpleQueue[_Job]") -> None:
    while True:
        jobs.get().do()


_helper = _Helper()
os.register_at_fork(after_in_child=_helper.forked)
