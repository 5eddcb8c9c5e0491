"""Reading a log back: the snapshot, the chains of log files, and the replay (as NiFi's `MinimalLockingWriteAheadLog`).

Changes one thing on disk: a lone `.partial` that proves whole becomes the snapshot, any other one is removed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import closing, suppress

from ullage.engine.model import Operation
from ullage.engine.wal.format import UNDECODABLE
from ullage.engine.wal.partition import partition_numbers
from ullage.engine.wal.records import RecordReader
from ullage.engine.wal.restore import Chain, RestoreReport, replay, resolve, scan_partition
from ullage.engine.wal.serde import SerDe, Undecodable, record_count
from ullage.engine.wal.snapshot import PARTIAL, SNAPSHOT, SNAPSHOT_MAGIC, SnapshotHeader, new_salt_key, publish
from ullage.engine.wal.state import UNUSABLE, LoggedState, RecordDirectory, RecordUnusable, log_name
from ullage.errors import RepositoryDamaged

Watcher = Callable[[Sequence[Operation]], None]


def load_log(
    place: RecordDirectory, state: LoggedState, partitions: int, on_replayed: Watcher | None
) -> tuple[RestoreReport, list[Chain], bytes]:
    """Bring back into the state what a directory holds; `partitions` is how many it is to have from now on. The log's
    salt key comes last.
    """
    header, records, length = _load_snapshot(place, state)
    state.end_load()
    numbers = partition_numbers(place.files, place.path)
    # Without a snapshot only a log from its very first file on is whole.
    sequences = header.next_sequences if header else dict.fromkeys(numbers, 1)
    salt_key = header.salt_key if header else None
    chains = [scan_partition(place, number, sequences.get(number), salt_key) for number in numbers]
    lost = set(sequences) - set(numbers)
    if lost:
        raise RepositoryDamaged(
            f"{place.path}: log partitions {sorted(lost)}, which the snapshot needs, are missing; restore them from a "
            "backup of this volume"
        )
    report = resolve(chains, header.last_id if header else 0)
    if header is None and report.last_id == 0:
        raise RepositoryDamaged(
            f"{place.path} has neither a snapshot nor a log from the first transaction on: restore it from a backup; "
            "nothing was removed"
        )
    # Another number of partitions than the snapshot knows: the snapshot of an unclean start begins their chains.
    report.clean = report.clean and header is not None and set(sequences) == set(range(partitions))
    # The snapshot of an unclean start carries what was set aside, so that the next start is an ordinary one.
    report.clean = report.clean and not state.is_careful
    report.snapshot_records, report.snapshot_bytes = records, length
    report.snapshot_millis = header.created_millis if header else 0
    # After a clean end all was proved when it was closed, and nothing is to be read again.
    _replay(place, state, chains, report, None if report.clean else on_replayed)
    if state.end_replay(report.last_id):
        report.clean = False
    return report, chains, salt_key or new_salt_key()


def _load_snapshot(place: RecordDirectory, state: LoggedState) -> tuple[SnapshotHeader | None, int, int]:
    """Snapshot, partial, both or none, as in NiFi, with the difference that a lone partial must prove whole; how many
    records and bytes the snapshot has.
    """
    files = place.files
    # An earlier process may not have come to it, and what is removed from now on relies on these names.
    files.sync_directory(place.path)
    snapshot = os.path.join(place.path, SNAPSHOT)
    partial = os.path.join(place.path, PARTIAL)
    has_snapshot = files.exists(snapshot)
    # Before anything is changed here: the directory may be a volume, and the wrong one.
    if found := snapshot if has_snapshot else partial if files.exists(partial) else "":
        _require_ours(place, found, is_certain=has_snapshot)
    if files.exists(partial) and has_snapshot:
        # A checkpoint that did not come to its rename: the logs that it would have covered are all there.
        files.unlink(partial)
    elif files.exists(partial) and _is_whole(place, partial):
        publish(place)
        has_snapshot = True
    if not has_snapshot:
        return None, 0, 0
    with closing(_reader(place, snapshot)) as reader:
        return reader.header, _load_blocks(reader, state), files.size(snapshot).length


def _load_blocks(reader: RecordReader[SnapshotHeader], state: LoggedState) -> int:
    records = 0
    if state.is_careful:
        for found, place in reader.blocks_each():
            state.replay_each(0, 0, found, place)
            records += len(found)
        return records
    for block in reader.blocks():
        try:
            state.load(block)
        except UNUSABLE as error:
            raise RecordUnusable(f"{reader.path}: contradicts itself: {error}") from error
        records += record_count(block)
    return records


def _require_ours(place: RecordDirectory, path: str, *, is_certain: bool) -> None:
    """RepositoryDamaged if it is another repository's; also if it has no header, where `is_certain` to have one."""
    try:
        with closing(_reader(place, path)) as reader:
            repository = reader.header.repository
    except RepositoryDamaged:
        if is_certain:
            raise
        return
    if repository != place.repository:
        raise RepositoryDamaged(
            f"{path} belongs to repository {repository}, not to {place.repository}: check which volume is mounted at "
            f"{place.path}; nothing was changed"
        )


def _is_whole(place: RecordDirectory, partial: str) -> bool:
    # What does not prove whole is no snapshot; where it was the only one, the chain of logs decides.
    with suppress(RepositoryDamaged), closing(_reader(place, partial)) as reader:
        reader.verify()
        return True
    return False


def _reader(place: RecordDirectory, path: str) -> RecordReader[SnapshotHeader]:
    return RecordReader(place.files, path, SNAPSHOT_MAGIC, SnapshotHeader, place.serde)


def _replay(
    place: RecordDirectory, state: LoggedState, chains: list[Chain], report: RestoreReport, on_replayed: Watcher | None
) -> None:
    for id, payload, version, path in replay(place.files, chains, report):
        operations: Sequence[Operation]
        if state.is_careful:
            millis, found = place.serde.decode_each(payload, version)
            state.replay_each(id, millis, found, f"transaction {id} in {log_name(path)}")
            operations = [each for each in found if not isinstance(each, Undecodable)]
        else:
            operations = _replay_whole(place.serde, state, id, payload, version, path)
        if on_replayed is not None:
            on_replayed(operations)
        report.transactions += 1


def _replay_whole(
    serde: SerDe, state: LoggedState, id: int, payload: bytes, version: int, path: str
) -> Sequence[Operation]:
    try:
        transaction = serde.decode(payload, version)
    except UNDECODABLE as error:
        raise RecordUnusable(f"{path}: transaction {id} does not decode: {error}") from error
    try:
        state.replay(id, transaction.millis, transaction.operations)
    except UNUSABLE as error:
        raise RecordUnusable(f"{path}: transaction {id} contradicts what came before: {error}") from error
    return transaction.operations
