"""Ctrl-C where it harms nothing: while a repository is open it waits for the next safe point.

Python would raise KeyboardInterrupt between any two instructions, also between a frame that was written and the memory
that says so. A commit is short; reading input, writing output and the gaps between commits are safe points.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupts:
    """SIGINT of this process. Only the main thread gets signals, so elsewhere all of this does nothing."""

    def __init__(self) -> None:
        self.is_pending = False
        """Whether somebody has pressed Ctrl-C, and waits for the next safe point."""

        self._is_allowed = False
        self._is_deferred = False

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Within the block a Ctrl-C only counts at safe points, or at the block's end."""
        is_ours = (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        )
        if not is_ours:
            yield
            return
        self.is_pending = self._is_allowed = False
        self._is_deferred = True
        signal.signal(signal.SIGINT, self._note)
        try:
            yield
        finally:
            self._is_deferred = False
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self.check()

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """A safe point as long as the block: nothing in it changes the repository."""
        self._is_allowed = True  # before the look at what is pending, so that none can fall between the two
        try:
            self.check()
            yield
        finally:
            self._is_allowed = False

    def check(self) -> None:
        """A safe point."""
        if self.is_pending:
            self.is_pending = False
            raise KeyboardInterrupt

    def _note(self, signal_number: int, frame: FrameType | None) -> None:
        if self._is_allowed or not self._is_deferred:
            raise KeyboardInterrupt
        self.is_pending = True


interrupts = Interrupts()
"""The one of this process."""
