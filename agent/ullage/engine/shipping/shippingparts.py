"""What shipping works with, and what it tells."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ullage.clock import Clock
from ullage.engine.committer import Committer
from ullage.engine.content.reader import ContentReader
from ullage.engine.files import Files
from ullage.engine.ledger.keyspaces import KeySpaces
from ullage.engine.ledger.ledger import Ledger
from ullage.engine.ledger.swap import SwapFiles
from ullage.engine.model import Operation
from ullage.engine.opening import RepositoryIdentity
from ullage.engine.provenance.store import ProvenanceStore
from ullage.engine.repositories import FlowFileRepository
from ullage.engine.tap import ShippingTap
from ullage.engine.wal.serde import SerDe

MB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class ShippingParts:
    """Parts of an open repository."""

    files: Files
    root: str
    identity: Callable[[], RepositoryIdentity]
    serde: SerDe
    clock: Clock
    ledger: Ledger
    log: FlowFileRepository
    committer: Committer
    provenance: ProvenanceStore | None
    swap_files: SwapFiles
    spaces: KeySpaces
    reader: ContentReader
    tap: ShippingTap


class ShippingLimits(NamedTuple):
    """How much at a time, and how much at most. `held_bytes`: of log and content that waits; beyond that it waits no
    more, and a new base is made.
    """

    held_bytes: int = 1 << 30
    retention_millis: int = 86_400_000
    small_bytes: int = 64 << 10
    batch_payload_bytes: int = 8 * MB
    batch_small_bytes: int = 8 * MB
    batch_content_bytes: int = 256 * MB
    pack_bytes: int = 64 * MB
    log_bytes_min: int = 64 * MB
    log_objects_max: int = 10_000


class ShippingFigures(NamedTuple):
    """How far it is. `since_millis`: when the oldest transaction that waits was committed, None if none waits;
    `unreadable` are contents that could not be read here; `awaits_base`: what the share lacks is not known, for it is
    not begun yet, or more died than could be held, and a new base is to come.
    """

    epoch: int = 0
    through: int = 0
    since_millis: int | None = None
    waiting_bytes: int = 0
    waiting_transactions: int = 0
    log_objects: int = 0
    packs: int = 0
    bases: int = 0
    shipped_bytes: int = 0
    unreadable: int = 0
    awaits_base: bool = True


@dataclass(slots=True)
class WaitingTransaction:
    """One that is to be shipped, as it leaves the node. `new_bytes` are those of contents that it names; `is_whole`:
    not unless all that it removed is known.
    """

    id: int
    millis: int
    payload: bytes
    operations: Sequence[Operation]
    new_bytes: int
    is_whole: bool

    @property
    def bytes(self) -> int:
        """What is held for it."""
        return len(self.payload) + self.new_bytes


class WatchedPieces:
    """Pieces, and what went wrong with them: a place may tell it in words of its own, or take it for their end."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self.failure: Exception | None = None

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            return next(self._pieces)
        except StopIteration:
            raise
        except Exception as error:
            self.failure = error
            raise
