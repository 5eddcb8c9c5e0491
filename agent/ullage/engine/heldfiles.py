"""The filesystem as an open repository has it: from its close on, nothing is opened or changed through it any more.

    a program keeps a session beyond the close | another process opens the repository | the session's commit

would otherwise make a content file beside those of the new owner, without the lock, and leave it there as an orphan; a
reclamation would remove files that the new owner counts on. Whatever is still at work then is refused at its next step
on the disk, at the one place that all steps pass. Files that are open are closed by whoever has opened them.
"""

from ullage.engine.files import DiskUsage, File, Files, FileSize
from ullage.engine.withdrawn import CLOSED
from ullage.errors import NotRestored


class HeldFiles:
    """`files` and the lock on the repository, until `close`; NotRestored afterwards."""

    def __init__(self, files: Files, lock: File | None, whole: "HeldFiles | None" = None) -> None:
        """`whole`: it ends with that one."""
        self._files = files
        self._lock = lock
        self._whole = whole or self
        self.is_over = False

    @property
    def _held(self) -> Files:
        if self._whole.is_over:
            raise NotRestored(CLOSED)
        return self._files

    def without_links_below(self, folder: str) -> Files:
        return HeldFiles(self._held.without_links_below(folder), None, self._whole)

    def create(self, path: str) -> File:
        return self._held.create(path)

    def open(self, path: str, *, writable: bool = False) -> File:
        return self._held.open(path, writable=writable)

    def open_descriptor(self, path: str) -> int:
        return self._held.open_descriptor(path)

    def exists(self, path: str) -> bool:
        return self._held.exists(path)

    def size(self, path: str) -> FileSize:
        return self._held.size(path)

    def list_directory(self, path: str) -> list[str]:
        return self._held.list_directory(path)

    def make_directory(self, path: str) -> None:
        self._held.make_directory(path)

    def rename(self, source: str, target: str) -> None:
        self._held.rename(source, target)

    def unlink(self, path: str) -> None:
        self._held.unlink(path)

    def sync_directory(self, path: str) -> None:
        self._held.sync_directory(path)

    def usage(self, path: str) -> DiskUsage:
        return self._held.usage(path)

    def device(self, path: str) -> int:
        return self._held.device(path)

    def is_mount_point(self, path: str) -> bool:
        return self._held.is_mount_point(path)

    def overwrites_in_place(self, path: str) -> bool:
        return self._held.overwrites_in_place(path)

    def can_punch(self, directory: str) -> bool:
        return self._held.can_punch(directory)

    def lock(self, directory: str, *, is_shared: bool = False) -> File:
        return self._held.lock(directory, is_shared=is_shared)

    def close(self) -> None:
        """From now on everything is refused, and only then the lock goes: the next owner may wait for it."""
        self.is_over = True
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.close()
