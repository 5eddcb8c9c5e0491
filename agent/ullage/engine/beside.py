"""Work done beside other work: by another thread if there is one, else by whoever asks for its result.

`threading.Thread.start` waits for the new thread to say that it runs. One that finds no memory for its first steps dies
without a word, and whoever began it waits for ever, with what locks it holds:

    checkpoint | drain's lock | Thread.start: no memory in the new thread | waits; so does every later checkpoint
"""

from _thread import allocate_lock, start_new_thread
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")


class Work(Generic[T]):
    """One piece of work, begun when it is made."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._taken = allocate_lock()
        self._over = allocate_lock()
        self._over.acquire()
        self._results: list[T] = []
        self.failure: BaseException | None = None
        """What it raised; None before `wait` has returned."""
        with suppress(RuntimeError, MemoryError):  # there is no thread more: it is done when somebody waits for it
            start_new_thread(self._do, ())

    def wait(self) -> None:
        """Return when it is done, whatever became of it."""
        self._do()
        with self._over:
            return

    def result(self) -> T:
        """What it returns, or raises."""
        self.wait()
        if self.failure is not None:
            raise self.failure
        return self._results[0]

    def _do(self) -> None:
        if self._taken.acquire(blocking=False):
            try:
                self._results.append(self._work())
            except BaseException as error:  # noqa: BLE001 - it is raised where the result is asked for
                self.failure = error
            finally:
                self._over.release()


class Beside(Generic[T]):
    """One piece of work at a time, each begun when the one before it is done. Nothing is under way when it is left."""

    def __init__(self) -> None:
        self._last: Work[T] | None = None

    def __enter__(self) -> "Beside[T]":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None) -> None:
        if self._last is not None:
            self._last.wait()
        if kind is None:
            self.finish()

    def begin(self, work: Callable[[], T]) -> None:
        """Raises what the work before it has raised."""
        self.finish()
        self._last = Work(work)

    def finish(self) -> T | None:
        """What is under way is done: what it returned, or raises; None if there was nothing."""
        last, self._last = self._last, None
        return None if last is None else last.result()
