"""What a salvage made of a damaged repository, and what it could not have."""

import msgspec

from ullage.wire.unavailable import UnavailableContent

HELD_QUEUE = "salvaged"
"""Where FlowFiles and handles wait for a person of which something lost may say more."""

HELD_IN, HELD_REASON, HELD_UUID = "salvaged.queue", "salvaged.reason", "salvaged.uuid"
"""Attributes of what is held: its queue, empty for a handle, why it is held, and its uuid."""


class DamagedRange(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of a file of records that can't be used, and why; length 0: all of it, or what is missing behind."""

    path: str

    offset: int

    length: int

    reason: str


class SalvageReport(msgspec.Struct, frozen=True, kw_only=True):
    """The repository that was made, and what is not in it."""

    repository: str
    """Its uuid, which is a new one."""

    queues: dict[str, int]
    """How many FlowFiles kept their places, by queue."""

    handles: int
    """How many are handles again."""

    held: int
    """FlowFiles and handles in queue `salvaged`: something that is lost may have changed or deleted them."""

    lost: tuple[UnavailableContent, ...]
    """FlowFiles and handles, up to 10,000, that are not in it, because no file has their bytes."""

    lost_count: int
    """How many those are in all."""

    events: int
    """How many provenance events are in it."""

    lost_events: int
    """How many the numbers of those say are not."""

    lost_transactions: tuple[tuple[int, int], ...]
    """The first and the last id of each run of transactions that nothing is left of."""

    doubts: tuple[str, ...]
    """Why newer transactions may be lost, of which nothing tells."""

    damaged: tuple[DamagedRange, ...]
    """Where files of records can't be read."""

    set_aside: tuple[str, ...]
    """Records that can't be used, each with its place and the reason."""

    @property
    def is_whole(self) -> bool:
        """Whether everything that was in the damaged repository could be proved."""
        missing = (
            self.held,
            self.lost_count,
            self.lost_events,
            self.lost_transactions,
            self.doubts,
            self.damaged,
            self.set_aside,
        )
        return not any(missing)
