"""Signs of life of sessions that are used, from one thread of their repository."""

import threading
import time
from collections.abc import Callable

from ullage.errors import UllageError

Beat = Callable[[], None]
"""Gives a sign of life."""


class Heartbeats:
    """Thread-safe. The thread runs as long as there is something to keep alive."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: dict[Beat, tuple[float, float]] = {}
        self._thread: threading.Thread | None = None

    def add(self, beat: Beat, every_seconds: float) -> None:
        """Keep it alive from now on."""
        with self._changed:
            self._due[beat] = (time.monotonic() + every_seconds, every_seconds)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="ullage-heartbeats", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def remove(self, beat: Beat) -> None:
        """Keep it alive no more."""
        with self._changed:
            self._due.pop(beat, None)
            self._changed.notify_all()

    def close(self) -> None:
        """Keep nothing alive any more, and wait for the thread."""
        with self._changed:
            self._due.clear()
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while (beat := self._next()) is not None:
            try:
                beat()
            except UllageError:
                continue  # the next beat comes soon; a session that is gone says so to its next verb

    def _next(self) -> Beat | None:
        """Whatever is due, once it is; None when there is nothing left to keep alive."""
        with self._changed:
            while self._due:
                beat, (at, every) = min(self._due.items(), key=lambda item: item[1][0])
                now = time.monotonic()
                if at <= now:
                    self._due[beat] = (now + every, every)
                    return beat
                self._changed.wait(at - now)
            self._thread = None
            return None
