"""Records that a start set aside because it could not read a block of handles: the first start that reads it uses them.

    Delete of a handle durable | start: its block cannot be read, Delete set aside, snapshot | ...
    ... start: the block reads, log replayed | Delete taken in, its record ended | snapshot of that -> serving
                                                                                   ^ commit point

So whoever was told that a handle is deleted need not say so again. The records come in their order, and behind the
log: since the start that set them aside nobody could change such a handle, but a person may have given up a record. A
start that is killed before its snapshot has changed nothing, and the next one does the same.
"""

from collections.abc import Callable

from ullage.engine.ledger.ledger import Ledger
from ullage.engine.model import (
    Delete,
    Operation,
    ResourceClaim,
    ResourceClaimGone,
    SetAside,
    SetAsideEnd,
    Update,
    split_uuids,
)
from ullage.engine.usable import require_usable
from ullage.engine.wal.serde import SerDe
from ullage.engine.wal.state import UNUSABLE


class WaitingRecords:
    """For one start, before anything is served."""

    def __init__(self, ledger: Ledger, serde: SerDe, require_fitting: Callable[[Operation], None]) -> None:
        """`require_fitting` raises one of `UNUSABLE` for what the ledger takes in, and others can't use."""
        self._ledger = ledger
        self._serde = serde
        self._require_fitting = require_fitting

    def take(self, transaction: int, millis: int) -> bool:
        """Take in those that need wait no longer, as of the end of the log; whether there was one."""
        ledger = self._ledger
        waiting = [aside for aside in ledger.set_aside.all() if aside.unread]
        # All at once: what one holds back, another one may be about.
        ledger.apply(transaction, millis, [SetAsideEnd(aside.id) for aside in waiting])
        still = [aside for aside in waiting if not self._is_taken(aside, transaction, max(millis, aside.millis))]
        ledger.apply(transaction, millis, still)
        return len(still) < len(waiting)

    def _is_taken(self, aside: SetAside, transaction: int, millis: int) -> bool:
        try:
            self._ledger.apply(transaction, millis, self._left_of(aside))
        except UNUSABLE:
            return False  # the block cannot be read yet; or it was not the block alone, and a person is to decide
        return True

    def _left_of(self, aside: SetAside) -> list[Operation]:
        """What a record asks for that has not come to pass. One of `UNUSABLE`: it can't be used."""
        operation = self._serde.decode_one(aside.data)
        if isinstance(operation, Delete):
            # Where a person has given up the block of some of them, these have ceased to exist.
            there = [uuid for uuid in dict.fromkeys(split_uuids(operation.uuids)) if self._ledger.find_any(uuid)]
            return [Delete(b"".join(there))] if there else []
        if not isinstance(operation, Update | ResourceClaim | ResourceClaimGone):
            raise TypeError("nothing of handles hangs on it")
        if self._is_past(operation, aside):
            return []
        require_usable([operation])
        self._require_fitting(operation)
        return [operation]

    def _is_past(self, operation: Update | ResourceClaim | ResourceClaimGone, aside: SetAside) -> bool:
        """Whether it is about a handle that a person has given up, or about a state of a file that is over."""
        if isinstance(operation, Update):
            is_there = self._ledger.find_any(operation.uuid) is not None
            return not is_there and any(map(self._ledger.cold.was_given_up, aside.unread))
        claim = self._ledger.claim(operation.index)
        if claim is None or isinstance(operation, ResourceClaimGone):
            return claim is None
        return (operation.generation, operation.length) != (claim.generation, claim.length)
