"""Signs of life of sessions that are used, from one thread of their repository."""

import threading
import time
from typing import Protocol

from ullage.errors import UllageError


class Beating(Protocol):
    """Something that gives signs of life."""

    def beat(self) -> None: ...


class Heartbeats:
    """Thread-safe. The thread runs as long as there is something to keep alive."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: dict[Beating, tuple[float, float]] = {}
        self._thread: threading.Thread | None = None

    def add(self, beating: Beating, every_seconds: float) -> None:
        """Keep it alive from now on."""
        with self._changed:
            self._due[beating] = (time.monotonic() + every_seconds, every_seconds)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="ullage-heartbeats", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def remove(self, beating: Beating) -> None:
        """Keep it alive no more."""
        with self._changed:
            self._due.pop(beating, None)
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
        while (beating := self._next()) is not None:
            try:
                beating.beat()
            except UllageError:
                continue  # the next beat comes soon; a session that is gone says so to its next verb

    def _next(self) -> Beating | None:
        """Whatever is due, once it is; None when there is nothing left to keep alive."""
        with self._changed:
            while self._due:
                beating, (at, every) = min(self._due.items(), key=lambda item: item[1][0])
                now = time.monotonic()
                if at <= now:
                    self._due[beating] = (now + every, every)
                    return beating
                self._changed.wait(at - now)
            self._thread = None
            return None
