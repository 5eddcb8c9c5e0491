"""Reading the snapshot and the log of an open repository from the disk, as its next start will.

What they hold is in memory too, so damage in them harms nobody yet; the next start would stop at it, or take the last
frames of the log for a torn tail. Nothing is changed here, and nothing
decoded: what has a sound checksum stops no start.
"""

import os
from array import array
from collections.abc import Iterator, Mapping
from contextlib import closing

from ullage.engine.files import File
from ullage.engine.wal.format import (
    FILE_MAGIC,
    FRAME_HEADER_BYTES,
    HEADER_BYTES_MAX,
    TRANSACTION,
    LogHeader,
    decode_header,
    unpack_file_header,
)
from ullage.engine.wal.partition import log_paths, partition_directory
from ullage.engine.wal.records import RecordReader
from ullage.engine.wal.restore import last_used_byte, read_frames
from ullage.engine.wal.serde import require_serde
from ullage.engine.wal.snapshot import SNAPSHOT, SNAPSHOT_MAGIC, SnapshotHeader
from ullage.engine.wal.state import RecordDirectory
from ullage.errors import FormatTooNew, RepositoryDamaged

WAY_OUT = "; memory still has all of it: `ullage checkpoint` writes it anew, before the repository is closed"

UNUSABLE = (RepositoryDamaged, FormatTooNew, OSError)
"""What a file that cannot be read may raise."""


def problems_on_disk(place: RecordDirectory, ends: Mapping[str, int], durable: int) -> list[str]:
    """What a start would stop at, or lose. `ends`: up to where the files that are written now are durable, by path;
    every transaction up to `durable` must be there. The caller sees to it that no checkpoint changes the files.
    """
    reading = _Reading(place, ends)
    try:
        header = reading.snapshot()
        if header is not None:
            reading.log(header, durable)
    except UNUSABLE as error:
        reading.problems.append(str(error))
    return [problem + WAY_OUT for problem in reading.problems]


class _Reading:
    """One reading of all of it; it goes on behind each problem where it can."""

    def __init__(self, place: RecordDirectory, ends: Mapping[str, int]) -> None:
        self.problems: list[str] = []
        self._place = place
        self._ends = ends
        self._ids: array[int] = array("Q")

    def snapshot(self) -> SnapshotHeader | None:
        """Its header; None where that cannot be read, for then nobody can say which log files count."""
        place = self._place
        path = os.path.join(place.path, SNAPSHOT)
        _forget_cached(place, path)
        with closing(RecordReader(place.files, path, SNAPSHOT_MAGIC, SnapshotHeader, place.serde)) as reader:
            if reader.header.repository != place.repository:
                self.problems.append(f"{path} belongs to repository {reader.header.repository}")
                return None
            try:
                reader.verify()
            except UNUSABLE as error:
                self.problems.append(str(error))
            return reader.header

    def log(self, header: SnapshotHeader, durable: int) -> None:
        """Every file that a start would read."""
        unseen = set(self._ends)
        for number, first_sequence in sorted(header.next_sequences.items()):
            for path in log_paths(self._place.files, partition_directory(self._place.path, number)):
                unseen.discard(path)
                try:
                    self.problems += self._file(path, number, first_sequence)
                except UNUSABLE as error:
                    self.problems.append(str(error))
        self.problems += [f"{path} is missing" for path in sorted(unseen)]
        # Where a file is damaged, ids are missing for that reason.
        if not self.problems:
            self.problems += self._gaps(header.last_id, durable)

    def _file(self, path: str, number: int, first_sequence: int) -> Iterator[str]:
        place = self._place
        end = self._ends.get(path)
        with closing(place.files.open(path)) as file:
            # What is durable only: behind it somebody may be writing right now.
            limit = file.size().length if end is None else end
            file.drop_cache(0, limit)
            found = unpack_file_header(FILE_MAGIC, file.read(min(limit, HEADER_BYTES_MAX), 0))
            if found is None:
                yield f"{path}: the file header at offset 0 is damaged"
                return
            header = decode_header(found[0], LogHeader, path)
            require_serde(place.serde, header.serde, header.serde_version, path)
            if header.repository != place.repository or header.partition != number:
                yield f"{path} belongs to partition {header.partition} of repository {header.repository}"
            elif header.sequence >= first_sequence:
                yield from self._frames(file, found[1], header.salt_number, limit, path)

    def _frames(self, file: File, start: int, salt: int, limit: int, path: str) -> Iterator[str]:
        end = start
        for offset, frame, payload in read_frames(file, start, salt):
            if offset >= limit:
                break  # not durable yet
            if frame.kind == TRANSACTION:
                self._ids.append(frame.id)
            end = offset + FRAME_HEADER_BYTES + len(payload)
        # Behind the last frame of a file that has a successor lie blocks that were reserved, and not needed.
        if end < limit and (path in self._ends or last_used_byte(file, end) > end):
            yield f"{path}: the frame at offset {end} is damaged"

    def _gaps(self, snapshot_id: int, durable: int) -> Iterator[str]:
        """Each transaction is there once, from the snapshot's last one on."""
        expected = snapshot_id + 1
        for id in sorted(id for id in self._ids if id > snapshot_id):
            if id != expected:
                yield f"{self._place.path}: transaction {expected} is followed by {id} in the log"
                return
            expected += 1
        if expected <= durable:
            yield f"{self._place.path}: transaction {expected} is missing in the log, which was written up to {durable}"


def _forget_cached(place: RecordDirectory, path: str) -> None:
    """Else a sound copy in the page cache would hide what the disk has."""
    with closing(place.files.open(path)) as file:
        file.drop_cache(0, file.size().length)
