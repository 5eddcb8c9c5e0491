"""One partition of the log: a chain of append-only files, of which the last one is written.

Names are `<first transaction id it may hold>.wal`; each file's header carries the partition's running sequence number
and the last id of its predecessor, so that restore can demand an unbroken chain.

The partition's lock is the log's shared lock: an append holds its partition's, a rotation holds all of them.
"""

import os
import threading
from dataclasses import dataclass

import msgspec

from ullage_agent.engine.files import File, Files
from ullage_agent.engine.wal.format import (
    FILE_MAGIC,
    FORMAT_VERSION,
    VOID,
    LogHeader,
    pack_file_header,
    pack_frame,
)

PREALLOCATE_BYTES = 4 << 20
"""Blocks are reserved this far ahead: a sync that needs no new block skips the filesystem's journal.

Measured on ext4: 97 us instead of 149 us a commit at the median, 0.2 ms instead of 1.3 ms at the 99th percentile.
"""


@dataclass(frozen=True, slots=True)
class LogIdentity:
    """What every file of one log has in common."""

    repository: str
    serde: str
    serde_version: int


@dataclass(slots=True)
class SyncMark:
    """What one sync will cover: files retired by rotation, and the current file up to `offset`."""

    retired: list[File]
    file: File
    offset: int


class Partition:
    """The writable end of one chain. All methods but `sync` are called with `lock` held."""

    def __init__(self, files: Files, directory: str, number: int, identity: LogIdentity) -> None:
        self.number = number
        self.directory = directory
        self.lock = threading.Lock()
        self.sequence = 0
        self.last_id = 0
        self.offset = 0
        self.synced = 0
        self.broken = False
        self.has_frames = False
        self._files = files
        self._identity = identity
        self._file: File | None = None
        self._allocated = 0
        self._retired: list[File] = []
        self._retired_bytes = 0
        self.path = ""

    @property
    def is_open(self) -> bool:
        return self._file is not None

    @property
    def log_bytes(self) -> int:
        """Bytes of log since the last checkpoint deleted old files."""
        return self.offset + self._retired_bytes

    def prepare(self, first_id: int) -> tuple[File, str]:
        """Create the next file with its name made durable: the slow half of a rotation, without the lock.

        An existing name is never reused: it may be the file that another rotation has just prepared.
        """
        path = os.path.join(self.directory, f"{first_id:020d}.wal")
        while self._files.exists(path):
            first_id += 1
            path = os.path.join(self.directory, f"{first_id:020d}.wal")
        file = self._files.create(path)
        try:
            file.allocate(0, PREALLOCATE_BYTES)
            self._files.sync_directory(self.directory)
        except OSError:
            file.close()
            self._files.unlink(path)
            raise
        return file, path

    def rotate(self, file: File, path: str) -> None:
        """Continue in a prepared file. The old one is kept for the next sync.

        A file that never got a frame is no link of the chain: its successor takes over its sequence number.
        """
        if self._file is not None and self.has_frames:
            self._retired.append(self._file)
            self._retired_bytes += self.offset
            self.sequence += 1
        elif self._file is not None:
            self._file.close()
        else:
            self.sequence += 1
        header = LogHeader(
            format=FORMAT_VERSION,
            serde=self._identity.serde,
            serde_version=self._identity.serde_version,
            repository=self._identity.repository,
            partition=self.number,
            sequence=self.sequence,
            previous_last_id=self.last_id,
        )
        packed = pack_file_header(FILE_MAGIC, msgspec.msgpack.encode(header))
        self._allocated = PREALLOCATE_BYTES
        self.offset = 0
        self.synced = 0
        self.broken = False
        self._file = file
        self.path = path
        self.has_frames = False
        file.write(packed, 0)
        self.offset = len(packed)

    def reserve(self, count: int) -> None:
        """Make sure that the next `count` bytes have blocks; OSError (no room) leaves the file as it was."""
        needed = self.offset + count
        if needed <= self._allocated:
            return
        ahead = max(PREALLOCATE_BYTES, count)
        self._open_file().allocate(self.offset, ahead)
        self._allocated = self.offset + ahead

    def append(self, kind: bytes, id: int, durable: int, payload: bytes) -> None:
        """Write one frame. OSError: nothing of it remains, unless `broken` is set and the file must be left."""
        frame = pack_frame(kind, id, durable, self.synced, payload)
        try:
            self._open_file().write(frame, self.offset)
        except OSError:
            self._cut_back()
            raise
        self.offset += len(frame)
        self.last_id = id
        self.has_frames = True

    def append_void(self, id: int, durable: int) -> None:
        """Fill the id of a failed append, in a fresh file when the old one could not be mended."""
        if self.broken:
            self.rotate(*self.prepare(id))
        self.append(VOID, id, durable, b"")

    def _cut_back(self) -> None:
        """Remove what a failed write left, so that the next frame follows the last good one.

        frame n | half of frame n+1        <- a crash here: a torn tail, nothing was acknowledged
        frame n |                          <- truncated and synced: as if it had never been tried
        """
        file = self._open_file()
        try:
            file.truncate(self.offset)
            file.sync()
        except OSError:
            # The partial frame stays behind; restore ignores it, because the next file's header names the last
            # id of this one.
            self.broken = True
        else:
            self._allocated = self.offset

    def begin_sync(self) -> SyncMark:
        """What a sync that starts now has to cover."""
        retired, self._retired = self._retired, []
        return SyncMark(retired, self._open_file(), self.offset)

    def sync(self, mark: SyncMark) -> None:
        """Make the mark durable (one caller at a time, without the lock held); OSError: the log must stop."""
        for file in mark.retired:
            file.sync()
            file.close()
        if mark.offset > self.synced or mark.retired:
            mark.file.sync()
            with self.lock:
                if mark.file is self._file:
                    self.synced = mark.offset

    def inherit(self, count: int) -> None:
        """Account for log files of earlier processes that the next checkpoint will delete."""
        self._retired_bytes += count

    def forget_retired(self) -> None:
        """Old files were deleted by a checkpoint."""
        self._retired_bytes = 0

    def close(self) -> None:
        """Release the descriptors."""
        for file in self._retired:
            file.close()
        self._retired = []
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open_file(self) -> File:
        assert self._file is not None, f"partition {self.number} is not open for append"
        return self._file
