"""Checkpoints: a snapshot is published, and what it makes unnecessary goes: old logs, retired swap files."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ullage.engine.content.reserve import Reserves, is_full
from ullage.engine.ledger.ledger import Ledger
from ullage.engine.ledger.swap import SwapFiles
from ullage.engine.repositories import FlowFileRepository, ProvenanceRepository
from ullage.errors import DiskFull


class Checkpoints:
    """Thread-safe; the log makes one at a time."""

    def __init__(
        self,
        log: FlowFileRepository,
        ledger: Ledger,
        swap_files: SwapFiles,
        provenance: ProvenanceRepository,
        reserves: Reserves,
    ) -> None:
        self._log = log
        self._ledger = ledger
        self._swap_files = swap_files
        self._provenance = provenance
        self._reserves = reserves
        self._lock = threading.Lock()
        self._keepers = 0

    def checkpoint(self, on_progress: Callable[[int], None] | None = None, *, drains: bool = True) -> None:
        """See `Repository.checkpoint`."""
        if drains:
            self._provenance.try_drain()
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
    def keeping_swaps(self) -> Iterator[None]:
        """While this lasts, no swap file that a snapshot may name is removed."""
        with self._lock:
            self._keepers += 1
        try:
            yield
        finally:
            with self._lock:
                self._keepers -= 1

    def remove_retired_swaps(self, covered: int) -> None:
        """A retired swap file goes once a published snapshot covers its swap-in: until then restore may need it.

        SwapIn durable, file retired | killed | restart: snapshot of before it, the log says SwapIn: reads the file
        """
        with self._lock:
            if self._keepers:
                return
            names = self._ledger.retired_through(covered)
            present = set(self._swap_files.names()) if names else set()
            self._swap_files.remove(name for name in names if name in present)
            self._ledger.forget_retired(names)

    def remove_unknown_swaps(self) -> None:
        """Files that no transaction ever named, or whose removal was cut short: their FlowFiles are elsewhere."""
        known = set(self._ledger.swaps) | set(self._ledger.retired_swaps)
        self._swap_files.remove([name for name in self._swap_files.names() if name not in known])

    def grow_reserves(self) -> bool:
        """See `Reserves.grow`."""
        return self._reserves.grow(self._log.snapshot_bytes)
