"""The reserve: a ballast file that holds blocks which only removing work may spend.

A full disk must never stop what would empty it: removals, checkpoints and reclamation need room for a few log frames
and one snapshot. Creating paths fail on ENOSPC while the ballast still stands; the others give it up and go on.
"""

import os

from ullage_agent.engine.files import File, Files, is_disk_full

NAME = "ballast"

SHARE_OF_VOLUME = 0.02
"""At most this share of the volume: a reserve must not be what fills a small disk."""

PAGE_BYTES = 4096


class Reserve:
    """One ballast file in one directory."""

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._path = os.path.join(directory, NAME)
        self._directory = directory

    @property
    def size_bytes(self) -> int:
        return self._files.size(self._path).length if self._files.exists(self._path) else 0

    def grow(self, wanted_bytes: int) -> bool:
        """Make the ballast at least this large (within its share of the volume); whether it now is.

        No room is no error: the next checkpoint tries again.
        """
        limit = int(self._files.usage(self._directory).total_bytes * SHARE_OF_VOLUME)
        wanted = min(wanted_bytes, limit) // PAGE_BYTES * PAGE_BYTES
        have = self.size_bytes
        if have >= wanted:
            return True
        try:
            is_new = not self._files.exists(self._path)
            file = self._files.create(self._path) if is_new else self._files.open(self._path, writable=True)
            try:
                _allocate(file, have, wanted)
            finally:
                file.close()
        except OSError as error:
            if not is_disk_full(error):
                raise
        return self.size_bytes >= wanted

    def spend(self) -> bool:
        """Give the ballast's blocks back to the volume; whether there were any."""
        if self.size_bytes == 0:
            return False
        file = self._files.open(self._path, writable=True)
        try:
            file.truncate(0)
        finally:
            file.close()
        return True


def _allocate(file: File, have: int, wanted: int) -> None:
    """All of it or nothing: a ballast says by its length how many blocks it holds."""
    try:
        file.allocate(have, wanted - have)
    except OSError:
        file.truncate(have)
        raise
