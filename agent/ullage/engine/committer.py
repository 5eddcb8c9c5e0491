"""Committing: one transaction at a time made durable, and the log kept within its bounds for it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ullage.clock import Clock
from ullage.contract import FlowFileSettings
from ullage.engine.checkpoints import Checkpoints
from ullage.engine.content.reader import ContentReader
from ullage.engine.content.reserve import Reserves
from ullage.engine.content.writer import WriterAdmission
from ullage.engine.ledger.ledger import Ledger
from ullage.engine.model import Operation
from ullage.engine.repositories import FlowFileRepository, ProvenanceRepository
from ullage.errors import BackPressure, DiskFull


class Committer:
    """The one way into the log. Thread-safe."""

    def __init__(
        self,
        log: FlowFileRepository,
        checkpoints: Checkpoints,
        provenance: ProvenanceRepository,
        reserves: Reserves,
        clock: Clock,
        settings: FlowFileSettings,
        on_commit: Callable[[float], None],
    ) -> None:
        """`on_commit` is told how long each commit took, in seconds, by its thread."""
        self._log = log
        self._checkpoints = checkpoints
        self._provenance = provenance
        self._reserves = reserves
        self._clock = clock
        self._log_bytes_max = int(settings.wal_max_bytes)
        self._on_commit = on_commit

    def adopt(self, settings: FlowFileSettings) -> None:
        """Another `walMaxBytes`, from the next transaction on."""
        self._log_bytes_max = int(settings.wal_max_bytes)

    def commit(
        self, operations: Sequence[Operation], *, creates: bool, validate: Callable[[], None] | None = None
    ) -> int:
        """One transaction, durable when this returns its id. Only removing work may spend the reserve.

        `validate` runs right before the id is taken; what it raises is raised here, with nothing written.
        """
        began = self._clock.monotonic()
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
        self._on_commit(self._clock.monotonic() - began)
        return id

    def _admit_new(self) -> None:
        """Keep the log within `walMaxBytes`: a writer that meets the limit pays for a checkpoint, then is refused."""
        if self._reserves.is_spent and not self._checkpoints.grow_reserves():
            raise DiskFull(
                f"the volume of {self._reserves.directory} is full and its reserve spent: remove FlowFiles, reclaim, "
                "or add space"
            )
        self._provenance.admit()
        if self._log.log_bytes >= self._log_bytes_max:
            self._checkpoints.checkpoint()
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
    clock: Clock
    records_provenance: bool
