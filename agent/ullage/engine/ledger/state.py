"""What a ledger holds in memory: everything that transactions said, and three notes that none of them carries."""

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import call, itemgetter
from typing import NamedTuple

from ullage.engine.ledger.aside import HANDLES_SPACE, RecordsAside
from ullage.engine.ledger.blockrows import BLOCKS_SPACE, BlockRows
from ullage.engine.ledger.claimrows import CLAIMS_SPACE
from ullage.engine.ledger.coldhandles import ColdHandles
from ullage.engine.ledger.remembered import RememberedAnswers
from ullage.engine.ledger.resident import SHARDS as SHARDS, ResidentRecords
from ullage.engine.ledger.resources import ResourceEntry
from ullage.engine.ledger.staged import StagedWrites
from ullage.engine.model import (
    FlowFileRecord,
    LeaseRecord,
    QueueDefinition,
    ResourceClaim,
    RunFile,
    SetAside,
    SwapOut,
    format_uuid,
)
from ullage.engine.packs import ClaimRow
from ullage.engine.uninterrupted import uninterrupted
from ullage.errors import RepositoryDamaged

CHANGED_MAX = 1 << 18
"""Changed resource claims that are noted one by one, in 20 MB; with more of them a survey looks at all."""


_RESOURCE = itemgetter(0)
"""Of a row."""


class SwapContent(NamedTuple):
    """What a swap file holds: the records, and what in it can't be used."""

    records: list[FlowFileRecord]
    set_aside: Sequence[SetAside] = ()


class ClaimTakers(dict[int, Callable[[ClaimRow], None]]):
    """What takes the base claims of each resource claim that records of a snapshot name."""

    def __init__(self, taker_of: Callable[[int], Callable[[ClaimRow], None]]) -> None:
        super().__init__()
        self._taker_of = taker_of

    def __missing__(self, resource: int) -> Callable[[ClaimRow], None]:
        taker = self[resource] = self._taker_of(resource)
        return taker


