"""Everything as of one transaction, for readers that ask for several tables which must agree.

Records are frozen, so a snapshot is lists of references: 8 bytes a resident FlowFile, and less a handle, taken while
commits go on. What lies in swap files is read when it is asked for; those files stay until a checkpoint covers their
end.
"""

from collections import defaultdict
from typing import Any, Final, NamedTuple

from ullage.clock import Clock
from ullage.engine.ledger.ledger import Ledger
from ullage.engine.ledger.resident import REFERENCE_BYTES, KeptRecords
from ullage.engine.ledger.swap import SwapFiles
from ullage.engine.model import FlowFileRecord, LeaseRecord, QueueDefinition, Relocation, ResourceClaim, SwapOut
from ullage.engine.repositories import FlowFileRepository
from ullage.errors import RepositoryDamaged

RECORD_BYTES: Final = 500
"""What a record that is no FlowFile takes at most."""


class RepositorySnapshot(NamedTuple):
    """The state after `transaction`. `flow_files` are the resident ones, handles included."""

    transaction: int
    millis: int
    flow_files: KeptRecords
    resources: list[ResourceClaim]
    relocations: dict[int, Relocation]
    queues: dict[int, QueueDefinition]
    leases: list[LeaseRecord]
    swaps: list[SwapOut]
    swap_files: SwapFiles

    def swapped(self, swap: SwapOut) -> list[FlowFileRecord]:
        """What one of its swap files held. RepositoryDamaged if it is gone: the snapshot is too old, or the file is
        damaged; `check` tells which.
        """
        return self.swap_files.read(swap.name).records

    def held_bytes(self, ledger: Ledger) -> int:
        """About what it takes in memory: references, and records that only a snapshot keeps still."""
        others = len(self.resources) + len(self.relocations) + len(self.queues) + len(self.leases) + len(self.swaps)
        kept = ledger.records.kept_alone_bytes(self.flow_files)
        return REFERENCE_BYTES * self.flow_files.references + RECORD_BYTES * others + kept

    def require_swaps(self) -> None:
        """RepositoryDamaged as above, before anything is handed out."""
        names = set(self.swap_files.names())
        for swap in self.swaps:
            if swap.name not in names:
                raise RepositoryDamaged(f"swap file {swap.name} is not there any more: take a new snapshot")


def take_snapshot(ledger: Ledger, log: FlowFileRepository, clock: Clock, swap_files: SwapFiles) -> RepositorySnapshot:
    """See the module's text. No checkpoint begins meanwhile; commits do."""
    found: defaultdict[type, list[Any]] = defaultdict(list)
    with log.still(ledger.freeze) as (transaction, view):
        millis = clock.now_millis()
        try:
            records = view.records()
            for block in view:
                for operation in block:
                    found[type(operation)].append(operation)
        finally:
            ledger.release()
    return RepositorySnapshot(
        transaction,
        millis,
        records,
        found[ResourceClaim],
        {relocation.source: relocation for relocation in found[Relocation]},
        {queue.number: queue for queue in found[QueueDefinition]},
        found[LeaseRecord],
        found[SwapOut],
        swap_files,
    )
