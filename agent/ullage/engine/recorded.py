"""The ledger and the newest events as one `LogState`: what the log is the log of.

Both take in the same transactions, and both stand in the snapshot. So a log goes when the snapshot covers it, as ever,
and what a restart reads is written anew with the snapshot that it publishes before it serves: after a failed sync the
page cache may show frames that the disk will never hold, so that an old log could not be kept for its events alone.
"""

from collections.abc import Iterable, Iterator, Sequence

from ullage.engine.ledger.ledger import Ledger
from ullage.engine.model import FlowFileRecord, Operation, TransactionEvents, Undrained, Update
from ullage.engine.provenance.events import RecordedTransaction
from ullage.engine.repositories import ProvenanceRepository


class RecordedState:
    """See the module's text; for the log alone."""

    def __init__(self, ledger: Ledger, provenance: ProvenanceRepository) -> None:
        self._ledger = ledger
        self._provenance = provenance

    def require_applicable(self, operations: Sequence[Operation]) -> None:
        self._ledger.require_applicable(operations)

    def apply(self, transaction: int, millis: int, operations: Sequence[Operation]) -> None:
        self._ledger.apply(transaction, millis, operations)
        self._provenance.take(transaction, millis, operations)

    def load(self, operations: list[Operation]) -> None:
        for operation in operations:
            if type(operation) is Undrained:
                self._provenance.take(operation.transaction, operation.millis, operation.operations)
        self._ledger.load(operations)

    def freeze(self) -> Iterable[list[Operation]]:
        return _blocks(self._ledger.freeze(), self._provenance.undrained())

    def release(self) -> None:
        self._ledger.release()


def _blocks(records: Iterable[list[Operation]], undrained: Sequence[RecordedTransaction]) -> Iterator[list[Operation]]:
    """Each transaction is a block of its own: it may be as large as a frame."""
    yield from records
    for told in undrained:
        yield [Undrained(told.transaction, told.millis, _telling(told.operations))]


def _telling(operations: Sequence[Operation]) -> tuple[FlowFileRecord | Update | TransactionEvents, ...]:
    """The operations that events are worked out from."""
    return tuple(
        operation for operation in operations if isinstance(operation, FlowFileRecord | Update | TransactionEvents)
    )
