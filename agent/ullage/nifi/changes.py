"""Every call that changes a NiFi's disk: one place, so that tests can stop a reclaim at each of them."""

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple, Self

from ullage.holes import can_punch, punch_hole
from ullage.wholesync import can_sync_whole, sync_whole

PRIVATE: Final = 0o600


class Likeness(NamedTuple):
    """What a new file has of an old one: its owner and permissions, and its date; None: that of now."""

    user: int
    group: int
    mode: int
    modified_ns: int | None = None

    @classmethod
    def of(cls, found: os.stat_result) -> "Likeness":
        return cls(found.st_uid, found.st_gid, found.st_mode & 0o7777)


class Changes:
    """The calls themselves, on the operating system's files. None follows a link in a path's last name."""

    def write_new(
        self, path: str, pieces: Iterable[bytes], like: Likeness | None = None, *, is_synced: bool = True
    ) -> None:
        """A new file, durable once its folder is synced; FileExistsError. What could not be written whole is gone.

        `is_synced`: else its filesystem has to be synced.
        """
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE)
        try:
            with os.fdopen(descriptor, "wb") as file:
                for piece in pieces:
                    file.write(piece)
                file.flush()
                if like is not None:
                    self._own(descriptor, like)
                if is_synced:
                    os.fsync(descriptor)
        except OSError:
            with suppress(OSError):  # the first error is the one to tell
                os.unlink(path)
            raise

    def make_folder(self, path: str, like: Likeness | None = None) -> None:
        """One that may be there."""
        with suppress(FileExistsError):  # a call that was stopped made it
            os.mkdir(path, 0o700)
            if like is not None:
                self._own(path, like)

    def remove_folder(self, path: str) -> None:
        """One that is empty, or nothing."""
        with suppress(OSError):  # what somebody put there stays
            os.rmdir(path)

    def sync_folder(self, path: str) -> None:
        """Names in it are durable afterwards."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def open(self, path: str) -> int:
        """A descriptor of a file that is there, to change it by."""
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)

    def create(self, path: str, mode: int) -> int:
        """The same of a new file, or of one that is there."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, mode)

    def punch(self, descriptor: int, begin: int, end: int) -> None:
        punch_hole(descriptor, begin, end - begin)

    def can_punch(self, folder: str) -> bool:
        """Whether files there can have holes."""
        return can_punch(folder)

    def truncate(self, descriptor: int, length: int) -> None:
        os.ftruncate(descriptor, length)

    def write(self, descriptor: int, data: bytes, at: int) -> None:
        """All of it."""
        rest = memoryview(data)
        while rest:
            written = os.pwrite(descriptor, rest, at)
            rest, at = rest[written:], at + written

    def own(self, descriptor: int, user: int, group: int, mode: int) -> None:
        """As it was; whoever may not give files away keeps them."""
        self._own(descriptor, Likeness(user, group, mode))

    def _own(self, file: int | str, like: Likeness) -> None:
        with suppress(PermissionError):  # not being root
            os.chown(file, like.user, like.group)
        os.chmod(file, like.mode)
        if like.modified_ns is not None:
            os.utime(file, ns=(like.modified_ns, like.modified_ns))

    def date(self, descriptor: int, modified_ns: int) -> None:
        """As it was before: by a file's date, archives are cleaned and people look."""
        os.utime(descriptor, ns=(modified_ns, modified_ns))

    def sync(self, descriptor: int) -> None:
        os.fsync(descriptor)

    def open_filesystem(self, folder: str) -> int:
        """A descriptor to sync its filesystem by, from now on; -1: there each file has to be synced."""
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:  # it is not there: nothing is changed in it
            return -1
        if can_sync_whole(descriptor):
            return descriptor
        os.close(descriptor)
        return -1

    def sync_filesystem(self, descriptor: int) -> None:
        sync_whole(descriptor)

    def free(self, folder: str) -> tuple[int, int]:
        """Which disk a folder lies on, and the bytes that are free there."""
        found = os.statvfs(folder)
        return os.stat(folder).st_dev, found.f_bavail * found.f_frsize


class Durability:
    """Makes what is changed in some folders durable: at once for each filesystem, or, where that can't be relied on,
    file by file. A context; `finish` is the moment from which on everything is durable.
    """

    def __init__(self, changes: Changes, folders: Mapping[str, str]) -> None:
        self._changes = changes
        self._whole = {name: changes.open_filesystem(path) for name, path in folders.items()}
        self._folders: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self._whole.values():
            if descriptor >= 0:
                os.close(descriptor)

    def is_whole(self, name: str) -> bool:
        """Whether files there need not be synced one by one."""
        return self._whole[name] >= 0

    def file(self, name: str, descriptor: int) -> None:
        """It was changed."""
        if not self.is_whole(name):
            self._changes.sync(descriptor)

    def folder(self, name: str, path: str) -> None:
        """Names in it were changed."""
        if not self.is_whole(name):
            self._folders.add(path)

    def finish(self) -> None:
        """OSError: not everything may be durable."""
        for descriptor in self._whole.values():
            if descriptor >= 0:
                self._changes.sync_filesystem(descriptor)
        for folder in sorted(self._folders):
            self._changes.sync_folder(folder)
