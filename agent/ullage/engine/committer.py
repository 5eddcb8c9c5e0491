"""Committing: one transaction at a time made durable, and the log kept within its bounds by checkpoints.

A checkpoint publishes a snapshot, and what that makes unnecessary goes: old logs, retired swap files.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from ullage.clock import Clock
from ullage.contract import FlowFileSettings
from ullage.engine.content.reader import ContentReader
from ullage.engine.content.reserve import Reserves, is_full
from ullage.engine.content.writer import WriterAdmission
from ullage.engine.forgotten import Forgotten
from ullage.engine.keepers import Keepers
from ullage.engine.ledger.ledger import Ledger
from ullage.engine.ledger.swap import SwapFiles
from ullage.engine.model import Operation
from ullage.engine.repositories import FlowFileRepository, ProvenanceRepository
from ullage.engine.servingright import ServingRight
from ullage.engine.uninterrupted import uninterrupted
from ullage.engine.withdrawn import CLOSED
from ullage.errors import BackPressure, DiskFull, NotRestored


class Committer:
    """The one way into the log. Thread-safe; the log makes one checkpoint at a time.

    Each of `listeners` is called after a commit with how long it took, in seconds, by its thread, which waits for it.
    """

    def __init__(
        self,
        log: FlowFileRepository,
        ledger: Ledger,
        swap_files: SwapFiles,
        provenance: ProvenanceRepository,
        reserves: Reserves,
        clock: Clock,
        settings: FlowFileSettings,
    ) -> None:
        self._log = log
        self._ledger = ledger
        self._swap_files = swap_files
        self._provenance = provenance
        self._reserves = reserves
        self._clock = clock
        self._log_bytes_max = int(settings.wal_max_bytes)
        self._lock = threading.Lock()
        self._keepers = Keepers(self._lock)
        self._idle = threading.Condition()
        self._checkpoints = 0
        self._is_closed = False
        self.listeners: list[Callable[[float], None]] = []
        self.right = ServingRight()

    def adopt(self, settings: FlowFileSettings) -> None:
        """Another `walMaxBytes`, from the next transaction on."""
        self._log_bytes_max = int(settings.wal_max_bytes)

    @uninterrupted
    def commit(
        self, operations: Sequence[Operation], *, creates: bool, validate: Callable[[], None] | None = None
    ) -> int:
        """One transaction, durable when this returns its id. Only removing work may spend the reserve.

        `validate` runs right before the id is taken; what it raises is raised here, with nothing written. LeaseLapsed:
        another node may have the repository by now; NodeFenced: it has, and this changes what is here.
        """
        began = self._clock.monotonic()
        is_told = self.right.admit(operations)
        if creates:
            self._admit_new()
        try:
            id = self._log.append(operations, self._clock.now_millis(), validate)
        except DiskFull:
            if creates:
                raise
            # A full disk must never stop what would empty it: the reserve is kept for just this.
            self._reserves.spend()
            id = self._log.append(operations, self._clock.now_millis(), validate)
        self._log.wait_durable(id)
        if is_told:
            self.right.settle(id)
        seconds = self._clock.monotonic() - began
        for listener in self.listeners:
            listener(seconds)
        return id

    @uninterrupted
    def settle(self) -> None:
        """Return when everything that is applied now is durable. CommitOutcomeUnknown if nobody can say so any more."""
        id = self._log.last_id
        self._log.wait_durable(id)
        self.right.settle(id)

    @uninterrupted
    def checkpoint(self, on_progress: Callable[[int], None] | None = None, *, drains: bool = True) -> None:
        """See `Engine.checkpoint`."""
        with self._before_close():
            if drains:
                self._provenance.try_drain()
            self._ledger.forget_runs(self._clock.now_millis())
            try:
                covered = self._log.checkpoint(on_progress)
            except (DiskFull, OSError) as error:
                if not is_full(error):
                    raise
                # The snapshot is what lets logs go: on a full disk it is worth the reserve.
                self._reserves.spend()
                covered = self._log.checkpoint(on_progress)
            self.remove_retired_swaps(covered)
            self.grow_reserves()

    @contextmanager
    def between_checkpoints(self) -> Iterator[None]:
        """While this lasts none is under way: one that is is waited for."""
        with self._log.still(lambda: None):
            yield

    def close(self) -> None:
        """Wait for checkpoints that are under way, and refuse others from now on.

        thread 1 | drains: event file written ...................... | manifest replaced |
        thread 2 |  close: log closed, lock released |
        process 2                                     | open, drains |                    its manifest is overwritten
        """
        with self._idle:
            self._is_closed = True
            self._idle.wait_for(lambda: self._checkpoints == 0)

    @contextmanager
    def _before_close(self) -> Iterator[None]:
        """Counted, and no lock: a backup makes a checkpoint while it keeps provenance still, which others drain."""
        with self._idle:
            if self._is_closed:
                raise NotRestored(CLOSED)
            self._checkpoints += 1
        try:
            yield
        finally:
            with self._idle:
                self._checkpoints -= 1
                self._idle.notify_all()

    def keeping_swaps(self) -> AbstractContextManager[None]:
        """While this lasts, no swap file that a snapshot may name is removed."""
        return self._keepers.keeping()

    def remove_retired_swaps(self, covered: int) -> None:
        """A retired swap file goes once a published snapshot covers its swap-in: until then restore may need it.

        SwapIn durable, file retired | killed | restart: snapshot of before it, the log says SwapIn: reads the file
        """
        with self._lock:
            if self._keepers:
                return
            names = self._ledger.retired_through(covered)
            present = set(self._swap_files.names()) if names else set()
            for name in names:
                # One by one: a file removed before another's unlink failed would else be named as missing by `check`.
                self._swap_files.remove([name] if name in present else [])
                self._ledger.forget_retired([name])

    def remove_unknown_swaps(self) -> None:
        """Files that no transaction ever named, or whose removal was cut short: their FlowFiles are elsewhere."""
        known = set(self._ledger.swaps) | set(self._ledger.retired_swaps)
        aside = self._ledger.set_aside
        unknown = [name for name in self._swap_files.names() if name not in known]
        self._swap_files.remove([name for name in unknown if not aside.may_mean_swap(name)])

    def grow_reserves(self) -> bool:
        """See `Reserves.grow`."""
        return self._reserves.grow(self._log.snapshot_bytes + self._ledger.longest_run)

    def _admit_new(self) -> None:
        """Keep the log within `walMaxBytes`: a writer that meets the limit pays for a checkpoint, then is refused."""
        if self._reserves.is_spent and not self.grow_reserves():
            raise DiskFull(
                f"the volume of {self._reserves.directory} is full and its reserve spent: remove FlowFiles, reclaim, "
                "or add space"
            )
        self._provenance.admit()
        if self._log.log_bytes >= self._log_bytes_max:
            self.checkpoint()
            if self._log.log_bytes >= self._log_bytes_max:
                raise BackPressure(
                    f"the write-ahead log has {self._log.log_bytes} bytes (spec.flowFile.walMaxBytes "
                    f"{self._log_bytes_max}): new content is refused until a checkpoint succeeds"
                )


@dataclass(frozen=True, slots=True)
class ChangingParts:
    """The parts of a repository that all who change it work with."""

    ledger: Ledger
    committer: Committer
    reader: ContentReader
    admission: WriterAdmission
    forgotten: Forgotten
    clock: Clock
    records_provenance: bool
