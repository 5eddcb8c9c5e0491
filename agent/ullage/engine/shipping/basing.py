"""A new base: everything as of one transaction, and first of all the content that lives then.

    hold from T on | freeze at T | packs of what the share lacks | base | manifest
                                                                          ^ commit point
    a crash before it leaves objects that nothing names; the bases before count as ever

Content of older packs stays there, as long as most of a pack lives; what is left of the others, and what rides in log
objects, is put anew. Commits, checkpoints and reclamation of what had died before go on meanwhile.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain, islice
from typing import Final, NamedTuple

import msgspec

from ullage.engine.backupdirectory import read_pieces
from ullage.engine.files import length_of
from ullage.engine.flowfile_repository import FLOWFILE
from ullage.engine.ledger.resident import KeptRecords
from ullage.engine.ledger.state import SwapContent
from ullage.engine.model import ContentClaim, FlowFileRecord, Operation, SwapOut
from ullage.engine.opening import IDENTITY
from ullage.engine.provenance.events import RecordedTransaction, undrained
from ullage.engine.provenance.store import PROVENANCE
from ullage.engine.shipping.baseobject import BaseHeader, base_pieces
from ullage.engine.shipping.history import PACKS_MEMBER
from ullage.engine.shipping.logical import LogicalView
from ullage.engine.shipping.logobject import NamedPack
from ullage.engine.shipping.shippedcontent import IN_LOG, ShippedContent
from ullage.engine.shipping.shippingparts import ShippingParts
from ullage.engine.wal.records import BLOCK_RECORDS, record_pieces
from ullage.engine.wal.snapshot import SNAPSHOT, SNAPSHOT_MAGIC, SnapshotHeader, new_salt_key
from ullage.engine.wal.state import RecordDirectory
from ullage.errors import RepositoryDamaged

SNAPSHOT_MEMBER: Final = f"{FLOWFILE}/{SNAPSHOT}"

KEPT_SHARE: Final = 0.8
"""Of a pack that stays as it is so much lives at least."""

RECORD_BYTES: Final = 400
"""About what a record takes in a snapshot."""


class _EventFile(NamedTuple):
    member: str
    path: str
    length: int


class FrozenMoment:
    """A repository as of a transaction. What it needs on the disk stays there until `close`."""

    def __init__(self, parts: ShippingParts, logical: LogicalView) -> None:
        self._parts = parts
        self._logical = logical
        self.identity = parts.identity()
        self._held = ExitStack()
        self._swaps: list[SwapOut] = []
        self._named: list[Operation] = []
        self.unreadable: set[str] = set()
        """Swap files and runs of handles that can't be read here: what is in them is missing in the base."""
        try:
            self._hold()
        except BaseException:
            self._held.close()
            raise

    def close(self) -> None:
        """Give back what it kept."""
        self._held.close()

    def _hold(self) -> None:
        parts, events = self._parts, self._parts.provenance
        self._held.enter_context(parts.committer.keeping_swaps())
        self._held.enter_context(parts.spaces.keeping())
        with ExitStack() as still:
            if events is not None:
                self._held.enter_context(events.keeping())
                still.enter_context(events.still())
            self._freeze()
            self.event_manifest = b"" if events is None or events.place is None else self._read(events.place)
            self.event_files = [] if not self.event_manifest else list(self._event_files())
        self._swapped = self._read_swaps()

    def _freeze(self) -> None:
        parts = self._parts

        def freeze() -> tuple[Iterable[Sequence[Operation]], KeptRecords, list[RecordedTransaction]]:
            # What is alive now stays readable from here on, whenever it dies; and what waits already does as well.
            parts.ledger.shipping_since = parts.ledger.shipping_since or max(1, parts.log.last_id)
            view = parts.ledger.freeze()
            return view, view.records(), [] if parts.provenance is None else parts.provenance.undrained()

        with parts.log.still(freeze) as (transaction, (view, records, told)):
            try:
                self.transaction, self.records, self._told = transaction, records, told
                self.millis = parts.clock.now_millis()
                for block in view:
                    self._named += block
            finally:
                parts.ledger.release()
        self._swaps = [each for each in self._named if isinstance(each, SwapOut)]

    def _read(self, path: str) -> bytes:
        return b"".join(read_pieces(self._parts.files, path, self._parts.files.size(path).length))

    def _event_files(self) -> Iterator[_EventFile]:
        store = self._parts.provenance
        assert store is not None, "there is a manifest of event files"
        for file in store.manifest.files:
            path = store.event_files.path(file)
            # One that is gone is told of here, and a restored repository goes on without it as this one does.
            if length_of(self._parts.files, path) == file.bytes:
                yield _EventFile(f"{file.directory}/{file.name}", path, file.bytes)

    def _read_swaps(self) -> int:
        """How many FlowFiles swap files have; the uuids of all are noted for transactions that drop them."""
        self._logical.swapped = {}
        count = 0
        for swap in self._swaps:
            found = self._read_swap(swap)
            self._logical.swapped[swap.name] = b"".join(record.uuid for record in found.records)
            self._named += found.set_aside
            count += len(found.records)
        return count

    def _read_swap(self, swap: SwapOut) -> SwapContent:
        try:
            return self._parts.swap_files.read(swap.name)
        except RepositoryDamaged:
            self.unreadable.add(swap.name)
            return SwapContent([])

    def all_records(self) -> Iterator[FlowFileRecord]:
        """Every FlowFile and handle, those in runs and swap files too."""
        yield from self.records.readable(lambda run, _: self.unreadable.add(f"run {run}"))
        for swap in self._swaps:
            yield from self._read_swap(swap).records

    def claims(self) -> Iterator[ContentClaim]:
        """What they have; of those that share one it comes several times."""
        return (record.claim for record in self.all_records() if record.claim is not None)

    def blocks(self) -> Iterator[Sequence[Operation]]:
        """As a snapshot has them: what is referred to comes first."""
        yield from _blocked(self._logical_named())
        yield from _blocked(self.all_records())
        # What was answered later may be lost where this goes, and is to be asked for again.
        yield from _blocked(each for each in self._parts.spaces.answers.all() if each.transaction <= self.transaction)
        for each in self._told:
            yield [undrained(each)]

    def _logical_named(self) -> Iterator[Operation]:
        # Swap files are read as records, and those that it notes of them are its own.
        return iter(LogicalView().of(self._named))

    def snapshot(self) -> Iterator[bytes]:
        """The bytes of a snapshot file."""
        parts = self._parts
        place = RecordDirectory(parts.files, FLOWFILE, self.identity.repository, parts.serde)
        header = place.header(
            SnapshotHeader,
            last_id=self.transaction,
            created_millis=self.millis,
            next_sequences={0: 1},
            salt_key=new_salt_key(),
        )
        return record_pieces(SNAPSHOT_MAGIC, header, self.blocks(), parts.serde)

    def members(self, packs: Sequence[NamedPack]) -> Iterator[tuple[str, Iterable[bytes]]]:
        """The files of a base."""
        yield IDENTITY, [msgspec.json.encode(self.identity)]
        yield PACKS_MEMBER, [msgspec.json.encode(packs)]
        yield SNAPSHOT_MEMBER, self.snapshot()
        if self.event_manifest:
            yield f"{PROVENANCE}/{os.path.basename(self._manifest_path())}", [self.event_manifest]
        for file in self.event_files:
            yield file.member, read_pieces(self._parts.files, file.path, file.length)

    def _manifest_path(self) -> str:
        store = self._parts.provenance
        assert store is not None
        assert store.place is not None
        return store.place

    def pieces(self, header: BaseHeader, packs: Sequence[NamedPack]) -> Iterator[bytes]:
        """The bytes of a base."""
        return base_pieces(header, self.members(packs))

    @property
    def length(self) -> int:
        """About how long a base becomes."""
        return (len(self.records) + self._swapped) * RECORD_BYTES + sum(each.length for each in self.event_files)


def keep_mostly_live(content: ShippedContent, moment: FrozenMoment) -> None:
    """Have the packs forgotten of which too little lives, and what rides in log objects: all that is put anew."""
    live: Counter[int] = Counter()
    for claim in moment.claims():
        pack = content.pack_of(claim)
        if pack is not None:
            live[pack] += claim.length
    kept = {pack for pack, (_, length) in content.names.items() if live[pack] >= KEPT_SHARE * length}
    content.forget_packs({IN_LOG, *content.names} - kept)


def missing_in(content: ShippedContent, moment: FrozenMoment) -> Iterator[ContentClaim]:
    """The contents that the share lacks, each once, as long as what was told before is noted when the next is asked
    for.
    """
    return (claim for claim in moment.claims() if content.pack_of(claim) is None)


def _blocked(operations: Iterable[Operation]) -> Iterator[Sequence[Operation]]:
    rest = iter(operations)
    for first in rest:
        yield list(chain((first,), islice(rest, BLOCK_RECORDS - 1)))
