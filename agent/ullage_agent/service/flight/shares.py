"""Which FlowFiles of a moment are in which part of a table, piece by piece: no more than one is ever decoded at a time.

Resident ones go by their resource claim, or by uuid where there is no content: what lies together is read together. At
a snapshot swapped ones go by their file, so that each is decoded for one part alone; that costs more than all else.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

from ullage_agent.engine.model import STAGED_QUEUE, ContentClaim, FlowFile, SwapOut
from ullage_agent.engine.moment import Moment

ROWS: Final = 10_000
"""FlowFiles of a piece, and rows of a batch: of the widest tables a few MiB. No swap file holds more."""


class Piece(NamedTuple):
    """FlowFiles that anybody may see, read when they are asked for; `place` tells it from all others of the moment."""

    place: Hashable
    is_swapped: bool
    read: Callable[[], Sequence[FlowFile]]


class Shares:
    """Part `part` of `parts` of a moment. `is_kept`: the other parts are of the same moment.

    Where they are not, a FlowFile may leave its swap file from one part to the next, and files are no way to share out.
    """

    def __init__(self, moment: Moment, part: int, parts: int, *, is_kept: bool) -> None:
        self._moment = moment
        self._part = part
        self._parts = parts
        self._is_kept = is_kept

    def pieces(self) -> Iterator[Piece]:
        """Each FlowFile is in one piece of one part. RepositoryDamaged, before the first, if a swap file is gone."""
        self._moment.require_swaps()
        for at in range(0, len(self._moment.flow_files), ROWS):
            yield Piece((at, self._part, self._parts), False, partial(self._resident, at))
        swaps = self._moment.swaps
        for swap in swaps[self._part :: self._parts] if self._is_kept else swaps:
            yield Piece(swap.name, True, partial(self._swapped, swap))

    def claims(self) -> Counter[ContentClaim]:
        """Claims of this part with all their claimants, wherever these are."""
        self._moment.require_swaps()
        found: Counter[ContentClaim] = Counter()
        for at in range(0, len(self._moment.flow_files), ROWS):
            self._count(found, self._moment.flow_files[at : at + ROWS])
        for swap in self._moment.swaps:
            if any(share.resource % self._parts == self._part for share in swap.shares):
                self._count(found, self._moment.swapped(swap))
        return found

    def _resident(self, at: int) -> Sequence[FlowFile]:
        found = self._of_part(self._moment.flow_files[at : at + ROWS])
        return [record for record in found if record.queue != STAGED_QUEUE]

    def _swapped(self, swap: SwapOut) -> Sequence[FlowFile]:
        """What is staged is never swapped."""
        found = self._moment.swapped(swap)
        return found if self._is_kept else self._of_part(found)

    def _of_part(self, records: Sequence[FlowFile]) -> Sequence[FlowFile]:
        part, parts = self._part, self._parts
        if parts == 1:
            return records
        return [
            record
            for record in records
            if (_number(record) if (claim := record.claim) is None else claim.resource) % parts == part
        ]

    def _count(self, found: Counter[ContentClaim], records: Sequence[FlowFile]) -> None:
        found.update(claim for record in self._of_part(records) if (claim := record.claim) is not None)


def _number(record: FlowFile) -> int:
    return int.from_bytes(record.uuid[:8], "big")
