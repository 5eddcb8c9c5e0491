"""Every FlowFile and handle that a repository has, wherever it stands, with its place."""

from collections.abc import Iterator
from typing import NamedTuple

from ullage.engine.erasure.tally import ErasureTally
from ullage.engine.ledger.coldhandles import ColdPart
from ullage.engine.ledger.ledger import Ledger
from ullage.engine.ledger.resident import KeptRecords
from ullage.engine.ledger.swap import SwapFiles
from ullage.engine.model import HANDLE_QUEUE, STAGED_QUEUE, FlowFileRecord, SetAside
from ullage.errors import RepositoryDamaged
from ullage.wire.erasure import ErasurePlace
from ullage.wire.salvage import HELD_QUEUE


class PlacedRecord(NamedTuple):
    """A record, and where it was found."""

    place: ErasurePlace
    record: FlowFileRecord


class RecordScan:
    """Reads them all anew each time. What can't be read is told to the tally and passed over."""

    def __init__(self, ledger: Ledger, swap_files: SwapFiles, tally: ErasureTally) -> None:
        self._ledger = ledger
        self._swap_files = swap_files
        self._tally = tally
        self.set_aside: list[SetAside] = []
        """Of the last scan, those in swap files included."""

    def __iter__(self) -> Iterator[PlacedRecord]:
        with self._ledger.lock:
            kept = self._ledger.kept()
            self.set_aside = list(self._ledger.set_aside.all())
        for part in kept.parts:
            is_run = isinstance(part, ColdPart)
            for record in KeptRecords([part]).readable(self._ledger.cold.pass_over):
                yield PlacedRecord(self._place_of(record, is_run=is_run), record)
        if not self._ledger.cold.is_whole:
            self._tally.miss("some handles of flowfile/runs can't be read: `ullage ls --set-aside` names the blocks")
        for name in self._names():
            yield from self._swapped(name)
        for aside in self.set_aside:
            for record in aside.flow_files:
                yield PlacedRecord(ErasurePlace.SET_ASIDE, record)

    def _names(self) -> list[str]:
        """Swap files that stand in a queue, and those that a record which can't be used may have named."""
        ledger = self._ledger
        others = set(self._swap_files.names()) - set(ledger.swaps) - set(ledger.retired_swaps)
        return sorted({*ledger.swaps, *filter(ledger.set_aside.may_mean_swap, others)})

    def _swapped(self, name: str) -> Iterator[PlacedRecord]:
        try:
            content = self._swap_files.read(name)
        except RepositoryDamaged as error:
            self._tally.miss(error)
            return
        self.set_aside += content.set_aside
        for record in content.records:
            place = ErasurePlace.HELD if self._is_held(record) else ErasurePlace.SWAPPED
            yield PlacedRecord(place, record)

    def _place_of(self, record: FlowFileRecord, *, is_run: bool) -> ErasurePlace:
        if record.queue == STAGED_QUEUE:
            return ErasurePlace.STAGED
        if record.queue != HANDLE_QUEUE:
            return ErasurePlace.HELD if self._is_held(record) else ErasurePlace.QUEUED
        if record.deleted_millis:
            return ErasurePlace.TOMBSTONES
        return ErasurePlace.RUN_HANDLES if is_run else ErasurePlace.HANDLES

    def _is_held(self, record: FlowFileRecord) -> bool:
        return self._ledger.queue_name(record.queue) == HELD_QUEUE
