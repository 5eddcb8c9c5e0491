"""The reserve: a ballast file that holds blocks which only removing work may spend.

A full disk must never stop what would empty it: removals, checkpoints and reclamation need room for a few log frames
and one snapshot. Creating paths fail on ENOSPC while the ballast still stands; the others give it up and go on.
"""

import os
import threading
from contextlib import closing

from ullage.engine.content.protocol import ContentStore
from ullage.engine.files import Files, length_of
from ullage.engine.oserrors import is_disk_full
from ullage.errors import DiskFull

NAME = "ballast"

SHARE_OF_VOLUME = 0.02
"""At most this share of the volume: a reserve must not be what fills a small disk."""

PAGE_BYTES = 4096

LOG_RESERVE_BYTES = 64 << 20
"""Log that must still fit on a full disk until removals and a checkpoint have freed some: a partition's share."""

CONTENT_RESERVE_BYTES = 64 << 20
"""Content that reclamation must still be able to write on a full volume: one output."""


class Reserve:
    """One ballast file in one directory."""

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._path = os.path.join(directory, NAME)
        self._directory = directory

    @property
    def size_bytes(self) -> int:
        """0 where there is none, or something else lies in its place."""
        return length_of(self._files, self._path) or 0

    def grow(self, wanted_bytes: int) -> bool:
        """Make the ballast at least this large (within its share of the volume); whether it now is.

        No room is no error, nor is something else in its place: the next checkpoint tries again.
        """
        limit = int(self._files.usage(self._directory).total_bytes * SHARE_OF_VOLUME)
        wanted = min(wanted_bytes, limit) // PAGE_BYTES * PAGE_BYTES
        have = self.size_bytes
        if have >= wanted:
            return True
        try:
            is_new = not self._files.exists(self._path)
            file = self._files.create(self._path) if is_new else self._files.open(self._path, writable=True)
            with closing(file):
                try:
                    file.allocate(have, wanted - have)
                except OSError:
                    file.truncate(have)  # all of it or nothing: a ballast says by its length how many blocks it holds
                    raise
        except FileNotFoundError:
            # Whatever somebody put there is not removed, and nobody waits for a reserve that can not be.
            return True
        except OSError as error:
            if not is_disk_full(error):
                raise
        return self.size_bytes >= wanted

    def spend(self) -> bool:
        """Give the ballast's blocks back to the volume; whether there were any."""
        if self.size_bytes == 0:
            return False
        with closing(self._files.open(self._path, writable=True)) as file:
            file.truncate(0)  # no sync: a ballast that a crash brings back is one again
        return True


class Reserves:
    """All ballast of a repository: in `directory` for its log and snapshots, in each container for reclamation.

    Thread-safe.
    """

    def __init__(self, files: Files, directory: str, partitions: int, content: ContentStore) -> None:
        self._partitions = partitions
        self.directory = directory
        self._of_log = Reserve(files, directory)
        self._content = content
        self._is_spent = False
        # Two checkpoints at a time end here: both would find no ballast, and the second could not create it.
        self._lock = threading.Lock()

    @property
    def is_spent(self) -> bool:
        """Whether new content must wait until there is room for the ballast again."""
        return self._is_spent

    def grow(self, snapshot_bytes: int) -> bool:
        """Have ballast everywhere: that of the log for the next snapshot too, which may be half as large again as the
        last one; whether that one is whole.
        """
        with self._lock:
            self._is_spent = not self._of_log.grow(snapshot_bytes * 3 // 2 + LOG_RESERVE_BYTES * self._partitions)
            self._content.grow_reserve()
            return not self._is_spent

    def spend(self) -> None:
        """Give the ballast's room to work that frees more; new content waits until there is room for both again.

        Once the log's is spent, the containers': where they share its volume, that is the room a filesystem wants for
        the directory entry and inode of a snapshot (XFS: for 64 inodes at a time).
        """
        with self._lock:
            self._is_spent = True
            if not self._of_log.spend():
                self._content.spend_reserve()


def is_full(error: Exception) -> bool:
    """Whether this is the error of a full disk, the engine's own or the system's."""
    return isinstance(error, DiskFull) or (isinstance(error, OSError) and is_disk_full(error))
