"""Everything as of one transaction, for readers that ask for several tables which must agree.

Records are frozen, so a moment is lists of references: 8 bytes a resident FlowFile, taken while commits go on. What
lies in swap files is read when it is asked for; those files stay until a checkpoint covers their end.
"""

from typing import NamedTuple, Protocol

from ullage_agent.engine.clock import Clock
from ullage_agent.engine.errors import RepositoryDamaged
from ullage_agent.engine.flowfile.ledger import Ledger
from ullage_agent.engine.flowfile.swap import SwapFiles
from ullage_agent.engine.model import FlowFile, Lease, QueueDefinition, Relocation, ResourceClaim, SwapOut
from ullage_agent.engine.wal.log import WriteAheadLog


class MomentHost(Protocol):
    """What a moment needs of its repository."""

    ledger: Ledger
    log: WriteAheadLog
    clock: Clock
    swap_files: SwapFiles


class Moment(NamedTuple):
    """The state after `transaction`. `flow_files` are the resident ones, handles included."""

    transaction: int
    millis: int
    flow_files: list[FlowFile]
    resources: list[ResourceClaim]
    relocations: dict[int, Relocation]
    queues: dict[int, QueueDefinition]
    leases: list[Lease]
    swaps: list[SwapOut]
    swap_files: SwapFiles

    def swapped(self, swap: SwapOut) -> list[FlowFile]:
        """What one of its swap files held. RepositoryDamaged if it is gone: the moment is too long ago, or the file is
        damaged; `check` tells which.
        """
        return self.swap_files.read(swap.name).records

    def require_swaps(self) -> None:
        """RepositoryDamaged as above, before anything is handed out."""
        names = set(self.swap_files.names())
        for swap in self.swaps:
            if swap.name not in names:
                raise RepositoryDamaged(f"swap file {swap.name} is not there any more: take a new snapshot")


def take_moment(host: MomentHost) -> Moment:
    """See the module's text. No checkpoint begins meanwhile; commits do."""
    with host.log.still(host.ledger.freeze) as (transaction, view):
        moment = Moment(transaction, host.clock.now_millis(), [], [], {}, {}, [], [], host.swap_files)
        try:
            for block in view:
                for operation in block:
                    _sort_in(moment, operation)
        finally:
            host.ledger.release()
    return moment


def _sort_in(moment: Moment, operation: object) -> None:
    match operation:
        case FlowFile():
            moment.flow_files.append(operation)
        case ResourceClaim():
            moment.resources.append(operation)
        case Relocation():
            moment.relocations[operation.source] = operation
        case QueueDefinition():
            moment.queues[operation.number] = operation
        case Lease():
            moment.leases.append(operation)
        case SwapOut():
            moment.swaps.append(operation)
