"""Ends what takes too long, where a library's own call has no deadline that moves on with what comes."""

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final

LOOK_SECONDS: Final = 1.0

LOOKS_IDLE: Final = 10
"""Looks at nothing before the thread ends: a client that nobody closes leaves none behind."""


class BoundedWait:
    """One wait, as a block."""

    def __init__(self, waits: "Waits", end: Callable[[], None], seconds: float) -> None:
        self._waits = waits
        self.end = end
        self.until = time.monotonic() + seconds

    def __enter__(self) -> None:
        self._waits.add(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._waits.remove(self)


class Waits:
    """Those under way. Thread-safe. A thread looks at them, as long as there are any."""

    def __init__(self, look_seconds: float = LOOK_SECONDS) -> None:
        self._look_seconds = look_seconds
        self._lock = threading.Lock()
        self._waits: set[BoundedWait] = set()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def ended_by(self, end: Callable[[], None], seconds: float) -> BoundedWait:
        """A block; `end` is called, in another thread, if it lasts longer."""
        return BoundedWait(self, end, seconds)

    def add(self, wait: BoundedWait) -> None:
        """It begins."""
        with self._lock:
            self._waits.add(wait)
            if self._thread is None and not self._stopping.is_set():
                self._thread = threading.Thread(target=self._watch, name="ullage-waits", daemon=True)
                self._thread.start()

    def remove(self, wait: BoundedWait) -> None:
        """It is over."""
        with self._lock:
            self._waits.discard(wait)

    def close(self) -> None:
        """Look no more, and wait for the thread."""
        self._stopping.set()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()

    def _watch(self) -> None:
        idle = 0
        while not self._stopping.wait(self._look_seconds):
            now = time.monotonic()
            with self._lock:
                over = [wait for wait in self._waits if wait.until <= now]
                self._waits.difference_update(over)
                idle = 0 if self._waits or over else idle + 1
                if idle >= LOOKS_IDLE:
                    self._thread = None
                    return
            for wait in over:
                wait.end()
