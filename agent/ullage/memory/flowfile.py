"""FlowFiles until the process ends: transactions are applied, and that is all that becomes of them."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from ullage.engine.model import Operation
from ullage.engine.parts import RepositoryParts
from ullage.engine.wal.loading import Watcher
from ullage.engine.wal.restore import RestoreReport
from ullage.engine.wal.serde import encode_transaction
from ullage.engine.wal.state import LoggedState
from ullage.errors import CommitOutcomeUnknown, NotRestored, RepositoryStopped

T = TypeVar("T")


class MemoryFlowFileRepository:
    """See `FlowFileRepository`. What is applied is as durable as it ever gets."""

    is_volatile = True
    log_bytes = snapshot_bytes = sync_count = 0

    def __init__(self, parts: RepositoryParts, state: LoggedState, on_full: Callable[[], object]) -> None:
        self.last_id = self.snapshot_id = 0
        self.snapshot_millis = parts.clock.now_millis()
        self._clock = parts.clock
        self._state = state
        self._serde = parts.serde
        self._lock = threading.Lock()
        self._is_open = False
        self._failure: BaseException | None = None

    @property
    def durable(self) -> int:
        return self.last_id

    @property
    def is_running(self) -> bool:
        return self._is_open and self._failure is None

    def restore(
        self, before_serving: Callable[[RestoreReport], None] | None = None, on_replayed: Watcher | None = None
    ) -> RestoreReport:
        self._is_open = True
        return RestoreReport()

    def append(self, operations: Sequence[Operation], millis: int, validate: Callable[[], None] | None = None) -> int:
        encode_transaction(self._serde, operations, millis)  # what a log has no room for is refused here too
        with self._lock:
            self._require_running()
            if validate is not None:
                validate()
            self._state.require_applicable(operations)
            try:
                self._state.apply(self.last_id + 1, millis, operations)
            except BaseException as error:
                self._failure = error
                raise CommitOutcomeUnknown(f"transaction {self.last_id + 1} failed halfway: {error}") from error
            self.last_id += 1
            return self.last_id

    def wait_durable(self, id: int) -> None:
        """It is."""

    @contextmanager
    def still(self, freeze: Callable[[], T]) -> Iterator[tuple[int, T]]:
        with self._lock:
            self._require_running()
            moment = self.last_id, freeze()
        yield moment

    def checkpoint(self, on_progress: Callable[[int], None] | None = None) -> int:
        with self._lock:
            self._require_running()
            self.snapshot_id, self.snapshot_millis = self.last_id, self._clock.now_millis()
            return self.last_id

    def problems(self) -> list[str]:
        return []

    def close(self) -> None:
        self._is_open = False

    def abandon(self) -> None:
        self.close()

    def _require_running(self) -> None:
        if not self._is_open:
            raise NotRestored("the FlowFile repository is not open: call restore() first, and nothing after close()")
        if self._failure is not None:
            raise RepositoryStopped(f"the repository stopped after a failure ({self._failure})") from self._failure
