"""What a record must be so that it can be used, beyond what its decoder asks: packed fields that are read later.

A start that took them in unread would serve, and then fail wherever they are read: every poll of a queue, every
rollover of events. So whatever comes back from a log or a snapshot is looked at once, batches of FlowFiles in one go.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from ullage.contract import QueuePriority
from ullage.engine.batches import require_readable, unpack_all_attributes
from ullage.engine.ledger.coldshares import RUN_NUMBER, SHARE
from ullage.engine.ledger.keyspaces import SPACES
from ullage.engine.ledger.swap import is_swap_name
from ullage.engine.model import (
    UUID_BYTES,
    ClaimBlocks,
    FlowFileRecord,
    Operation,
    QueueDefinition,
    RestingShares,
    RunFile,
    Staged,
    StagedWrite,
    SwapOut,
    TransactionEvents,
    Update,
)

CRC_BYTES = 4
BLOCK_NUMBER_BYTES = 4


def require_usable(operations: Sequence[Operation]) -> None:
    """One of `wal.state.UNUSABLE` if a packed field of one of them can't be read. Not of packs: the ledger, which takes
    them apart, looks at what is in them.
    """
    for kind, run in groupby(operations, type):
        if kind is FlowFileRecord:
            records: list[FlowFileRecord] = list(run)  # type: ignore[arg-type]
            # Each once: in a batch they are often the same.
            require_readable({record.attributes for record in records}, {record.parents for record in records})
        elif kind is Update:
            updates: list[Update] = list(run)  # type: ignore[arg-type]
            unpack_all_attributes({each.set_attributes for each in updates if each.set_attributes is not None})
        elif kind in _CHECKS:
            for operation in run:
                _CHECKS[kind](operation)


def _require_queue(queue: QueueDefinition) -> None:
    if not queue.name:
        raise ValueError(f"queue number {queue.number} has no name")
    QueuePriority(queue.priority)


def _require_swap_out(swap: SwapOut) -> None:
    if not is_swap_name(swap.name):
        raise ValueError(f"{swap.name!r} is no name of a swap file")
    _require_uuids(swap.uuids)
    unpack_all_attributes([swap.first.attributes])


def _require_events(events: TransactionEvents) -> None:
    require_usable(events.before)
    emitted = [run.attributes for run in events.runs if run.attributes is not None]
    unpack_all_attributes(emitted)
    for run in events.runs:
        _require_uuids(run.parents, run.children)


def _require_staged(staged: Staged) -> None:
    _require_uuids(staged.uuids)


def _require_write(write: StagedWrite) -> None:
    _require_uuids(write.attempts)


def _require_blocks(blocks: ClaimBlocks) -> None:
    if len(blocks.crcs) % CRC_BYTES:
        raise ValueError(f"the block checksums of resource claim {blocks.resource} are cut short")


def _require_run(run: RunFile) -> None:
    if run.space not in SPACES or not 0 < run.through <= run.number or len(run.given_up) % BLOCK_NUMBER_BYTES:
        raise ValueError(f"run {run.number} of {run.space!r} is none that there can be")
    if run.gone and run.rows and len(run.gone) != -(-run.rows // 8):
        raise ValueError(f"run {run.number} of {run.space!r} has {run.rows} rows, and {len(run.gone)} bytes of bits")


def _require_shares(shares: RestingShares) -> None:
    if len(shares.shares) % SHARE.size or len(shares.runs) % RUN_NUMBER.size:
        raise ValueError("what handles in runs keep alive is cut short")


def _require_uuids(*packed: bytes) -> None:
    if any(len(each) % UUID_BYTES for each in packed):
        raise ValueError("a list of uuids is cut short")


_CHECKS: dict[type, Any] = {
    QueueDefinition: _require_queue,
    SwapOut: _require_swap_out,
    TransactionEvents: _require_events,
    Staged: _require_staged,
    StagedWrite: _require_write,
    ClaimBlocks: _require_blocks,
    RunFile: _require_run,
    RestingShares: _require_shares,
}
