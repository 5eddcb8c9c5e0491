"""What of a transaction leaves its node: what exists and what it says, by addresses as they were born.

Where bytes were moved to, which holes they have, what is about to be done to a file, which FlowFiles are on disk
instead of in memory, and who reads what: all that is the node's own affair.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from ullage.engine.model import (
    ContentClaim,
    Delete,
    FlowFileRecord,
    LeaseEnd,
    LeaseRecord,
    Operation,
    Relocation,
    ResourceClaim,
    RestingShares,
    RunFile,
    SwapDrop,
    SwapIn,
    SwapOut,
    Update,
    split_uuids,
)

NODE_LOCAL: Final = frozenset({Relocation, LeaseRecord, LeaseEnd, RunFile, RestingShares})


def as_born(claim: ResourceClaim) -> ResourceClaim:
    """A resource claim as it was when it was made: a start where it goes finds out how long its file is."""
    return ResourceClaim(claim.index, claim.container, claim.created_millis, claim.lifetime, tenant=claim.tenant)


class LogicalView:
    """Transactions in their order, without what is their node's own. `swapped` are the uuids in swap files, which a
    transaction that drops one does not say; `is_whole` is whether those of all that were dropped are known.
    """

    def __init__(self) -> None:
        self.swapped: dict[str, bytes] = {}
        self.is_whole = True

    def of(self, operations: Sequence[Operation]) -> list[Operation]:
        """What of a transaction leaves its node; it may be nothing."""
        return list(self._of(operations))

    def _of(self, operations: Iterable[Operation]) -> Iterator[Operation]:
        for operation in operations:
            kind = type(operation)
            if kind is FlowFileRecord or kind is Update:
                yield operation
            elif isinstance(operation, ResourceClaim):
                yield as_born(operation)
            elif isinstance(operation, SwapOut):
                self.swapped[operation.name] = operation.uuids
            elif isinstance(operation, SwapIn):
                self.swapped.pop(operation.name, None)
            elif isinstance(operation, SwapDrop):
                uuids = self.swapped.pop(operation.name, None)
                self.is_whole &= uuids is not None
                if uuids:
                    yield Delete(uuids)
            elif kind not in NODE_LOCAL:
                yield operation


class Claimants:
    """Which of the claims that some transactions name are in use at their end. Of one that was born in them this is
    all there is to know: nobody had it before.
    """

    def __init__(self) -> None:
        self._held: dict[bytes, ContentClaim] = {}
        self._counts: Counter[ContentClaim] = Counter()

    def take(self, operations: Iterable[Operation]) -> None:
        """One transaction more."""
        for operation in operations:
            if isinstance(operation, FlowFileRecord):
                self._hold(operation.uuid, operation.claim)
            elif isinstance(operation, Update):
                if operation.content is not None:
                    self._hold(operation.uuid, operation.content.claim)
            elif isinstance(operation, Delete):
                for uuid in split_uuids(operation.uuids):
                    self._hold(uuid, None)

    def in_use(self) -> list[ContentClaim]:
        """In the order of their addresses."""
        alive = (claim for claim, count in self._counts.items() if count)
        return sorted(alive, key=lambda claim: (claim.resource, claim.offset))

    def _hold(self, uuid: bytes, claim: ContentClaim | None) -> None:
        # The new one first: content that is set to a slice of itself does not die on the way.
        if claim is not None:
            self._counts[claim] += 1
        if (before := self._held.pop(uuid, None)) is not None:
            self._counts[before] -= 1
        if claim is not None:
            self._held[uuid] = claim
