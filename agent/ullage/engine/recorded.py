"""The ledger and the newest events as one `LogState`: what the log is the log of.

Both take in the same transactions, and both stand in the snapshot. So a log goes when the snapshot covers it, as ever,
and what a restart reads is written anew with the snapshot that it publishes before it serves: after a failed sync the
page cache may show frames that the disk will never hold, so that an old log could not be kept for its events alone.
"""

from collections.abc import Iterable, Iterator, Sequence

from ullage.engine.careful import CarefulRestore
from ullage.engine.ledger.keyspaces import KeySpaces
from ullage.engine.ledger.ledger import Ledger
from ullage.engine.model import Operation, Undrained
from ullage.engine.provenance.events import RecordedTransaction, undrained
from ullage.engine.repositories import ProvenanceRepository
from ullage.engine.tap import ShippingTap
from ullage.engine.usable import require_usable
from ullage.engine.wal.serde import Undecodable


class RecordedState:
    """See the module's text; for the log alone.

    `millis` is when the last transaction that the log brought back was committed; 0: it brought none.
    """

    millis = 0

    def __init__(
        self,
        ledger: Ledger,
        provenance: ProvenanceRepository,
        spaces: KeySpaces,
        tap: ShippingTap,
        restore: CarefulRestore,
        *,
        is_careful: bool,
        has_runs: bool,
    ) -> None:
        """`tap` hears of each transaction. `is_careful`: what can't be used is set aside, by `restore`. `has_runs`:
        what leaves memory goes to runs at a checkpoint; else it stands in the snapshot.
        """
        self._ledger = ledger
        self._provenance = provenance
        self._spaces = spaces
        self._tap = tap
        self._has_runs = has_runs
        self._restore = restore
        self.careful = restore if is_careful else None

    @property
    def is_careful(self) -> bool:
        return self.careful is not None

    def require_applicable(self, operations: Sequence[Operation]) -> None:
        self._ledger.require_applicable(operations)

    def apply(self, transaction: int, millis: int, operations: Sequence[Operation]) -> None:
        self._ledger.apply(transaction, millis, operations)
        self._provenance.take(transaction, millis, operations)
        self._tap.take(transaction, millis, operations)

    def replay(self, transaction: int, millis: int, operations: Sequence[Operation]) -> None:
        require_usable(operations)
        self.millis = millis
        self.apply(transaction, millis, operations)

    def load(self, operations: list[Operation]) -> None:
        require_usable(operations)
        for operation in operations:
            if type(operation) is Undrained:
                self._provenance.take(operation.transaction, operation.millis, operation.operations)
        self._ledger.load(operations)

    def end_load(self) -> None:
        if self._has_runs:
            self._spaces.handles.load()

    def replay_each(self, transaction: int, millis: int, found: Sequence[Operation | Undecodable], place: str) -> None:
        assert self.careful is not None, "asked of a restore that is careful only"
        self.millis = millis
        self.careful.take(transaction, millis, found, place)

    def end_replay(self, last_id: int) -> bool:
        is_other = self._has_runs and self._restore.retry(last_id, self.millis)
        self._ledger.cold.is_replaying = False
        if is_other:  # by no transaction: who ships these needs a new base
            self._tap.lose()
        return is_other

    def freeze(self) -> Iterable[Sequence[Operation]]:
        beside: Iterable[Sequence[Operation]]
        if self._has_runs:
            beside = self._spaces.freeze()
        else:
            beside = [[*self._ledger.answers.all(), *self._spaces.blocks.all()]]
        view = self._ledger.freeze()
        records = self._spaces.handles.written(view) if self._has_runs else view
        return _blocks(beside, records, self._provenance.undrained())

    def release(self) -> None:
        self._ledger.release()

    def published(self) -> None:
        if self._has_runs:
            self._spaces.published()


def _blocks(
    beside: Iterable[Sequence[Operation]], records: Iterable[Sequence[Operation]], newest: Sequence[RecordedTransaction]
) -> Iterator[Sequence[Operation]]:
    """Each transaction is a block of its own: it may be as large as a frame."""
    yield from beside
    yield from records
    for told in newest:
        yield [undrained(told)]