class LedgerState:
    """Other modules read the fields, and change nothing but through the methods.

    Reads and changes are made under `lock`, which is never held in a system call (the exceptions: restoring a `SwapIn`
    reads its file, and a change of a cold handle its block, before anything is served). A single `dict.get` needs no
    lock: the interpreter's is enough.
    """

    shipping_since = 0
    """What died behind this transaction stays, because it is still to be shipped; 0: nothing stays for that."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.records = ResidentRecords(self.lock)
        """FlowFiles and handles that are in memory, by uuid, whose first byte says in which shard."""

        self.cold = ColdHandles(self._note_share)
        """Handles that are on disk."""

        self.resources: list[dict[int, ResourceEntry]] = [{} for _ in range(SHARDS)]
        """Resource claims by index, which modulo 256 says in which shard."""

        self.blocks = BlockRows()
        """Block CRCs of large claims by resource claim and offset."""

        self.queues: dict[int, QueueDefinition] = {}
        """By number; removed ones too, since a number is never given again."""

        self.swaps: dict[str, SwapOut] = {}
        """Swap files that stand in a queue, by name, without the uuids: the file has them."""

        self.retired_swaps: dict[str, int] = {}
        """Swap files that stand in none any more, with the transaction that took them in: no snapshot covers it yet."""

        self.swapped_in: set[str] = set()
        """Those of the retired ones that a start would read again; of the others its FlowFiles were dropped."""

        self.leases: dict[bytes, LeaseRecord] = {}
        """By id; expired ones until they are purged."""

        self.answers = RememberedAnswers()
        """By idempotency key."""

        self.writes = StagedWrites()
        """Staged writes: open, prepared, and for a time those that are closed."""

        self.set_aside = RecordsAside()
        """Those that can't be used."""

        self.index_ceiling = 0
        """No resource claim has a greater index, nor had one that is gone."""

        self.released: dict[int, int] = {}
        """Note: resource claims in which something died, with the last such transaction. It may be lost: a survey finds
        the same, but looks at every one.
        """

        self.intended: set[int] = set()
        """Resource claims of which a change was promised that is not committed as done."""

        self._is_loading = False
        """Whether a block of a snapshot is being taken in."""

        self._is_unsettled = False
        """Whether resource claims wait for others, to say then what in them is in use."""

        self._takers = ClaimTakers(self._taker_of)
        """By resource claim, while a snapshot is read."""

        self._unpacked: set[int] = set()
        """Note: resource claims to which handles have come since `pack`."""

        self._changed: set[int] | None = None
        """Note: resource claims whose figures are others since `take_changed`; None: any of them."""

        self.taken: set[int] = set()
        """Note: resource claims that a run of reclamation is about to change, and nobody else may."""

        self.swap_contents: dict[str, SwapContent] = {}
        """Note: swap files that were read to be swapped in, so that applying the `SwapIn` makes no system call."""

    def queue_name(self, number: int) -> str:
        """A queue's name; empty for a number that no transaction defined."""
        definition = self.queues.get(number)
        return "" if definition is None else definition.name

    def find(self, uuid: bytes) -> FlowFileRecord | None:
        """A FlowFile or handle that is in memory."""
        return self.records.find(uuid)

    def entry(self, index: int) -> ResourceEntry | None:
        if self._is_unsettled:
            self.end_loading()
        return self.resources[index % SHARDS].get(index)

    def claim(self, index: int) -> ResourceClaim | None:
        """The state of a resource claim, as a record."""
        entry = self.entry(index)
        return None if entry is None else entry.claim

    def entries(self) -> Iterator[ResourceEntry]:
        """All resource claims; shard by shard, so that each shard is a moment's truth."""
        self.end_loading()
        for shard in filter(None, self.resources):
            with self.lock:
                entries = list(shard.values())
            yield from entries

    def indexes(self, after: int) -> Iterator[int]:
        """Those of all resource claims from behind this one on, in no order; shard by shard."""
        for shard in filter(None, self.resources):
            with self.lock:
                indexes = list(shard)
            yield from (index for index in indexes if index > after)

    def flow_files(self) -> Iterator[FlowFileRecord]:
        """All FlowFiles and handles that are in memory; shard by shard."""
        return iter(self.records)

    def runs_of(self, space: str) -> tuple[RunFile, ...]:
        """The runs of a key space that count, oldest first."""
        with self.lock:
            if space == HANDLES_SPACE:
                return self.cold.all()
            if space == CLAIMS_SPACE:
                return self.cold.all_claims()
            return self.blocks.runs() if space == BLOCKS_SPACE else self.answers.runs()

    def list_run(self, run: RunFile, *_when: int) -> None:
        """A run counts from now on; called under the lock."""
        if run.space == HANDLES_SPACE:
            self.cold.list(run)
        elif run.space == CLAIMS_SPACE:
            self.cold.list_claims(run)
        else:
            (self.blocks if run.space == BLOCKS_SPACE else self.answers).take_run(run)

    @property
    def longest_run(self) -> int:
        """Bytes: about what the runs of the next checkpoint may take."""
        return self.answers.longest_run + self.blocks.longest_flush

    @contextmanager
    def _loading(self) -> Iterator[None]:
        """While this lasts, a block of a snapshot is taken in."""
        is_starting = self.records.is_starting
        self._is_unsettled, self._is_loading = False, is_starting
        try:
            yield
        finally:
            self._is_unsettled, self._is_loading = is_starting, False

    def end_loading(self) -> None:
        """No block of a snapshot follows, or not yet: what its records name is known from here on."""
        if self._is_unsettled:
            self._is_unsettled = False
            self._takers.clear()
            for entry in (entry for shard in self.resources for entry in shard.values()):
                entry.end_loading()

    def _taker_of(self, resource: int) -> Callable[[ClaimRow], None]:
        entry = self.resources[resource % SHARDS].get(resource)
        if entry is None:
            raise RepositoryDamaged(f"a handle names resource claim {resource}, unknown to the ledger")
        self.note_changed(entry)
        return entry.taker()

    def _take_claims(self, claims: Sequence[ClaimRow | None]) -> None:
        """Records of a snapshot name these. Without a step of the interpreter for each, which takes twice as long."""
        there = list(filter(None, claims))
        takers = map(self._takers.__getitem__, map(_RESOURCE, there))
        deque(map(call, takers, there), maxlen=0)

    @uninterrupted
    def pack(self) -> None:
        """Let what rests take less memory: handles that have come, and what is in use of files that are sealed."""
        self.records.pack()
        with self.lock:
            noted, self._unpacked = self._unpacked, set()
        for index in noted:
            with self.lock:
                entry = self.entry(index)
                if entry is not None and not entry.pack():
                    self._unpacked.add(index)

    def _note_share(self, resource: int) -> None:
        """Handles that claim something of a resource claim leave memory, or come back; called under the lock. No figure
        is another one: what was found of its claims, in memory or in runs, may be.
        """
        entry = self.resources[resource % SHARDS].get(resource)
        if entry is not None:
            entry.version += 1

    def note_changed(self, entry: ResourceEntry) -> None:
        """The figures of a resource claim's file are others now, or will be; called under the lock."""
        entry.version += 1
        changed = self._changed
        if changed is None:
            return
        changed.add(entry.claim.index)
        if entry.relocation is not None:
            changed.add(entry.relocation.output)
        if len(changed) > CHANGED_MAX:  # nobody asks: indexes of files that came and went would pile up
            self._changed = None

    def take_changed(self) -> set[int] | None:
        """Resource claims whose figures may be others since the last call; None: any of them."""
        with self.lock:
            taken, self._changed = self._changed, set()
        return taken

    def forget_changed(self) -> None:
        """Whoever took the changes did not come to use them: any may have changed."""
        with self.lock:
            self._changed = None

    def is_changed(self, index: int) -> bool:
        """Whether a resource claim's figures may be others since `take_changed`; called under the lock."""
        return self._changed is None or index in self._changed

    def take(self, indexes: set[int]) -> bool:
        """Nobody else changes these resource claims until they are given back; False, none taken, if one is in other
        hands. Called under the lock, where the change is derived.
        """
        if not self.taken.isdisjoint(indexes):
            return False
        self.taken |= indexes
        return True

    def give_back(self, indexes: set[int]) -> None:
        """The opposite of `take`."""
        with self.lock:
            self.taken -= indexes

    def take_released(self, durable: int) -> set[int]:
        """The resource claims whose deaths are durable; their notes are gone with that."""
        with self.lock:
            ready = {index for index, transaction in self.released.items() if transaction <= durable}
            for index in ready:
                del self.released[index]
        return ready

    def note_released(self, indexes: Iterable[int]) -> None:
        """Look at these again: something died in them that was not dealt with."""
        with self.lock:
            for index in indexes:
                self.released.setdefault(index, 0)

    @contextmanager
    def swapping_in(self, name: str, content: SwapContent) -> Iterator[None]:
        """While this lasts, a `SwapIn` of this file finds its content here."""
        with self.lock:
            self.swap_contents[name] = content
        try:
            yield
        finally:
            with self.lock:
                self.swap_contents.pop(name, None)

    def retired_through(self, transaction: int) -> list[str]:
        """Retired swap files that a snapshot of this transaction makes unnecessary."""
        with self.lock:
            return [name for name, id in self.retired_swaps.items() if id <= transaction]

    def forget_retired(self, names: Collection[str]) -> None:
        """These swap files are gone. Nothing else follows from it, so it needs no transaction."""
        with self.lock:
            self.swapped_in.difference_update(names)
            for name in names:
                del self.retired_swaps[name]

    def settle_write(self, id: bytes) -> None:
        """Nothing of a staged write is staged any more; see `StagedWrites.settle`."""
        with self.lock:
            self.writes.settle(id)

    def forget_runs(self, now_millis: int) -> None:
        """Drop runs of answers whose time is over, before a snapshot lists them again."""
        with self.lock:
            self.answers.forget_runs(now_millis)

    def forget_over(self, now_millis: int) -> None:
        """Drop answers and settled writes whose time is over: whoever reads the log again forgets the same."""
        with self.lock:
            self.answers.forget(now_millis)
            self.writes.forget(now_millis)


def unknown_record(uuid: bytes, transaction: int) -> RepositoryDamaged:
    """What says that a transaction changes what does not exist."""
    return RepositoryDamaged(f"transaction {transaction} changes FlowFile {format_uuid(uuid)}, which does not exist")


def unknown_swap(name: str, transaction: int) -> RepositoryDamaged:
    """The same of a swap file."""
    return RepositoryDamaged(f"transaction {transaction} takes swap file {name}, which the ledger does not know")
