"""The snapshot: every record as of one transaction id, written beside the old one and renamed over it.

Seed 003 deletes the old snapshot before the rename, which leaves a moment with none, and relies on a restore that
promotes a lone `.partial`. `rename` replaces atomically, so there is always one snapshot; the promotion stays for
repositories whose snapshot was lost by other means, and only of a `.partial` that proves whole.
"""

import os
from collections.abc import Sequence

from ullage.engine.model import Operation
from ullage.engine.wal.records import RecordHeader, write_records
from ullage.engine.wal.state import RecordDirectory

SNAPSHOT_MAGIC = b"ULLAGESN"
SNAPSHOT = "snapshot"
PARTIAL = "snapshot.partial"
SALT_KEY_BYTES = 16


class SnapshotHeader(RecordHeader, frozen=True, kw_only=True):
    """`last_id` is M: all transactions up to it are in here. `next_sequences`: where each partition's chain begins.
    `salt_key`: the log's secret, from which its files have their salts.
    """

    last_id: int
    created_millis: int
    next_sequences: dict[int, int]
    salt_key: bytes


def new_salt_key() -> bytes:
    """A secret for a log that has none yet."""
    return os.urandom(SALT_KEY_BYTES)


def publish(place: RecordDirectory) -> None:
    """Make a synced `.partial` the snapshot.

    snapshot (old)   .partial (synced)      crash: the old one counts, the partial is discarded
    snapshot (new)                          <- rename: commit point, durable after the directory's sync
    """
    place.files.rename(os.path.join(place.path, PARTIAL), os.path.join(place.path, SNAPSHOT))
    place.files.sync_directory(place.path)


def write_first_snapshot(
    place: RecordDirectory, millis: int, last_id: int = 0, records: Sequence[Operation] = ()
) -> None:
    """Begin a log, whose transactions are numbered after `last_id`: from here on, one without a snapshot is damaged
    rather than new.
    """
    header = place.header(
        SnapshotHeader, last_id=last_id, created_millis=millis, next_sequences={}, salt_key=new_salt_key()
    )
    blocks = [list(records)] if records else []
    write_records(place.files, os.path.join(place.path, PARTIAL), SNAPSHOT_MAGIC, header, blocks, place.serde)
    publish(place)
