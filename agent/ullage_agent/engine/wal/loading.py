"""Reading a log back: the snapshot, the chains of log files, and the replay (seed 003, restore steps 2 to 7).

Changes two things on disk: a lone `.partial` that proves whole becomes the snapshot, any other one is removed; and
an empty directory gets an empty snapshot.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ullage_agent.engine.errors import RepositoryDamaged
from ullage_agent.engine.files import Files
from ullage_agent.engine.model import Operation
from ullage_agent.engine.wal.format import UNDECODABLE
from ullage_agent.engine.wal.partition import partition_directory, partition_numbers
from ullage_agent.engine.wal.records import RecordReader
from ullage_agent.engine.wal.restore import Chain, Resolution, TornTail, replay, resolve, scan_partition
from ullage_agent.engine.wal.serde import SerDe
from ullage_agent.engine.wal.snapshot import (
    PARTIAL,
    SNAPSHOT,
    SNAPSHOT_MAGIC,
    SnapshotHeader,
    publish,
    write_empty_snapshot,
)
from ullage_agent.engine.wal.state import LogState

CONTRADICTIONS = (RepositoryDamaged, LookupError, ValueError, *UNDECODABLE)
"""What applying a record may raise whose checksum is right and whose meaning is not."""

Watcher = Callable[[Sequence[Operation], bool], None]
"""Sees the operations of a replayed transaction, and whether a later frame proves that it was durable."""


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
    """Loads one log into a state, once."""

    def __init__(
        self,
        files: Files,
        directory: str,
        repository: str,
        state: LogState,
        serde: SerDe,
        partitions: int,
        may_be_new: bool,
        millis: int,
    ) -> None:
        self._files = files
        self._directory = directory
        self._repository = repository
        self._state = state
        self._serde = serde
        self._partitions = partitions
        self._may_be_new = may_be_new
        self._millis = millis
        self.snapshot_bytes = 0

    def load(self, on_replayed: Watcher | None) -> tuple[RestoreReport, list[Chain]]:
        header, records = self._load_snapshot()
        numbers = partition_numbers(self._files, self._directory)
        if header is None and not numbers:
            if not self._may_be_new:
                raise RepositoryDamaged(
                    f"{self._directory} has no log and no valid snapshot: restore it from a backup; nothing was removed"
                )
            write_empty_snapshot(self._files, self._directory, self._repository, self._serde, self._millis)
        after = header.last_id if header else 0
        sequences = header.next_sequences if header else dict.fromkeys(numbers, 1)
        chains = []
        for number in numbers:
            directory = partition_directory(self._directory, number)
            chains.append(
                scan_partition(self._files, directory, number, sequences.get(number), self._repository, self._serde)
            )
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
        is_covered = header is not None and set(sequences) == set(range(self._partitions))
        clean = resolution.clean and is_covered
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
        """The four cases of seed 003, step 2.1, with the difference that a lone partial must prove whole."""
        # An earlier process may not have come to it, and what is removed from now on relies on these names.
        self._files.sync_directory(self._directory)
        snapshot = os.path.join(self._directory, SNAPSHOT)
        partial = os.path.join(self._directory, PARTIAL)
        has_snapshot = self._files.exists(snapshot)
        if self._files.exists(partial) and has_snapshot:
            self._files.unlink(partial)
        elif self._files.exists(partial) and self._is_whole(partial):
            publish(self._files, self._directory)
            has_snapshot = True
        if not has_snapshot:
            return None, 0
        reader = RecordReader(self._files, snapshot, SNAPSHOT_MAGIC, SnapshotHeader, self._serde)
        try:
            if reader.header.repository != self._repository:
                raise RepositoryDamaged(
                    f"{snapshot} belongs to repository {reader.header.repository}, not to {self._repository}"
                )
            records = 0
            for block in reader.blocks():
                try:
                    self._state.load(block)
                except CONTRADICTIONS as error:
                    raise RepositoryDamaged(f"{snapshot}: contradicts itself: {error}") from error
                records += len(block)
            self.snapshot_bytes = self._files.size(snapshot).length
            return reader.header, records
        finally:
            reader.close()

    def _is_whole(self, partial: str) -> bool:
        try:
            reader = RecordReader(self._files, partial, SNAPSHOT_MAGIC, SnapshotHeader, self._serde)
        except RepositoryDamaged:
            return False
        try:
            reader.verify()
        except RepositoryDamaged:
            return False
        finally:
            reader.close()
        return True

    def _replay(
        self,
        chains: list[Chain],
        resolution: Resolution,
        on_replayed: Watcher | None,
    ) -> int:
        transactions = 0
        for id, payload, version, path in replay(self._files, chains, resolution):
            try:
                transaction = self._serde.decode(payload, version)
            except UNDECODABLE as error:
                raise RepositoryDamaged(f"{path}: transaction {id} does not decode: {error}") from error
            try:
                self._state.apply(id, transaction.millis, transaction.operations)
            except CONTRADICTIONS as error:
                raise RepositoryDamaged(f"{path}: transaction {id} contradicts what came before: {error}") from error
            if on_replayed is not None:
                on_replayed(transaction.operations, id <= resolution.durable)
            transactions += 1
        return transactions
