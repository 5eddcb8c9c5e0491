"""Contents that are on their way in, and whose they are: for who asks who holds what."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ullage.clock import Clock
from ullage.enums import HolderKind
from ullage.wire.holders import HolderStatus
from ullage_agent.service.access import Principal


class Upload:
    """One of them; who takes it in counts its `bytes`."""

    __slots__ = ("began_millis", "bytes", "operation", "principal")

    def __init__(self, principal: str, operation: str, began_millis: int) -> None:
        self.principal = principal
        self.operation = operation
        self.began_millis = began_millis
        self.bytes = 0


class Uploads:
    """Those of one transport. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._under_way: set[Upload] = set()

    @contextmanager
    def under_way(self, principal: Principal, operation: str) -> Iterator[Upload]:
        """One more meanwhile."""
        upload = Upload(principal.name, operation, self._clock.now_millis())
        with self._lock:
            self._under_way.add(upload)
        try:
            yield upload
        finally:
            with self._lock:
                self._under_way.remove(upload)

    def held(self) -> list[HolderStatus]:
        """Who sends what, and how much has come."""
        with self._lock:
            found = list(self._under_way)
        return [
            HolderStatus(
                kind=HolderKind.UPLOAD,
                principal=each.principal,
                id="",
                about=each.operation,
                flow_files=None,
                bytes=each.bytes,
                since_millis=each.began_millis,
                until_millis=None,
            )
            for each in found
        ]
