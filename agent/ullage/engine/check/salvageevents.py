"""The events of a damaged repository: what its event files prove, and what log and snapshot tell beside them.

    manifest sound     a file counts whose bytes have the checksum that it lists
    manifest damaged   a file counts of which every page, every row and the order of all rows are right
    transaction        its events count once: where no file that counts spans its id

Numbers stay. Between two files stands what transactions between them have to tell; the rest of the numbers is lost.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import pairwise

from crc32c import crc32c

from ullage.engine.arrow import pa, pq
from ullage.engine.files import Files
from ullage.engine.model import Operation, TransactionEvents
from ullage.engine.provenance.columns import from_table, schema
from ullage.engine.provenance.events import (
    ProvenanceEvent,
    RecordedTransaction,
    count_events,
    require_subjects,
    undrained,
)
from ullage.engine.provenance.manifest import EventFile, LostEvents, ManifestFile, ProvenanceManifest
from ullage.engine.provenance.series import series_of
from ullage.engine.provenance.store import MANIFEST, PROVENANCE, Inherited, InheritedFile
from ullage.engine.provenance.tail import Numbered
from ullage.engine.usable import require_usable
from ullage.engine.wal.failingdisk import FailingDisk
from ullage.engine.wal.lenient import LostRange
from ullage.engine.wal.serde import Undecodable
from ullage.engine.wal.state import UNUSABLE
from ullage.errors import RepositoryDamaged


class SalvagedEvents:
    """`paths` are all event files that were found. `lost` says what can't be read, `lost_count` how many events the
    numbers say are gone with it; `last_id` is the last transaction that any of them may be of.
    """

    def __init__(self, files: Files, disk: FailingDisk, root: str, repository: str, paths: Sequence[str]) -> None:
        self.lost: list[LostRange] = []
        self.lost_count = 0
        self._disk = disk
        self._told: dict[int, RecordedTransaction] = {}
        self._manifest = self._read_manifest(files, os.path.join(root, PROVENANCE, MANIFEST), repository, paths)
        if self._manifest is not None:
            listed = [(os.path.join(root, file.directory, file.name), file) for file in self._manifest.files]
            self._files = [(path, file) for path, file in listed if self._read(path, file) is not None]
        else:
            self._files = self._proved_alone(paths)
        drained = 0 if self._manifest is None else self._manifest.drained
        self.last_id = max([drained, *(file.last_id for _, file in self._files)])
        self._ends = [file.last_id for _, file in self._files]

    def take(self, id: int, millis: int, found: Sequence[Operation | Undecodable]) -> None:
        """A transaction of the log or the snapshot. Its events are told by all of its operations, or not at all."""
        if not found or not isinstance(found[-1], TransactionEvents) or self._is_in_a_file(id):
            return
        operations = [each for each in found if not isinstance(each, Undecodable)]
        try:
            if len(operations) < len(found):
                raise ValueError("one of its records does not decode")
            require_usable(operations)
            require_subjects(id, operations)
        except UNUSABLE as error:
            self._lose(id, error)
            return
        told = RecordedTransaction(id, millis, operations, count_events(operations))
        try:
            for _ in series_of(told, 1):
                continue
        except UNUSABLE as error:  # a drain would pass over them: their numbers stay taken
            self._lose(id, error)
            self._told[id] = told._replace(operations=())
        else:
            self._told[id] = told._replace(operations=undrained(told).operations)

    def inherited(self) -> Iterator[Inherited]:
        """All of it in order, without a number left out."""
        at = last_id = 0
        for path, file in self._files:
            data = self._read(path, file)
            if data is None:
                continue
            if self._manifest is None and not at:
                # Whether there were any before it, nothing says.
                at = file.first_sequence - sum(told.events for told in self._between(0, file.first_id))
            yield from self._hole(at or self._first, file.first_sequence, last_id, file.first_id)
            yield InheritedFile(file, data)
            at, last_id = file.last_sequence + 1, file.last_id
        at = at or self._first
        if self._manifest is not None:
            yield from self._hole(at, self._manifest.next_sequence, last_id, self._manifest.drained + 1)
            at, last_id = self._manifest.next_sequence, self._manifest.drained
            self.lost_count -= sum(lost.events for lost in self._manifest.lost)  # those were lost before
        for told in self._between(last_id, None):
            yield self._numbered(told, at)
            at += told.events

    def _lose(self, id: int, error: Exception) -> None:
        self.lost.append(LostRange(f"the events of transaction {id}", 0, 0, str(error)))

    def _numbered(self, told: RecordedTransaction, first_sequence: int) -> Inherited:
        if told.operations:
            return Numbered(told, first_sequence)
        self.lost_count += told.events
        return LostEvents(first_sequence, told.events)

    def _is_in_a_file(self, id: int) -> bool:
        at = bisect_left(self._ends, id)
        return at < len(self._files) and self._files[at][1].first_id <= id

    @property
    def _first(self) -> int:
        return 1 if self._manifest is None else self._manifest.removed_through + 1

    def _hole(self, at: int, end: int, after_id: int, before_id: int) -> Iterator[Inherited]:
        for told in self._between(after_id, before_id):
            if at + told.events > end:
                break
            yield self._numbered(told, at)
            at += told.events
        if at < end:
            self.lost_count += end - at
            yield LostEvents(at, end - at)

    def _between(self, after_id: int, before_id: int | None) -> list[RecordedTransaction]:
        return [self._told[id] for id in sorted(self._told) if id > after_id and (before_id is None or id < before_id)]

    def _read_manifest(
        self, files: Files, path: str, repository: str, paths: Sequence[str]
    ) -> ProvenanceManifest | None:
        if not files.exists(path):
            if paths:
                self.lost.append(LostRange(path, 0, 0, "it is missing, and there are event files"))
            return None
        try:
            return ManifestFile(files, path, repository).decoded(self._bytes_of(path))
        except (RepositoryDamaged, OSError) as error:
            self.lost.append(LostRange(path, 0, 0, str(error)))
            return None

    def _read(self, path: str, file: EventFile) -> memoryview | None:
        """The bytes of a file that are the ones it was written with; None, and it is named, where they are not."""
        try:
            data = self._bytes_of(path)
        except OSError as error:
            self.lost.append(LostRange(path, 0, 0, f"it can't be read: {error}"))
            return None
        if (len(data), crc32c(data)) != (file.bytes, file.crc):
            self.lost.append(LostRange(path, 0, len(data), "its bytes are not those that the manifest lists"))
            return None
        return memoryview(data)

    def _bytes_of(self, path: str) -> bytes:
        with closing(self._disk.open(path)) as file:
            return file.read(file.size().length, 0)

    def _proved_alone(self, paths: Sequence[str]) -> list[tuple[str, EventFile]]:
        """The files that prove themselves, in order. One that has what an earlier one has is a leftover."""
        found = []
        for path in sorted(paths, key=os.path.basename):
            try:
                found.append((path, _described(path, self._bytes_of(path))))
            except (OSError, pa.ArrowException, *UNUSABLE) as error:
                self.lost.append(LostRange(path, 0, 0, f"without the manifest, nothing proves it: {error}"))
        kept: list[tuple[str, EventFile]] = []
        for path, file in sorted(found, key=lambda each: each[1].first_sequence):
            if kept and (file.first_sequence <= kept[-1][1].last_sequence or file.first_id <= kept[-1][1].last_id):
                self.lost.append(LostRange(path, 0, file.bytes, f"{kept[-1][0]} has events of the same numbers"))
            else:
                kept.append((path, file))
        return kept


def _described(path: str, data: bytes) -> EventFile:
    """What a manifest would say of an event file, once all of it is read; raises where something is wrong in it."""
    parquet = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
    if not parquet.schema_arrow.equals(schema()):
        raise ValueError("its columns are not those of events")
    events: list[ProvenanceEvent] = []
    for group in range(parquet.num_row_groups):
        events += from_table(parquet.read_row_group(group, use_threads=False))
    for before, event in pairwise(events):
        follows = (before.transaction, before.ordinal + 1) == (event.transaction, event.ordinal)
        begins = event.transaction > before.transaction and event.ordinal == 0
        if event.sequence != before.sequence + 1 or not (follows or begins):
            raise ValueError(f"event {event.sequence} does not follow event {before.sequence}")
    first, last = events[0], events[-1]
    if first.ordinal or first.sequence < 1:
        raise ValueError("its first event is not the first of a transaction")
    return EventFile(
        directory="",
        name=os.path.basename(path),
        first_sequence=first.sequence,
        events=len(events),
        first_id=first.transaction,
        last_id=last.transaction,
        millis_min=min(event.millis for event in events),
        millis_max=max(event.millis for event in events),
        bytes=len(data),
        crc=crc32c(data),
    )
