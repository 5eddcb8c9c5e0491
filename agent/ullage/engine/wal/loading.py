"""Reading a log back: the snapshot, the chains of log files, and the replay (as NiFi's `MinimalLockingWriteAheadLog`).

Changes two things on disk: a lone `.partial` that proves whole becomes the snapshot, any other one is removed; and
an empty directory gets an empty snapshot.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass

from ullage.engine.model import Operation
from ullage.engine.wal.format import UNDECODABLE
from ullage.engine.wal.partition import partition_numbers
from ullage.engine.wal.records import RecordReader
from ullage.engine.wal.restore import Chain, Resolution, TornTail, replay, resolve, scan_partition
from ullage.engine.wal.snapshot import (
    PARTIAL,
    SNAPSHOT,
    SNAPSHOT_MAGIC,
    SnapshotHeader,
    publish,
    write_empty_snapshot,
)
from ullage.engine.wal.state import LoggedState, RecordDirectory
from ullage.errors import RepositoryDamaged

CONTRADICTIONS = (RepositoryDamaged, LookupError, ValueError, *UNDECODABLE)
"""What applying a record may raise whose checksum is right and whose meaning is not."""

Watcher = Callable[[Sequence[Operation]], None]


@dataclass(frozen=True, slots=True)
class LogSettings:
    """`interval_seconds` > 0: syncs are at least so far apart, and commits wait for theirs (`durability: Interval`).

    `may_be_new`: a directory without snapshot and log begins a log; else it is damaged.
    """

    partitions: int = 1
    interval_seconds: float = 0.0
    may_be_new: bool = True


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """What a restore found. `clean`: the log was closed properly, nothing needs proving again."""

    snapshot_last_id: int
    last_id: int
    snapshot_records: int
    transactions: int
    discarded: tuple[int, ...]
    torn: tuple[TornTail, ...]
    clean: bool


class LogLoader:
    """Loads one log into a state, once; then `snapshot_bytes` and `snapshot_millis` are those of the snapshot read."""

    def __init__(self, place: RecordDirectory, state: LoggedState, settings: LogSettings) -> None:
        self._place = place
        self._files = place.files
        self._directory = place.path
        self._state = state
        self._settings = settings
        self.snapshot_bytes = self.snapshot_millis = 0

    def load(self, on_replayed: Watcher | None, now_millis: int) -> tuple[RestoreReport, list[Chain]]:
        header, records = self._load_snapshot()
        numbers = partition_numbers(self._files, self._directory)
        if header is None and not numbers:
            if not self._settings.may_be_new:
                raise RepositoryDamaged(
                    f"{self._directory} has no log and no valid snapshot: restore it from a backup; nothing was removed"
                )
            write_empty_snapshot(self._place, now_millis)
        after = header.last_id if header else 0
        # Without a snapshot only a log from its very first file on is whole.
        sequences = header.next_sequences if header else dict.fromkeys(numbers, 1)
        chains = [scan_partition(self._place, number, sequences.get(number)) for number in numbers]
        lost = set(sequences) - set(numbers)
        if lost:
            raise RepositoryDamaged(
                f"{self._directory}: log partitions {sorted(lost)}, which the snapshot needs, are missing; restore "
                "them from a backup of this volume"
            )
        resolution = resolve(chains, after)
        if header is None and numbers and resolution.last_id == 0:
            raise RepositoryDamaged(
                f"{self._directory} has neither a snapshot nor a log from the first transaction on: restore it from a "
                "backup"
            )
        # Another number of partitions than the snapshot knows: the snapshot of an unclean start begins their chains.
        is_covered = header is not None and set(sequences) == set(range(self._settings.partitions))
        clean = resolution.clean and is_covered
        # After a clean end all was proved when it was closed, and nothing is to be read again.
        transactions = self._replay(chains, resolution, None if clean else on_replayed)
        report = RestoreReport(
            snapshot_last_id=after,
            last_id=resolution.last_id,
            snapshot_records=records,
            transactions=transactions,
            discarded=tuple(resolution.discarded),
            torn=tuple(resolution.torn),
            clean=clean,
        )
        return report, chains

    def _load_snapshot(self) -> tuple[SnapshotHeader | None, int]:
        """Snapshot, partial, both or none, as in NiFi, with the difference that a lone partial must prove whole."""
        # An earlier process may not have come to it, and what is removed from now on relies on these names.
        self._files.sync_directory(self._directory)
        snapshot = os.path.join(self._directory, SNAPSHOT)
        partial = os.path.join(self._directory, PARTIAL)
        has_snapshot = self._files.exists(snapshot)
        if self._files.exists(partial) and has_snapshot:
            # A checkpoint that did not come to its rename: the logs that it would have covered are all there.
            self._files.unlink(partial)
        elif self._files.exists(partial) and self._is_whole(partial):
            publish(self._place)
            has_snapshot = True
        if not has_snapshot:
            return None, 0
        with closing(self._reader(snapshot)) as reader:
            if reader.header.repository != self._place.repository:
                raise RepositoryDamaged(
                    f"{snapshot} belongs to repository {reader.header.repository}, not to {self._place.repository}"
                )
            records = 0
            for block in reader.blocks():
                try:
                    self._state.load(block)
                except CONTRADICTIONS as error:
                    raise RepositoryDamaged(f"{snapshot}: contradicts itself: {error}") from error
                records += len(block)
            self.snapshot_bytes = self._files.size(snapshot).length
            self.snapshot_millis = reader.header.created_millis
            return reader.header, records

    def _is_whole(self, partial: str) -> bool:
        # What does not prove whole is no snapshot; where it was the only one, the chain of logs decides.
        with suppress(RepositoryDamaged), closing(self._reader(partial)) as reader:
            reader.verify()
            return True
        return False

    def _reader(self, path: str) -> RecordReader[SnapshotHeader]:
        return RecordReader(self._files, path, SNAPSHOT_MAGIC, SnapshotHeader, self._place.serde)

    def _replay(
        self,
        chains: list[Chain],
        resolution: Resolution,
        on_replayed: Watcher | None,
    ) -> int:
        transactions = 0
        for id, payload, version, path in replay(self._files, chains, resolution):
            try:
                transaction = self._place.serde.decode(payload, version)
            except UNDECODABLE as error:
                raise RepositoryDamaged(f"{path}: transaction {id} does not decode: {error}") from error
            try:
                self._state.apply(id, transaction.millis, transaction.operations)
            except CONTRADICTIONS as error:
                raise RepositoryDamaged(f"{path}: transaction {id} contradicts what came before: {error}") from error
            if on_replayed is not None:
                on_replayed(transaction.operations)
            transactions += 1
        return transactions
